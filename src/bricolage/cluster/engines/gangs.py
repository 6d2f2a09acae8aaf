"""What engines share that run processes themselves: which devices a gang has, who waits for devices that another still saves on,
and what the ends of processes mean."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from bricolage.cluster.engines.job_command import JobWork
from bricolage.cluster.job_engine import (
    Gang,
    JobEvicted,
    JobFailed,
    JobFinished,
    JobProgressed,
    JobRunning,
    JobStopped,
    NodeBack,
    NodeGone,
    RealClock,
    Report,
)
from bricolage.cluster.machines import ClusterSpec

POLL_S = 0.1
"""Between two looks at processes."""
SOON_S, LATE_S = 1.0, 60.0
"""Between two reports of a job's progress: half of the time that it has run, within these bounds."""
SILENT_S = 10.0
"""A job that has not said so long how far it is counts as running."""
LOST = -1
"""The exit code of a process whose node is gone."""
Node = tuple[str, int]
H = TypeVar("H")


@dataclass(eq=False)
class PlacedGang(Generic[H]):
    """A gang on its devices."""

    gang: Gang
    work: JobWork
    attempt: int
    devices: tuple[tuple[int, ...], ...]
    """Of each of its nodes, the numbers of the devices that it holds there."""
    handle: H
    stopping: bool = False
    killed: bool = False
    fault: tuple[str, bool] | None = None
    """Why it cannot go on, and whether by its own fault."""
    told_s: float = -math.inf
    told: float = -1.0
    ran_s: float = 0.0
    began_s: float = 0.0
    ran: bool = False
    seen: bool = False


@dataclass(frozen=True)
class Adopted(Generic[H]):
    """A gang that runs from an earlier life of this process."""

    gang: Gang
    attempt: int
    devices: tuple[tuple[int, ...], ...]
    handle: H


class GangEngine(ABC, Generic[H]):
    """Runs gangs by what a subclass does with processes.

    Args:
        cluster: which devices each node has.
        clock: the time of the loop.
        work: a job's command, by its number.
    """

    observes = True

    def __init__(self, cluster: ClusterSpec, clock: RealClock, work: Callable[[int], JobWork]) -> None:
        self.cluster, self.clock, self.work = cluster, clock, work
        self._free = {
            (kind, node): list(range(size)) for kind in cluster.kinds for node, size in enumerate(cluster.nodes(kind))
        }
        self._away: set[Node] = set()
        self._placed: dict[int, PlacedGang[H]] = {}
        self._next: dict[int, Gang] = {}
        """Gangs that wait until others have let their devices go, in order."""
        self._attempts: dict[int, int] = {}
        self._late: list[Report] = []

    # --- what a subclass does ---------------------------------------------------------------------------------------

    @abstractmethod
    def nodes(self) -> set[Node]:
        """Nodes that are there now, by kind and number."""

    @abstractmethod
    def launch(self, gang: Gang, work: JobWork, attempt: int, devices: tuple[tuple[int, ...], ...]) -> H:
        """Has a gang's processes started, one on each node.

        Raises:
            OSError: they cannot be.
        """

    @abstractmethod
    def exits(self, handle: H) -> Sequence[int | None] | None:
        """The exit code of each process, None while it runs, `LOST` where its node is gone; None before all have started."""

    @abstractmethod
    def save(self, handle: H) -> None:
        """Asks all processes to save and to end."""

    @abstractmethod
    def kill(self, handle: H) -> None:
        """Ends all processes at once."""

    def release(self, handle: H) -> None:
        """All processes have ended: what was reserved for them can go."""

    def found(self, gangs: Mapping[int, Gang], attempts: Mapping[int, int]) -> Mapping[int, Adopted[H]]:
        """Of the gangs that shall run, those that do run from an earlier life of this process."""
        del gangs, attempts
        return {}

    # --- what a loop asks -------------------------------------------------------------------------------------------

    def adopt(self, gangs: Mapping[int, Gang], attempts: Mapping[int, int]) -> list[Report]:
        """Takes up what an earlier life of this process left: gangs that run go on, the others are reported as evicted.

        Args:
            gangs: those that shall run.
            attempts: how often each job was started so far.
        """
        self._attempts.update(attempts)
        survivors = self.found(gangs, attempts)
        for number, survivor in survivors.items():
            self._take(survivor.gang, survivor.devices)
            self._placed[number] = PlacedGang(
                survivor.gang,
                self.work(number),
                survivor.attempt,
                survivor.devices,
                survivor.handle,
                began_s=self.clock.now(),
            )
        return [JobEvicted(number, self.work(number).saved()) for number in gangs if number not in survivors]

    def wait(self, until: float) -> tuple[float, Sequence[Report]]:
        """Looks at processes and nodes until something is new."""
        while True:
            reports = [*self._late, *self._look()]
            self._late = []
            now = self.clock.now()
            if reports or now >= until:
                return now, reports
            time.sleep(min(POLL_S, max(until - now, 0.001)))

    def carry_out(self, now: float, stops: Sequence[int], starts: Sequence[Gang]) -> None:
        """Asks those who stop to save; starts gangs whose devices are free."""
        del now
        for number in stops:
            if self._next.pop(number, None) is not None:
                continue
            placed = self._placed.get(number)
            if placed is not None and not placed.stopping:
                placed.stopping = True
                self.save(placed.handle)
        for gang in starts:
            self._next[gang.number] = gang
        self._start()

    def close(self) -> None:
        """Has all gangs save and end, and waits for it."""
        self._next.clear()
        self.carry_out(self.clock.now(), list(self._placed), ())
        while self._placed:
            self._look()
            time.sleep(POLL_S)

    # --- the rest ---------------------------------------------------------------------------------------------------

    def _look(self) -> list[Report]:
        reports: list[Report] = []
        there = self.nodes()
        gone = {node for node in self._free if node not in there} - self._away
        for number, placed in list(self._placed.items()):
            reports += self._judge(number, placed, gone)
        for kind, node in sorted(gone):
            waiting = [number for number, gang in self._next.items() if self._on(gang, kind, node)]
            reports += [JobEvicted(number, self.work(number).saved()) for number in waiting]
            for number in waiting:
                del self._next[number]
            reports.append(NodeGone(kind, node))
        self._away |= gone
        for kind, node in sorted(self._away & there):
            self._away.discard((kind, node))
            reports.append(NodeBack(kind, node))
        self._start()
        return reports

    def _judge(self, number: int, placed: PlacedGang[H], gone: set[Node]) -> list[Report]:
        """What has become of a gang."""
        lost = next(((k, n) for k, n in sorted(gone) if self._on(placed.gang, k, n)), None)
        reports: list[Report] = []
        if lost is not None and placed.fault is None and not placed.stopping:
            reports = self._evict(placed, f"node {lost[1]} of kind {lost[0]} is gone")
        codes = self.exits(placed.handle)
        if codes is None:
            return reports
        if not placed.stopping and placed.fault is None:
            bad = next((code for code in codes if code), None)
            if bad == LOST:
                reports = self._evict(placed, "a process is lost")
            elif bad is not None:
                placed.fault = (self._describe_exit(placed, bad), True)
        over = all(code is not None for code in codes)
        if placed.fault is not None and not over and not placed.killed:
            placed.killed = True
            self.kill(placed.handle)
        if over:
            return reports + self._over(number, placed, codes)
        return reports + self._progress(placed)

    def _evict(self, placed: PlacedGang[H], reason: str) -> list[Report]:
        """The loop is told at once: others of its processes may take a while to end."""
        placed.fault = (reason, False)
        return [JobEvicted(placed.gang.number, placed.work.saved(), reason)]

    def _over(self, number: int, placed: PlacedGang[H], codes: Sequence[int | None]) -> list[Report]:
        del self._placed[number]
        for (node, _), indices in zip(placed.gang.nodes, placed.devices, strict=True):
            self._free[placed.gang.kind, node] = sorted({*self._free[placed.gang.kind, node], *indices})
        self.release(placed.handle)
        placed.work.progress(placed.attempt).unlink(missing_ok=True)
        saved = placed.work.saved()
        if placed.fault is not None:
            reason, own_fault = placed.fault
            return [JobFailed(number, saved, reason)] if own_fault else []
        if not any(codes) and (not placed.stopping or saved >= placed.work.steps):
            self._next.pop(number, None)
            return [JobFinished(number)]
        return [JobStopped(number, saved)]

    def _describe_exit(self, placed: PlacedGang[H], code: int) -> str:
        what = f"signal {code - 128}" if code > 128 else f"exit code {code}"
        words = placed.work.last_words()
        return f"{what}: {words}" if words else what

    def _progress(self, placed: PlacedGang[H]) -> list[Report]:
        if placed.stopping or placed.fault is not None:
            return []
        now, number = self.clock.now(), placed.gang.number
        done = placed.work.done(placed.attempt)
        if done is None or placed.seen:
            if not placed.ran and now > placed.began_s + SILENT_S:
                placed.ran = True
                return [JobRunning(number, placed.work.saved())]
            due = placed.told_s + min(max((placed.told_s - placed.ran_s) / 2, SOON_S), LATE_S)
            if done is not None and done > placed.told and now >= due:
                placed.told_s, placed.told = now, done
                return [JobProgressed(number, done)]
            return []
        placed.ran = placed.seen = True
        placed.told_s, placed.told, placed.ran_s = now, done, now
        return [JobRunning(number, done)]

    def _on(self, gang: Gang, kind: str, node: int) -> bool:
        return gang.kind == kind and any(other == node for other, _ in gang.nodes)

    def _take(self, gang: Gang, devices: tuple[tuple[int, ...], ...]) -> None:
        for (node, _), indices in zip(gang.nodes, devices, strict=True):
            self._free[gang.kind, node] = [index for index in self._free[gang.kind, node] if index not in indices]

    def _start(self) -> None:
        for number, gang in list(self._next.items()):
            free = [self._free[gang.kind, node] for node, _ in gang.nodes]
            if number in self._placed or any(
                len(free_indices) < count for free_indices, (_, count) in zip(free, gang.nodes, strict=True)
            ):
                continue
            del self._next[number]
            devices = tuple(
                tuple(free_indices[:count]) for free_indices, (_, count) in zip(free, gang.nodes, strict=True)
            )
            attempt = self._attempts[number] = self._attempts.get(number, 0) + 1
            work = self.work(number)
            try:
                work.checkpoint.mkdir(parents=True, exist_ok=True)
                handle = self.launch(gang, work, attempt, devices)
            except OSError as error:
                self._late.append(JobFailed(number, work.saved(), str(error)))
                continue
            self._take(gang, devices)
            self._placed[number] = PlacedGang(gang, work, attempt, devices, handle, began_s=self.clock.now())
