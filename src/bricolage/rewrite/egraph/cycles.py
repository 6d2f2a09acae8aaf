"""Keeps every term that an e-graph holds acyclic, as Tensat's efficient filter does (arXiv 2101.01332, section 4.2).

Before an application a map of descendants, made once a round, tells whether it would close a cycle; applications of the same
round may still close one together, so after the round cycles are sought depth-first and the youngest node of each is forbidden.
The oldest node of a class was added after some node of each of its children, so it is never the youngest on a cycle: every
class keeps a term. Extraction does not depend on this filter; it is for those who want small e-graphs without cycles.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from bricolage.rewrite.egraph.egraph import EGraph, ENode

Data = TypeVar("Data")


class Descendants:
    """Which classes lie below which, in a rebuilt e-graph without cycles; merges after it was made are not known to it."""

    def __init__(self, egraph: EGraph[Data]) -> None:
        self._below: dict[int, int] = {}
        for number, edges in _post_order(egraph):
            bits = 0
            for child in edges:
                bits |= 1 << child | self._below[child]
            self._below[number] = bits

    def closes_cycle(self, number: int, needed: Iterable[int]) -> bool:
        """Whether a new node of class `number` that needs these classes would lie on a cycle."""
        return any(each == number or self._below.get(each, 0) >> number & 1 for each in needed)


def forbid_cycles(egraph: EGraph[Data]) -> int:
    """Forbids the youngest node of each cycle of a rebuilt e-graph until there is none; how many were forbidden."""
    forbidden = 0
    while True:
        cycles = list(_cycles(egraph))
        if not cycles:
            return forbidden
        for cycle in cycles:
            # Another cycle may have lost a node that this one shares.
            if all(node in egraph.nodes(number) for number, node in cycle):
                egraph.forbid(*max(cycle, key=lambda each: egraph.age(*each)))
                forbidden += 1


def _post_order(egraph: EGraph[Data]) -> Iterator[tuple[int, set[int]]]:
    done: set[int] = set()
    for start in egraph.classes():
        stack = [(start, _below(egraph, start))] if start not in done else []
        open_edges = [iter(stack[0][1])] if stack else []
        done.add(start)
        while stack:
            child = next(open_edges[-1], None)
            if child is None:
                open_edges.pop()
                yield stack.pop()
            elif child not in done:
                done.add(child)
                stack.append((child, _below(egraph, child)))
                open_edges.append(iter(stack[-1][1]))


def _below(egraph: EGraph[Data], number: int) -> set[int]:
    return {child for node in egraph.nodes(number) for child in node.children}


def _cycles(egraph: EGraph[Data]) -> Iterator[list[tuple[int, ENode]]]:
    """The cycles that one depth-first pass closes, as (class, node) along each."""
    finished: set[int] = set()
    for start in egraph.classes():
        if start in finished:
            continue
        path: list[tuple[int, ENode]] = []
        place = {start: 0}
        stack = [(start, _edges(egraph, start))]
        while stack:
            number, edges = stack[-1]
            edge = next(edges, None)
            del path[len(stack) - 1 :]
            if edge is None:
                stack.pop()
                finished.add(number)
                del place[number]
                continue
            node, child = edge
            path.append((number, node))
            if child in place:
                yield path[place[child] :]
            elif child not in finished:
                place[child] = len(stack)
                stack.append((child, _edges(egraph, child)))


def _edges(egraph: EGraph[Data], number: int) -> Iterator[tuple[ENode, int]]:
    return iter([(node, child) for node in egraph.nodes(number) for child in node.children])
