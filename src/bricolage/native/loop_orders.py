"""What threads take for the loops of a plan's kernels, in orders that the engine has and in one that it has not: lists of tasks.

Rammer (Ma et al., OSDI 2020) gives each unit of an accelerator a list of tasks that wait for each other. Here a task is a piece
of a kernel's loop (`cpu.sharing`). Times of kernels come from outside; `search.schedules` places their tasks, and simulates memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType

from bricolage.native.cpu.arithmetic import Arithmetic
from bricolage.native.cpu.kernel_choice import KernelChoice
from bricolage.native.cpu.target import CpuTarget
from bricolage.native.cpu.threads import MEETING_MS
from bricolage.native.fuse.kernel_plan import Buffer, FusionPlan, kernel_reads
from bricolage.native.fuse.waves import in_waves
from bricolage.native.module import SharedLoop, loop_groups
from bricolage.search.schedules.lists import list_schedule
from bricolage.search.schedules.scheduling_problem import Allotment, ScheduleProblem, bottom_levels
from bricolage.search.schedules.simulate import BandwidthContention, retime_schedule
from bricolage.work.kernel_orders import KernelOrders
from bricolage.work.work_graph import WorkGraph, WorkOperator, WorkTensor

_CPU = "cpu"


@dataclass(frozen=True)
class _Memory:
    """Bytes that each kernel moves, and what memory gives, 10⁹ bytes a second."""

    kernel_bytes: Sequence[float]
    gbytes: float


class LoopOrders:
    """The orders of one plan's loops.

    Args:
        plan: kernels one after another, without strands and slices.
        target: with the threads.
        arithmetic: of the kernels.
        choices: how kernels are computed if not as usual, by number.
    """

    def __init__(
        self,
        plan: FusionPlan,
        target: CpuTarget,
        arithmetic: Arithmetic,
        choices: Mapping[int, KernelChoice] = MappingProxyType({}),
    ) -> None:
        self._plan, self._threads = plan, target.threads
        self._waved = in_waves(plan)
        self.usual_groups, self._wave_groups = loop_groups((plan, self._waved), target, arithmetic, choices)
        """Loops between meetings, as kernels usually run, and in waves."""
        self._loops = [loop for group in self.usual_groups for loop in group]
        self._work: dict[int, float] = defaultdict(float)
        self._parts: dict[int, int] = defaultdict(int)
        for loop in self._loops:
            self._work[loop.kernel] += loop.share.count * loop.share.work
            self._parts[loop.kernel] += 1

    @property
    def together(self) -> int:
        """Kernels that run with another one in waves."""
        return sum(len(wave) for wave in self._waved.sections if len(wave) > 1)

    def usual_ms(self, kernel_ms: Sequence[float], meeting_ms: float = MEETING_MS) -> float:
        """As the engine runs them. `kernel_ms`: of one thread, by kernel."""
        return self._grouped_ms(self.usual_groups, kernel_ms, meeting_ms, None)

    def waves_ms(self, kernel_ms: Sequence[float]) -> float:
        """In waves."""
        return self._grouped_ms(self._wave_groups, kernel_ms, MEETING_MS, None)

    def lower_ms(self, kernel_ms: Sequence[float]) -> float:
        """No order of the tasks takes less: their sum over the threads, or the longest way through kernels, of each loop its
        longest task."""
        longest = [0.0] * len(self._plan.kernels)
        for loop in self._loops:
            longest[loop.kernel] += max(self._pieces_ms(loop, kernel_ms))
        way = list(longest)
        for kernel, sources in enumerate(self._sources):
            way[kernel] += max((way[source] for source in sources), default=0.0)
        return max(sum(kernel_ms) / self._threads, max(way, default=0.0))

    def compare(
        self, kernel_ms: Sequence[float], kernel_bytes: Sequence[float] = (), gbytes: float | None = None
    ) -> KernelOrders:
        """All of them; with `gbytes` tasks share that bandwidth of memory, 10⁹ bytes a second, for the bytes of their kernels."""
        memory = None if gbytes is None else _Memory(kernel_bytes, gbytes)
        alone = [(loop,) for loop in self._loops]
        return KernelOrders(
            threads=self._threads,
            kernels=len(self._plan.kernels),
            tasks=sum(loop.share.pieces(self._threads) for loop in self._loops),
            barriers_ms=self._grouped_ms(alone, kernel_ms, MEETING_MS, memory),
            usual_ms=self._grouped_ms(self.usual_groups, kernel_ms, MEETING_MS, memory),
            waves_ms=self._grouped_ms(self._wave_groups, kernel_ms, MEETING_MS, memory),
            lists_ms=self._lists_ms(kernel_ms, memory),
            lower_ms=self.lower_ms(kernel_ms),
            shared_memory=memory is not None,
        )

    @cached_property
    def _sources(self) -> list[set[int]]:
        """By kernel, those that it must wait for where each tensor has memory of its own: who wrote what it reads, and who read
        what it writes."""
        written, read = _Touched(), _Touched()
        sources = []
        for number, kernel in enumerate(self._plan.kernels):
            reads = kernel_reads(kernel, self._plan)
            sources.append(written.overlapping(reads) | read.overlapping(kernel.targets))
            written.add(kernel.targets, number)
            read.add(reads, number)
        return sources

    def _pieces_ms(self, loop: SharedLoop, kernel_ms: Sequence[float]) -> list[float]:
        """Of each piece of a loop, which has a part of its kernel's time by its work."""
        share, work = loop.share, self._work[loop.kernel]
        part = share.count * share.work / work if work else 1.0 / self._parts[loop.kernel]
        pieces = max(1, share.pieces(self._threads))
        bounds = [share.count * piece // pieces for piece in range(pieces + 1)]
        iteration = kernel_ms[loop.kernel] * part / max(1, share.count)
        return [iteration * (end - begin) for begin, end in pairwise(bounds)]

    def _grouped_ms(
        self,
        groups: Sequence[Sequence[SharedLoop]],
        kernel_ms: Sequence[float],
        meeting_ms: float,
        memory: _Memory | None,
    ) -> float:
        """Groups one after another, with a meeting behind each; pieces are taken in their order."""
        tasks = _Tasks()
        before: list[int] = []
        for group in groups:
            pieces = [tasks.add(ms, loop.kernel, before) for loop in group for ms in self._pieces_ms(loop, kernel_ms)]
            before = [tasks.add(meeting_ms, None, pieces)]
        problem = tasks.problem(self._threads)
        return self._schedule_ms(tasks, problem, [float(-number) for number in range(len(problem))], memory, kernel_ms)

    def _lists_ms(self, kernel_ms: Sequence[float], memory: _Memory | None) -> float:
        """Pieces wait for kernels alone. To see that a loop is done takes as long as a meeting."""
        tasks = _Tasks()
        done: dict[int, int] = {}
        """By kernel, the task that ends its last loop so far."""
        for loop in self._loops:
            sources = (
                [done[loop.kernel]] if loop.kernel in done else [done[kernel] for kernel in self._sources[loop.kernel]]
            )
            pieces = [tasks.add(ms, loop.kernel, sources) for ms in self._pieces_ms(loop, kernel_ms)]
            done[loop.kernel] = tasks.add(MEETING_MS, None, pieces)
        problem = tasks.problem(self._threads)
        return self._schedule_ms(tasks, problem, bottom_levels(problem.graph, tasks.ms), memory, kernel_ms)

    def _schedule_ms(
        self,
        tasks: _Tasks,
        problem: ScheduleProblem,
        priority: Sequence[float],
        memory: _Memory | None,
        kernel_ms: Sequence[float],
    ) -> float:
        schedule = list_schedule(problem, [Allotment(_CPU, 1, ms) for ms in tasks.ms], priority)
        if memory is None:
            return schedule.makespan_ms
        moved = [
            0.0 if kernel is None or not kernel_ms[kernel] else memory.kernel_bytes[kernel] * ms / kernel_ms[kernel]
            for ms, kernel in zip(tasks.ms, tasks.kernels, strict=True)
        ]
        contention = BandwidthContention.seen(moved, problem, memory.gbytes)
        return retime_schedule(problem, schedule, contention=contention).makespan_ms


class _Tasks:
    """Tasks of a schedule, with those that each waits for."""

    def __init__(self) -> None:
        self.ms: list[float] = []
        self.kernels: list[int | None] = []
        self._after: list[Sequence[int]] = []

    def add(self, ms: float, kernel: int | None, after: Sequence[int]) -> int:
        """One more; its number."""
        self.ms.append(ms)
        self.kernels.append(kernel)
        self._after.append(after)
        return len(self.ms) - 1

    def problem(self, threads: int) -> ScheduleProblem:
        """Of these tasks on equal cores."""
        consumers: dict[int, list[int]] = defaultdict(list)
        for number, after in enumerate(self._after):
            for source in after:
                consumers[source].append(number)
        graph = WorkGraph(
            tuple(WorkOperator(str(number)) for number in range(len(self.ms))),
            tuple(WorkTensor(str(source), source, tuple(readers)) for source, readers in consumers.items()),
        )
        return ScheduleProblem(graph, tuple({_CPU: (ms,)} for ms in self.ms), {_CPU: threads})


class _Touched:
    """Which kernels touched memory."""

    def __init__(self) -> None:
        self._kernels: dict[tuple[str, int], list[tuple[tuple[int, int], int]]] = defaultdict(list)

    def add(self, buffers: Iterable[Buffer], kernel: int) -> None:
        """One more."""
        for buffer in buffers:
            self._kernels[buffer.storage].append((buffer.extent, kernel))

    def overlapping(self, buffers: Iterable[Buffer]) -> set[int]:
        """Those that touched an element of these."""
        return {
            kernel
            for buffer in buffers
            for (begin, behind), kernel in self._kernels.get(buffer.storage, ())
            if buffer.extent[0] < behind and begin < buffer.extent[1]
        }


def scale_to(orders: LoopOrders, floors_ms: Sequence[float], measured_ms: float) -> list[float]:
    """Times of kernels on one thread, in proportion to their floors, with which the usual order takes what was measured."""
    loops_ms = orders.usual_ms(floors_ms, 0.0)
    meetings_ms = len(orders.usual_groups) * MEETING_MS
    factor = max(measured_ms - meetings_ms, 0.0) / loops_ms if loops_ms > 0.0 else 0.0
    return [factor * floor for floor in floors_ms]
