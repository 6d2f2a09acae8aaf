"""Small random extraction problems and an oracle that tries every choice."""

from __future__ import annotations

import itertools
import math

import numpy as np
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_array

from bricolage.egraph.extraction.extraction_problem import ExtractionNode, ExtractionProblem, choice_cost, restrict

COSTS = st.sampled_from([0.0, 0.0, 1.0, 1.0, 2.0, 3.0, 5.0, 0.1, math.inf])


@st.composite
def problems(draw: st.DrawFn, most_classes: int = 7) -> ExtractionProblem:
    """Cyclic as often as not; sometimes without any finite term."""
    size = draw(st.integers(1, most_classes))
    children = st.lists(st.integers(0, size - 1), max_size=3)
    node = st.builds(lambda cost, below: ExtractionNode(cost, tuple(below)), COSTS, children)
    leaf = st.builds(lambda cost: ExtractionNode(cost, ()), COSTS)
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
            best = min(best, choice_cost(problem, found))
    return best


def order_programme(problem: ExtractionProblem) -> float:
    """The optimum by Tensat's program: order variables keep cycles out, each node bounds each of its children by itself."""
    nodes = [(number, node) for number, each in enumerate(problem.classes) for node in each if math.isfinite(node.cost)]
    count, size = len(nodes), len(problem.classes)
    rows: list[dict[int, float]] = []
    low: list[float] = []
    of = [[i for i, (number, _) in enumerate(nodes) if number == c] for c in range(size)]
    for root in set(problem.roots):
        rows.append(dict.fromkeys(of[root], 1.0))
        low.append(1.0)
    for i, (number, node) in enumerate(nodes):
        for child in node.children:
            if child == number:
                rows.append({i: -1.0})
                low.append(0.0)
                continue
            rows.append({**dict.fromkeys(of[child], 1.0), i: -1.0})
            low.append(0.0)
            # Chosen, the class comes at least one place after its child.
            rows.append({count + number: 1.0, count + child: -1.0, i: -float(size + 1)})
            low.append(-float(size))
    matrix = lil_array((len(rows), count + size))
    for r, row in enumerate(rows):
        for column, entry in row.items():
            matrix[r, column] = entry
    found = milp(
        c=np.array([node.cost for _, node in nodes] + [0.0] * size),
        integrality=np.array([1] * count + [0] * size),
        bounds=Bounds(0.0, np.array([1.0] * count + [float(size)] * size)),
        constraints=LinearConstraint(matrix.tocsr(), np.array(low), np.inf),
        options={"mip_rel_gap": 0.0},
    )
    return math.inf if found.x is None else float(found.fun)
