"""A linear programme under construction, row by row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


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
