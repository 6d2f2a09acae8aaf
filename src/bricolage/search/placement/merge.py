"""Merging neighbouring regions of one implementation into larger ones.

Engines gain from large regions, so a placement is executed with its regions merged as far as possible. Two regions may
become one when the only way from the first to the second is direct: a detour through a third would have to run in the
middle of the merged region. A topological order of the regions is kept up to date, which confines the look for detours
to what lies between the two (Pearce and Kelly, "A dynamic topological sort algorithm for directed acyclic graphs",
ACM Journal of Experimental Algorithmics 11, 2007).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bricolage.work.implementation import Assignment, Placement
from bricolage.work.placement import Candidate, quotient, region_order
from bricolage.work.work_graph import WorkGraph


def merge_regions(graph: WorkGraph, choices: Sequence[Candidate]) -> Placement:
    """The regions of `choices` with adjacent ones of one implementation merged, in an executable order.

    Only candidates that merge take part. No two adjacent regions of the result could be merged further
    without a cycle. Pairs are tried in execution order, so the result is a function of the arguments. If the regions of
    `choices` are convex and form no cycle, so do those of the result.
    Raises ValueError when `choices` do not cover every operator exactly once, or already form a cycle.
    """
    regions = [choice.region for choice in choices]
    order = region_order(graph, regions)
    if order is None:
        raise ValueError("the regions form a cycle")
    labels = [choice.implementation if choice.merges else None for choice in choices]
    quotient_graph = _Quotient(quotient(graph, regions), order)
    merged = True
    while merged:
        # A merge can take away the detour that kept an earlier pair apart, hence the passes; two or three suffice.
        merged = False
        for source in sorted(quotient_graph.alive, key=quotient_graph.rank.__getitem__):
            if labels[source] is None or source not in quotient_graph.alive:
                continue
            for target in quotient_graph.following(source):
                if labels[target] == labels[source] and quotient_graph.contract(source, target):
                    regions[source] |= regions[target]
                    merged = True
    alive = sorted(quotient_graph.alive)
    final = region_order(graph, [regions[index] for index in alive])
    assert final is not None
    return tuple(Assignment(regions[alive[i]], choices[alive[i]].implementation) for i in final)


class _Quotient:
    """An acyclic graph of regions under contraction, with a topological rank for each node."""

    def __init__(self, successors: Sequence[set[int]], order: Sequence[int]) -> None:
        self._successors = [set(targets) for targets in successors]
        self._predecessors: list[set[int]] = [set() for _ in successors]
        for source, targets in enumerate(successors):
            for target in targets:
                self._predecessors[target].add(source)
        self.rank = {node: place for place, node in enumerate(order)}
        self.alive = set(order)

    def following(self, source: int) -> list[int]:
        """What reads from `source`, in execution order."""
        return sorted(self._successors[source], key=self.rank.__getitem__)

    def contract(self, source: int, target: int) -> bool:
        """Merge `target` into `source`, from which it reads, unless a detour leads from one to the other."""
        if target not in self._successors[source]:
            return False
        low, high = self.rank[source], self.rank[target]
        after = self._reach(self._successors, source, lambda rank: rank < high, skip=target)
        if any(target in self._successors[node] for node in after):
            return False
        before = self._reach(self._predecessors, target, lambda rank: rank > low, skip=source)
        self._rerank(source, target, before, after)
        self._join(source, target)
        return True

    def _reach(self, edges: Sequence[set[int]], start: int, within: Callable[[int], bool], skip: int) -> set[int]:
        """The nodes reached from `start`, itself and `skip` excluded, along nodes whose rank is `within` bounds."""
        reached: set[int] = set()
        stack = [start]
        while stack:
            for node in edges[stack.pop()]:
                if node != skip and node not in reached and within(self.rank[node]):
                    reached.add(node)
                    stack.append(node)
        return reached

    def _rerank(self, source: int, target: int, before: set[int], after: set[int]) -> None:
        """Hand out the ranks of all involved anew: first what `target` needs, then the merged node, then the rest."""
        places = sorted(self.rank[node] for node in (*before, *after, source, target))
        first = sorted(before, key=self.rank.__getitem__)
        last = sorted(after, key=self.rank.__getitem__)
        del self.rank[target]
        self.rank.update(zip(first, places, strict=False))
        self.rank[source] = places[len(first)]
        self.rank.update(zip(last, places[len(places) - len(last) :], strict=True))

    def _join(self, source: int, target: int) -> None:
        for node in self._successors[target]:
            self._predecessors[node].discard(target)
            self._predecessors[node].add(source)
        for node in self._predecessors[target]:
            self._successors[node].discard(target)
            if node != source:
                self._successors[node].add(source)
        self._successors[source] |= self._successors[target]
        self._predecessors[source] |= self._predecessors[target] - {source}
        self.alive.discard(target)
