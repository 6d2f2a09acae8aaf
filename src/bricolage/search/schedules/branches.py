"""Where a graph forks and joins: regions that could run side by side, cut on purpose.

Phases are those of DUET (Zhang, Hu and Li, IPDPS 2021): an operator that is before or after every other is a phase of its own, and
between two of them lie branches. Where all between two of them hangs together (random networks, cells that read the last but one),
its chains are the branches: operators of which each is the only reader of the one before and reads nothing else.

A phase is cut only where running its branches side by side could save more than it costs to hand them over; everything between
two such phases is one region.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bricolage.search.devices.subgraphs import chains
from bricolage.search.schedules.closure import TransitiveClosure
from bricolage.search.schedules.scheduling_problem import bottom_levels
from bricolage.work.bits import members, of
from bricolage.work.work_graph import WorkGraph

HAND_OVER_MS = 0.02
"""Overhead of a region: a call, a thread that is woken, results that another core reads."""


@dataclass(frozen=True)
class Cut:
    """Regions of a graph in executable order. Times in milliseconds."""

    regions: tuple[int, ...]
    """Bit-sets over the operators that cover all of them."""
    total_ms: float
    """Of all operators, one after the other."""
    least_ms: float
    """What side by side could come down to at best."""

    @property
    def promise(self) -> float:
        """What could be saved at most, as a share of the total."""
        return 1.0 - self.least_ms / self.total_ms if self.total_ms > 0.0 else 0.0


def phases(graph: WorkGraph) -> list[tuple[int, ...]]:
    """Bit-sets of operators, phase by phase: one in a sequential phase, the branches by their lowest operator in a multi-path
    phase."""
    reach = TransitiveClosure(graph.predecessors)
    phase_masks: list[tuple[int, ...]] = []
    between = 0
    for number in range(len(graph)):
        if reach.parallel(number):
            between |= 1 << number
            continue
        phase_masks += [graph.components(between)] if between else []
        phase_masks.append((1 << number,))
        between = 0
    return phase_masks + ([graph.components(between)] if between else [])


def can_fork(graph: WorkGraph) -> bool:
    """Whether any two operators depend on each other in neither direction."""
    reach = TransitiveClosure(graph.predecessors)
    return any(reach.parallel(number) for number in range(len(graph)))


def cut_branches(graph: WorkGraph, ms: Sequence[float], efficiency: float) -> Cut:
    """Branch regions of a graph whose operators take `ms` on all cores. On one core all of it takes `efficiency` × cores times as
    long: 1 where cores speed it up without loss, so that nothing could be saved."""
    total = sum(ms)
    regions: list[int] = []
    open_region, saved = 0, 0.0
    for phase in phases(graph):
        branches = phase if len(phase) > 1 else chains(graph, part=phase[0])
        everything = of(number for branch in phase for number in members(branch))
        gain = _gain(graph, everything, ms, efficiency) - HAND_OVER_MS * len(branches) if len(branches) > 1 else 0.0
        if gain <= 0.0:
            open_region |= everything
            continue
        regions += [open_region] if open_region else []
        regions += branches
        open_region = 0
        saved += gain
    regions += [open_region] if open_region else []
    return Cut(tuple(regions), total, total - saved)


def _gain(graph: WorkGraph, part: int, ms: Sequence[float], efficiency: float) -> float:
    """What side by side could save of a part: what it takes one after the other, less its longest path, or less its volume by the
    cores, whichever is longer."""
    part_ms = [time if part >> number & 1 else 0.0 for number, time in enumerate(ms)]
    volume = sum(part_ms)
    path = max(bottom_levels(graph, part_ms), default=0.0)
    return volume - max(path, min(efficiency, 1.0) * volume)
