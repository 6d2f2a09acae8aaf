"""`Program`: compiled regions in order, wired by tensor names, bound to buffers and run.

One runtime owns the cores at a time: the regions run one after the other, each on all its backend's threads. Where the plan has a
schedule, each region owns its cores instead, and regions on disjoint cores run side by side (`runtime/streams.py`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

import numpy as np

from bricolage.backends.kernel import Answer, Call, Kernel
from bricolage.device.buffers import allocate_aligned
from bricolage.device.device import Device
from bricolage.device.host import bound_to, current_core
from bricolage.device.memory import total_bytes
from bricolage.device.tensor_form import TensorForm
from bricolage.errors import InvalidGraph, NotEnoughMemory, NotPicklable
from bricolage.runtime.spans import RunSpan
from bricolage.runtime.streams import Placed, RegionStreams
from bricolage.work.arena import Residence, assign_offsets
from bricolage.work.liveness import Lifetime
from bricolage.work.values import ModelValue

UnboundRun = Callable[[Sequence[ModelValue]], Sequence[ModelValue]]
"""A run on arrays in the order of a program's inputs, into fresh ones in the order of its outputs."""


@dataclass(frozen=True)
class BoundStage:
    """A kernel and the names of the tensors it reads and writes, in the kernel's order."""

    kernel: Kernel
    inputs: tuple[TensorForm, ...]
    outputs: tuple[TensorForm, ...]
    cores: tuple[int, ...] = ()
    """Of a program with a schedule: on which it runs. Empty: on all that the program has, when nothing else runs."""


class BoundProgram:
    """A program bound to buffers. Calling it reads `inputs` and overwrites `outputs`; nothing is allocated by us."""

    def __init__(
        self,
        calls: Sequence[Call],
        inputs: dict[str, np.ndarray],
        outputs: dict[str, np.ndarray],
        arena: np.ndarray,
        device: Device,
        streams: RegionStreams | None = None,
        answer: Answer | None = None,
    ) -> None:
        self.calls = tuple(calls)
        self.inputs = inputs
        self.outputs = outputs
        self.device = device
        self.arena = arena
        """Of the tensors between regions; the kernels hold addresses into it."""
        self.reads, self.writes = tuple(inputs.values()), tuple(outputs.values())
        self._streams = streams
        self.run: Callable[[], None] = streams or (self._on_group if device.is_group else self._on_all)
        """One run, without a step in between."""
        if self.run == self._on_all and len(self.calls) == 1:
            self.run = self.calls[0]
        self.answer = answer
        """One run whose outputs are fresh, which leaves `outputs` as they were; None where `run` and copies take no more time."""

    def __call__(self) -> None:
        """One run."""
        self.run()

    def __reduce__(self) -> NoReturn:
        """Refuses.

        Raises:
            NotPicklable
        """
        raise NotPicklable(what="a bound program")

    def traced(self) -> list[RunSpan]:
        """One run, and what ran when."""
        if self._streams is not None:
            return self._streams.traced()
        spans = []
        with bound_to(self.device):
            for step, call in enumerate(self.calls):
                begun = time.perf_counter_ns()
                call()
                spans.append(RunSpan(step, begun, time.perf_counter_ns(), threading.get_native_id(), current_core()))
        return spans

    def _on_all(self) -> None:
        for call in self.calls:
            call()

    def _on_group(self) -> None:
        with bound_to(self.device):  # the caller's thread takes part in the work
            self._on_all()


class Program:
    """Stages in executable order on one device; `inputs` and `outputs` name the tensors that enter and leave.

    Raises:
        InvalidGraph: a stage reads a tensor that nothing before it provides, or an output is never computed.
    """

    def __init__(
        self, stages: Sequence[BoundStage], inputs: Sequence[TensorForm], outputs: Sequence[str], device: Device
    ) -> None:
        self.stages = tuple(stages)
        self.device = device
        self.inputs = tuple(inputs)
        computed: dict[str, TensorForm] = {}
        available_names = {info.name for info in inputs}
        for stage in self.stages:
            for info in stage.inputs:
                if info.name not in available_names:
                    raise InvalidGraph(reason=f"region input '{info.name}' is not computed before it is read")
            for info in stage.outputs:
                computed[info.name] = info
                available_names.add(info.name)
        for name in outputs:
            if name not in computed:
                raise InvalidGraph(reason=f"output '{name}' is computed by no region")
        self.outputs = tuple(computed[name] for name in outputs)
        self._computed = computed
        self.scheduled = any(stage.cores for stage in self.stages)
        self.takes_turns = not self.scheduled and len(self.stages) == 1 and self.stages[0].kernel.takes_turns
        """Whether runs on buffers of their own may be called for at the same time."""

    @property
    def static(self) -> bool:
        """Whether every tensor between regions has a size, so that the program can be bound."""
        return all(info.static for info in (*self.inputs, *self._computed.values()))

    def unbound(self) -> UnboundRun | None:
        """Runs on the caller's own arrays, which are C-contiguous, aligned and in the machine's byte order. None where shapes are
        known and runs on bound arrays take less time."""
        single = len(self.stages) == 1 and not self.scheduled
        if self.static:
            moved = sum(info.elements * info.numpy.itemsize for info in (*self.inputs, *self.outputs))
            if not (single and moved >= self.stages[0].kernel.direct_bytes):
                return None
        if not single:
            return self._run_in_order
        (stage,) = self.stages
        run = _reorder_run(stage.kernel.run, _places(self.inputs, stage.inputs), _places(stage.outputs, self.outputs))
        return _on_cores(run, self.device) if self.device.is_group else run

    def bind(
        self,
        inputs: Mapping[str, np.ndarray] | None = None,
        outputs: Mapping[str, np.ndarray] | None = None,
        arena: np.ndarray | None = None,
    ) -> BoundProgram:
        """Binds to the given arrays, and to fresh ones for the names not given.

        Given arrays must be C-contiguous, aligned to 64 bytes and of the exact type and shape; they stay the caller's. `arena` is
        that of another bound program of this one, of which never more than one runs at a time.

        Raises:
            NotEnoughMemory: the tensors are larger than this machine's memory.
        """
        given = {**(inputs or {}), **(outputs or {})}
        ends = {info.name for info in (*self.inputs, *self.outputs)}
        tensors = {info.name: info for info in (*self.inputs, *self._computed.values())}
        offsets, size = (
            assign_offsets(self._residences(ends)) if self.scheduled else assign_offsets(self._lifetimes(ends))
        )
        _check_memory(size + sum(info.bytes for name, info in tensors.items() if name in ends and name not in given))
        if arena is None:
            arena = allocate_aligned((size,), np.dtype(np.uint8))
        buffers: dict[str, np.ndarray] = {}
        for name, info in tensors.items():
            if name in given:
                buffers[name] = given[name]
            elif name in ends:
                buffers[name] = allocate_aligned(info.sizes, info.numpy)
                buffers[name].fill(0)
            else:
                count = info.elements * info.numpy.itemsize
                buffers[name] = arena[offsets[name] : offsets[name] + count].view(info.numpy).reshape(info.sizes)
        calls = [
            stage.kernel.bind([buffers[i.name] for i in stage.inputs], [buffers[o.name] for o in stage.outputs])
            for stage in self.stages
        ]
        streams = None
        if self.scheduled:
            placed = zip(calls, self.stages, self._waits(), strict=True)
            streams = RegionStreams(
                [Placed(call, stage.cores or self.device.cores, waits) for call, stage, waits in placed]
            )
        return BoundProgram(
            calls,
            {info.name: buffers[info.name] for info in self.inputs},
            {info.name: buffers[info.name] for info in self.outputs},
            arena,
            self.device,
            streams,
            self._bind_answer(buffers),
        )

    def _bind_answer(self, buffers: Mapping[str, np.ndarray]) -> Answer | None:
        """See `BoundProgram.answer`."""
        if len(self.stages) > 1 or self.scheduled or self.device.is_group:
            return None
        (stage,) = self.stages
        answer = stage.kernel.bind_inputs([buffers[info.name] for info in stage.inputs])
        places = _places(stage.outputs, self.outputs)
        return answer if answer is None or places is None else partial(_pick_results, answer, places)

    def _waits(self) -> list[tuple[int, ...]]:
        """For each stage those that must be done before it: whose results it reads, and the last on each of its cores."""
        home: dict[str, int] = {}
        last: dict[int, int] = {}
        predecessors = []
        for step, stage in enumerate(self.stages):
            cores = stage.cores or self.device.cores
            waits = {home[info.name] for info in stage.inputs if info.name in home}
            predecessors.append(tuple(sorted(waits.union(last[core] for core in cores if core in last))))
            last.update(dict.fromkeys(cores, step))
            home.update((info.name, step) for info in stage.outputs)
        return predecessors

    def _residences(self, ends: set[str]) -> dict[str, Residence]:
        """As `_lifetimes`, where stages run at the same time."""
        from bricolage.search.schedules.closure import TransitiveClosure  # here: few programs have a schedule

        after = TransitiveClosure(self._waits()).after
        residences: dict[str, Residence] = {}
        for step, stage in enumerate(self.stages):
            for info in stage.outputs:
                if info.name not in ends:
                    residences[info.name] = Residence(info.elements * info.numpy.itemsize, step, after[step])
            for info in stage.inputs:
                if info.name in residences:
                    residence = residences[info.name]
                    residences[info.name] = Residence(residence.bytes, residence.writer, residence.after & after[step])
        return residences

    def _lifetimes(self, ends: set[str]) -> dict[str, Lifetime]:
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        for step, stage in enumerate(self.stages):
            for info in stage.outputs:
                first[info.name] = last[info.name] = step
            for info in stage.inputs:
                last[info.name] = step
        return {
            name: Lifetime(self._computed[name].elements * self._computed[name].numpy.itemsize, step, last[name] + 1)
            for name, step in first.items()
            if name not in ends
        }

    def run(self, inputs: Mapping[str, object]) -> dict[str, object]:
        """One run with fresh outputs, for shapes and types that are known only now."""
        tensors: dict[str, object] = dict(inputs)
        with bound_to(self.device):
            for stage in self.stages:
                results = stage.kernel.run([tensors[info.name] for info in stage.inputs])
                tensors.update(zip((info.name for info in stage.outputs), results, strict=True))
        return {info.name: tensors[info.name] for info in self.outputs}

    def _run_in_order(self, values: Sequence[ModelValue]) -> Sequence[ModelValue]:
        return list(self.run(dict(zip((info.name for info in self.inputs), values, strict=True))).values())


def _places(given: Sequence[TensorForm], wanted: Sequence[TensorForm]) -> tuple[int, ...] | None:
    """Where what is wanted stands among what is given; None where it is the same in the same order."""
    names = [info.name for info in given]
    places = tuple(names.index(info.name) for info in wanted)
    return None if places == tuple(range(len(names))) else places


def _pick_results(answer: Answer, places: Sequence[int]) -> list[object]:
    results = answer()
    return [results[place] for place in places]


def _reorder_run(run: UnboundRun, reads: tuple[int, ...] | None, writes: tuple[int, ...] | None) -> UnboundRun:
    """A run that takes and gives values in another order."""
    if reads is None and writes is None:
        return run

    def run_reordered(values: Sequence[ModelValue]) -> Sequence[ModelValue]:
        results = run(values if reads is None else [values[place] for place in reads])
        return results if writes is None else [results[place] for place in writes]

    return run_reordered


def _on_cores(run: UnboundRun, device: Device) -> UnboundRun:
    """A run on a group of cores, in which the caller's thread takes part."""

    def on_cores(values: Sequence[ModelValue]) -> Sequence[ModelValue]:
        with bound_to(device):
            return run(values)

    return on_cores


def _check_memory(wanted: int) -> None:
    present = total_bytes()
    if wanted > present:
        raise NotEnoughMemory(wanted=f"{wanted / 1e9:.3g} GB", present=f"{present / 1e9:.3g} GB")
