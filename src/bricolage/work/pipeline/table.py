"""A pipeline's schedule as a table: for each device the passes that it runs, in their order; and what the simulator makes of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, Protocol, TypeAlias

from bricolage.work.simulator import Task, simulate

PassKind: TypeAlias = Literal["F", "B", "I", "W"]
"""Forward; backward; of a backward pass that is divided, the gradient of the input, and that of the weights."""


class Pass(NamedTuple):
    """One micro-batch through one stage; stages and micro-batches from 0."""

    stage: int
    kind: PassKind
    micro_batch: int
    version: int = 0
    """Updates of the stage's weights before those that it uses. Always 0 where all micro-batches belong to one step."""

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro_batch}"


@dataclass(frozen=True)
class PipelineSchedule:
    """For each device its passes. Raises ValueError where one is missing, is there twice, or comes before what it needs there."""

    name: str
    stages: int
    micro_batches: int
    rows: tuple[tuple[Pass, ...], ...]
    weight_copies: tuple[int, ...]
    """By device, versions and replicas of one stage's weights that are kept at once, at most."""
    synchronous: bool = True
    """Whether all micro-batches belong to one step, with one update behind them."""

    def __post_init__(self) -> None:
        wanted = {(s, m) for s in range(self.stages) for m in range(self.micro_batches)}
        kinds: dict[tuple[int, int], list[PassKind]] = {}
        for row in self.rows:
            for step in row:
                kinds.setdefault((step.stage, step.micro_batch), []).append(step.kind)
        if set(kinds) != wanted:
            raise ValueError(
                f"{self.name}: a micro-batch does not pass a stage, or there is no such stage or micro-batch"
            )
        for (stage, micro), pass_kinds in kinds.items():
            if pass_kinds not in (["F", "B"], ["F", "I", "W"]):
                raise ValueError(
                    f"{self.name}: micro-batch {micro} on stage {stage} has the passes {' '.join(pass_kinds)}"
                )

    @cached_property
    def device(self) -> Mapping[tuple[int, int], int]:
        """Of each stage and micro-batch the row that its passes are in."""
        return {(step.stage, step.micro_batch): number for number, row in enumerate(self.rows) for step in row}

    @cached_property
    def in_flight(self) -> tuple[int, ...]:
        """By device, passes at most whose activations are kept at once: from a forward pass to the end of its backward ones."""
        peaks = []
        for row in self.rows:
            held = most = 0
            for step in row:
                held += step.kind == "F"
                most = max(most, held)
                held -= step.kind in "BW"
            peaks.append(most)
        return tuple(peaks)


class PassTimes(Protocol):
    """What passes and messages take, milliseconds."""

    def pass_ms(self, device: int, one: Pass) -> float:
        """Of a pass on a device, by its row."""
        ...

    def sent_ms(self, boundary: int, source: int, target: int) -> float:
        """Of what is handed on from a stage to the next, or back, from one device to another; `boundary` is the first of both."""
        ...


@dataclass(frozen=True)
class StageTimes:
    """Milliseconds of one micro-batch on each stage; transfers between each stage and the next, in either direction."""

    forward: Sequence[float]
    input_gradient: Sequence[float]
    weight_gradient: Sequence[float]
    send: Sequence[float] = ()
    """Empty where nothing takes time to move."""
    divided: Sequence[float] = ()
    """That a backward pass takes longer where it is divided: in its first half. Empty where that takes no time."""

    def pass_ms(self, device: int, one: Pass) -> float:  # noqa: ARG002 - the shape of PassTimes
        """On any device."""
        return self.of(one)

    def sent_ms(self, boundary: int, source: int, target: int) -> float:  # noqa: ARG002 - the shape of PassTimes
        """Between any two devices."""
        return self.send[boundary] if self.send else 0.0

    def of(self, one: Pass) -> float:
        """Of a pass."""
        stage = one.stage
        if one.kind == "F":
            return self.forward[stage]
        backward = self.input_gradient[stage] if one.kind in "BI" else 0.0
        if one.kind == "I" and self.divided:
            backward += self.divided[stage]
        return backward + (self.weight_gradient[stage] if one.kind in "BW" else 0.0)

    @classmethod
    def equal(
        cls, stages: int, forward: float = 1.0, input_gradient: float = 1.0, weight_gradient: float = 1.0
    ) -> StageTimes:
        """Stages of the same times."""
        return cls((forward,) * stages, (input_gradient,) * stages, (weight_gradient,) * stages)


@dataclass(frozen=True)
class DeviceStageTimes:
    """Of devices that differ."""

    devices: Sequence[StageTimes]
    """By row what stages take there."""
    sent: Callable[[int, int, int], float]
    """What `sent_ms` is."""

    def pass_ms(self, device: int, one: Pass) -> float:
        """See `PassTimes`."""
        return self.devices[device].of(one)

    def sent_ms(self, boundary: int, source: int, target: int) -> float:
        """See `PassTimes`."""
        return self.sent(boundary, source, target)


class TimedPass(NamedTuple):
    """A pass and when it runs, milliseconds from the begin."""

    device: int
    one: Pass
    start_ms: float
    end_ms: float


@dataclass(frozen=True)
class PipelineTimes:
    """When each pass of a schedule runs, by device in their order."""

    schedule: PipelineSchedule
    passes: tuple[TimedPass, ...]

    @property
    def makespan_ms(self) -> float:
        """From the first start to the last end."""
        return max((pass_.end_ms for pass_ in self.passes), default=0.0)

    @property
    def bubble(self) -> float:
        """Part of the time of all devices in which they run no pass."""
        busy = sum(pass_.end_ms - pass_.start_ms for pass_ in self.passes)
        whole = self.makespan_ms * len(self.schedule.rows)
        return 1.0 - busy / whole if whole else 0.0


@dataclass(frozen=True)
class _Shared:
    """Devices that compute share a number of cores; messages do not."""

    cores: float

    def rates(self, tasks: Sequence[Task], running: Sequence[int]) -> Sequence[float]:
        computing = [isinstance(tasks[number].resources[0], int) for number in running]
        rate = min(1.0, self.cores / max(1, sum(computing)))
        return [rate if busy else 1.0 for busy in computing]


def run_times(
    schedule: PipelineSchedule, times: PassTimes, *, cores: float = math.inf, prefetch: bool = False
) -> PipelineTimes:
    """Each pass runs after the one before it on its device, and after its input has come.

    What comes from another device is received by the device that needs it, between two passes: a message moves when both sides wait
    for it. Where nothing takes time to move that makes no difference.

    Args:
        schedule: the passes.
        times: what they take alone.
        cores: devices that compute at once at full speed; more share it.
        prefetch: messages are asked for ahead: they move while both sides compute, one after another on each direction of a link.

    Raises:
        ValueError: passes wait for one another in a circle.
    """
    flat = [(device, step) for device, row in enumerate(schedule.rows) for step in row]
    needs = [_needs(step, schedule.stages) for _, step in flat]
    moved = [0.0] * len(flat)
    for index, ((device, step), before) in enumerate(zip(flat, needs, strict=True)):
        if before is not None and before[0] != step.stage:
            other = schedule.device[before[0], step.micro_batch]
            if other != device:
                moved[index] = times.sent_ms(min(before[0], step.stage), other, device)
    # Numbers of the passes among all tasks: what has to be received is a task before its pass.
    numbers = [index + count for index, count in enumerate(itertools.accumulate(int(ms > 0.0) for ms in moved))]
    computing: dict[tuple[int, PassKind, int], int] = {
        (step.stage, "I" if step.kind == "B" else step.kind, step.micro_batch): number
        for number, (_, step) in zip(numbers, flat, strict=True)
    }
    tasks: list[Task] = []
    for (device, step), before, ms in zip(flat, needs, moved, strict=True):
        after = () if before is None else (computing[before],)
        if ms > 0.0:
            assert before is not None
            link = ("link", schedule.device[before[0], step.micro_batch], device)
            tasks.append(Task(ms, (link if prefetch else device,), after))
            after = (len(tasks) - 1,) if prefetch else ()
        tasks.append(Task(times.pass_ms(device, step), (device,), after))
    sharing = cores < len(schedule.rows)
    task_times = simulate(tasks, contention=_Shared(cores) if sharing else None)
    return PipelineTimes(
        schedule,
        tuple(
            TimedPass(device, step, task_times.starts[number], task_times.ends[number])
            for number, (device, step) in zip(numbers, flat, strict=True)
        ),
    )


def _needs(one: Pass, stages: int) -> tuple[int, PassKind, int] | None:
    """The pass whose result a pass needs, beyond the one before it of its own; a whole backward pass counts as its first half."""
    if one.kind == "F":
        return (one.stage - 1, "F", one.micro_batch) if one.stage else None
    if one.kind == "W":
        return (one.stage, "I", one.micro_batch)
    return (one.stage + 1, "I", one.micro_batch) if one.stage + 1 < stages else (one.stage, "F", one.micro_batch)
