"""What the cost database holds: keys, costs, and how they become rows and lines of text and come back checked."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Literal, TypeAlias, get_args

from bricolage.base.codec import Length, Within, decode
from bricolage.costs.decision_log import LogLine, read_line
from bricolage.costs.latency import Latency
from bricolage.device.device import Device
from bricolage.graph.network_kind import NetworkKind
from bricolage.verify.compare import Deviation
from bricolage.work.config_space import Choice
from bricolage.work.workload import Workload

SCHEMA = 6
"""Raised whenever what is measured, or how, changes: older costs are then not found any more."""
EXPIRY_S = 30 * 86400.0
"""Age after which a failure that may have been bad luck is tried again."""
_SKEW_S = 3600.0
"""What clocks may differ by."""

Outcome = Literal["ok", "refused", "failed", "crashed", "timed-out", "out-of-memory", "wrong", "lost"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
"""How a candidate can end. "lost" is one whose process was repeatedly ended from outside."""
UNSTORED: frozenset[Outcome] = frozenset({"wrong", "lost"})
"""Never stored: "wrong" is a judgement on one set of weights and inputs, and "lost" says nothing of the candidate."""
EXPIRING: frozenset[Outcome] = frozenset({"failed", "crashed", "timed-out", "out-of-memory"})
"""Refusals are properties of a backend's version and stay as long as it does."""


@dataclass(frozen=True)
class CostKey:
    """What a time depends on. Two measurements with equal keys are comparable. The values of weights and inputs are
    no part of it: how accurate an answer is depends on them, and is kept apart (see `Database.deviation`).

    Regions of static shape are measured in place on bound, aligned, contiguous buffers, others with fresh outputs; the
    region's identity says which it is.
    """

    region: str
    """Canonical identity of the region; it contains shapes and types."""
    backend: str
    version: str
    config: str
    """Configurations of the kernels, as `KernelConfig.text`."""
    device: str
    """Fingerprints of the devices."""
    threads: int
    alone: bool
    """Regime: the only runtime in its process (threads may spin), or one of several."""
    schema: int = SCHEMA

    def digest(self) -> str:
        """A short name of the key, the same in every process and on every machine."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:32]


Name: TypeAlias = Annotated[str, Length(1, 1000)]
Positive: TypeAlias = Annotated[float, Within(1e-12, 1e12)]


@dataclass(frozen=True)
class TaskKey:
    """What the time of a tuning task's choice depends on: the workload, the device and the backend's build, as in Lorien."""

    workload: Name
    backend: Name
    version: Name
    config: Name
    """The base configuration."""
    device: Name
    """Fingerprint."""
    threads: Annotated[int, Within(1, 1_000_000)]

    def digest(self) -> str:
        """A short name of the key, the same in every process and on every machine."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class TrialRecord:
    """What came of one choice of a task."""

    choice: Annotated[Choice, Length(0, 100)]
    share: Positive | None
    """Of the usual time; None where it failed."""
    ms: Annotated[float, Within(0.0, 1e12)] | None
    """Of one kernel."""
    rounds: Annotated[int, Within(0, 1_000_000)]
    reason: Annotated[str, Length(0, 1000)] = ""
    foreign: bool = False
    """Another machine, or another build, tried it: a hint."""


@dataclass(frozen=True)
class TrialEntry:
    """What came of a choice, with all that stands behind it: a line of an export."""

    key: TaskKey
    kind: Annotated[str, Length(0, 1000)]
    sizes: Annotated[Mapping[str, Annotated[int, Within(0, 2**62)]], Length(0, 100)]
    record: TrialRecord
    machine: Annotated[str, Length(0, 1000)] = ""


@dataclass(frozen=True)
class Cost:
    """What is known of a candidate: a latency, or the reason why there is none; and the error of its answer, where the
    asked weights and inputs are those that it was compared on."""

    outcome: Outcome
    latency: Latency | None = None
    error: float | None = None
    """Relative error against the float64 reference; None where it was never compared on these weights and inputs."""
    compile_s: float = 0.0
    """Time to compile; for a time-out the limit that was exceeded."""
    reason: str = ""
    noisy: bool = False
    """The interval did not close within the rounds allowed: the cost may not decide a near-tie."""
    date: float = field(default_factory=time.time)
    """Seconds since 1970."""
    excess: float | None = None
    """The largest error that rounding does not explain, which is what decides (`bricolage.verify.compare`); None: the
    whole error."""
    disturbed: bool = False
    """Other processes disturbed so large a part of its rounds that the latency is an estimate from disturbed ones: a later run
    measures it again."""
    foreign: bool = False
    """Measured on another machine of the same make, or imported: a hint, good for choosing among regions, which the race forgives.
    What decides by itself is measured here."""

    @property
    def deviation(self) -> Deviation | None:
        """The error with what of it is beyond rounding; None where there is none."""
        return None if self.error is None else Deviation(self.error, self.error if self.excess is None else self.excess)

    @property
    def ms(self) -> float | None:
        """Median latency; None for a failure."""
        return self.latency.median_ms if self.latency else None

    @property
    def expired(self) -> bool:
        """Whether the failure is so old that it is worth another try; or from the future, of a clock that was wrong."""
        return self.outcome in EXPIRING and not -_SKEW_S < time.time() - self.date <= EXPIRY_S

    def better_sampled_than(self, other: Cost) -> bool:
        """Whether this one is the better evidence: a time beats a failure, an undisturbed one a disturbed one, then samples
        count, then the date."""
        mine, theirs = (
            (cost.latency is not None, not cost.disturbed, cost.latency.samples if cost.latency else 0, cost.date)
            for cost in (self, other)
        )
        return mine > theirs


@dataclass(frozen=True)
class Entry:
    """A line of the database."""

    key: CostKey
    cost: Cost
    machine: str = ""
    """Who measured it (`Database.machine`)."""


@dataclass(frozen=True)
class Description:
    """What a hash in keys is of: what a region computes, or what a device is."""

    table: Literal["workloads", "devices"]
    key: str
    what: Workload | Device


COLUMNS = (
    "machine, region, backend, version, config, device, threads, alone, schema, "
    "outcome, median_ms, low_ms, high_ms, samples, compile_s, reason, noisy, disturbed, date"
)


# --- rows and lines ---------------------------------------------------------------------------------------------------


def row_values(entry: Entry) -> tuple[object, ...]:
    """An entry as a row, in the order of `COLUMNS`."""
    key, cost = entry.key, entry.cost
    latency = cost.latency
    times = (latency.median_ms, latency.low_ms, latency.high_ms, latency.samples) if latency else (None,) * 4
    return (
        entry.machine,
        *(key.region, key.backend, key.version, key.config, key.device, key.threads, key.alone, key.schema),
        *(cost.outcome, *times, cost.compile_s, cost.reason, cost.noisy, cost.disturbed, cost.date),
    )


def entry_of_row(row: Sequence[object]) -> Entry:
    """The entry of a row of `COLUMNS`.

    Raises:
        ValueError: the table was written to by another program.
    """
    return _validate_entry(dict(zip(COLUMNS.split(", "), row, strict=True)))


def parse_line(line: str, kinds: MutableMapping[str, NetworkKind]) -> Entry | Description | TrialEntry | LogLine:
    """An exported line: a measurement, what a hash in one is of, a trial, or a line of the log of decisions. `kinds`: of networks
    that are known, by their keys (`decision_log.read_line`).

    Raises:
        ValueError, TypeError, KeyError: it is not one.
    """
    fields = json.loads(line)
    if isinstance(fields, dict) and "trial" in fields:
        return decode(TrialEntry, fields["trial"], "trial")
    if isinstance(fields, dict) and "decision" in fields:
        return read_line(fields["decision"], kinds)
    if isinstance(fields, dict) and "describes" in fields:
        if not isinstance(fields["describes"], str) or not fields["describes"]:
            raise ValueError("'describes' must be a text")
        if "device" in fields:
            return Description("devices", fields["describes"], decode(Device, fields["device"], "device"))
        return Description("workloads", fields["describes"], decode(Workload, fields["workload"], "workload"))
    if not isinstance(fields, dict) or not isinstance(fields["key"], dict) or not isinstance(fields["cost"], dict):
        raise ValueError("not an object with 'key' and 'cost'")
    cost = dict(fields["cost"])
    latency = cost.pop("latency") or {}
    return _validate_entry(
        {"machine": fields.get("machine", ""), **fields["key"], **cost, **latency}
    )  # an error belongs to certain weights: it is not taken over


_TEXTS = ("machine", "region", "backend", "version", "config", "device", "outcome", "reason")
_MAY_BE_EMPTY = ("machine", "reason")


def _validate_entry(fields: Mapping[str, object]) -> Entry:
    """An entry from flat fields; every value is checked, since it may come from a stranger's file."""
    texts = {name: fields[name] for name in _TEXTS}
    for name, value in texts.items():
        if not isinstance(value, str) or (not value and name not in _MAY_BE_EMPTY):
            raise ValueError(f"'{name}' must be a text")
    outcome = next((candidate for candidate in OUTCOMES if candidate == fields["outcome"]), None)
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
    key = CostKey(
        region=str(texts["region"]),
        backend=str(texts["backend"]),
        version=str(texts["version"]),
        config=str(texts["config"]),
        device=str(texts["device"]),
        threads=int(_number(fields, "threads")),
        alone=bool(fields["alone"]),
        schema=int(_number(fields, "schema")),
    )
    compile_s, reason = _number(fields, "compile_s"), str(texts["reason"])
    cost = Cost(outcome, latency, None, compile_s, reason, bool(fields["noisy"]), disturbed=bool(fields["disturbed"]))
    return Entry(key, replace(cost, date=_number(fields, "date")), str(texts["machine"]))


def _number(fields: Mapping[str, object], name: str) -> float:
    value = fields[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise ValueError(f"'{name}' must be a finite number that is not negative")
    return float(value)
