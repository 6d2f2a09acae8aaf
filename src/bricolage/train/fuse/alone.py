"""One lane trained by itself, in plain PyTorch: what a fused lane has to equal, and what runs where fusing does not pay."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from bricolage.base.torch_library import load_torch
from bricolage.errors import BadTrainingCode
from bricolage.train.fuse.sweep import Lane
from bricolage.train.fuse.sweep_data import Order, count_steps, epoch_of
from bricolage.train.step.data import Data
from bricolage.train.step.evaluate import evaluate_module, loss_value
from bricolage.train.step.step import LossFunction, call, find_loss, make_optimiser, users_code

if TYPE_CHECKING:
    import torch

GROWTH_INTERVAL = 2000
"""Good steps after which a loss scale doubles, as in `torch.amp.GradScaler`."""


Judge: TypeAlias = "Callable[[str, int, float], bool]"
"""Asked after each epoch of a lane, by its name, with the epochs so far and the loss on held-out data: whether it is given up."""


@dataclass
class Progressed:
    """Where a lane's training stands."""

    lane: Lane
    steps: int = 0
    stopped: str = ""
    """Why it ended: "finished", "early", "given up", "not finite"; empty while it goes on."""
    loss: float = math.nan
    """Of the last step."""
    losses: list[float] = field(default_factory=list)
    """On the held-out data, after each epoch."""
    skipped: int = 0
    """Steps left out since gradients overflowed under the loss scale."""

    def epoch_over(self, held_out: float) -> bool:
        """Notes a loss on the held-out data; whether the lane stops early."""
        self.losses.append(held_out)
        patience = self.lane.patience
        if patience is None or len(self.losses) <= patience:
            return False
        best = min(self.losses[:-patience], default=math.inf)
        return not min(self.losses[-patience:]) < best

    def judged(self, held_out: tuple[float, float | None] | None, epochs: int, judge: Judge | None) -> str:
        """Why it ends after `epochs`, given loss and accuracy on the held-out data; empty where it goes on."""
        if held_out is None:
            return ""
        if self.epoch_over(held_out[0]):
            return "early"
        return "given up" if judge is not None and judge(self.lane.name, epochs, held_out[0]) else ""


@dataclass(frozen=True)
class LaneResult:
    """What became of one lane."""

    name: str
    steps: int
    stopped: str
    loss: float
    """Of its last training step."""
    held_out_loss: float | None
    accuracy: float | None
    """Share of held-out samples whose largest output is the target; None where targets are no classes."""
    skipped: int = 0


def make_module(data: Data, lane: Lane) -> tuple[torch.nn.Module, torch.Tensor]:
    """The lane's module as it starts, in training mode, and the state of its random stream after its weights were drawn.

    Raises:
        BadTrainingCode: the training step's function fails or returns no module.
    """
    torch = load_torch()
    kept = torch.get_rng_state()
    try:
        torch.manual_seed(lane.seed)
        module = call(data.step.module, data.step.folder, **lane.arguments)
        if not isinstance(module, torch.nn.Module):
            reason = f"it returns {type(module).__name__}, not a torch.nn.Module"
            raise BadTrainingCode(place=data.step.module, reason=reason)
        set_dropout(module, lane.dropout)
        return module.train(), torch.get_rng_state()
    finally:
        torch.set_rng_state(kept)


def set_dropout(module: torch.nn.Module, rate: float | None) -> None:
    """Sets the rate of all dropout in a module: layers, attention, between recurrent layers."""
    import torch

    if rate is None:
        return
    for part in module.modules():
        if isinstance(part, torch.nn.modules.dropout._DropoutNd):
            part.p = rate
        elif isinstance(part, torch.nn.MultiheadAttention) or (
            isinstance(part, torch.nn.RNNBase) and part.num_layers > 1
        ):
            part.dropout = rate


def make_loss(data: Data, lane: Lane) -> LossFunction:
    """The lane's loss."""
    import functools

    loss = find_loss(data.step.loss, data.step.folder)
    return loss if lane.label_smoothing is None else functools.partial(loss, label_smoothing=lane.label_smoothing)


class Alone:
    """Trains one lane, step by step."""

    def __init__(self, data: Data, lane: Lane, judge: Judge | None = None) -> None:
        self.at = Progressed(lane)
        self._judge = judge
        self._data = data
        self.module, self.random = make_module(data, lane)
        """The module, and the state of the lane's random stream."""
        self._loss = make_loss(data, lane)
        self._place = data.step.loss
        self._order = Order(lane, data)
        self._most = count_steps(lane, data)
        self._epoch = epoch_of(lane, data)
        self._parameters = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        if not self._parameters:
            raise BadTrainingCode(place=data.step.module, reason="its module has no weights to train")
        self._optimiser = make_optimiser(lane.optimiser, self._parameters)
        self._scale, self._good = lane.loss_scale, 0

    def run(self, steps: int) -> int:
        """Trains at most that many steps; how many it were. The lane's random stream is its own meanwhile."""
        before = self.at.steps
        with self.own_numbers():
            while self.at.steps - before < steps and not self.at.stopped:
                self._step()
        return self.at.steps - before

    @contextlib.contextmanager
    def own_numbers(self) -> Iterator[None]:
        """The process's random stream is the lane's meanwhile."""
        import torch

        kept = torch.get_rng_state()
        torch.set_rng_state(self.random)
        try:
            yield
        finally:
            self.random = torch.get_rng_state()
            torch.set_rng_state(kept)

    def _step(self) -> None:
        at = self.at
        at.loss = self.differentiate()
        if not math.isfinite(at.loss):
            at.stopped = "not finite"
            return
        self.update()
        at.steps += 1
        judge = self._judge if at.steps < self._most else None  # who is done is not given up
        if at.steps % self._epoch == 0 and (at.lane.patience is not None or judge is not None):
            at.stopped = at.judged(evaluate_module(self.module, self._data), at.steps // self._epoch, judge)
        if at.steps >= self._most:
            at.stopped = at.stopped or "finished"

    def differentiate(self) -> float:
        """Forward and backward on the next batch: the loss. Gradients are scaled as the lane's loss is."""
        batch = self._order.batch()
        self._optimiser.zero_grad(set_to_none=True)
        with users_code(self._data.step.module):
            loss = loss_value(self._loss(self.module(*batch.inputs), *batch.targets), self._place)
            (loss if self._scale is None else loss * self._scale).backward()
        return float(loss.detach())

    def update(self) -> None:
        """Changes the weights by their gradients, unless these overflowed under the loss scale."""
        import torch

        finite = True
        if self._scale is not None:
            gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
            torch._foreach_mul_(gradients, 1.0 / self._scale)
            finite = math.isfinite(float(sum(gradient.sum() for gradient in gradients)))
        if finite:
            if self.at.lane.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(self._parameters, self.at.lane.clip_norm)
            with users_code(self._data.step.module):
                self._optimiser.step()
        else:
            self.at.skipped += 1
        if self._scale is not None:
            self._scale, self._good = next_scale(self._scale, self._good, finite)

    def result(self) -> LaneResult:
        """What became of it, with the loss on the held-out data."""
        return result_of(self.at, self.module, self._data)


def next_scale(scale: float, good: int, finite: bool) -> tuple[float, int]:
    """A loss scale, and how many good steps it has had, after a step (`torch.amp.GradScaler`: growth 2, backoff 1/2)."""
    if not finite:
        return scale * 0.5, 0
    return (scale * 2.0, 0) if good + 1 == GROWTH_INTERVAL else (scale, good + 1)


def result_of(
    at: Progressed, module: torch.nn.Module, data: Data, state: dict[str, torch.Tensor] | None = None
) -> LaneResult:
    """What became of a lane whose weights are in a module, or given."""
    held_out = evaluate_module(module, data, state)
    value, accuracy = held_out if held_out is not None else (None, None)
    return LaneResult(at.lane.name, at.steps, at.stopped, at.loss, value, accuracy, at.skipped)


def shorten_lane(lane: Lane, steps: int) -> Lane:
    """The lane with another number of steps."""
    return replace(lane, steps=steps, epochs=None)
