"""The guard of fused training: the first steps of a group as one, compared with each of its lanes trained alone.

Compared are losses, gradients, weights after the update, buffers and where the random numbers stand. So that rounding does not add
up, each lane alone is updated by the gradients of the group, which were compared before. What differs by more than rounding's
usual share of a tensor's largest element is compared with what rounding really does to it: the lane is trained again from
weights changed in their last digit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from bricolage.errors import BricolageError, NotFusible
from bricolage.train.fuse.alone import Alone
from bricolage.train.fuse.lane_groups import Group
from bricolage.train.fuse.lanes import Fused, Observed
from bricolage.train.fuse.sweep import Lane
from bricolage.train.fuse.sweep_data import count_steps
from bricolage.train.step.data import Data

if TYPE_CHECKING:
    import torch

_STEPS = 3
_ENOUGH_S = 0.4
"""Of all lanes alone; where three steps take longer, lanes are compared in their first."""
_MOST_BYTES = 1 << 26
"""Of the group's weights, beyond which its first step alone is kept and compared."""
_USUAL = 1024
"""Units in the last place of a tensor's largest element which arithmetic in another order may move the others by."""
_TRIES = 3
_MORE = 10.0
"""Times what rounding was seen to do that is still taken for rounding."""

Kind: TypeAlias = Literal["loss", "gradient", "update", "buffer"]
Key: TypeAlias = tuple[int, Kind, str]
"""Number of the step, what of it, and of which weight or buffer; empty for the loss."""


def compare_lanes(data: Data, group: Group) -> dict[str, str]:
    """Trains the group as one and each of its lanes alone for some steps.

    Returns:
        The ways in which operators were computed, by node.

    Raises:
        NotFusible: something differs by more than rounding, or the group cannot be computed as one. The reason names the tensor.
        BadTrainingCode: the training step's functions fail.
    """
    try:
        fused = Fused(data, group.lanes, group.traced)
        steps = min(_STEPS, *(count_steps(lane, data) for lane in group.lanes))
        seen = [fused.observed()]
        if sum(weight.numel() * weight.element_size() for weight in seen[0].weights.values()) <= _MOST_BYTES:
            seen += [fused.observed() for _ in range(steps - 1)]
    except BricolageError:
        raise
    except Exception as error:  # whatever PyTorch says of operators on several lanes
        words = str(error).strip().splitlines()
        reason = f"as one, its step fails with {type(error).__name__}: {words[0] if words else ''}"
        raise NotFusible(reason=reason) from error
    ran = len(seen)
    for row, lane in enumerate(fused.lanes):
        began = time.perf_counter()
        alone = _Followed(data, lane, seen, row)
        reason = alone.differs()
        if not reason and len(seen) == ran and not alone.ended and not _same(alone.random, fused.random_state(row)):
            reason = "draws other random numbers"
        if reason:
            raise NotFusible(reason=f"as one, lane '{lane.name}' {reason}")
        if row == 0 and (time.perf_counter() - began) * len(fused.lanes) > _ENOUGH_S:
            seen = seen[:1]  # where random numbers stand is known after the last step only
    return {name: choice.way for name, choice in fused.choices.items() if choice.ms}


@dataclass(frozen=True)
class _Difference:
    key: Key
    size: float
    """Largest absolute one; infinite where shapes or kinds differ."""
    share: float
    """Relative to the tensor's largest element."""


class _Followed:
    """A lane alone, that follows one of a group."""

    def __init__(self, data: Data, lane: Lane, seen: Sequence[Observed], row: int) -> None:
        self._data, self._lane, self._seen, self._row = data, lane, seen, row
        self.random: torch.Tensor | None = None
        self.ended = False
        """Whether its loss was not finite, which ends it in the group as well."""

    def differs(self) -> str:
        """What differs by more than rounding; empty where nothing does."""
        wanted = self._run(0)
        suspects = [difference for key, tensor in wanted.items() if (difference := self._off(key, tensor)) is not None]
        if not suspects:
            return ""
        again = self._run(0)
        for difference in suspects:
            size = _apart(again.get(difference.key), wanted[difference.key])
            if size > _usual(wanted[difference.key]):
                what = _describe_key(difference.key)
                return f"has another {what} each time that it is trained alone: it rests on more than its seed"
        noise = dict.fromkeys((suspect.key for suspect in suspects), 0.0)
        for seed in range(1, _TRIES + 1):
            moved = self._run(seed)
            for key in noise:
                noise[key] = max(noise[key], _apart(moved.get(key), wanted[key]))
        for difference in suspects:
            if difference.size > _MORE * noise[difference.key]:
                word = (
                    f"by {difference.share:.0e} of its largest element"
                    if math.isfinite(difference.size)
                    else "in its shape"
                )
                return f"differs from training alone in the {_describe_key(difference.key)} {word}"
        return ""

    def _run(self, seed: int) -> dict[Key, torch.Tensor]:
        """What is to be compared of each step; from weights changed in their last digit where there is a seed."""
        import torch

        alone = Alone(self._data, self._lane)
        named = dict(alone.module.named_parameters())
        if seed:
            random = torch.Generator().manual_seed(seed)
            with torch.no_grad():
                for parameter in named.values():
                    if parameter.is_floating_point():
                        signs = (
                            torch.randint(0, 2, parameter.shape, generator=random)
                            .to(parameter.dtype)
                            .mul_(2.0)
                            .sub_(1.0)
                        )
                        parameter.addcmul_(parameter, signs, value=torch.finfo(parameter.dtype).eps)
        step_tensors: dict[Key, torch.Tensor] = {}
        with alone.own_numbers():
            for step, seen in enumerate(self._seen):
                loss = alone.differentiate()
                step_tensors[step, "loss", ""] = torch.tensor(loss, dtype=seen.losses.dtype)
                if not math.isfinite(loss):
                    self.ended = True
                    break
                for name, parameter in named.items():
                    if parameter.grad is not None:
                        step_tensors[step, "gradient", name] = parameter.grad.clone()
                        given = seen.gradients.get(name)
                        if given is not None:
                            parameter.grad = given[self._row].clone()
                alone.update()
                for name, parameter in named.items():
                    step_tensors[step, "update", name] = parameter.detach().clone()
                for name, buffer in alone.module.named_buffers():
                    step_tensors[step, "buffer", name] = buffer.detach().clone()
        self.random = alone.random
        return step_tensors

    def _off(self, key: Key, wanted: torch.Tensor) -> _Difference | None:
        """How far the group is from it; None if that is what rounding may do to any tensor."""
        group_tensor = self._find_tensor(key)
        size = _apart(group_tensor, wanted)
        return None if size <= _usual(wanted) else _Difference(key, size, size / max(_largest(wanted), 1e-300))

    def _find_tensor(self, key: Key) -> torch.Tensor | None:
        step, kind, name = key
        seen = self._seen[step]
        if kind == "loss":
            return seen.losses[self._row]
        stacked_tensor = {"gradient": seen.gradients, "update": seen.weights, "buffer": seen.buffers}[kind].get(name)
        return None if stacked_tensor is None else stacked_tensor[self._row]


def _describe_key(key: Key) -> str:
    step, kind, name = key
    words = {
        "loss": "loss",
        "gradient": f"gradient of '{name}'",
        "update": f"update of '{name}'",
        "buffer": f"buffer '{name}'",
    }
    return f"{words[kind]} in step {step + 1}"


def _apart(found: torch.Tensor | None, wanted: torch.Tensor) -> float:
    """The largest difference of two elements, 0 for two that are the same infinity or no numbers."""
    import torch

    if found is None or found.shape != wanted.shape or found.dtype != wanted.dtype:
        return math.inf
    if not wanted.numel() or torch.equal(found, wanted):
        return 0.0
    kind = torch.complex128 if wanted.is_complex() else torch.float64
    a, b = found.to(kind), wanted.to(kind)
    same = (a == b) | (a.isnan() & b.isnan())
    apart = torch.where(same, torch.zeros_like(a), a - b).abs()
    return float(torch.nan_to_num(apart, nan=math.inf).max())


def _largest(tensor: torch.Tensor) -> float:
    import torch

    if not tensor.numel() or tensor.dtype == torch.bool:
        return 1.0
    return float(torch.nan_to_num(tensor.detach(), 0.0, 0.0, 0.0).abs().max())


def _usual(tensor: torch.Tensor) -> float:
    """The difference that rounding may make: none in whole numbers."""
    import torch

    if not (tensor.is_floating_point() or tensor.is_complex()):
        return 0.0
    eps = torch.finfo(tensor.dtype).eps
    return min(_USUAL * float(eps), math.sqrt(eps)) * _largest(tensor)


def _same(one: torch.Tensor | None, other: torch.Tensor) -> bool:
    import torch

    return one is not None and torch.equal(one, other)
