"""The cost database: every finished measurement with everything that could change it, in one SQLite file that concurrent processes
share, or in a PostgreSQL database that machines share.

Each measurement is its own transaction in a log that is on disk when it ends, so neither killing a process nor
cutting the power loses anything that was finished.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from pathlib import Path
from types import TracebackType
from typing import Literal, TypeVar

from bricolage.cache import cache_directory, machine_id
from bricolage.codec import DecodeError, decode, encode, parse
from bricolage.costs.entries import (
    COLUMNS,
    EXPIRING,
    EXPIRY_S,
    SCHEMA,
    UNSTORED,
    Cost,
    CostKey,
    Description,
    Entry,
    TaskKey,
    TrialEntry,
    TrialRecord,
    entry_of_row,
    parse_line,
    row_values,
)
from bricolage.costs.storage.interface import CostStorage
from bricolage.costs.storage.postgresql import PostgresqlStorage
from bricolage.costs.storage.sqlite import SqliteStorage
from bricolage.device.device import Device
from bricolage.errors import BadOption, UnreachableCosts
from bricolage.verify.compare import Deviation
from bricolage.work.config_space import Choice, TuningTask
from bricolage.work.workload import Workload

__all__ = ["FILE", "Cost", "CostKey", "Database", "Entry", "Imported"]

_LOG = logging.getLogger(__name__)

FILE = "costs.sqlite"
VARIABLE = "BRICOLAGE_COSTS"
"""Environment variable with the address of a PostgreSQL database."""
IMPORTED = "imported"
"""Machine of imported entries that say of none."""
_TRIAL_COLUMNS = (
    *("task", "machine", "choice", "workload", "kind", "backend", "version", "config", "device", "threads", "sizes"),
    *("share", "ms", "rounds", "reason", "date"),
)
_MOST_KEYS = 500
"""Of one query; SQLite takes 999 values."""
_SCHEMES = ("postgresql://", "postgres://")


@dataclass(frozen=True)
class Imported:
    """What an import did, and the lines it could not use."""

    added: int
    improved: int
    kept: int
    """Entries that were already known at least as well."""
    bad: tuple[tuple[int, str], ...] = ()
    """(line number, reason)."""


_NotedTable = Literal["races", "transfers", "configs", "workloads", "devices"]
T = TypeVar("T", Workload, Device)
K = TypeVar("K", bound=Hashable)


class Database:
    """An open cost database. One object belongs to one thread; any number of processes, and where it is a PostgreSQL database of
    machines, may have others.

    What another machine measured is marked so (`Cost.foreign`). How accurate an answer was is asked only of this machine.

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

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection; what was put is on disk already."""
        self._storage.close()

    # --- costs ------------------------------------------------------------------------------------------------------

    def get(self, key: CostKey) -> Cost | None:
        """The latency under a key, or why there is none; None where it was never measured or the failure has expired.
        What it says holds for every set of weights, so it has no error."""
        return self.costs([key]).get(key)

    def costs(self, keys: Iterable[CostKey]) -> dict[CostKey, Cost]:
        """As `get`, of many keys at once; those of which nothing is known are absent."""
        entries: dict[CostKey, list[Cost]] = {}
        for some in _batches(keys):
            query = f"SELECT {COLUMNS} FROM measured WHERE digest IN ({_marks(some)})"
            for row in self._execute(query, [key.digest() for key in some]):
                entry = self._seen_from_here(entry_of_row(row))
                if not entry.cost.expired:
                    entries.setdefault(entry.key, []).append(entry.cost)
        found: dict[CostKey, Cost] = {}
        for key, alive in entries.items():
            own = [cost for cost in alive if not cost.foreign] or alive
            found[key] = reduce(lambda one, other: one if one.better_sampled_than(other) else other, own)
        return found

    def put(self, key: CostKey, cost: Cost, machine: str | None = None) -> None:
        """Stores a latency, or why there is none, at once; an earlier one of that machine (by default this one) under the same key
        is replaced. What says nothing of the candidate's time is not stored (`UNSTORED`)."""
        if cost.outcome in UNSTORED:
            return
        self._put(Entry(key, cost, machine or self.machine))

    def _put(self, entry: Entry) -> None:
        self._upsert(
            "measured",
            ("digest", *COLUMNS.split(", ")),
            (entry.key.digest(), *row_values(entry)),
            keys=("digest", "machine"),
        )

    def _seen_from_here(self, entry: Entry) -> Entry:
        return replace(entry, cost=replace(entry.cost, foreign=entry.machine != self.machine))

    def deviation(self, key: CostKey, data: str) -> Deviation | None:
        """How far the answer was off that was compared with float64 on these very weights and inputs, `data` being
        their digest (see `bricolage.verify.oracle`); None where none was."""
        return self.deviations([(key, data)]).get((key, data))

    def deviations(self, asked: Iterable[tuple[CostKey, str]]) -> dict[tuple[CostKey, str], Deviation]:
        """As `deviation`, of many keys with their data at once; where nothing was compared, they are absent."""
        found: dict[tuple[CostKey, str], Deviation] = {}
        for some in _batches(asked):
            keys = {(key.digest(), data): (key, data) for key, data in some}
            query = f"SELECT digest, data, error, excess FROM compared WHERE machine = ? AND digest IN ({_marks(some)})"
            for digest, data, error, excess in self._execute(query, [self.machine, *(one for one, _ in keys)]):
                if (str(digest), str(data)) in keys:
                    found[keys[str(digest), str(data)]] = Deviation(float(str(error)), float(str(excess)))
        return found

    def put_deviation(self, key: CostKey, data: str, found: Deviation) -> None:
        """Stores how far an answer was off at once; infinitely where it was not finite."""
        values = (key.digest(), self.machine, data, found.error, found.excess, time.time())
        columns = ("digest", "machine", "data", "error", "excess", "date")
        self._upsert("compared", columns, values, keys=columns[:3])

    def describe(self, key: CostKey, workload: Callable[[], Workload] | None, device: Device) -> None:
        """Stores what stands behind the hashes of a key, where it is not known yet: models of cost learn from it. Without a
        `workload`, of the device only."""
        if not self._noted("devices", key.device):
            self._note("devices", key.device, encode(device))
        if workload is not None and not self._noted("workloads", key.region):
            self._note("workloads", key.region, encode(workload()))

    def workloads(self) -> dict[str, Workload]:
        """What is known of what regions compute, by their keys."""
        return dict(self._described("workloads", Workload))

    def devices(self) -> dict[str, Device]:
        """What is known of devices, by their fingerprints."""
        return dict(self._described("devices", Device))

    def _described(self, table: _NotedTable, kind: type[T]) -> Iterator[tuple[str, T]]:
        for key, value in self._execute(f"SELECT key, value FROM {table} ORDER BY key"):
            try:
                yield str(key), decode(kind, parse(str(value)), table[:-1])
            except DecodeError as error:
                _LOG.info("the description %s of %s is of another version (%s)", key, table, error)

    def entries(self, backend: str | None = None, region: str | None = None, failures: bool = False) -> Iterator[Entry]:
        """All entries, newest first, of one backend or region where given, or only the failures."""
        conditions, values = ["TRUE"], []
        if backend is not None:
            conditions.append("backend = ?")
            values.append(backend)
        if region is not None:
            conditions.append("region = ?")
            values.append(region)
        if failures:
            conditions.append("outcome != 'ok'")
        query = f"SELECT {COLUMNS} FROM measured WHERE {' AND '.join(conditions)} ORDER BY date DESC, digest, machine"
        for row in self._execute(query, values):
            yield self._seen_from_here(entry_of_row(row))

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
        removed = self._execute(f"DELETE FROM measured WHERE {' OR '.join(conditions)} RETURNING digest", values)
        self._execute("DELETE FROM compared WHERE date < ? OR digest NOT IN (SELECT digest FROM measured)", (oldest,))
        for condition, value in (
            *([("date < ?", oldest)] if older_than_s is not None else []),
            *([("device != ?", device)] if device is not None else []),
        ):
            self._execute(f"DELETE FROM trials WHERE {condition}", (value,))
        for name, version in (versions or {}).items():
            self._execute("DELETE FROM trials WHERE backend = ? AND version != ?", (name, version))
        self._execute("DELETE FROM workloads WHERE key NOT IN (SELECT region FROM measured)")
        self._execute("DELETE FROM devices WHERE key NOT IN (SELECT device FROM measured)")
        return len(removed)

    # --- exchange ---------------------------------------------------------------------------------------------------

    def export_lines(self) -> Iterator[str]:
        """Every entry as one line of JSON, ordered by key so that equal databases export equal text; then what their devices are
        and their regions compute."""
        for row in self._execute(f"SELECT {COLUMNS} FROM measured ORDER BY digest, machine"):
            yield json.dumps(asdict(entry_of_row(row)), sort_keys=True)
        for name, described in (("device", self.devices()), ("workload", self.workloads())):
            for key, what in described.items():
                yield json.dumps({"describes": key, name: encode(what)}, sort_keys=True)
        for trial in self._trial_entries():
            yield json.dumps({"trial": encode(trial)}, sort_keys=True)

    def import_lines(self, lines: Iterator[str] | Sequence[str]) -> Imported:
        """Takes over lines of `export_lines`, as another machine's whoever they are of. What this machine measured itself stays; of
        others' entries under a key the better-sampled one does."""
        added = improved = kept = 0
        bad: list[tuple[int, str]] = []
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                entry = parse_line(line)
                if isinstance(entry, TrialEntry):
                    owner = entry.machine if entry.machine not in ("", self.machine) else IMPORTED
                    self._put_trial(replace(entry, machine=owner))
                    continue
                if isinstance(entry, Description):
                    if not self._noted(entry.table, entry.key):
                        self._note(entry.table, entry.key, encode(entry.what))
                    continue
            except (ValueError, TypeError, KeyError) as error:
                bad.append((number, f"{type(error).__name__}: {error}"))
                continue
            known = self.get(entry.key)
            if known is None:
                added += 1
            elif known.foreign and entry.cost.better_sampled_than(known):
                improved += 1
            else:
                kept += 1
                continue
            if entry.cost.outcome not in UNSTORED:
                self._put(entry if entry.machine not in ("", self.machine) else replace(entry, machine=IMPORTED))
        return Imported(added, improved, kept, tuple(bad))

    # --- races, transfers, configurations: whole results under a key of the caller ------------------------------------

    def get_race(self, key: str) -> object | None:
        """Result of a whole-plan race on this machine as it was stored; None where there is none."""
        return self._noted("races", self._own(key))

    def put_race(self, key: str, value: object) -> None:
        """Stores anything that JSON can hold. The key must name everything that the result depends on but the machine."""
        self._note("races", self._own(key), value)

    def get_config(self, key: str) -> object | None:
        """What `put_config` stored under a key, on whatever machine; None when nothing was."""
        return self._noted("configs", key)

    def put_config(self, key: str, value: object) -> None:
        """Stores a configuration that a tuner found, as JSON. The key must name everything that it depends on."""
        self._note("configs", key, value)

    def get_transfer(self, key: str) -> object | None:
        """What `put_transfer` stored under a key on this machine; None when nothing was."""
        return self._noted("transfers", self._own(key))

    def put_transfer(self, key: str, value: object) -> None:
        """Stores measurements of a transfer, anything that JSON holds, in place of older ones."""
        self._note("transfers", self._own(key), value)

    # --- trials of single kernels -------------------------------------------------------------------------------------

    def put_trial(self, key: TaskKey, task: TuningTask, record: TrialRecord, machine: str | None = None) -> None:
        """Stores what came of a choice on a machine, by default this one, at once, in place of what came of it before."""
        self._put_trial(TrialEntry(key, task.kind, task.sizes, record, machine or self.machine))

    def _put_trial(self, entry: TrialEntry) -> None:
        key, record = entry.key, entry.record
        values = (
            *(key.digest(), entry.machine, json.dumps(encode(record.choice)), key.workload, entry.kind, key.backend),
            *(key.version, key.config, key.device, key.threads, json.dumps(dict(entry.sizes), sort_keys=True)),
            *(record.share, record.ms, record.rounds, record.reason, time.time()),
        )
        self._upsert("trials", _TRIAL_COLUMNS, values, keys=("task", "machine", "choice"))

    def _trial_entries(self) -> Iterator[TrialEntry]:
        """All, in an order that equal databases have alike."""
        query = f"SELECT {', '.join(_TRIAL_COLUMNS)} FROM trials ORDER BY task, machine, choice"
        for _, machine, choice, workload, kind, backend, version, config, device, threads, sizes, *row in self._execute(
            query
        ):
            key = TaskKey(str(workload), str(backend), str(version), str(config), str(device), int(str(threads)))
            known = _sizes(str(sizes))
            if known is None:
                continue
            for record in _trials_of([(choice, *row[:4])], foreign=False):
                yield TrialEntry(key, str(kind), known, record, str(machine))

    def trials(self, key: TaskKey, since: float = 0.0) -> list[TrialRecord]:
        """All that this machine has tried of a task since some time (seconds since 1970)."""
        rows = self._execute(
            "SELECT choice, share, ms, rounds, reason FROM trials WHERE task = ? AND machine = ? AND date >= ? "
            "ORDER BY date, choice",
            (key.digest(), self.machine, since),
        )
        return list(_trials_of(rows, foreign=False))

    def has_trials(self, backend: str, version: str, device: str, threads: int) -> bool:
        """Whether this machine has tried anything with such a backend."""
        query = "SELECT 1 FROM trials WHERE machine = ? AND backend = ? AND version = ? AND device = ? AND threads = ? LIMIT 1"
        return bool(self._execute(query, (self.machine, backend, version, device, threads)))

    def best_trials(self, key: TaskKey, count: int) -> list[TrialRecord]:
        """The fastest choices of a task on any machine, fastest first, each once; none that is slower than usual."""
        rows = self._execute(
            "SELECT choice, share, ms, rounds, reason, machine FROM trials WHERE task = ? AND share < 1 ORDER BY share, choice",
            (key.digest(),),
        )
        found: dict[Choice, TrialRecord] = {}
        for row in rows:
            for record in _trials_of([row[:5]], foreign=row[5] != self.machine):
                found.setdefault(record.choice, record)
        return list(found.values())[:count]

    def nearest_trials(self, key: TaskKey, task: TuningTask, count: int) -> list[TrialRecord]:
        """What was fastest for the tasks that are most like one: of the same kind, backend and configuration, whatever the build;
        nearest by the logarithms of their sizes (infinitely far where they have others), those of the same device and
        threads first. One choice of each task, as hints."""
        rows = self._execute(
            "SELECT task, device, threads, sizes, choice, share, ms, rounds, reason FROM trials "
            "WHERE kind = ? AND backend = ? AND config = ? AND task != ? AND share < 1 ORDER BY share, choice",
            (task.kind, key.backend, key.config, key.digest()),
        )
        best: dict[str, tuple[tuple[bool, float], TrialRecord]] = {}
        for name, device, threads, sizes, *row in rows:
            far = _distance(task.sizes, str(sizes))
            if str(name) in best or far == math.inf:
                continue
            elsewhere = (device, threads) != (key.device, key.threads)
            for record in _trials_of([tuple(row)], foreign=True):
                best[str(name)] = (elsewhere, far), record
        ordered = sorted(best.values(), key=lambda one: one[0])
        return list({record.choice: record for _, record in ordered}.values())[:count]

    def _own(self, key: str) -> str:
        return f"{self.machine} {key}"

    def _noted(self, table: _NotedTable, key: str) -> object | None:
        rows = self._execute(f"SELECT value FROM {table} WHERE key = ?", (key,))
        found: object = json.loads(str(rows[0][0])) if rows else None
        return found

    def _note(self, table: _NotedTable, key: str, value: object) -> None:
        self._upsert(table, ("key", "value", "date"), (key, json.dumps(value), time.time()), keys=("key",))

    def _upsert(self, table: str, columns: Sequence[str], values: Sequence[object], keys: Sequence[str]) -> None:
        """Stores a row in the place of an earlier one under the same keys."""
        marks = ", ".join("?" * len(values))
        others = ", ".join(f"{name} = excluded.{name}" for name in columns if name not in keys)
        self._execute(
            f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks}) ON CONFLICT ({', '.join(keys)}) DO UPDATE SET {others}",
            values,
        )

    # --- where it is ------------------------------------------------------------------------------------------------

    def _execute(self, query: str, values: Sequence[object] = ()) -> list[tuple[object, ...]]:
        try:
            return self._storage.execute(query, values)
        except UnreachableCosts as error:
            file = _file()
            _LOG.warning("%s; from now on costs are kept in %s", error.sentence, file)
            self._storage.close()
            self._storage = SqliteStorage(file, self.machine)
            return self._storage.execute(query, values)


def _trials_of(rows: Iterable[Sequence[object]], *, foreign: bool) -> Iterator[TrialRecord]:
    """Rows of choice, share, ms, rounds and reason; those that cannot be read are left out."""
    for choice, share, ms, rounds, reason in rows:
        try:
            made = decode(Choice, parse(str(choice)), "choice")
        except DecodeError as error:
            _LOG.info("a stored choice is of another version (%s)", error)
            continue
        own, single = (None if one is None else float(str(one)) for one in (share, ms))
        yield TrialRecord(made, own, single, int(str(rounds)), str(reason), foreign)


def _batches(keys: Iterable[K]) -> Iterator[list[K]]:
    """Each once, as many at a time as a query may name."""
    distinct = list(dict.fromkeys(keys))
    return (distinct[start : start + _MOST_KEYS] for start in range(0, len(distinct), _MOST_KEYS))


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


def _sizes(stored: str) -> dict[str, int] | None:
    """Sizes from JSON; None where it is something else."""
    try:
        found = decode(dict[str, int], parse(stored), "sizes")
    except DecodeError:
        return None
    return None if any(size < 0 for size in found.values()) else found


def _distance(sizes: Mapping[str, int], stored: str) -> float:
    """Between sizes, and others as JSON: the root of the sum of squares of their ratios' logarithms; infinite where they have other
    names or cannot be read."""
    other = _sizes(stored)
    if other is None or set(other) != set(sizes):
        return math.inf
    return math.sqrt(sum(math.log((sizes[name] + 1) / (other[name] + 1)) ** 2 for name in sizes))


def _file() -> Path:
    return cache_directory() / FILE
