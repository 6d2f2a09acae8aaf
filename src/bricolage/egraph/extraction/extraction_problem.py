"""What extraction is asked and what it answers: numbers only.

A class is a list of nodes that compute the same; a node costs something and needs some classes. Chosen is one node for
every root class and, transitively, for every class that a chosen node needs, without a cycle. The price is the sum of the
costs of the distinct chosen nodes: what is shared is paid once (DAG cost).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from bricolage.errors import BadExtractionProblem

Choice: TypeAlias = Mapping[int, int]
"""Class → the position of the chosen node within the class, for exactly the classes that are needed."""


@dataclass(frozen=True)
class ExtractionNode:
    """`children` are classes, each kept once; `key` is the caller's own."""

    cost: float
    children: tuple[int, ...]
    key: Hashable = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "children", tuple(dict.fromkeys(self.children)))


@dataclass(frozen=True)
class ExtractionProblem:
    """`classes[c]` holds the nodes of class c. Costs are finite or infinite (never to be chosen), not negative.

    Raises BadExtractionProblem when a cost is negative or not a number, or a child or root is no class.
    """

    classes: tuple[tuple[ExtractionNode, ...], ...]
    roots: tuple[int, ...]

    def __post_init__(self) -> None:
        class_range = range(len(self.classes))
        for number, nodes in enumerate(self.classes):
            for node in nodes:
                if math.isnan(node.cost) or node.cost < 0.0:
                    raise BadExtractionProblem(where=f"a node of class {number}", reason=f"costs {node.cost}")
                for child in node.children:
                    if child not in class_range:
                        raise BadExtractionProblem(where=f"a node of class {number}", reason=f"needs class {child}")
        for root in self.roots:
            if root not in class_range:
                raise BadExtractionProblem(where="the list of roots", reason=f"names class {root}")

    @property
    def node_count(self) -> int:
        """How many nodes all classes have together."""
        return sum(len(nodes) for nodes in self.classes)

    @cached_property
    def users(self) -> list[list[tuple[int, int]]]:
        """For each class the nodes (class, position) that need it."""
        users: list[list[tuple[int, int]]] = [[] for _ in self.classes]
        for number, nodes in enumerate(self.classes):
            for position, node in enumerate(nodes):
                for child in node.children:
                    users[child].append((number, position))
        return users


@dataclass(frozen=True)
class Extraction:
    """An acyclic choice, its DAG cost, a bound that no acyclic choice is below, and whether the two are equal.

    `seconds` is what the search took.
    """

    choice: Choice
    cost: float
    lower_bound: float
    proven: bool
    seconds: float

    @property
    def gap(self) -> float:
        """How far the cost may be from the optimum, relative to the cost."""
        return (self.cost - self.lower_bound) / self.cost if self.cost > 0.0 else 0.0


def reachable_classes(problem: ExtractionProblem, choice: Choice) -> list[int] | None:
    """The classes that the roots need under `choice`, children before parents; None when they need themselves.

    Raises KeyError when a needed class has no chosen node.
    """
    order: list[int] = []
    done: dict[int, bool] = {}
    for root in problem.roots:
        stack = [] if root in done else [(root, iter(problem.classes[root][choice[root]].children))]
        done.setdefault(root, False)
        while stack:
            number, children = stack[-1]
            child = next(children, None)
            if child is None:
                done[number] = True
                order.append(number)
                stack.pop()
            elif child not in done:
                done[child] = False
                stack.append((child, iter(problem.classes[child][choice[child]].children)))
            elif not done[child]:
                return None
    return order


def restrict(problem: ExtractionProblem, choice: Choice) -> dict[int, int] | None:
    """`choice` for the needed classes alone, children first; None when it is cyclic."""
    order = reachable_classes(problem, choice)
    return None if order is None else {number: choice[number] for number in order}


def choice_cost(problem: ExtractionProblem, choice: Choice) -> float:
    """The DAG cost of an acyclic choice. The sum is exact, so that equal choices cost the same in any order."""
    return math.fsum(problem.classes[number][position].cost for number, position in choice.items())


def strong_components(successors: Sequence[Iterable[int]]) -> list[int]:
    """For each vertex the number of its strongly connected component (Tarjan 1972, without recursion).

    Components are numbered in reverse topological order: an edge never leads to a higher number.
    """
    size = len(successors)
    index, low, component = [-1] * size, [0] * size, [-1] * size
    visited = component_count = 0
    open_vertices: list[int] = []
    for start in range(size):
        if index[start] >= 0:
            continue
        index[start] = low[start] = visited
        visited += 1
        open_vertices.append(start)
        stack = [(start, iter(successors[start]))]
        while stack:
            vertex, following = stack[-1]
            for other in following:
                if index[other] < 0:
                    index[other] = low[other] = visited
                    visited += 1
                    open_vertices.append(other)
                    stack.append((other, iter(successors[other])))
                    break
                if component[other] < 0:
                    low[vertex] = min(low[vertex], index[other])
            else:
                stack.pop()
                if stack:
                    above = stack[-1][0]
                    low[above] = min(low[above], low[vertex])
                if low[vertex] == index[vertex]:
                    while True:
                        other = open_vertices.pop()
                        component[other] = component_count
                        if other == vertex:
                            break
                    component_count += 1
    return component
