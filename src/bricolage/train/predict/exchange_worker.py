"""One of several processes that exchange gradients, to measure what that takes or to run a step that does (see
`train.run.rank`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Literal

import numpy as np

from bricolage.train.predict.module_stage import StageRunning
from bricolage.train.predict.operator_costs import time_phases
from bricolage.train.predict.step_memory import measured_peak
from bricolage.train.predict.variant import Variant
from bricolage.train.predict.variant_step import Running, Runs, prepare_step
from bricolage.train.run.rank import Rank
from bricolage.train.step.spec import StepSpec

_SIZES = (1 << 12, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24)
"""Bytes of the all-reduces that are measured."""
_COPIED = 1 << 24
_TURNS = 3
_LEAST = 4
"""Steps in a turn."""
_SENDS = 20
"""Within a second and longer; as many on both sides."""
_ALONG = 1 << 22
"""Bytes of those that run during a step."""


@dataclass(frozen=True)
class StepJob:
    """What all of them do together."""

    kind: Literal["probe", "step", "stage"]
    spec: StepSpec
    variant: Variant
    seconds: float
    begins: tuple[str, ...] = ()
    """Paths of the blocks with which stages begin, but for the first."""


@dataclass(frozen=True)
class StepAnswer:
    """What one found; milliseconds."""

    alone: Mapping[str, float] | None = None
    """Phases of a step while no other worker runs; of the first worker."""
    together: Mapping[str, float] | None = None
    """While all run, without exchange."""
    along: float | None = None
    """A whole step during all-reduces."""
    sizes: tuple[tuple[int, float], ...] = ()
    """Bytes and milliseconds of all-reduces."""
    along_sizes: tuple[tuple[int, float], ...] = ()
    """The same during a step."""
    copy_ms_per_byte: float = 0.0
    sends: tuple[tuple[int, float], ...] = ()
    """Bytes and milliseconds from the first worker to the second."""
    steps: tuple[float, ...] = ()
    """Whole steps with exchange."""
    peak_bytes: int = 0
    """Of tensors on a stage."""


def work(job: StepJob, rank: Rank) -> StepAnswer:
    """Measures what is asked for."""
    dist = rank.dist
    step = prepare_step(job.spec, job.variant)
    tensors = [*step.inputs, *step.targets]
    if job.kind == "stage":
        stage = StageRunning(step, job.variant, job.begins, rank.number)
        times = tuple(sum(phase_times.values()) for phase_times in _loop(stage, job.seconds, dist))
        return StepAnswer(steps=times, peak_bytes=measured_peak(stage))
    if job.kind == "step":
        import torch

        megabytes = job.variant.bucket_mb

        def wrap(module: torch.nn.Module) -> torch.nn.Module:
            return torch.nn.parallel.DistributedDataParallel(module, bucket_cap_mb=megabytes)

        running = Running(step.module, tensors, step, job.variant, wrap)
        return StepAnswer(steps=tuple(sum(phase_times.values()) for phase_times in _loop(running, job.seconds, dist)))
    return _probe(job, Running(step.module, tensors, step, job.variant), rank)


def _loop(running: Runs, seconds: float, dist: ModuleType, apart: bool = False) -> list[dict[str, float]]:
    """Steps for about so long; as many on every worker, since those with exchange wait for each other."""
    running.run()
    begun = time.perf_counter()
    running.run()
    count = max(_LEAST, min(200, round(seconds / (time.perf_counter() - begun))))
    if not apart:
        count = int(_most(count, dist))
        dist.barrier()
    return [{str(k): v for k, v in time_phases(running).items()} for _ in range(count)]


def _most(value: float, dist: ModuleType) -> float:
    import torch

    maximum = torch.tensor([float(value)])
    dist.all_reduce(maximum, op=dist.ReduceOp.MAX)
    return float(maximum[0])


def _probe(job: StepJob, running: Running, rank: Rank) -> StepAnswer:
    import torch

    dist = rank.dist

    # In turns, since a machine may be slower a second later.
    apart: list[dict[str, float]] = []
    at_once: list[dict[str, float]] = []
    for _ in range(_TURNS):
        if rank.number == 0:
            apart += _loop(running, job.seconds / _TURNS, dist, apart=True)
        dist.barrier()
        at_once += _loop(running, job.seconds / _TURNS, dist)
    alone, together = _median(apart) if apart else None, _median(at_once)
    sizes = tuple((size, _all_reduce(size, job.seconds / len(_SIZES), dist)) for size in _SIZES)
    sends = tuple((size, _send(size, rank, job.seconds)) for size in _SIZES) if rank.number < 2 else ()
    dist.barrier()
    source, target = torch.ones(_COPIED // 4), torch.ones(_COPIED // 4)
    copying = _times(lambda: target.copy_(source), min(0.2, job.seconds))
    dist.barrier()
    # Exchanges run in threads of the process group; each is waited for in one of ours, during the steps.
    import threading

    stop, along_sizes = threading.Event(), []
    steps: list[float] = []

    def step() -> None:
        while not stop.is_set():
            steps.append(sum(time_phases(running).values()))

    thread = threading.Thread(target=step)
    thread.start()
    try:
        along_sizes.append((_ALONG, _all_reduce(_ALONG, 2 * job.seconds, dist)))
    finally:
        stop.set()
        thread.join()
    return StepAnswer(
        alone=alone,
        together=together,
        along=float(np.median(steps)) if steps else None,
        sizes=sizes,
        along_sizes=tuple(along_sizes),
        copy_ms_per_byte=copying / _COPIED,
        sends=sends,
    )


def _send(size: int, rank: Rank, seconds: float) -> float:
    """Half of a way there and back between the first two workers."""
    import torch

    tensor, other, dist = torch.zeros(size // 4), 1 - rank.number, rank.dist
    times = []
    for number in range(max(_LEAST, min(_SENDS, round(_SENDS * seconds))) + 1):
        begun = time.perf_counter()
        for sending in (rank.number == 0, rank.number == 1):
            if sending:
                dist.send(tensor, other)
            else:
                dist.recv(tensor, other)
        if number:
            times.append((time.perf_counter() - begun) * 500.0)
    return float(np.median(times))


def _all_reduce(size: int, seconds: float, dist: ModuleType) -> float:
    import torch

    tensor = torch.zeros(size // 4)

    def act() -> None:
        dist.all_reduce(tensor)

    first = _most(_times(act, 0.0), dist)
    count = max(5, min(500, int(seconds * 1e3 / max(first, 1e-3))))
    times = []
    for _ in range(count):
        begun = time.perf_counter()
        act()
        times.append((time.perf_counter() - begun) * 1e3)
    return float(np.median(times))


def _times(act: Callable[[], object], seconds: float) -> float:
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        begun = time.perf_counter()
        act()
        times.append((time.perf_counter() - begun) * 1e3)
    return float(np.median(times))


def _median(steps: list[dict[str, float]]) -> dict[str, float]:
    return {phase: float(np.median([step[phase] for step in steps])) for phase in steps[0]}
