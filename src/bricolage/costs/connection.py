"""A connection to the tables of costs, wherever they are."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from bricolage.base.cache import cache_directory, machine_id
from bricolage.base.undo import Closing
from bricolage.costs.storage.postgresql import PostgresqlStorage
from bricolage.costs.storage.protocol import CostStorage
from bricolage.costs.storage.sqlite import SqliteStorage
from bricolage.errors import BadOption, UnreachableCosts

_LOG = logging.getLogger(__name__)

FILE = "costs.sqlite"
VARIABLE = "BRICOLAGE_COSTS"
"""Environment variable with the address of a PostgreSQL database."""
_SCHEMES = ("postgresql://", "postgres://")


class Connection(Closing):
    """Open tables. One object belongs to one thread. Any number of processes may have others; of a PostgreSQL database, any number
    of machines.

    A PostgreSQL database that goes away is given up with a warning: from then on costs go to the file in the cache folder, so that
    nothing that was finished is lost.
    """

    def __init__(self, place: Path | str | None = None) -> None:
        """Opens a file or, for a text, a PostgreSQL database; made where it does not exist. By default what `BRICOLAGE_COSTS` says,
        or else `costs.sqlite` in the cache folder.

        Raises:
            NewerCosts: a later version of bricolage has made it.
            BadOption, MissingLibrary, UnreachableCosts: of a PostgreSQL database.
        """
        place = place if place is not None else os.environ.get(VARIABLE) or None
        self.machine = machine_id()
        """Under which this machine's costs are kept: a random text, the same as long as the cache folder is."""
        self._storage: CostStorage
        if isinstance(place, str):
            if not place.startswith(_SCHEMES):
                scheme = (
                    place.partition("://")[0] + "://..." if "://" in place else "..."
                )  # the rest may hold a password
                raise BadOption(
                    option=VARIABLE, value=scheme, advice="Give postgresql://USER@HOST/DATABASE, or unset it"
                )
            self._storage = PostgresqlStorage(place, self.machine)
        else:
            self._storage = SqliteStorage(place if place is not None else _file(), self.machine)

    @property
    def place(self) -> str:
        """Where it is, for messages."""
        return self._storage.place

    def close(self) -> None:
        """Ends the connection; what was put is on disk already."""
        self._storage.close()

    def _execute(self, query: str, values: Sequence[object] = ()) -> list[tuple[object, ...]]:
        try:
            return self._storage.execute(query, values)
        except UnreachableCosts as error:
            file = _file()
            _LOG.warning("%s; from now on costs are kept in %s", error.sentence, file)
            self._storage.close()
            self._storage = SqliteStorage(file, self.machine)
            return self._storage.execute(query, values)

    def _upsert(self, table: str, columns: Sequence[str], values: Sequence[object], keys: Sequence[str]) -> None:
        """Stores a row in the place of an earlier one under the same keys."""
        marks = ", ".join("?" * len(values))
        others = ", ".join(f"{name} = excluded.{name}" for name in columns if name not in keys)
        self._execute(
            f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks}) ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {others}",
            values,
        )


def _file() -> Path:
    return cache_directory() / FILE
