"""Policies that learn by gradient: REINFORCE (Williams, 1992) with rewards that are compared with their mean, or PPO (Schulman et
al., 2017). What decides, and what a decision is worth, is its users'."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    import torch

GradientMethod = Literal["reinforce", "ppo"]


@dataclass(frozen=True)
class GradientOptions:
    """Raises ValueError where nothing would be learned.

    method: how. epochs: of PPO on the samples of a round. clip: of PPO. rate: of Adam."""

    method: GradientMethod = "ppo"
    epochs: int = 3
    clip: float = 0.2
    rate: float = 3e-3

    def __post_init__(self) -> None:
        if self.epochs < 1 or not self.rate > 0.0:
            raise ValueError("learning needs an epoch and a rate above 0")


class PolicyGradient:
    """Adam over the parameters of a policy, and the mean of its rewards."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], options: GradientOptions) -> None:
        import torch

        self._parameters, self._options = list(parameters), options
        self._optimiser = torch.optim.Adam(self._parameters, options.rate)
        self._mean: float | None = None

    def compare_rewards(self, reward: np.ndarray) -> torch.Tensor:
        """How much better than usual each sample was, [samples], in standard deviations of this round."""
        import torch

        now = float(reward.mean())
        self._mean = now if self._mean is None else 0.9 * self._mean + 0.1 * now
        return torch.tensor((reward - self._mean) / (reward.std() + 1e-3), dtype=torch.float32)

    def improve(
        self, score: Callable[[], tuple[torch.Tensor, torch.Tensor]], gain: torch.Tensor, *, entropy_weight: float
    ) -> None:
        """Makes decisions that gained more probable.

        Args:
            score: logarithms of the probabilities of the decisions that were sampled [samples, decisions], as the policy is now,
                and its entropy.
            gain: of each sample.
            entropy_weight: how much the entropy counts.
        """
        import torch

        with torch.no_grad():
            before = score()[0]
        for _ in range(self._options.epochs if self._options.method == "ppo" else 1):
            now, entropy = score()
            loss = self._compute_loss(now, before, gain) - entropy_weight * entropy.mean()
            self._optimiser.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
            self._optimiser.step()

    def _compute_loss(self, now: torch.Tensor, before: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
        """REINFORCE's, or PPO's with its ratio clipped; means over decisions, which are columns."""
        import torch

        if self._options.method == "reinforce":
            return -(gain * now.mean(dim=1)).mean()
        ratio = torch.exp(now - before)
        clipped = ratio.clamp(1.0 - self._options.clip, 1.0 + self._options.clip)
        return -torch.minimum(ratio * gain[:, None], clipped * gain[:, None]).mean()
