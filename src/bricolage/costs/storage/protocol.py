"""What the cost database asks of whatever keeps its tables."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol


class CostStorage(Protocol):
    """A connection. It belongs to one thread; any number of processes may have others to the same tables. Each statement outside of
    `transaction` is finished, and safe from a power cut, when `execute` returns."""

    @property
    def place(self) -> str:
        """Where the tables are, for messages; without passwords."""
        ...

    def execute(self, query: str, values: Sequence[object] = ()) -> list[tuple[object, ...]]:
        """Runs one statement, in the SQL that SQLite and PostgreSQL share, with `?` for each of `values`; its rows.

        Raises:
            NotWritable, UnreachableCosts: it cannot be run, and what it would have stored is not stored.
        """
        ...

    def transaction(self) -> AbstractContextManager[None]:
        """Statements that are all stored or none, with no other writer in between."""
        ...

    def close(self) -> None:
        """Ends the connection."""
        ...
