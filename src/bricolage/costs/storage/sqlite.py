"""Costs in an SQLite file, which processes share through a write-ahead log; or in memory where there can be no file."""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bricolage.base.undo import undo_on_failure
from bricolage.costs.storage.schema import migrate
from bricolage.errors import NotWritable

_LOG = logging.getLogger(__name__)
_BUSY_MS = 60_000
_NO_ACCESS = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN}
_CORRUPT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


class SqliteStorage:
    """A file. One that is not a readable database is moved aside with a warning, and a fresh one is begun. Where the folder
    cannot be written, tables are kept in memory, with a warning."""

    def __init__(self, path: Path, machine: str) -> None:
        """Opens the file; made where it does not exist. `machine`: who has measured what the file held before it said so.

        Raises:
            NewerCosts: a later version of bricolage has made it.
        """
        self._path, self._machine = path, machine
        self._connection = self._open()

    @property
    def place(self) -> str:
        return str(self._path)

    def close(self) -> None:
        self._connection.close()

    def execute(self, query: str, values: Sequence[object] = ()) -> list[tuple[object, ...]]:
        identity = _identity(self._path)
        try:
            return self._connection.execute(query, values).fetchall()
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
                raise NotWritable(path=self._path, reason=os.strerror(errno.ENOSPC)) from error
            if error.sqlite_errorcode & 0xFF in _NO_ACCESS:
                raise NotWritable(path=self._path, reason=error) from error
            if not _is_corrupt(error):
                raise
            self._connection.close()
            self._set_aside(identity, error)
            self._connection = self._connect(self._path)
            return self._connection.execute(query, values).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with _transaction(self._connection):
            yield

    def _open(self) -> sqlite3.Connection:
        before = _identity(self._path)
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            return self._connect(self._path)
        except sqlite3.DatabaseError as error:
            if _is_corrupt(error):
                self._set_aside(before, error)
                return self._connect(self._path)
            reason: Exception = error
        except OSError as error:
            reason = error
        _LOG.warning("the cost database %s cannot be used (%s); costs are kept for this run only", self._path, reason)
        return self._connect(None)

    def _set_aside(self, identity: tuple[int, int] | None, error: Exception) -> None:
        """Renames the broken file, unless another process has already put a fresh one in its place."""
        path = self._path
        if _identity(path) != identity:
            return
        aside = path.with_name(f"{path.name}.corrupt-{time.strftime('%Y%m%d-%H%M%S')}")
        _LOG.warning("the cost database %s is broken (%s); moved to %s, a fresh one is begun", path, error, aside.name)
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        try:
            path.replace(aside)
        except FileNotFoundError:
            _LOG.debug("another process moved %s first", path)

    def _connect(self, path: Path | None) -> sqlite3.Connection:
        connection = sqlite3.connect(
            ":memory:" if path is None else path, timeout=_BUSY_MS / 1000, isolation_level=None
        )
        with undo_on_failure(connection.close):
            connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
            if path is not None:
                _use_write_ahead_log(connection)
            connection.execute("PRAGMA synchronous = FULL")  # NORMAL may lose what was finished when the power is cut
            if path is not None and connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
                raise _corrupt("quick_check found damage")
            migrate(_Migrating(connection, str(self._path)), self._machine)
        return connection


class _Migrating:
    """A connection that has its tables only afterwards; errors are SQLite's own, for `_open` to look at."""

    def __init__(self, connection: sqlite3.Connection, place: str) -> None:
        self._connection, self.place = connection, place

    def execute(self, query: str, values: Sequence[object] = ()) -> list[tuple[object, ...]]:
        return self._connection.execute(query, values).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with _transaction(self._connection):
            yield

    def close(self) -> None:
        self._connection.close()


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    with undo_on_failure(lambda: connection.in_transaction and connection.execute("ROLLBACK")):
        yield
    connection.execute("COMMIT")


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Switching the mode needs the file for a moment, and does not wait for it by itself when others open it as
    well."""
    deadline = time.monotonic() + _BUSY_MS / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if (
                error.sqlite_errorcode not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
                or time.monotonic() > deadline
            ):
                raise
            time.sleep(0.02)


def _corrupt(reason: str) -> sqlite3.DatabaseError:
    error = sqlite3.DatabaseError(reason)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def _is_corrupt(error: sqlite3.DatabaseError) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _CORRUPT


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_dev, facts.st_ino
