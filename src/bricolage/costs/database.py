"""The cost database: every finished measurement with everything that could change it, in one SQLite file that concurrent processes
share, or in a PostgreSQL database that machines share.

Each measurement is its own transaction in a log that is on disk when it ends, so neither killing a process nor
cutting the power loses anything that was finished.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from typing import Literal, TypeVar

from bricolage.base.codec import DecodeError, decode, encode, parse
from bricolage.costs.connection import FILE
from bricolage.costs.decision_log import LogLine, UnusableLine, encode_line, read_lines, write_line
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
    TrialEntry,
    entry_of_row,
    parse_line,
    row_values,
)
from bricolage.costs.trials import TrialRecords
from bricolage.device.device import Device
from bricolage.graph.network_kind import NetworkKind
from bricolage.verify.compare import Deviation
from bricolage.work.workload import Workload

__all__ = ["FILE", "Cost", "CostKey", "Database", "Entry", "Imported"]

_LOG = logging.getLogger(__name__)

IMPORTED = "imported"
"""Machine of imported entries that say of none."""
_MOST_KEYS = 500
"""Of one query; SQLite takes 999 values."""


@dataclass(frozen=True)
class Imported:
    """What an import did, and the lines it could not use."""

    added: int
    improved: int
    kept: int
    """Entries that were already known at least as well."""
    bad: tuple[tuple[int, str], ...] = ()
    """(line number, reason)."""


_NotedTable = Literal["races", "transfers", "configs", "workloads", "devices", "decisions"]
T = TypeVar("T", Workload, Device)
K = TypeVar("K", bound=Hashable)


class Database(TrialRecords):
    """An open cost database. What another machine measured is marked so (`Cost.foreign`). How accurate an answer was is asked only
    of this machine."""

    # --- costs ------------------------------------------------------------------------------------------------------

    def get(self, key: CostKey) -> Cost | None:
        """The latency under a key, or why there is none; None where it was never measured or the failure has expired.
        What it says holds for every set of weights, so it has no error."""
        return self.costs([key]).get(key)

    def costs(self, keys: Iterable[CostKey]) -> dict[CostKey, Cost]:
        """As `get`, of many keys at once; those of which nothing is known are absent."""
        entries: dict[CostKey, list[Cost]] = {}
        for batch in _batches(keys):
            query = f"SELECT {COLUMNS} FROM measured WHERE digest IN ({_marks(batch)})"
            for row in self._execute(query, [key.digest() for key in batch]):
                entry = self._seen_from_here(entry_of_row(row))
                if not entry.cost.expired:
                    entries.setdefault(entry.key, []).append(entry.cost)
        best_costs: dict[CostKey, Cost] = {}
        for key, alive in entries.items():
            preferred = [cost for cost in alive if not cost.foreign] or alive
            best_costs[key] = reduce(lambda best, other: best if best.better_sampled_than(other) else other, preferred)
        return best_costs

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
        deviations: dict[tuple[CostKey, str], Deviation] = {}
        for batch in _batches(asked):
            keys = {(key.digest(), data): (key, data) for key, data in batch}
            query = (
                f"SELECT digest, data, error, excess FROM compared WHERE machine = ? AND digest IN ({_marks(batch)})"
            )
            for digest, data, error, excess in self._execute(
                query, [self.machine, *(key_digest for key_digest, _ in keys)]
            ):
                if (str(digest), str(data)) in keys:
                    deviations[keys[str(digest), str(data)]] = Deviation(float(str(error)), float(str(excess)))
        return deviations

    def put_deviation(self, key: CostKey, data: str, found: Deviation) -> None:
        """Stores how far an answer was off at once; infinitely where it was not finite."""
        values = (key.digest(), self.machine, data, found.error, found.excess, time.time())
        columns = ("digest", "machine", "data", "error", "excess", "date")
        self._upsert("compared", columns, values, keys=columns[:3])

    def describe(self, key: CostKey, workload: Callable[[], Workload] | None, device: Device) -> None:
        """Stores what stands behind the hashes of a key, where it is not known yet: models of cost learn from it. Without a
        `workload`, of the device only."""
        if not self._read_note("devices", key.device):
            self._note("devices", key.device, encode(device))
        if workload is not None and not self._read_note("workloads", key.region):
            self._note("workloads", key.region, encode(workload()))

    def workloads(self) -> dict[str, Workload]:
        """What is known of what regions compute, by their keys."""
        return dict(self._read_descriptions("workloads", Workload))

    def devices(self) -> dict[str, Device]:
        """What is known of devices, by their fingerprints."""
        return dict(self._read_descriptions("devices", Device))

    def _read_descriptions(self, table: _NotedTable, kind: type[T]) -> Iterator[tuple[str, T]]:
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
        self._execute("DELETE FROM decisions WHERE date < ?", (oldest,))
        for name, version in (versions or {}).items():
            self._execute("DELETE FROM trials WHERE backend = ? AND version != ?", (name, version))
        self._execute("DELETE FROM workloads WHERE key NOT IN (SELECT region FROM measured)")
        self._execute("DELETE FROM devices WHERE key NOT IN (SELECT device FROM measured)")
        return len(removed)

    # --- exchange ---------------------------------------------------------------------------------------------------

    def export_lines(self) -> Iterator[str]:
        """Every entry as one line of JSON, ordered by key so that equal databases export equal text; then what their devices are
        and their regions compute, trials of kernels, and the log of decisions."""
        for row in self._execute(f"SELECT {COLUMNS} FROM measured ORDER BY digest, machine"):
            yield json.dumps(asdict(entry_of_row(row)), sort_keys=True)
        for name, described in (("device", self.devices()), ("workload", self.workloads())):
            for key, what in described.items():
                yield json.dumps({"describes": key, name: encode(what)}, sort_keys=True)
        for trial in self._trial_entries():
            yield json.dumps({"trial": encode(trial)}, sort_keys=True)
        for line in self.decision_log():
            yield json.dumps({"decision": encode_line(line)}, sort_keys=True)

    def import_lines(self, lines: Iterator[str] | Sequence[str]) -> Imported:
        """Takes over lines of `export_lines`, always as another machine's. What this machine measured itself stays; of
        others' entries under a key the better-sampled one does."""
        added = improved = kept = 0
        bad: list[tuple[int, str]] = []
        kinds: dict[str, NetworkKind] = {}
        known_lines = {write_line(line) for line in self.decision_log(kinds)}
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                entry = parse_line(line, kinds)
                if isinstance(entry, LogLine):
                    is_known = write_line(entry) in known_lines
                    added, kept = added + (not is_known), kept + is_known
                    self.add_decision([entry])
                    continue
                if isinstance(entry, TrialEntry):
                    owner = entry.machine if entry.machine not in ("", self.machine) else IMPORTED
                    self._put_trial(replace(entry, machine=owner))
                    continue
                if isinstance(entry, Description):
                    if not self._read_note(entry.table, entry.key):
                        self._note(entry.table, entry.key, encode(entry.what))
                    continue
            except (ValueError, TypeError, KeyError) as error:
                bad.append((number, f"{type(error).__name__}: {error}"))
                continue
            existing = self.get(entry.key)
            if existing is None:
                added += 1
            elif existing.foreign and entry.cost.better_sampled_than(existing):
                improved += 1
            else:
                kept += 1
                continue
            if entry.cost.outcome not in UNSTORED:
                self._put(entry if entry.machine not in ("", self.machine) else replace(entry, machine=IMPORTED))
        return Imported(added, improved, kept, tuple(bad))

    # --- the log of decisions -----------------------------------------------------------------------------------------

    def add_decision(self, lines: Iterable[LogLine]) -> None:
        """Adds to the log of decisions; a line that is there already is not added again."""
        for line in lines:
            text = write_line(line)
            key = hashlib.sha256(text.encode()).hexdigest()
            if self._read_note("decisions", key) is None:
                self._note("decisions", key, encode_line(line))

    def decision_log(self, kinds: MutableMapping[str, NetworkKind] | None = None) -> Iterator[LogLine]:
        """Its lines, the oldest first; those that cannot be used are left out. `kinds` as `decision_log.read_lines`."""
        rows = self._execute("SELECT value FROM decisions ORDER BY date, key")
        for line in read_lines((str(value) for (value,) in rows), kinds):
            if isinstance(line, UnusableLine):
                _LOG.info("a line of the log of decisions is left out: %s", line.reason)
            else:
                yield line

    # --- races, transfers, configurations: whole results under a key of the caller ------------------------------------

    def get_race(self, key: str) -> object | None:
        """Result of a whole-plan race on this machine as it was stored; None where there is none."""
        return self._read_note("races", self._own(key))

    def put_race(self, key: str, value: object) -> None:
        """Stores anything that JSON can hold. The key must name everything that the result depends on but the machine."""
        self._note("races", self._own(key), value)

    def get_config(self, key: str) -> object | None:
        """What `put_config` stored under a key, on whatever machine; None when nothing was."""
        return self._read_note("configs", key)

    def put_config(self, key: str, value: object) -> None:
        """Stores a configuration that a tuner found, as JSON. The key must name everything that it depends on."""
        self._note("configs", key, value)

    def get_transfer(self, key: str) -> object | None:
        """What `put_transfer` stored under a key on this machine; None when nothing was."""
        return self._read_note("transfers", self._own(key))

    def put_transfer(self, key: str, value: object) -> None:
        """Stores measurements of a transfer, anything that JSON holds, in place of older ones."""
        self._note("transfers", self._own(key), value)

    def _own(self, key: str) -> str:
        return f"{self.machine} {key}"

    def _read_note(self, table: _NotedTable, key: str) -> object | None:
        rows = self._execute(f"SELECT value FROM {table} WHERE key = ?", (key,))
        note: object = json.loads(str(rows[0][0])) if rows else None
        return note

    def _note(self, table: _NotedTable, key: str, value: object) -> None:
        self._upsert(table, ("key", "value", "date"), (key, json.dumps(value), time.time()), keys=("key",))


def _batches(keys: Iterable[K]) -> Iterator[list[K]]:
    """Each once, as many at a time as a query may name."""
    distinct = list(dict.fromkeys(keys))
    return (distinct[start : start + _MOST_KEYS] for start in range(0, len(distinct), _MOST_KEYS))


def _marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))
