"""Costs in a PostgreSQL database that several machines share."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from bricolage.base.undo import undo_on_failure
from bricolage.costs.storage.schema import migrate
from bricolage.errors import MissingLibrary, UnreachableCosts

if TYPE_CHECKING:
    import psycopg

_LOG = logging.getLogger(__name__)
_CONNECT_S = 10
_STATEMENT_MS = 60_000
_TRIES_S = (0.2, 1.0, 3.0)
"""Waits before a lost connection is given up."""
_SCHEMA = "bricolage"
"""Holds the tables, so that they may share a database with others'."""
_LOCK = 0x627269636F
"""Number of the advisory lock for changing the tables."""
_TEXT_WITHOUT = "\x00"
"""PostgreSQL's texts hold any letter but this."""


class PostgresqlStorage:
    """A connection to tables in a schema of their own. A connection that is lost is made again."""

    def __init__(self, url: str, machine: str) -> None:
        """Connects, and makes the tables where they are missing. `url`: postgresql://user:password@host:port/database, or any other
        connection string of libpq.

        Raises:
            MissingLibrary: psycopg is not installed.
            UnreachableCosts: there is no such database, or it refuses the login.
            NewerCosts: a later version of bricolage has made the tables.
        """
        try:
            import psycopg
            from psycopg.conninfo import conninfo_to_dict
        except ImportError as error:
            raise MissingLibrary(
                name="psycopg", purpose="for a PostgreSQL database", extra="postgresql", reason=error
            ) from error
        self._errors: Any = (psycopg.OperationalError, psycopg.InterfaceError)
        self._url = url
        try:
            parts = conninfo_to_dict(url)
        except psycopg.ProgrammingError as error:
            raise UnreachableCosts(place="in BRICOLAGE_COSTS", reason=_first_line(error)) from error
        self._place = f"postgresql://{parts.get('host', '')}:{parts.get('port', 5432)}/{parts.get('dbname', '')}"
        self._connection = self._connect()
        with undo_on_failure(self._connection.close):
            try:
                migrate(self, machine)
            except psycopg.Error as error:
                raise UnreachableCosts(place=self._place, reason=_first_line(error)) from error

    @property
    def place(self) -> str:
        return self._place

    def close(self) -> None:
        self._connection.close()

    def execute(self, query: str, values: Sequence[object] = ()) -> list[tuple[object, ...]]:
        import psycopg

        waits = iter(_TRIES_S)
        while True:
            try:
                return self._execute(query, values)
            except self._errors as error:
                wait = next(waits, None)
                inside = not self._connection.closed and self._connection.info.transaction_status
                if wait is None or inside:  # a statement of a transaction is nothing without those before it
                    raise UnreachableCosts(place=self._place, reason=_first_line(error)) from error
                _LOG.info("the connection to %s was lost (%s)", self._place, _first_line(error))
                time.sleep(wait)
                self._reconnect()
            except psycopg.Error as error:
                raise UnreachableCosts(place=self._place, reason=_first_line(error)) from error

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._connection.transaction():
            self._execute("SELECT pg_advisory_xact_lock(?)", (_LOCK,))
            yield

    def _execute(self, query: str, values: Sequence[object]) -> list[tuple[object, ...]]:
        cursor = self._connection.execute(query.replace("?", "%s").encode(), [_adapt_value(value) for value in values])
        return list(cursor.fetchall()) if cursor.description is not None else []

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        import psycopg

        try:
            connection = psycopg.connect(
                self._url,
                autocommit=True,
                connect_timeout=_CONNECT_S,
                application_name="bricolage",
                keepalives_idle=30,
                tcp_user_timeout=_STATEMENT_MS,
                prepare_threshold=None,  # so that pools of connections may stand in between
            )
            connection.execute(f"SET statement_timeout = {_STATEMENT_MS}".encode())
            if not connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (_SCHEMA,)).fetchone():
                connection.execute(f"CREATE SCHEMA IF NOT EXISTS {_SCHEMA}".encode())
            connection.execute(f"SET search_path = {_SCHEMA}".encode())
        except psycopg.errors.UniqueViolation:  # another process made the schema at the same moment
            return self._connect()
        except psycopg.Error as error:
            raise UnreachableCosts(place=self._place, reason=_first_line(error)) from error
        return connection

    def _reconnect(self) -> None:
        """Where that fails, the next statement finds the old connection closed and tries again."""
        self._connection.close()
        try:
            self._connection = self._connect()
        except UnreachableCosts as error:
            _LOG.info("%s", error.sentence)


def _adapt_value(value: object) -> object:
    """A value as the driver takes it: flags are integers in SQLite."""
    if isinstance(value, bool):
        return int(value)
    return value.replace(_TEXT_WITHOUT, "�") if isinstance(value, str) else value


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
