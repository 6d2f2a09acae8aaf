"""Greedy extraction: by tree cost, and by the cost of the graph below each class.

Tree cost is Knuth's generalisation of Dijkstra's algorithm to and-or graphs (Information Processing Letters 6(1), 1977):
classes are settled in order of cost, a node's children always before the node, so the result has no cycle even where
costs are zero. It pays a shared class once for each use. The second method prices the union of what lies below a node.
Both are upper bounds only.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from bricolage.egraph.extraction.extraction_problem import ExtractionProblem, choice_cost, restrict
from bricolage.errors import NoExtraction

_HUGE = 1e300


def greedy_tree(problem: ExtractionProblem, costs: Sequence[Sequence[float]] | None = None) -> dict[int, int]:
    """The choice of least tree cost; `costs[class][position]` stand in for the nodes' own where given.

    Raises NoExtraction when some root has no finite tree.
    """
    settled: dict[int, float] = {}

    def tree(number: int, position: int) -> float:
        node = problem.classes[number][position]
        node_cost = node.cost if costs is None else costs[number][position]
        # Shared classes count again and again: a tree's cost may exceed any float where the graph's does not.
        below = min(sum([settled[child] for child in node.children]), _HUGE)
        return node_cost + below

    return _settle(problem, tree, settled)


def greedy_dag(problem: ExtractionProblem) -> dict[int, int]:
    """Settles classes in order of the DAG cost of the graph chosen below them. Quadratic memory in bits.

    Raises NoExtraction as `greedy_tree` does.
    """
    size = len(problem.classes)
    node_costs: npt.NDArray[np.float64] = np.zeros(size)
    below: dict[int, npt.NDArray[np.uint8]] = {}
    candidates: dict[tuple[int, int], npt.NDArray[np.uint8]] = {}
    settled: dict[int, float] = {}

    def graph(number: int, position: int) -> float:
        node = problem.classes[number][position]
        union = np.zeros((size + 7) // 8, np.uint8)
        for child in node.children:
            union |= below[child]
        candidates[number, position] = union
        return node.cost + float(node_costs @ np.unpackbits(union, count=size))

    def settle(number: int, position: int) -> None:
        mine = candidates[number, position]
        mine[number // 8] |= 128 >> number % 8
        below[number] = mine
        node_costs[number] = problem.classes[number][position].cost
        for other in range(len(problem.classes[number])):
            candidates.pop((number, other), None)

    return _settle(problem, graph, settled, settle)


def _settle(
    problem: ExtractionProblem,
    value: Callable[[int, int], float],
    settled: dict[int, float],
    on_settle: Callable[[int, int], None] | None = None,
) -> dict[int, int]:
    users = problem.users
    missing = [[len(node.children) for node in nodes] for nodes in problem.classes]
    heap = [
        (value(number, position), number, position)
        for number, nodes in enumerate(problem.classes)
        for position, node in enumerate(nodes)
        if not node.children
    ]
    heapq.heapify(heap)
    choice: dict[int, int] = {}
    while heap:
        cost, number, position = heapq.heappop(heap)
        if number in settled or not math.isfinite(cost):
            continue
        settled[number] = cost
        choice[number] = position
        if on_settle is not None:
            on_settle(number, position)
        for user, place in users[number]:
            missing[user][place] -= 1
            if not missing[user][place] and user not in settled:
                heapq.heappush(heap, (value(user, place), user, place))
    for root in problem.roots:
        if root not in settled:
            raise NoExtraction(root=root)
    root_choice = restrict(problem, choice)
    assert root_choice is not None
    return root_choice


def improve(problem: ExtractionProblem, choice: dict[int, int], deadline: float = math.inf) -> dict[int, int]:
    """Derives the classes again with every chosen node free, while that makes the whole cheaper and there is time.

    What is chosen already costs nothing more, so sharing becomes attractive; a local optimum is reached in a few rounds.
    """
    best, cost = choice, choice_cost(problem, choice)
    while time.monotonic() < deadline:
        costs = [[node.cost for node in nodes] for nodes in problem.classes]
        for number, position in best.items():
            costs[number][position] = 0.0
        trial = greedy_tree(problem, costs)
        if choice_cost(problem, trial) >= cost:
            return best
        best, cost = trial, choice_cost(problem, trial)
    return best
