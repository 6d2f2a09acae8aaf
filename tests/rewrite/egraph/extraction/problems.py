"""Small random extraction problems and an oracle that tries every choice."""

from __future__ import annotations

import itertools
import math

from hypothesis import strategies as st

from bricolage.rewrite.egraph.extraction.problem import ExtractionProblem, Node, price, restrict

COSTS = st.sampled_from([0.0, 0.0, 1.0, 1.0, 2.0, 3.0, 5.0, 0.1, math.inf])


@st.composite
def problems(draw: st.DrawFn, most_classes: int = 7) -> ExtractionProblem:
    """Cyclic as often as not; sometimes without any finite term."""
    size = draw(st.integers(1, most_classes))
    children = st.lists(st.integers(0, size - 1), max_size=3)
    node = st.builds(lambda cost, below: Node(cost, tuple(below)), COSTS, children)
    leaf = st.builds(lambda cost: Node(cost, ()), COSTS)
    classes = draw(st.lists(st.lists(node | leaf, max_size=4), min_size=size, max_size=size))
    roots = draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=2))
    return ExtractionProblem(tuple(tuple(nodes) for nodes in classes), tuple(roots))


def brute_force(problem: ExtractionProblem) -> float:
    """The least DAG cost of all acyclic choices; infinite when there is none."""
    best = math.inf
    for positions in itertools.product(*(range(max(len(nodes), 1)) for nodes in problem.classes)):
        choice = {number: position for number, position in enumerate(positions) if problem.classes[number]}
        try:
            found = restrict(problem, choice)
        except KeyError:
            continue
        if found is not None:
            best = min(best, price(problem, found))
    return best
