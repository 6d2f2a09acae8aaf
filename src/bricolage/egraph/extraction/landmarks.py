"""Landmarks: sets of nodes of which every acyclic extraction holds at least one.

A class is *derived* when one of its nodes has all children derived, so that what is derived has an acyclic graph. Forbid so
many nodes that a target class can no longer be derived, then allow them again one by one as long as it stays so: what is
left is a minimal set that every graph for the target must hit. Such sets are the disjunctive action landmarks of planning
without delete effects (Bonet & Helmert, "Strengthening landmark heuristics via hitting sets", ECAI 2010); extraction is
that problem, with nodes for actions. As inequalities they cut off cyclic selections far more deeply than the cycle itself
does, because nodes that would merely lengthen the cycle are not in them.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bricolage.egraph.extraction.extraction_problem import ExtractionProblem


@dataclass(frozen=True)
class Ascent:
    """A lower bound on the DAG cost, the landmarks (root, nodes) that show it, and what is left of each node's cost."""

    bound: float
    landmarks: list[tuple[int, list[int]]]
    left: list[float]


class Landmarks:
    """Nodes are numbered through all classes: `owner` and `children` by node, `nodes_of` by class."""

    def __init__(self, problem: ExtractionProblem) -> None:
        self.owner: list[int] = []
        self.position: list[int] = []
        self.cost: list[float] = []
        self.children: list[tuple[int, ...]] = []
        self.nodes_of: list[list[int]] = []
        self._users: list[list[int]] = [[] for _ in problem.classes]
        for number, nodes in enumerate(problem.classes):
            self.nodes_of.append(list(range(len(self.owner), len(self.owner) + len(nodes))))
            for position, node in enumerate(nodes):
                for child in node.children:
                    self._users[child].append(len(self.owner))
                self.owner.append(number)
                self.position.append(position)
                self.cost.append(node.cost)
                self.children.append(node.children)

    def derived(self, allowed: Iterable[int]) -> list[bool]:
        """Which classes can be derived from the nodes of `allowed`."""
        state = _Derivation(self, -1)
        for node in allowed:
            state.allow(node)
        return state.done

    def separate(self, target: int, order: Sequence[int], kept: int) -> list[int] | None:
        """A minimal landmark of `target` that none of the first `kept` nodes of `order` is in; None if there is none.

        `order` holds every node; those that come first are least likely to be in the landmark.
        """
        state = _Derivation(self, target)
        landmark: list[int] = []
        for place, node in enumerate(order):
            if not state.allow(node):
                if place < kept:
                    return None
                landmark.append(node)
        return landmark

    def ascend(self, roots: Iterable[int], deadline: float) -> Ascent:
        """Each landmark takes the least of what is left of its nodes' costs, until the roots cost nothing.

        The scheme is that of LM-cut (Helmert & Domshlak, ICAPS 2009): a landmark is the border of the zone from which free
        nodes lead to the root. Of the children that keep a free node from being derived the zone takes the costliest.
        """
        left = list(self.cost)
        height = self._heights()
        state = _Derivation(self, -1)
        for node, cost in enumerate(left):
            if cost <= 0.0:
                state.allow(node)
        bound = 0.0
        landmarks: list[tuple[int, list[int]]] = []
        for root in roots:
            while not state.done[root] and time.monotonic() < deadline:
                landmark = self._border(root, left, state.done, height)
                least = min(left[node] for node in landmark)
                bound += least
                landmarks.append((root, landmark))
                for node in landmark:
                    left[node] -= least
                    if left[node] <= 0.0:
                        state.allow(node)
        return Ascent(bound, landmarks, left)

    def _border(self, root: int, left: list[float], done: list[bool], height: list[float]) -> list[int]:
        zone = {root}
        stack = [root]
        paid: list[int] = []
        while stack:
            for node in self.nodes_of[stack.pop()]:
                if left[node] > 0.0:
                    paid.append(node)
                    continue
                children = self.children[node]
                if not any(child in zone for child in children):
                    worst = max((child for child in children if not done[child]), key=height.__getitem__)
                    zone.add(worst)
                    stack.append(worst)
        return [node for node in paid if not any(child in zone for child in self.children[node])]

    def _heights(self) -> list[float]:
        """The least, over the graphs of a class, of the cost of the longest path: h-max."""
        height = [math.inf] * len(self.nodes_of)
        missing = [len(children) for children in self.children]
        heap = [(self.cost[node], self.owner[node]) for node, count in enumerate(missing) if not count]
        heapq.heapify(heap)
        while heap:
            cost, number = heapq.heappop(heap)
            if height[number] <= cost:
                continue
            height[number] = cost
            for user in self._users[number]:
                missing[user] -= 1
                # The last child to arrive is the costliest.
                if not missing[user]:
                    heapq.heappush(heap, (cost + self.cost[user], self.owner[user]))
        return height


class _Derivation:
    """What is derived while nodes are allowed one after the other, such that `target` never is."""

    def __init__(self, graph: Landmarks, target: int) -> None:
        self.graph = graph
        self.target = target
        self.missing = [len(children) for children in graph.children]
        self.done = [False] * len(graph.nodes_of)
        self.open = [False] * len(graph.owner)

    def allow(self, node: int) -> bool:
        """Whether the target stays underived with `node` too; if not, everything is as before."""
        graph, missing, done, is_open = self.graph, self.missing, self.done, self.open
        is_open[node] = True
        if missing[node] or done[graph.owner[node]]:
            return True
        if graph.owner[node] == self.target:
            is_open[node] = False
            return False
        ready = [graph.owner[node]]
        derived: list[int] = []
        touched: list[int] = []
        while ready:
            number = ready.pop()
            if done[number]:
                continue
            if number == self.target:
                for other in derived:
                    done[other] = False
                for user in touched:
                    missing[user] += 1
                is_open[node] = False
                return False
            done[number] = True
            derived.append(number)
            for user in graph._users[number]:
                missing[user] -= 1
                touched.append(user)
                if not missing[user] and is_open[user]:
                    ready.append(graph.owner[user])
        return True
