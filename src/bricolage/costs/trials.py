"""Trials of single kernels on record: what came of each choice of a tuning task, on any machine."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from bricolage.base.codec import DecodeError, decode, encode, parse
from bricolage.costs.connection import Connection
from bricolage.costs.entries import TaskKey, TrialEntry, TrialRecord
from bricolage.work.config_space import Choice, TuningTask

_LOG = logging.getLogger(__name__)
_TRIAL_COLUMNS = (
    *("task", "machine", "choice", "workload", "kind", "backend", "version", "config", "device", "threads", "sizes"),
    *("share", "ms", "rounds", "reason", "date"),
)


class TrialRecords(Connection):
    """The trials that tables hold."""

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
            task_sizes = _sizes(str(sizes))
            if task_sizes is None:
                continue
            for record in _trials_of([(choice, *row[:4])], foreign=False):
                yield TrialEntry(key, str(kind), task_sizes, record, str(machine))

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
        records: dict[Choice, TrialRecord] = {}
        for row in rows:
            for record in _trials_of([row[:5]], foreign=row[5] != self.machine):
                records.setdefault(record.choice, record)
        return list(records.values())[:count]

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
        ordered = sorted(best.values(), key=lambda candidate: candidate[0])
        return list({record.choice: record for _, record in ordered}.values())[:count]


def _trials_of(rows: Iterable[Sequence[object]], *, foreign: bool) -> Iterator[TrialRecord]:
    """Rows of choice, share, ms, rounds and reason; those that cannot be read are left out."""
    for choice, share, ms, rounds, reason in rows:
        try:
            decoded_choice = decode(Choice, parse(str(choice)), "choice")
        except DecodeError as error:
            _LOG.info("a stored choice is of another version (%s)", error)
            continue
        usual_share, single = (None if number is None else float(str(number)) for number in (share, ms))
        yield TrialRecord(decoded_choice, usual_share, single, int(str(rounds)), str(reason), foreign)


def _sizes(stored: str) -> dict[str, int] | None:
    """Sizes from JSON; None where it is something else."""
    try:
        sizes = decode(dict[str, int], parse(stored), "sizes")
    except DecodeError:
        return None
    return None if any(size < 0 for size in sizes.values()) else sizes


def _distance(sizes: Mapping[str, int], stored: str) -> float:
    """Between sizes, and others as JSON: the root of the sum of squares of their ratios' logarithms; infinite where they have other
    names or cannot be read."""
    other = _sizes(stored)
    if other is None or set(other) != set(sizes):
        return math.inf
    return math.sqrt(sum(math.log((sizes[name] + 1) / (other[name] + 1)) ** 2 for name in sizes))
