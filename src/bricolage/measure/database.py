"""The cost database: every finished measurement with everything that could change it, in one SQLite file that
concurrent processes share.

Each measurement is its own transaction in a write-ahead log that is on disk when it ends, so neither killing a process nor
cutting the power loses anything that was finished.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

from bricolage.cache import cache_directory
from bricolage.errors import NotWritable
from bricolage.measure.entries import (
    COLUMNS,
    EXPIRING,
    EXPIRY_S,
    SCHEMA,
    UNSTORED,
    Cost,
    CostKey,
    Entry,
    entry_of_row,
    parse_line,
    row_values,
)
from bricolage.verify.compare import Deviation

__all__ = ["FILE", "Cost", "CostKey", "Database", "Entry", "Imported"]

_LOG = logging.getLogger(__name__)

FILE = "costs.sqlite"
_BUSY_MS = 60_000
_NO_ACCESS = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN}
_CORRUPT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


@dataclass(frozen=True)
class Imported:
    """What an import did, and the lines it could not use."""

    added: int
    improved: int
    kept: int
    """Entries that were already known at least as well."""
    bad: tuple[tuple[int, str], ...] = ()
    """(line number, reason)."""


_TABLES = """
DROP TABLE IF EXISTS costs;  -- of versions that kept errors with times
DROP TABLE IF EXISTS boundaries;
DROP TABLE IF EXISTS latencies;  -- of versions that did not see what other processes did
CREATE TABLE IF NOT EXISTS times (
    digest TEXT PRIMARY KEY, region TEXT NOT NULL, backend TEXT NOT NULL, version TEXT NOT NULL, config TEXT NOT NULL,
    device TEXT NOT NULL, threads INTEGER NOT NULL, alone INTEGER NOT NULL, schema INTEGER NOT NULL,
    outcome TEXT NOT NULL, median_ms REAL, low_ms REAL, high_ms REAL, samples INTEGER,
    compile_s REAL NOT NULL, reason TEXT NOT NULL, noisy INTEGER NOT NULL,
    disturbed INTEGER NOT NULL, date REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS times_by_backend ON times (backend, version);
DROP TABLE IF EXISTS accuracies;
CREATE TABLE IF NOT EXISTS deviations (
    digest TEXT NOT NULL, data TEXT NOT NULL, error REAL NOT NULL, excess REAL NOT NULL, date REAL NOT NULL,
    PRIMARY KEY (digest, data)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS races (key TEXT PRIMARY KEY, value TEXT NOT NULL, date REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS configs (key TEXT PRIMARY KEY, value TEXT NOT NULL, date REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS transfers (key TEXT PRIMARY KEY, value TEXT NOT NULL, date REAL NOT NULL) WITHOUT ROWID;
"""
_NotedTable = Literal["races", "transfers", "configs"]


class Database:
    """An open cost database. One object belongs to one thread; any number of processes may have the file open.

    A file that is not a readable database is moved aside with a warning and a fresh one is begun. Where the folder
    cannot be written, costs are kept in memory for this run, with a warning.
    """

    def __init__(self, path: Path | None = None) -> None:
        """Opens `path`, by default `costs.sqlite` in the cache folder; made where it does not exist."""
        self.path = path if path is not None else cache_directory() / FILE
        self._connection = self._open()

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection; what was put is on disk already."""
        self._connection.close()

    # --- costs ------------------------------------------------------------------------------------------------------

    def get(self, key: CostKey) -> Cost | None:
        """The latency under a key, or why there is none; None where it was never measured or the failure has expired.
        What it says holds for every set of weights, so it has no error."""
        rows = self._execute(f"SELECT {COLUMNS} FROM times WHERE digest = ?", (key.digest(),))
        cost = entry_of_row(rows[0]).cost if rows else None
        return None if cost is None or cost.expired else cost

    def put(self, key: CostKey, cost: Cost) -> None:
        """Stores a latency, or why there is none, at once; an earlier one under the same key is replaced. What says
        nothing of the candidate's time is not stored (`UNSTORED`)."""
        if cost.outcome in UNSTORED:
            return
        values = (key.digest(), *row_values(Entry(key, cost)))
        marks = ", ".join("?" * len(values))
        self._execute(f"INSERT OR REPLACE INTO times (digest, {COLUMNS}) VALUES ({marks})", values)

    def deviation(self, key: CostKey, data: str) -> Deviation | None:
        """How far the answer was off that was compared with float64 on these very weights and inputs, `data` being
        their digest (see `bricolage.verify.oracle`); None where none was."""
        query = "SELECT error, excess FROM deviations WHERE digest = ? AND data = ?"
        rows = self._execute(query, (key.digest(), data))
        return Deviation(float(str(rows[0][0])), float(str(rows[0][1]))) if rows else None

    def put_deviation(self, key: CostKey, data: str, found: Deviation) -> None:
        """Stores how far an answer was off at once; infinitely where it was not finite."""
        values = (key.digest(), data, found.error, found.excess, time.time())
        self._execute("INSERT OR REPLACE INTO deviations VALUES (?, ?, ?, ?, ?)", values)

    def entries(self, backend: str | None = None, region: str | None = None, failures: bool = False) -> Iterator[Entry]:
        """All entries, newest first, of one backend or region where given, or only the failures."""
        conditions, values = ["1"], []
        if backend is not None:
            conditions.append("backend = ?")
            values.append(backend)
        if region is not None:
            conditions.append("region = ?")
            values.append(region)
        if failures:
            conditions.append("outcome != 'ok'")
        query = f"SELECT {COLUMNS} FROM times WHERE {' AND '.join(conditions)} ORDER BY date DESC, digest"
        yield from map(entry_of_row, self._execute(query, values))

    def prune(
        self,
        *,
        older_than_s: float | None = None,
        versions: Mapping[str, str] | None = None,
        device: str | None = None,
        failures: bool = False,
    ) -> int:
        """Removes entries and returns how many. Without arguments: expired failures and entries of another schema.

        With `older_than_s` also everything older, with `versions` what was measured on other versions of those
        backends, with `device` what was measured on other devices, with `failures` every failure.
        """
        conditions = ["schema != ?", f"(outcome IN ({', '.join('?' * len(EXPIRING))}) AND date < ?)"]
        oldest = 0.0 if older_than_s is None else time.time() - older_than_s
        values: list[object] = [SCHEMA, *sorted(EXPIRING), time.time() - EXPIRY_S]
        if older_than_s is not None:
            conditions.append("date < ?")
            values.append(time.time() - older_than_s)
        for name, version in (versions or {}).items():
            conditions.append("(backend = ? AND version != ?)")
            values += [name, version]
        if device is not None:
            conditions.append("device != ?")
            values.append(device)
        if failures:
            conditions.append("outcome != 'ok'")
        removed = self._execute(f"DELETE FROM times WHERE {' OR '.join(conditions)} RETURNING digest", values)
        self._execute("DELETE FROM deviations WHERE date < ? OR digest NOT IN (SELECT digest FROM times)", (oldest,))
        return len(removed)

    # --- exchange ---------------------------------------------------------------------------------------------------

    def export_lines(self) -> Iterator[str]:
        """Every entry as one line of JSON, ordered by key so that equal databases export equal text."""
        for row in self._execute(f"SELECT {COLUMNS} FROM times ORDER BY digest"):
            yield json.dumps(asdict(entry_of_row(row)), sort_keys=True)

    def import_lines(self, lines: Iterator[str] | Sequence[str]) -> Imported:
        """Takes over lines of `export_lines`. Under a key known already the better-sampled entry stays."""
        added = improved = kept = 0
        bad: list[tuple[int, str]] = []
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                entry = parse_line(line)
            except (ValueError, TypeError, KeyError) as error:
                bad.append((number, f"{type(error).__name__}: {error}"))
                continue
            known = self.get(entry.key)
            if known is None:
                added += 1
            elif entry.cost.better_sampled_than(known):
                improved += 1
            else:
                kept += 1
                continue
            self.put(entry.key, entry.cost)
        return Imported(added, improved, kept, tuple(bad))

    # --- races and transfers: whole results under a key of the caller ------------------------------------------------

    def get_race(self, key: str) -> object | None:
        """Result of a whole-plan race as it was stored; None where there is none."""
        return self._noted("races", key)

    def put_race(self, key: str, value: object) -> None:
        """Stores anything that JSON can hold. The key must name everything that the result depends on."""
        self._note("races", key, value)

    def get_config(self, key: str) -> object | None:
        """What `put_config` stored under a key; None when nothing was."""
        return self._noted("configs", key)

    def put_config(self, key: str, value: object) -> None:
        """Stores a configuration that a tuner found, as JSON. The key must name everything that it depends on."""
        self._note("configs", key, value)

    def get_transfer(self, key: str) -> object | None:
        """What `put_transfer` stored under a key; None when nothing was."""
        return self._noted("transfers", key)

    def put_transfer(self, key: str, value: object) -> None:
        """Stores measurements of a transfer, anything that JSON holds, in place of older ones."""
        self._note("transfers", key, value)

    def _noted(self, table: _NotedTable, key: str) -> object | None:
        rows = self._execute(f"SELECT value FROM {table} WHERE key = ?", (key,))
        found: object = json.loads(str(rows[0][0])) if rows else None
        return found

    def _note(self, table: _NotedTable, key: str, value: object) -> None:
        self._execute(
            f"INSERT OR REPLACE INTO {table} (key, value, date) VALUES (?, ?, ?)", (key, json.dumps(value), time.time())
        )

    # --- the file ---------------------------------------------------------------------------------------------------

    def _open(self) -> sqlite3.Connection:
        before = _identity(self.path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return _connect(self.path)
        except sqlite3.DatabaseError as error:
            if _is_corrupt(error):
                self._set_aside(before, error)
                return _connect(self.path)
            reason: Exception = error
        except OSError as error:
            reason = error
        _LOG.warning("the cost database %s cannot be used (%s); costs are kept for this run only", self.path, reason)
        return _connect(None)

    def _set_aside(self, identity: tuple[int, int] | None, error: Exception) -> None:
        """Renames the broken file, unless another process has already put a fresh one in its place."""
        if _identity(self.path) != identity:
            return
        aside = self.path.with_name(f"{self.path.name}.corrupt-{time.strftime('%Y%m%d-%H%M%S')}")
        _LOG.warning(
            "the cost database %s is broken (%s); moved to %s, a fresh one is begun", self.path, error, aside.name
        )
        for suffix in ("-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        try:
            self.path.replace(aside)
        except FileNotFoundError:
            _LOG.debug("another process moved %s first", self.path)

    def _execute(self, query: str, values: Sequence[object] = ()) -> list[tuple[object, ...]]:
        identity = _identity(self.path)
        try:
            return self._connection.execute(query, values).fetchall()
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
                raise NotWritable(path=self.path, reason=os.strerror(errno.ENOSPC)) from error
            if error.sqlite_errorcode & 0xFF in _NO_ACCESS:
                raise NotWritable(path=self.path, reason=error) from error
            if not _is_corrupt(error):
                raise
            self._connection.close()
            self._set_aside(identity, error)
            self._connection = _connect(self.path)
            return self._connection.execute(query, values).fetchall()


def _connect(path: Path | None) -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:" if path is None else path, timeout=_BUSY_MS / 1000, isolation_level=None)
    try:
        connection.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
        if path is not None:
            _use_write_ahead_log(connection)
        connection.execute("PRAGMA synchronous = FULL")  # NORMAL may lose what was finished when the power is cut
        if path is not None and connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
            raise _corrupt("quick_check found damage")
        connection.executescript(_TABLES)
    except BaseException:
        connection.close()
        raise
    return connection


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
