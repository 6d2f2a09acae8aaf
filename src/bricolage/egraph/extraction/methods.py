"""`extract`: one interface for all methods."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from bricolage.egraph.extraction.extraction_problem import Extraction, ExtractionProblem, choice_cost
from bricolage.egraph.extraction.greedy import greedy_dag, greedy_tree
from bricolage.egraph.extraction.landmarks import Landmarks
from bricolage.egraph.extraction.neighbourhood import refine
from bricolage.egraph.extraction.presolve import presolve
from bricolage.egraph.extraction.subproblem_search import PRECISE, SubProblemSearch

Method: TypeAlias = Literal["tree", "dag", "exact", "anytime"]
"""Two greedy ones; the binary program until proven or out of time; the same, then neighbourhoods where it is not proven."""

_PRESOLVE_SHARE = 0.3  # of the time, at most
_BOUND_SHARE = 0.1  # of the time, for the bound of a greedy choice
_PROOF_SHARE = 0.5  # of the time after that, for `anytime`


@dataclass(frozen=True)
class ExtractionLimits:
    """`seconds` is the time for the whole call; `seed` steers `anytime`.

    A call may take longer by what one step takes: a pass over the e-graph (some seconds beyond 50,000 nodes), a linear program.
    """

    seconds: float = 10.0
    seed: int = 0


def extract(
    problem: ExtractionProblem, method: Method = "anytime", limits: ExtractionLimits | None = None
) -> Extraction:
    """The cheapest acyclic choice that `method` finds, by DAG cost, with a lower bound for all choices.

    Raises NoExtraction when a root has no finite term.
    """
    limits = limits or ExtractionLimits()
    started = time.monotonic()
    deadline = started + limits.seconds
    reduced = presolve(problem, deadline=started + _PRESOLVE_SHARE * limits.seconds)
    # Small parts first: they are proven quickly and leave their time to the others.
    parts = sorted(reduced.parts, key=lambda part: part.problem.node_count)
    if method in ("tree", "dag"):
        choice = greedy_tree(problem) if method == "tree" else greedy_dag(problem)
        until = time.monotonic() + _BOUND_SHARE * limits.seconds
        bounds = [Landmarks(part.problem).ascend(part.problem.roots, until).bound for part in parts]
    else:
        searches = [SubProblemSearch(part, deadline) for part in parts]
        now = time.monotonic()
        share = 1.0 if method == "exact" else _PROOF_SHARE
        for search, end in _shares(searches, now + share * (deadline - now)):
            search.prove(end)
        if method == "anytime":
            chance = random.Random(limits.seed)
            for search, end in _shares([search for search in searches if not search.proven], deadline):
                search.offer(refine(search.problem, search.best, end, chance))
        choice = reduced.restore(search.chosen() for search in searches)
        bounds = [search.bound for search in searches]
    cost = choice_cost(problem, choice)
    bound = math.fsum([reduced.constant, *bounds])
    proven = cost - bound <= PRECISE * cost
    return Extraction(choice, cost, cost if proven else min(bound, cost), proven, time.monotonic() - started)


def _shares(searches: Sequence[SubProblemSearch], deadline: float) -> Iterator[tuple[SubProblemSearch, float]]:
    """Each search with the time until which it may work: an equal share of what is left when its turn comes."""
    for done, search in enumerate(searches):
        now = time.monotonic()
        yield search, now + (deadline - now) / (len(searches) - done)
