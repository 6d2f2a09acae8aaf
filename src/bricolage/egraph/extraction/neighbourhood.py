"""Large-neighbourhood search: frees some neighbouring classes at a time and solves for them exactly, the rest being fixed.

The small problem holds the free classes only. Chosen classes outside cost nothing more; but a free class must not end up
below itself, so a chosen class outside represents the free classes that it needs. Nodes that need other classes are left
out. What the rest needs of the free classes are the roots. (Shaw, "Using constraint programming and local search methods to
solve vehicle routing problems", CP 1998, for the scheme.)
"""

from __future__ import annotations

import random
import time

from bricolage.egraph.extraction.extraction_problem import ExtractionNode, ExtractionProblem, choice_cost, restrict
from bricolage.egraph.extraction.presolve import presolve
from bricolage.egraph.extraction.subproblem_search import SubProblemSearch
from bricolage.work.bits import members

_START_SIZE = 60  # classes freed at first
_SMALLEST = 4
_PATIENCE = 10  # neighbourhoods in vain before larger ones are tried
_PROBE_S = 1.0  # for one neighbourhood


def refine(
    problem: ExtractionProblem, choice: dict[int, int], deadline: float, chance: random.Random
) -> dict[int, int]:
    """A choice no worse than the acyclic `choice`, searched until `time.monotonic()` reaches `deadline`."""
    best = choice
    cost = choice_cost(problem, best)
    nearby = _neighbours(problem)
    size, failures = _START_SIZE, 0
    while time.monotonic() < deadline:
        free = _region(nearby, chance.choice(list(best)), size, chance)
        until = min(deadline, time.monotonic() + _PROBE_S)
        trial, finished = _solve_around(problem, best, free, until)
        if choice_cost(problem, trial) < cost:
            best, cost, failures = trial, choice_cost(problem, trial), 0
        elif not finished:
            size, failures = max(size // 2, _SMALLEST), 0
        else:
            failures += 1
            if failures >= _PATIENCE:
                size, failures = min(2 * size, len(problem.classes)), 0
    return best


def _neighbours(problem: ExtractionProblem) -> list[list[int]]:
    nearby: list[set[int]] = [set() for _ in problem.classes]
    for number, nodes in enumerate(problem.classes):
        for node in nodes:
            for child in node.children:
                nearby[number].add(child)
                nearby[child].add(number)
    return [sorted(near) for near in nearby]


def _region(nearby: list[list[int]], start: int, size: int, chance: random.Random) -> list[int]:
    region = {start: None}
    border = [start]
    while border and len(region) < size:
        near = nearby[border.pop(chance.randrange(len(border)))]
        for other in chance.sample(near, min(len(near), size)):
            if other not in region:
                region[other] = None
                border.append(other)
    return list(region)


def _solve_around(
    problem: ExtractionProblem, best: dict[int, int], free: list[int], deadline: float
) -> tuple[dict[int, int], bool]:
    """The best choice that differs from `best` in `free` classes only, and whether it is proven to be that."""
    inner = {number: position for position, number in enumerate(free)}
    # Which free classes each chosen class outside needs, in free order as bits; `best` holds children first.
    needs: dict[int, int] = {}
    roots = {inner[root] for root in problem.roots if root in inner}
    for number, position in best.items():
        if number in inner:
            continue
        bits = 0
        for child in problem.classes[number][position].children:
            bits |= 1 << inner[child] if child in inner else needs[child]
        needs[number] = bits
        roots.update(inner[child] for child in problem.classes[number][position].children if child in inner)
    classes: list[tuple[ExtractionNode, ...]] = []
    for number in free:
        nodes: list[ExtractionNode] = []
        for position, node in enumerate(problem.classes[number]):
            if all(child in inner or child in needs for child in node.children):
                bits = 0
                for child in node.children:
                    bits |= 1 << inner[child] if child in inner else needs[child]
                nodes.append(ExtractionNode(node.cost, tuple(members(bits)), position))
        classes.append(tuple(nodes))
    reduced = presolve(ExtractionProblem(tuple(classes), tuple(sorted(roots))), deadline=deadline)
    searches = [SubProblemSearch(part, deadline) for part in reduced.parts]
    for search in searches:
        search.prove(deadline)
    choice = dict(best)
    for inside, position in reduced.restore(search.chosen() for search in searches).items():
        key = classes[inside][position].key
        assert isinstance(key, int)
        choice[free[inside]] = key
    whole = restrict(problem, choice)
    assert whole is not None, "the chosen classes outside represent the free ones that they need"
    return whole, all(search.proven for search in searches)
