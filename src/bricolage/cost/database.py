"""The cost database: every finished measurement with everything that could change it, in one SQLite file that
concurrent processes share.

Each measurement is its own transaction in a write-ahead log, so killing a process loses nothing that was finished.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Literal, get_args

from bricolage.cache import cache_directory
from bricolage.cost.statistics import Latency

_LOG = logging.getLogger(__name__)

SCHEMA = 1
"""Raised whenever what is measured, or how, changes: older costs are then not found any more."""
FILE = "costs.sqlite"
EXPIRY_S = 30 * 86400.0
"""Age after which a failure that may have been bad luck is tried again."""
_BUSY_MS = 60_000
_CORRUPT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}

Outcome = Literal["ok", "refused", "failed", "crashed", "timed-out", "out-of-memory", "wrong"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
EXPIRING: frozenset[Outcome] = frozenset({"failed", "crashed", "timed-out", "out-of-memory"})
"""Refusals and wrong answers are properties of a backend's version and stay as long as it does."""


@dataclass(frozen=True)
class CostKey:
    """What a cost depends on. Two measurements with equal keys are comparable.

    Regions of static shape are measured in place on bound, aligned, contiguous buffers, others with fresh outputs; the
    region's identity says which it is.
    """

    region: str
    """Canonical identity of the region; it contains shapes and types."""
    backend: str
    version: str
    variant: str
    """Precision and layout of the candidate."""
    hardware: str
    """Fingerprint of the machine."""
    threads: int
    alone: bool
    """Regime: the only runtime in its process (threads may spin), or one of several."""
    schema: int = SCHEMA

    def digest(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Cost:
    """What was measured under a key: a latency, or the reason why there is none."""

    outcome: Outcome
    latency: Latency | None = None
    error: float | None = None
    """Relative error against the float64 reference."""
    compile_s: float = 0.0
    """Time to compile; for a time-out the limit that was exceeded."""
    reason: str = ""
    noisy: bool = False
    """The interval did not close within the rounds allowed: the cost may not decide a near-tie."""
    date: float = field(default_factory=time.time)
    """Seconds since 1970."""

    @property
    def ms(self) -> float | None:
        """Median latency; None for a failure."""
        return self.latency.median_ms if self.latency else None

    @property
    def expired(self) -> bool:
        return self.outcome in EXPIRING and time.time() - self.date > EXPIRY_S

    def better_sampled_than(self, other: Cost) -> bool:
        """Whether this one is the better evidence: a time beats a failure, then samples count, then the date."""
        mine, theirs = (cost.latency.samples if cost.latency else 0 for cost in (self, other))
        return (mine, self.date) > (theirs, other.date)


@dataclass(frozen=True)
class Entry:
    """A line of the database."""

    key: CostKey
    cost: Cost


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
CREATE TABLE IF NOT EXISTS costs (
    digest TEXT PRIMARY KEY, region TEXT NOT NULL, backend TEXT NOT NULL, version TEXT NOT NULL, variant TEXT NOT NULL,
    hardware TEXT NOT NULL, threads INTEGER NOT NULL, alone INTEGER NOT NULL, schema INTEGER NOT NULL,
    outcome TEXT NOT NULL, median_ms REAL, low_ms REAL, high_ms REAL, samples INTEGER, error REAL, compile_s REAL NOT
    NULL, reason TEXT NOT NULL, noisy INTEGER NOT NULL, date REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS costs_by_backend ON costs (backend, version);
CREATE TABLE IF NOT EXISTS races (key TEXT PRIMARY KEY, value TEXT NOT NULL, date REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS boundaries (key TEXT PRIMARY KEY, value TEXT NOT NULL, date REAL NOT NULL) WITHOUT ROWID;
"""
_COLUMNS = (
    "region, backend, version, variant, hardware, threads, alone, schema, "
    "outcome, median_ms, low_ms, high_ms, samples, error, compile_s, reason, noisy, date"
)
_NotedTable = Literal["races", "boundaries"]


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
        self._connection.close()

    # --- costs ------------------------------------------------------------------------------------------------------

    def get(self, key: CostKey) -> Cost | None:
        """The cost under a key; None where it was never measured or the failure has expired."""
        rows = self._execute(f"SELECT {_COLUMNS} FROM costs WHERE digest = ?", (key.digest(),))
        cost = _entry(rows[0]).cost if rows else None
        return None if cost is None or cost.expired else cost

    def put(self, key: CostKey, cost: Cost) -> None:
        """Stores a cost at once; an earlier one under the same key is replaced."""
        values = (key.digest(), *_values(Entry(key, cost)))
        marks = ", ".join("?" * len(values))
        self._execute(f"INSERT OR REPLACE INTO costs (digest, {_COLUMNS}) VALUES ({marks})", values)

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
        query = f"SELECT {_COLUMNS} FROM costs WHERE {' AND '.join(conditions)} ORDER BY date DESC, digest"
        yield from map(_entry, self._execute(query, values))

    def prune(
        self,
        *,
        older_than_s: float | None = None,
        versions: Mapping[str, str] | None = None,
        hardware: str | None = None,
        failures: bool = False,
    ) -> int:
        """Removes entries and returns how many. Without arguments: expired failures and entries of another schema.

        With `older_than_s` also everything older, with `versions` what was measured on other versions of those
        backends, with `hardware` what was measured on other machines, with `failures` every failure.
        """
        conditions = ["schema != ?", f"(outcome IN ({', '.join('?' * len(EXPIRING))}) AND date < ?)"]
        values: list[object] = [SCHEMA, *sorted(EXPIRING), time.time() - EXPIRY_S]
        if older_than_s is not None:
            conditions.append("date < ?")
            values.append(time.time() - older_than_s)
        for name, version in (versions or {}).items():
            conditions.append("(backend = ? AND version != ?)")
            values += [name, version]
        if hardware is not None:
            conditions.append("hardware != ?")
            values.append(hardware)
        if failures:
            conditions.append("outcome != 'ok'")
        return len(self._execute(f"DELETE FROM costs WHERE {' OR '.join(conditions)} RETURNING 1", values))

    # --- exchange ---------------------------------------------------------------------------------------------------

    def export_lines(self) -> Iterator[str]:
        """Every entry as one line of JSON, ordered by key so that equal databases export equal text."""
        for row in self._execute(f"SELECT {_COLUMNS} FROM costs ORDER BY digest"):
            yield json.dumps(asdict(_entry(row)), sort_keys=True)

    def import_lines(self, lines: Iterator[str] | Sequence[str]) -> Imported:
        """Takes over lines of `export_lines`. Under a key known already the better-sampled entry stays."""
        added = improved = kept = 0
        bad: list[tuple[int, str]] = []
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                entry = _parse(line)
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

    # --- races and boundaries: whole results under a key of the caller ------------------------------------------------

    def get_race(self, key: str) -> object | None:
        """Result of a whole-plan race as it was stored; None where there is none."""
        return self._noted("races", key)

    def put_race(self, key: str, value: object) -> None:
        """Stores anything that JSON can hold. The key must name everything that the result depends on."""
        self._note("races", key, value)

    def get_boundary(self, key: str) -> object | None:
        return self._noted("boundaries", key)

    def put_boundary(self, key: str, value: object) -> None:
        self._note("boundaries", key, value)

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
        connection.execute("PRAGMA synchronous = NORMAL")
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


# --- rows and lines ---------------------------------------------------------------------------------------------------


def _values(entry: Entry) -> tuple[object, ...]:
    key, cost = entry.key, entry.cost
    latency = cost.latency
    times = (latency.median_ms, latency.low_ms, latency.high_ms, latency.samples) if latency else (None,) * 4
    return (
        *(key.region, key.backend, key.version, key.variant, key.hardware, key.threads, key.alone, key.schema),
        *(cost.outcome, *times, cost.error, cost.compile_s, cost.reason, cost.noisy, cost.date),
    )


def _entry(row: Sequence[object]) -> Entry:
    return _validated(dict(zip(_COLUMNS.split(", "), row, strict=True)))


def _parse(line: str) -> Entry:
    """An exported line.

    Raises:
        ValueError, TypeError, KeyError: it is not one.
    """
    fields = json.loads(line)
    if not isinstance(fields, dict) or not isinstance(fields["key"], dict) or not isinstance(fields["cost"], dict):
        raise ValueError("not an object with 'key' and 'cost'")
    cost = dict(fields["cost"])
    latency = cost.pop("latency") or {}
    return _validated({**fields["key"], **cost, **latency})


_TEXTS = ("region", "backend", "version", "variant", "hardware", "outcome", "reason")


def _validated(fields: Mapping[str, object]) -> Entry:
    """An entry from flat fields; every value is checked, since it may come from a stranger's file."""
    texts = {name: fields[name] for name in _TEXTS}
    for name, value in texts.items():
        if not isinstance(value, str) or (not value and name not in ("reason", "variant")):
            raise ValueError(f"'{name}' must be a text")
    outcome = next((known for known in OUTCOMES if known == fields["outcome"]), None)
    if outcome is None:
        raise ValueError(f"unknown outcome '{fields['outcome']}'")
    latency = None
    if outcome == "ok":
        latency = Latency(
            _number(fields, "median_ms"),
            _number(fields, "low_ms"),
            _number(fields, "high_ms"),
            int(_number(fields, "samples")),
        )
        if not 0 <= latency.low_ms <= latency.median_ms <= latency.high_ms or latency.samples < 1:
            raise ValueError("the latency contradicts itself")
    error = None if fields["error"] is None else float(str(fields["error"]))  # may be infinite
    key = CostKey(
        region=str(texts["region"]),
        backend=str(texts["backend"]),
        version=str(texts["version"]),
        variant=str(texts["variant"]),
        hardware=str(texts["hardware"]),
        threads=int(_number(fields, "threads")),
        alone=bool(fields["alone"]),
        schema=int(_number(fields, "schema")),
    )
    cost = Cost(outcome, latency, error, _number(fields, "compile_s"), str(texts["reason"]), bool(fields["noisy"]))
    return Entry(key, replace(cost, date=_number(fields, "date")))


def _number(fields: Mapping[str, object], name: str) -> float:
    value = fields[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ValueError(f"'{name}' must be a finite number that is not negative")
    return float(value)
