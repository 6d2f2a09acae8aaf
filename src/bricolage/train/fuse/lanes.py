"""Lanes trained as one: weights side by side in one tensor, and whatever is global in training alone kept for each lane.

All trained weights of a lane are one row of [lanes, parameters], of which the program reads views; so gradients, their norms and
the update are a handful of operators, however many layers there are. Each lane has its own loss, clipping norm, loss scale, order
of the data, random stream, length and early stopping. A lane that ends leaves the tensors, so that the others go on without its
cost.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bricolage.errors import NotFusible
from bricolage.train.fuse.alone import Judge, LaneResult, Progressed, make_module, next_scale, result_of
from bricolage.train.fuse.building import build_program
from bricolage.train.fuse.lane_graph import Traced
from bricolage.train.fuse.lane_program import Choice, FusedProgram
from bricolage.train.fuse.optimisers import LaneOptimiser
from bricolage.train.fuse.random_streams import DrawnAhead, Streams
from bricolage.train.fuse.sweep import Lane
from bricolage.train.fuse.sweep_data import Batches, count_steps, epoch_of
from bricolage.train.step.data import Data
from bricolage.train.step.evaluate import evaluate_module
from bricolage.work.training_step import Kind, Phase

if TYPE_CHECKING:
    import torch

_CLIP_EPS = 1e-6
"""As in `torch.nn.utils.clip_grad_norm_`."""


def _nothing() -> None:
    """It does not matter when the backward phase begins."""


@dataclass(frozen=True)
class Observed:
    """A step of all lanes: what of it has to be as in training alone."""

    losses: torch.Tensor
    """[lanes]"""
    gradients: Mapping[str, torch.Tensor]
    """By parameter, [lanes, *]; as the loss is scaled."""
    weights: Mapping[str, torch.Tensor]
    """After the update, those without gradient included."""
    buffers: Mapping[str, torch.Tensor]


class Fused:
    """Trains lanes of equal graphs as one."""

    def __init__(
        self,
        data: Data,
        lanes: Sequence[Lane],
        traced: Sequence[Traced],
        known: Mapping[str, str] | None = None,
        judge: Judge | None = None,
        ahead: bool = False,
    ) -> None:
        """Makes the lanes ready, timing the ways of each operator but for those that are `known`. `judge` may give lanes up.
        `ahead`: another core is free to draw a step's random numbers while the one before it is computed.

        Raises:
            NotFusible: an operator cannot be computed for several lanes.
            BadTrainingCode: the training step's functions fail.
        """
        order = sorted(range(len(lanes)), key=lambda index: lanes[index].optimiser.kind)
        self._data = data
        self._judge = judge
        self._may_draw_ahead = ahead
        self._traced = traced[0]
        self.lanes = [lanes[index] for index in order]
        self.at = [Progressed(lane) for lane in self.lanes]
        self.results: dict[str, LaneResult] = {}
        self.states: dict[str, dict[str, torch.Tensor]] = {}
        self._numbers = [traced[index].numbers for index in order]
        self._known = dict(known or {})
        self._batches = Batches(self.lanes, data)
        self._step = 0
        self._read_modules()
        self._scales = [lane.loss_scale for lane in self.lanes]
        self._good = [0] * len(self.lanes)
        self._norms = [lane.clip_norm for lane in self.lanes]
        self._optimisers = self._make_optimisers()
        self._losses: torch.Tensor | None = None
        self._program: FusedProgram | None = None
        self._shared: bool | None = None

    @property
    def choices(self) -> dict[str, Choice]:
        """How each operator is computed, by its name in the graph; empty before the first step."""
        return dict(self._program.choices) if self._program is not None else {}

    def _read_modules(self) -> None:
        import torch

        rows, states, frozen, buffers = [], [], [], []
        for lane in self.lanes:
            module, state = make_module(self._data, lane)
            parameters = dict(module.named_parameters())
            names = [name for name in parameters if name in self._traced.trained]
            kinds = {parameters[name].dtype for name in names}
            if len(kinds) != 1:
                raise NotFusible(
                    reason=f"its weights are of {len(kinds)} types" if kinds else "no weight gets a gradient"
                )
            rows.append(torch.cat([parameters[name].detach().reshape(-1) for name in names]))
            frozen.append(
                {name: parameter.detach() for name, parameter in parameters.items() if name not in self._traced.trained}
            )
            buffers.append(dict(module.named_buffers()))
            states.append(state)
        self._module = module
        self._names = names
        self._shapes = [tuple(parameters[name].shape) for name in names]
        self._sizes = [parameters[name].numel() for name in names]
        self._weights = torch.stack(rows).requires_grad_()
        self._frozen = {name: torch.stack([lane_tensors[name] for lane_tensors in frozen]) for name in frozen[0]}
        self._buffers = {name: torch.stack([buffer[name] for buffer in buffers]) for name in buffers[0]}
        self._streams = Streams(states, self._numbers)
        self._ahead = DrawnAhead(self._streams) if self._may_draw_ahead else self._streams

    def _make_optimisers(self) -> list[tuple[int, int, LaneOptimiser]]:
        optimisers, begin = [], 0
        while begin < len(self.lanes):
            kind = self.lanes[begin].optimiser.kind
            end = begin
            while end < len(self.lanes) and self.lanes[end].optimiser.kind == kind:
                end += 1
            specs = [lane.optimiser for lane in self.lanes[begin:end]]
            optimisers.append((begin, end, LaneOptimiser(specs, self._weights.detach()[begin:end])))
            begin = end
        return optimisers

    def run(self, steps: int) -> int:
        """Trains all lanes at most that many steps; how many it were. Lanes that end leave a result and a state."""
        done = 0
        while done < steps and self.lanes:
            before = self._step
            self._run_to(min(self._step + steps - done, self._next_event()))
            done += self._step - before
            self._leave()
        return done

    def _next_event(self) -> int:
        """The step after which a lane ends, or has to be tested for early stopping."""
        events = [count_steps(lane, self._data) for lane in self.lanes]
        epoch = epoch_of(self.lanes[0], self._data)
        if self._judge is not None or any(lane.patience is not None for lane in self.lanes):
            events.append((self._step // epoch + 1) * epoch)
        return min(events)

    def _run_to(self, end: int) -> None:
        """Steps until `end`, or until a lane's loss is not finite."""
        import torch

        while self._step < end:
            batch, shared = self._batches.next()
            gradients = self._gradients(batch.tensors, shared, self._ahead)
            assert self._losses is not None
            if not math.isfinite(float(self._losses.sum())) and not self._drop_not_finite():
                if not self.lanes:
                    return
                gradients = gradients[self._kept]
            with torch.no_grad():
                self._update(gradients)
            self._step += 1

    def step(self, batch: Sequence[torch.Tensor], phase: Callable[[Phase], None]) -> None:
        """One step on a batch that all lanes share, which counts for nothing; `phase` is called where forward, backward and update
        begin. Losses are not looked at, so that tensors need no memory."""
        import torch

        phase("forward")
        gradients = self._gradients(batch, True, self._streams, lambda: phase("backward"))
        phase("update")
        with torch.no_grad():
            self._update(gradients)

    def observed(self) -> Observed:
        """One step of all lanes, whatever their losses are, which counts for nothing else."""
        import torch

        batch, shared = self._batches.next()
        gradients = self._gradients(batch.tensors, shared, self._streams)
        assert self._losses is not None
        with torch.no_grad():
            self._update(gradients)
            weights = {name: view.detach().clone() for name, view in self._views().items()}
        buffers = {name: buffer.clone() for name, buffer in self._buffers.items()}
        return Observed(self._losses, self._named(gradients), weights, buffers)

    def random_state(self, row: int) -> torch.Tensor:
        """Where the random stream of a lane stands."""
        return self._streams.state(row)

    def without_memory(self, convert: Callable[[torch.Tensor], torch.Tensor]) -> Fused:
        """The same lanes with other tensors in the place of weights, buffers and the optimisers' state."""
        twin = copy.copy(self)
        twin._weights = convert(self._weights.detach()).requires_grad_()
        twin._frozen = {name: convert(tensor) for name, tensor in self._frozen.items()}
        twin._buffers = {name: convert(tensor) for name, tensor in self._buffers.items()}
        twin._optimisers = [(begin, end, optimiser.with_state(convert)) for begin, end, optimiser in self._optimisers]
        twin._program = None
        return twin

    def lasting(self) -> dict[Kind, list[torch.Tensor]]:
        """Tensors that outlast a step, by what they are."""
        return {
            "weights": [self._weights, *self._frozen.values(), *self._buffers.values()],
            "optimiser state": [
                state
                for _, _, optimiser in self._optimisers
                for state in (optimiser.first, optimiser.second)
                if state is not None
            ],
        }

    def _gradients(
        self,
        batch: Sequence[torch.Tensor],
        shared: bool,
        streams: Streams | DrawnAhead,
        backward: Callable[[], None] = _nothing,
    ) -> torch.Tensor:
        """[lanes, parameters]; the losses are kept. `backward` is called between the two."""
        import torch

        if self._program is None or shared != self._shared:
            self._build(batch, shared)
        assert self._program is not None
        masks = streams.draw(self._program.masks) if self._program.masks else []
        losses = self._program(self._views(), self._buffers, batch, masks)
        self._losses = losses.detach()
        scaled = any(scale is not None for scale in self._scales)
        total = (losses * self._scale_vector(False)).sum() if scaled else losses.sum()
        backward()
        (gradients,) = torch.autograd.grad(total, self._weights)
        return gradients

    def _build(self, batch: Sequence[torch.Tensor], shared: bool) -> None:
        self._shared = shared
        self._program = build_program(
            self._traced, self._numbers, shared, self._views(), self._buffers, batch, self._known
        )
        self._known.update(self._program.ways)

    def _views(self) -> dict[str, torch.Tensor]:
        named = self._named(self._weights)
        return {**named, **self._frozen} if self._frozen else named

    def _named(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        """Views of [lanes, parameters] by parameter, [lanes, *]."""
        parts, count = rows.split(self._sizes, 1), len(rows)
        return {n: part.view(count, *shape) for n, part, shape in zip(self._names, parts, self._shapes, strict=True)}

    def _update(self, gradients: torch.Tensor) -> None:
        import torch

        rows: list[int] | None = None
        if any(scale is not None for scale in self._scales):
            gradients = gradients.mul(self._scale_vector(True).view(-1, 1))
            finite = torch.isfinite(gradients.sum(1)).tolist()
            finite = [good or scale is None for good, scale in zip(finite, self._scales, strict=True)]
            if not all(finite):
                rows = [row for row, good in enumerate(finite) if good]
            for row, good in enumerate(finite):
                scale = self._scales[row]
                if scale is not None:
                    self._scales[row], self._good[row] = next_scale(scale, self._good[row], good)
                    self.at[row].skipped += not good
        if any(norm is not None for norm in self._norms):
            norms = torch.linalg.vector_norm(gradients, dim=1)
            most = torch.tensor([math.inf if norm is None else norm for norm in self._norms], dtype=norms.dtype)
            gradients = gradients * (most / (norms + _CLIP_EPS)).clamp_(max=1.0).view(-1, 1)
        weights = self._weights.detach()
        for begin, end, optimiser in self._optimisers:
            group_rows = None if rows is None else [row - begin for row in rows if begin <= row < end]
            optimiser.update(weights[begin:end], gradients[begin:end], group_rows)

    def _scale_vector(self, inverse: bool) -> torch.Tensor:
        import torch

        scales = [1.0 if scale is None else scale for scale in self._scales]
        return torch.tensor([1.0 / factor for factor in scales] if inverse else scales, dtype=self._weights.dtype)

    def _drop_not_finite(self) -> bool:
        """Ends lanes whose loss is not finite, before their update. Whether there were none."""
        assert self._losses is not None
        good = [math.isfinite(value) for value in self._losses.tolist()]
        self._kept = [row for row, fine in enumerate(good) if fine]
        if len(self._kept) == len(good):
            return True
        for row, fine in enumerate(good):
            if not fine:
                self._end(row, "not finite")
        self._keep(self._kept)
        return False

    def _leave(self) -> None:
        """Ends lanes that are done, or that stop early."""
        epoch_over = self.lanes and self._step % epoch_of(self.lanes[0], self._data) == 0
        kept = []
        for row, lane in enumerate(self.lanes):
            stopped = "finished" if self._step >= count_steps(lane, self._data) else ""
            judge = None if stopped else self._judge  # who is done is not given up
            if epoch_over and (lane.patience is not None or judge is not None):
                held_out = evaluate_module(self._module, self._data, self._state(row))
                epochs = self._step // epoch_of(lane, self._data)
                stopped = self.at[row].judged(held_out, epochs, judge) or stopped
            if stopped:
                self._end(row, stopped)
            else:
                kept.append(row)
        if len(kept) < len(self.lanes):
            self._keep(kept)

    def _end(self, row: int, stopped: str) -> None:
        at = self.at[row]
        at.stopped, at.steps = stopped, self._step
        at.loss = float(self._losses[row]) if self._losses is not None else math.nan
        copies: dict[tuple[int, torch.Size], torch.Tensor] = {}  # tied ones stay tied
        state = {
            name: copies.setdefault((tensor.data_ptr(), tensor.shape), tensor.clone())
            for name, tensor in self._state(row).items()
        }
        self.results[at.lane.name] = result_of(at, self._module, self._data, state)
        self.states[at.lane.name] = {name: state[name] for name in self._module.state_dict()}

    def _state(self, row: int) -> dict[str, torch.Tensor]:
        """Parameters and buffers of one lane, under every name that the module has for them."""
        import torch

        with torch.no_grad():
            views = self._views()
        module = self._module
        first = {id(tensor): name for name, tensor in (*module.named_parameters(), *module.named_buffers())}
        whole = {**views, **self._buffers}
        every = (
            *module.named_parameters(remove_duplicate=False),
            *module.named_buffers(remove_duplicate=False),
        )
        return {name: whole[first[id(tensor)]][row].detach() for name, tensor in every}

    def _keep(self, rows: Sequence[int]) -> None:
        """Goes on with these lanes alone."""
        rows = list(rows)
        self.lanes = [self.lanes[row] for row in rows]
        self.at = [self.at[row] for row in rows]
        self._numbers = [self._numbers[row] for row in rows]
        self._scales = [self._scales[row] for row in rows]
        self._good = [self._good[row] for row in rows]
        self._norms = [self._norms[row] for row in rows]
        self._weights = self._weights.detach()[rows].requires_grad_()
        self._frozen = {name: tensor[rows] for name, tensor in self._frozen.items()}
        self._buffers = {name: tensor[rows] for name, tensor in self._buffers.items()}
        self._losses = None if self._losses is None else self._losses[rows]
        kept: list[tuple[int, int, LaneOptimiser]] = []
        at = 0
        for begin, end, optimiser in self._optimisers:
            group_rows = [row - begin for row in rows if begin <= row < end]
            if group_rows:
                optimiser.keep(group_rows)
                kept.append((at, at + len(group_rows), optimiser))
                at += len(group_rows)
        self._optimisers = kept
        if isinstance(self._ahead, DrawnAhead):
            self._ahead.discard()
        self._streams.keep(rows)
        self._batches.keep(rows)
        self._program = None
