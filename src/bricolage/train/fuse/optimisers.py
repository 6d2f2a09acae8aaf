"""Optimisers over lanes: `torch.optim`'s formulas on one tensor [lanes, parameters], with a hyper-parameter for each lane.

Values that all lanes share are numbers, others vectors [lanes, 1] (Wang et al., MLSys 2021). SGD with momentum and Nesterov's
(Sutskever et al., 2013), Adam (Kingma and Ba, 2015), AdamW (Loshchilov and Hutter, 2019).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from bricolage.train.step.spec import Optimiser

if TYPE_CHECKING:
    import torch

Value: TypeAlias = "float | torch.Tensor"


class LaneOptimiser:
    """Updates [lanes, parameters] in place, each lane by its own optimiser of one kind."""

    def __init__(self, specs: Sequence[Optimiser], parameters: torch.Tensor) -> None:
        """`specs` by lane, of one kind; `parameters` [lanes, parameters]."""
        import torch

        self.specs = list(specs)
        self.kind = specs[0].kind
        self._steps = [0] * len(specs)
        two = self.kind != "sgd"
        moved = two or any(spec.momentum for spec in specs)
        self.first = torch.zeros_like(parameters) if moved else None
        """Momentum, or Adam's first moment."""
        self.second = torch.zeros_like(parameters) if two else None

    def with_state(self, convert: Callable[[torch.Tensor], torch.Tensor]) -> LaneOptimiser:
        """The same with other tensors in the place of its state."""
        twin = copy.copy(self)
        twin.first = None if self.first is None else convert(self.first)
        twin.second = None if self.second is None else convert(self.second)
        return twin

    def keep(self, rows: Sequence[int]) -> None:
        """Goes on with these lanes alone."""
        self.specs = [self.specs[row] for row in rows]
        self._steps = [self._steps[row] for row in rows]
        self.first = None if self.first is None else self.first[list(rows)]
        self.second = None if self.second is None else self.second[list(rows)]

    def update(self, parameters: torch.Tensor, gradients: torch.Tensor, rows: Sequence[int] | None = None) -> None:
        """One step of all lanes, or of some."""
        if rows is not None:
            self._update_some(parameters, gradients, list(rows))
            return
        self._steps = [step + 1 for step in self._steps]
        if self.kind == "sgd":
            self._sgd(parameters, gradients)
        else:
            self._adam(parameters, gradients)

    def _update_some(self, parameters: torch.Tensor, gradients: torch.Tensor, rows: list[int]) -> None:
        if not rows:
            return
        part = LaneOptimiser.__new__(LaneOptimiser)
        part.specs, part.kind, part._steps, part.first, part.second = (
            self.specs,
            self.kind,
            self._steps,
            self.first,
            self.second,
        )
        part.keep(rows)
        weights = parameters[rows]
        part.update(weights, gradients[rows])
        parameters[rows] = weights
        for row, steps in zip(rows, part._steps, strict=True):
            self._steps[row] = steps
        for whole, subset in ((self.first, part.first), (self.second, part.second)):
            if whole is not None and subset is not None:
                whole[rows] = subset

    def _sgd(self, parameters: torch.Tensor, gradients: torch.Tensor) -> None:
        import torch

        specs = self.specs
        lr, decay = (
            self._of([spec.lr for spec in specs], gradients),
            self._of([spec.weight_decay for spec in specs], gradients),
        )
        moved = self._of([spec.momentum for spec in specs], gradients)
        change = _plus(gradients, decay, parameters) if _any(decay) else gradients
        if self.first is not None:
            self.first.mul_(moved).add_(change)
            nesterov = [spec.nesterov for spec in specs]
            if all(nesterov):
                change = _plus(change, moved, self.first)
            elif any(nesterov):
                chosen = torch.tensor(nesterov).view(-1, 1)
                change = torch.where(chosen, _plus(change, moved, self.first), self.first)
            else:
                change = self.first
        _add(parameters, _negative(lr), change)

    def _adam(self, parameters: torch.Tensor, gradients: torch.Tensor) -> None:
        assert self.first is not None and self.second is not None
        specs, steps = self.specs, self._steps
        decays = [spec.weight_decay for spec in specs]
        if any(decays) and self.kind == "adamw":
            parameters.mul_(self._of([1.0 - spec.lr * spec.weight_decay for spec in specs], gradients))
        elif any(decays):
            gradients = _plus(gradients, self._of(decays, gradients), parameters)
        self.first.lerp_(gradients, self._of([1.0 - spec.betas[0] for spec in specs], gradients))
        kept = self._of([spec.betas[1] for spec in specs], gradients)
        if isinstance(kept, float):
            self.second.mul_(kept).addcmul_(gradients, gradients, value=1.0 - kept)
        else:
            added = self._of([1.0 - spec.betas[1] for spec in specs], gradients)
            self.second.mul_(kept).add_(gradients.square().mul_(added))
        roots = self._of(
            [(1.0 - lane_spec.betas[1] ** at) ** 0.5 for lane_spec, at in zip(specs, steps, strict=True)], gradients
        )
        below = self.second.sqrt().div_(roots).add_(self._of([spec.eps for spec in specs], gradients))
        sizes = self._of(
            [-lane_spec.lr / (1.0 - lane_spec.betas[0] ** at) for lane_spec, at in zip(specs, steps, strict=True)],
            gradients,
        )
        if isinstance(sizes, float):
            parameters.addcdiv_(self.first, below, value=sizes)
        else:
            parameters.addcmul_(self.first.div(below), sizes)

    def _of(self, values: Sequence[float], like: torch.Tensor) -> Value:
        """One number where lanes agree; a column otherwise."""
        import torch

        if len(set(values)) == 1:
            return float(values[0])
        return torch.tensor(values, dtype=like.dtype).view(-1, 1)


def _any(value: Value) -> bool:
    return not isinstance(value, float) or value != 0.0


def _negative(value: Value) -> Value:
    return -value


def _plus(base: torch.Tensor, factor: Value, other: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.add(base, other, alpha=factor) if isinstance(factor, float) else torch.addcmul(base, factor, other)


def _add(base: torch.Tensor, factor: Value, other: torch.Tensor) -> None:
    if isinstance(factor, float):
        base.add_(other, alpha=factor)
    else:
        base.addcmul_(other, factor)
