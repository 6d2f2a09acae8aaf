"""Branches as one block: how PipeDream's planner is contracted in the comparison of Tarnawski et al.

Narayanan et al., "PipeDream: Generalized pipeline parallelism for DNN training", SOSP 2019, plans rows of layers. To run it on
graphs, Tarnawski et al. join what lies on parallel paths: edges of one biconnected part of the graph, directions aside, make their
sources one block. A row of operators stays apart, for each of its edges is a part of its own.

Outputs of operators that take no time and that cost next to nothing to move (inputs, masks, views) are left out of this, since each
would make a single block of all its readers. The authors' program leaves out the same ones of BERT-24 and GNMT, by their numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from bricolage.search.devices.device_problem import DevicePlacementProblem

_NEXT_TO_NOTHING_MS = 1e-3
"""An output that moves in less does not tie its readers together."""


def contract_branches(problem: DevicePlacementProblem) -> DevicePlacementProblem:
    """The problem whose colours also keep together what lies on parallel paths."""
    colours = [colour if colour >= 0 else -1 - operator for operator, colour in enumerate(problem.colours)]
    numbers: dict[tuple[int, bool], int] = {}
    node = [numbers.setdefault(key, len(numbers)) for key in zip(colours, problem.backward, strict=True)]
    edges = {
        (node[source], node[reader])
        for source, readers in enumerate(problem.readers)
        if not _is_next_to_nothing(problem, source)
        for reader in readers
        if node[source] != node[reader]
    }
    colour_of = [colour for colour, _ in numbers]
    joined = {colour: colour for colour in colours}

    def find(colour: int) -> int:
        while joined[colour] != colour:
            colour = joined[colour]
        return colour

    parts = label_biconnected(len(numbers), edges)
    first: dict[int, int] = {}
    for source, reader in sorted(edges):
        colour = find(colour_of[source])
        joined[colour] = find(first.setdefault(parts[min(source, reader), max(source, reader)], colour))
    places: dict[int, int] = {}
    return replace(problem, colours=tuple(places.setdefault(find(colour), len(places)) for colour in colours))


def _is_next_to_nothing(problem: DevicePlacementProblem, operator: int) -> bool:
    takes_time = problem.accelerator_ms[operator] or problem.processor_ms[operator]
    return not takes_time and problem.move_ms[operator] < _NEXT_TO_NOTHING_MS


def label_biconnected(count: int, edges: Iterable[tuple[int, int]]) -> dict[tuple[int, int], int]:
    """By edge, its smaller end first, the number of its part: two edges are in one where a simple circle holds both.

    Hopcroft and Tarjan (1973): one walk in depth, without recursion. Directions do not count.
    """
    near: list[set[int]] = [set() for _ in range(count)]
    for end, other in edges:
        near[end].add(other)
        near[other].add(end)
    entered, low = [0] * count, [0] * count
    parts: dict[tuple[int, int], int] = {}
    time = number = 0
    waiting: list[tuple[int, int]] = []
    for root in range(count):
        if entered[root]:
            continue
        time += 1
        entered[root] = low[root] = time
        walk = [(root, -1, iter(sorted(near[root])))]
        while walk:
            node, parent, others = walk[-1]
            for other in others:
                if not entered[other]:
                    waiting.append((node, other))
                    time += 1
                    entered[other] = low[other] = time
                    walk.append((other, node, iter(sorted(near[other]))))
                    break
                if entered[other] < entered[node] and other != parent:
                    waiting.append((node, other))
                    low[node] = min(low[node], entered[other])
            else:
                walk.pop()
                if not walk:
                    continue
                low[parent] = min(low[parent], low[node])
                if low[node] >= entered[parent]:
                    edge = None
                    while edge != (parent, node):
                        edge = waiting.pop()
                        parts[min(edge), max(edge)] = number
                    number += 1
    return parts
