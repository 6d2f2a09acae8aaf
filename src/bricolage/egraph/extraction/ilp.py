"""The binary linear program of extraction, solved by HiGHS, with cuts that are added as they are needed.

One binary variable x for each node, one continuous y for each class: y is the sum of the class's x; the nodes of a class
that need a child class are together no more than the child's y; a root's y is 1. (Tensat, arXiv 2101.01332, section 5,
bounds each node by itself, which is weaker, and keeps order variables against cycles; here landmarks do that, see
`landmarks`.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bricolage.egraph.extraction.landmarks import Landmarks

_OUT_OF_TIME = 1  # scipy's status codes
_INFEASIBLE = 2
_SCALE = 1e4
"""The incumbent costs this much in the objective: HiGHS stops at an absolute gap of 1e-6, which is then 1e-10 of it."""

_Vector = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Relaxation:
    """The linear relaxation: its value, x by node, y by class, and each node's reduced cost."""

    value: float
    x: _Vector
    y: _Vector
    reduced: _Vector


@dataclass(frozen=True)
class IntegerSolution:
    """`nodes` are chosen, perhaps with a cycle, or None; no solution of the program is below `bound`."""

    nodes: list[int] | None
    bound: float
    optimal: bool


class IntegerProgram:
    """`unit` is a typical cost of a whole solution, above 0."""

    def __init__(self, graph: Landmarks, roots: Sequence[int], unit: float) -> None:
        self._graph = graph
        self._factor = _SCALE / unit
        self._nodes = len(graph.owner)
        self._columns = self._nodes + len(graph.nodes_of)
        self._cost = np.zeros(self._columns)
        self._cost[: self._nodes] = np.array(graph.cost) * self._factor
        self._low = np.zeros(self._columns)
        self._low[[self._nodes + root for root in roots]] = 1.0
        self._row: list[int] = []
        self._column: list[int] = []
        self._value: list[float] = []
        self._equal: list[bool] = []
        for number, nodes in enumerate(graph.nodes_of):
            self._add(nodes, [self._nodes + number], equal=True)
            needing: dict[int, list[int]] = {}
            for node in nodes:
                for child in graph.children[node]:
                    needing.setdefault(child, []).append(node)
            for child, together in needing.items():
                self._add(together, [self._nodes + child])

    def _add(self, plus: Sequence[int], minus: Sequence[int], *, equal: bool = False) -> None:
        """Σ plus − Σ minus ≤ 0, or = 0, over columns."""
        self._row += [len(self._equal)] * (len(plus) + len(minus))
        self._column += [*plus, *minus]
        self._value += [1.0] * len(plus) + [-1.0] * len(minus)
        self._equal.append(equal)

    def cut(self, target: int, landmark: Sequence[int]) -> None:
        """If class `target` is needed, some node of `landmark` is chosen."""
        self._add([self._nodes + target], landmark)

    def relax(self, allowed: npt.NDArray[np.bool_], seconds: float) -> Relaxation | None:
        """The linear relaxation over `allowed` nodes; None when it is infeasible or out of time."""
        from scipy.optimize import linprog

        matrix, equal = self._matrix()
        solution = linprog(
            self._cost,
            A_ub=matrix[~equal],
            b_ub=np.zeros(np.count_nonzero(~equal)),
            A_eq=matrix[equal],
            b_eq=np.zeros(np.count_nonzero(equal)),
            bounds=np.stack([self._low, self._high(allowed)], axis=1),
            method="highs",
            options={"time_limit": max(seconds, 0.0)},
        )
        if solution.status != 0:
            return None
        reduced = solution.lower.marginals[: self._nodes] / self._factor
        x, y = solution.x[: self._nodes], solution.x[self._nodes :]
        return Relaxation(float(solution.fun) / self._factor, x, y, reduced)

    def solve(self, allowed: npt.NDArray[np.bool_], seconds: float) -> IntegerSolution:
        """The best choice over `allowed` nodes as far as the rows so far say."""
        # Imported here: it takes longer than all the rest of the package.
        from scipy.optimize import Bounds, LinearConstraint, milp

        if seconds <= 0.0:
            return IntegerSolution(None, 0.0, False)
        matrix, equal = self._matrix()
        integrality = np.zeros(self._columns)
        integrality[: self._nodes] = 1
        solution = milp(
            c=self._cost,
            integrality=integrality,
            bounds=Bounds(self._low, self._high(allowed)),
            constraints=LinearConstraint(matrix, np.where(equal, 0.0, -np.inf), 0.0),
            options={"time_limit": seconds, "mip_rel_gap": 0.0},
        )
        if solution.status == _INFEASIBLE:
            return IntegerSolution(None, math.inf, True)
        dual = solution.mip_dual_bound
        bound = float(dual) / self._factor if dual is not None and math.isfinite(dual) else 0.0
        if solution.x is None:
            return IntegerSolution(None, bound, False)
        nodes = np.flatnonzero(solution.x[: self._nodes] > 0.5).tolist()
        return IntegerSolution(nodes, bound, bool(solution.success) and solution.status != _OUT_OF_TIME)

    def _high(self, allowed: npt.NDArray[np.bool_]) -> _Vector:
        return np.concatenate([allowed.astype(np.float64), np.ones(self._columns - self._nodes)])

    def _matrix(self) -> tuple[Any, npt.NDArray[np.bool_]]:
        from scipy.sparse import csr_array

        shape = (len(self._equal), self._columns)
        matrix = csr_array((self._value, (self._row, self._column)), shape=shape)
        return matrix, np.array(self._equal)
