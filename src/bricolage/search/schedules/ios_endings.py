"""Endings of a set of tasks: subsets from which no edge leads to the rest of it; what a stage may be taken off the end.

Tasks are divided into chains, and an ending is a suffix of each (Ding, Zhu, Jia, Pekhimenko and Han, "IOS: Inter-operator scheduler
for CNN acceleration", MLSys 2021).
"""

from __future__ import annotations

from collections.abc import Iterator

from bricolage.search.schedules.closure import TransitiveClosure
from bricolage.work.bits import lowest, members, of
from bricolage.work.work_graph import WorkGraph


class IosEndings:
    """Of sets that are downwards closed: with a task they hold all that it depends on."""

    def __init__(self, graph: WorkGraph, largest_group: int | None = None, most_groups: int | None = None) -> None:
        """Groups are the connected parts of an ending; `largest_group` limits their tasks, `most_groups` their number. As
        in IOS, a group is one task and what depends on it: an ending in which two tasks only meet later is left out."""
        self.graph = graph
        self.after = TransitiveClosure(graph.predecessors).after
        self.largest, self.most = largest_group or len(graph), most_groups or len(graph)
        self.chains = self._chains()

    def _chains(self) -> tuple[int, ...]:
        """Bit-sets of tasks of which each depends on the one before: longest first, again and again."""
        left, chains = self.graph.everything, []
        while left:
            length: dict[int, tuple[int, int]] = {}
            for task in reversed(members(left)):
                following = [(length[other][0], -other) for other in members(self.after[task] & left)]
                best = max(following, default=(0, 1))
                length[task] = (best[0] + 1, -best[1])
            task = max(length, key=lambda candidate: (length[candidate][0], -candidate))
            chain = []
            while task >= 0:
                chain.append(task)
                task = length[task][1]
            chains.append(of(chain))
            left &= ~of(chain)
        return tuple(chains)

    def of(self, tasks: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Each ending that is not empty and keeps to the limits, with its groups."""
        for ending in self._suffixes(tasks, 0, 0, 0, 0):
            if ending:
                groups = self.graph.components(ending)
                if len(groups) <= self.most and all(self._is_allowed(group) for group in groups):
                    yield ending, groups

    def _is_allowed(self, group: int) -> bool:
        if group.bit_count() > self.largest:
            return False
        first = lowest(group)
        return not group & ~(self.after[first] | 1 << first)

    def _suffixes(self, tasks: int, index: int, chosen: int, required: int, passed: int) -> Iterator[int]:
        """`required` are tasks that those chosen lead to; `passed` the tasks of chains that are decided."""
        if index == len(self.chains):
            yield chosen
            return
        chain = self.chains[index] & tasks
        decided = passed | chain
        if not required & chain:
            yield from self._suffixes(tasks, index + 1, chosen, required, decided)
        suffix = 0
        for task in reversed(members(chain)):
            follow = self.after[task] & tasks
            if follow & passed & ~chosen or follow.bit_count() >= self.largest:
                return  # so it is for all tasks before it in the chain
            suffix |= 1 << task
            required |= follow
            if not required & chain & ~suffix:
                yield from self._suffixes(tasks, index + 1, chosen | suffix, required, decided)
