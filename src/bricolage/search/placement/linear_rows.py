"""A linear programme under construction, row by row."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

_INFEASIBLE, _OUT_OF_TIME = 2, 1  # scipy's status codes


@dataclass(frozen=True)
class Programmed:
    """What HiGHS answers."""

    x: NDArray[np.float64] | None
    """By column; None where no solution was found."""
    bound: float | None
    """No solution costs less; None where nothing is known."""
    infeasible: bool
    """Whether it is proven that there is none."""
    optimal: bool
    """Whether no solution costs less than `x`, for certain."""


@dataclass
class LinearRows:
    """A sparse matrix under construction, with bounds on every row and a cost for every column."""

    cost: list[float]
    row: list[int] = field(default_factory=list)
    column: list[int] = field(default_factory=list)
    value: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)

    def add(self, entries: Iterable[tuple[int, float]], low: float, high: float) -> None:
        """One more row: columns with their coefficients, and between what their sum is."""
        number = len(self.low)
        for column, value in entries:
            self.row.append(number)
            self.column.append(column)
            self.value.append(value)
        self.low.append(low)
        self.high.append(high)

    def new_column(self, cost: float) -> int:
        """One more column; its number."""
        self.cost.append(cost)
        return len(self.cost) - 1

    def matrix(self) -> object:
        """As scipy takes it."""
        from scipy.sparse import csr_array

        return csr_array((self.value, (self.row, self.column)), shape=(len(self.low), len(self.cost)))

    def solve(
        self,
        whole: Sequence[int] | NDArray[np.float64],
        limit_s: float = math.inf,
        low: float | Sequence[float] = 0.0,
        high: float | Sequence[float] = 1.0,
    ) -> Programmed:
        """The least cost, by HiGHS within `limit_s` seconds. `whole` is 1 for columns of whole numbers; `low` and `high` are the
        columns' bounds."""
        # Imported here: it takes longer than all the rest of the package.
        from scipy.optimize import Bounds, LinearConstraint, milp

        result = milp(
            c=np.array(self.cost),
            integrality=np.array(whole),
            bounds=Bounds(np.array(low), np.array(high)),
            constraints=LinearConstraint(self.matrix(), np.array(self.low), np.array(self.high)),
            options={"time_limit": limit_s, "mip_rel_gap": 0.0},
        )
        dual = result.mip_dual_bound
        bound = float(dual) if dual is not None and math.isfinite(dual) else None
        done = result.status != _OUT_OF_TIME and bool(result.success)
        return Programmed(result.x, bound, result.status == _INFEASIBLE, done)
