"""Programs that answer several requests at a time, in a closed loop: each stream begins its next call as soon as one is done.
So there are always as many requests under way as streams times rows of a call, and none waits for a stream."""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from bricolage.backends import registry
from bricolage.backends.interface import RegionModel, RequestQueue, Resources
from bricolage.device.buffers import allocate_aligned, in_buffer
from bricolage.device.device import Device
from bricolage.errors import BackendFailed
from bricolage.plan.program_step import Step
from bricolage.runtime.compile import compile_program
from bricolage.runtime.program import BoundProgram, Program

_LEAST_CALLS = 3
"""Of each stream in a turn, however long they take."""
_MOST_LATENCIES = 512
"""That a turn reports; of more, this many quantiles."""

Buffers = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Serving:
    """How several requests are answered at a time."""

    cores: tuple[tuple[int, ...], ...]
    """Of each stream: copies of the program, each with cores of its own. Of a backend's own queue: one group, all that it has."""
    rows: int = 1
    """Requests that one call answers: the batch."""
    queue: int | None = None
    """The backend's own queue, with that many streams; 0: as many as it chooses. None: copies."""
    bound: float = 0.0
    """Relative difference between the answers of two streams up to which they count as equal."""


@dataclass(frozen=True)
class Turn:
    """What a closed loop did in some time."""

    row_ms: float
    """Wall time by requests answered."""
    latencies: tuple[float, ...]
    """Of single calls, milliseconds, ascending; where there were many, quantiles of them."""


class ClosedLoop(ABC):
    """A program that answers several requests at a time, bound to inputs."""

    def __init__(self, rows: int) -> None:
        """`rows`: requests that one call answers."""
        self.rows = rows

    @property
    @abstractmethod
    def outputs(self) -> Sequence[Buffers]:
        """Buffers of each stream or lane."""

    @abstractmethod
    def once(self) -> None:
        """One call on every stream or lane, at the same time."""

    @abstractmethod
    def _calls(self, seconds: float) -> tuple[list[float], float]:
        """Calls for some time: their latencies in ms, and calls per millisecond."""

    def turn(self, seconds: float) -> Turn:
        """Runs for so long, and until every stream has made a few calls."""
        latencies, rate = self._calls(seconds)
        if len(latencies) > _MOST_LATENCIES:
            latencies = np.quantile(latencies, np.linspace(0.0, 1.0, _MOST_LATENCIES)).tolist()
        return Turn(1.0 / (rate * self.rows), tuple(sorted(latencies)))


class CopiesLoop(ClosedLoop):
    """A program for each stream, compiled in and called from a thread on the stream's cores, as an executable serves requests
    (`runtime.serving.server`)."""

    def __init__(self, devices: Sequence[Device], make: Callable[[Device, Program | None], Program], rows: int) -> None:
        """`make` compiles the program for a stream's cores, sharing what it can with that of the first stream."""
        super().__init__(rows)
        self._threads = [ThreadPoolExecutor(1, initializer=_stay_on, initargs=(device,)) for device in devices]
        programs: list[Program] = []
        for thread, device in zip(self._threads, devices, strict=True):
            programs.append(thread.submit(make, device, programs[0] if programs else None).result())
        self._programs: list[BoundProgram] = []
        self._made = programs

    def bind(self, given: Buffers) -> None:
        """Binds all of them to the same inputs, and each to outputs of its own."""
        self._programs = [program.bind(given) for program in self._made]

    @property
    def outputs(self) -> Sequence[Buffers]:
        """See `ClosedLoop`."""
        return [program.outputs for program in self._programs]

    def once(self) -> None:
        """See `ClosedLoop`."""
        for running in [pool.submit(program) for pool, program in zip(self._threads, self._programs, strict=True)]:
            running.result()

    def _calls(self, seconds: float) -> tuple[list[float], float]:
        start = threading.Barrier(len(self._programs))

        def loop(program: BoundProgram) -> tuple[list[float], float]:
            latencies: list[float] = []
            now = time.perf_counter_ns
            start.wait()
            begun = last = now()
            end = begun + int(seconds * 1e9)
            while last < end or len(latencies) < _LEAST_CALLS:
                program()
                done = now()
                latencies.append((done - last) / 1e6)
                last = done
            return latencies, len(latencies) / ((last - begun) / 1e6)

        running = [pool.submit(loop, program) for pool, program in zip(self._threads, self._programs, strict=True)]
        parts = [future.result() for future in running]
        return [ms for latencies, _ in parts for ms in latencies], sum(rate for _, rate in parts)


class QueueLoop(ClosedLoop):
    """A backend's own queue, always full."""

    def __init__(self, queue: RequestQueue, outputs: Sequence[Buffers], rows: int) -> None:
        """`outputs`: the buffers that its lanes were bound to."""
        super().__init__(rows)
        self._queue, self._outputs = queue, list(outputs)

    @property
    def outputs(self) -> Sequence[Buffers]:
        """See `ClosedLoop`."""
        return self._outputs

    def once(self) -> None:
        """See `ClosedLoop`."""
        self._queue.listen(lambda _token: None)
        # Lanes that have just ended are used again, so some more rounds reach all of them.
        for _ in range(4 * self._queue.lanes):
            self._queue.submit(0)
        self._queue.wait()

    def _calls(self, seconds: float) -> tuple[list[float], float]:
        latencies: list[float] = []
        now = time.perf_counter_ns
        self._queue.listen(lambda token: latencies.append((now() - token) / 1e6))
        begun = now()
        end, count = begun + int(seconds * 1e9), 0
        while now() < end or count < _LEAST_CALLS * self._queue.lanes:
            self._queue.submit(now())
            count += 1
        self._queue.wait()
        return latencies, count / ((now() - begun) / 1e6)


def load_streams(
    steps: Sequence[Step],
    needed: Sequence[str],
    outputs: Sequence[str],
    values: Buffers,
    stream: Resources,
    serving: Serving,
    *,
    caching: bool,
) -> ClosedLoop:
    """Compiles a program for every stream, or a backend's queue, and binds it to inputs.

    Args:
        needed: names of the tensors that it reads.
        outputs: names of those that it computes.
        values: what it reads, by name.
        stream: of a whole device, with the threads of one stream; of a queue, all.

    Raises:
        Refused, MissingBackend, BackendFailed: as `compile_program`.
    """
    given = {name: in_buffer(array) for name, array in values.items()}
    if serving.queue is not None:
        return _queue(steps, given, stream, serving)
    alone = len(serving.cores) == 1 and len({step.implementation.backend for step in steps}) == 1

    def make(device: Device, like: Program | None) -> Program:
        resources = Resources(stream.threads, device, alone=alone)
        return compile_program(steps, needed, outputs, resources, caching=caching, ephemeral=True, like=like)

    loop = CopiesLoop([stream.device.group(cores) for cores in serving.cores], make, serving.rows)
    loop.bind(given)
    return loop


def _stay_on(device: Device) -> None:
    """Keeps the calling thread, and those that it starts, on the cores of a group."""
    if device.is_group and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, device.cores)


def _queue(steps: Sequence[Step], given: Buffers, stream: Resources, serving: Serving) -> QueueLoop:
    (step,) = steps
    region, backend = RegionModel(step.path), registry.get(step.implementation.backend)
    assert serving.queue is not None
    resources = Resources(stream.threads, stream.device.group(serving.cores[0]), alone=True)
    queue = backend.queue(region, step.implementation.config, resources, serving.queue)
    lane_outputs = []
    for lane in range(queue.lanes):
        results = {info.name: allocate_aligned(info.sizes, info.numpy) for info in region.outputs}
        queue.bind(lane, [given[info.name] for info in region.inputs], list(results.values()))
        lane_outputs.append(results)
    return QueueLoop(queue, lane_outputs, serving.rows)


def require_agreement(loop: ClosedLoop, bound: float) -> dict[str, np.ndarray]:
    """One call on every stream; the answer of the first.

    Raises:
        BackendFailed: another stream answers otherwise.
    """
    for buffers in loop.outputs:
        for buffer in buffers.values():
            buffer.fill(np.nan if buffer.dtype.kind == "f" else 0)
    loop.once()
    first, *others = loop.outputs
    for number, other in enumerate(others, 2):
        for name, array in first.items():
            if not _close(array, other[name], bound):
                reason = f"stream {number} answers otherwise than the first in '{name}'"
                raise BackendFailed(backend="a copy", stage="to answer", reason=reason)
    return dict(first)


def _close(one: np.ndarray, other: np.ndarray, bound: float) -> bool:
    if one.tobytes() == other.tobytes():
        return True
    a, b = (array.astype(np.float64) for array in (one, other))
    return bool(np.linalg.norm(a - b) <= bound * np.linalg.norm(a))
