"""Rates of kinds of jobs on kinds and numbers of devices: Gavel's JSON, ElasticFlow's folder of curves, or a table.

A table is CSV with the columns `kind, device, devices, steps_per_s`, and optionally `partner`: the kind of another job on the same
devices; `low` and `high`: between which nine in ten true rates lie (`cluster estimate -o` writes such a table). Rates with others
that a file lacks are completed from those that it has.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np

from bricolage.base import scratch
from bricolage.base.codec import DecodeError, parse
from bricolage.cluster.completion import complete_speeds
from bricolage.cluster.history.records import OddLines, Record, records
from bricolage.errors import BadHistory, MissingFile, UnknownHistory

_GAVEL = re.compile(r"\('(.*)', (\d+)\)")
_MOST_BYTES = 1 << 28
_LEAST_KNOWN = 0.1
"""Of all pairs of one device and size, below which nothing is completed."""


_HEADS = ["kind", "device", "devices", "steps_per_s", "low", "high", "partner"]
_WIDTH = 2.0 * 1.645
"""Standard deviations between the ends of an interval that holds nine in ten."""


@dataclass(frozen=True)
class PredictedRate:
    """Of a kind of job on a number of devices of a kind."""

    device: str
    devices: int
    steps_per_s: tuple[float, float, float]
    """And the ends of its interval."""


@dataclass(frozen=True)
class RateTable:
    """Steps a second of whole gangs."""

    rates: Mapping[tuple[str, int], Mapping[str, float]] = field(default_factory=dict)
    """By kind of job and number of devices, for each kind of device."""
    pairs: Mapping[tuple[str, int], Mapping[str, Mapping[str, float]]] = field(default_factory=dict)
    """Likewise, then by the kind of another job of as many devices: the rate with it on them; 0 where both do not fit."""
    error: float = 0.0
    """By how much rates are off, where the table gives intervals: the median standard deviation of their logarithms."""

    def of(self, kind: str, devices: int) -> Mapping[str, float]:
        """On each kind of device; nothing where the table has no such job."""
        return self.rates.get((kind, devices), {})

    def together(self, kind: str, devices: int) -> Mapping[str, Mapping[str, float]]:
        """By kind of device, then by kind of another job: the rate with it."""
        return self.pairs.get((kind, devices), {})

    def label(self, kind: str, batch: str) -> str:
        """The name of a kind of job at a batch size."""
        return f"{kind} (batch size {batch})" if batch else kind

    def scaling(self, kind: str, devices: int) -> tuple[tuple[int, float], ...]:
        """Speeds on other numbers of devices relative to that on `devices`, on the kind of device that the table has most of; cut
        at the peak: more devices that make a job slower are no use."""
        base_rates = self.of(kind, devices)
        if not base_rates:
            return ()
        device = next(iter(base_rates))
        curve = sorted(
            (count, by_device[device])
            for (name, count), by_device in self.rates.items()
            if name == kind and device in by_device
        )
        peak = max(curve, key=lambda point: point[1])[0]
        kept = [(count, rate / base_rates[device]) for count, rate in curve if count <= max(peak, devices) and rate > 0]
        return tuple(kept)


def read_rates(path: Path, kinds: Iterable[str]) -> RateTable:
    """The table that a file or a folder holds.

    Args:
        path: Gavel's JSON, a CSV file, or a folder of ElasticFlow's curves: `MODEL.csv` with a row for each global batch size and a
            column for each number of devices, for the only kind of devices that there is.
        kinds: of devices of the cluster.

    Raises:
        MissingFile: there is nothing.
        BadHistory: a line is wrong.
        UnknownHistory: it holds no rates.
    """
    if not path.exists():
        raise MissingFile(path=path)
    pairs: dict[tuple[str, int], dict[str, dict[str, float]]] = {}
    spreads: list[float] = []
    try:
        if path.is_dir():
            rates = _curves(path, list(kinds))
        elif path.suffix.lower() == ".json":
            rates = _gavel(path, pairs)
        else:
            rates = _table(path, pairs, spreads)
    except (OSError, UnicodeDecodeError) as error:
        raise UnknownHistory(path=path, reason=f"it cannot be read ({error})") from error
    if not rates:
        raise UnknownHistory(path=path, reason="it holds no rates")
    _complete(rates, pairs)
    return RateTable(rates, pairs, median(spreads) if spreads else 0.0)


def write_rates(path: Path, kind: str, rows: Iterable[PredictedRate]) -> None:
    """Writes rates of a kind of job into a table; rows of other kinds that the file has stay.

    Raises:
        BadHistory, UnknownHistory: the file is there, and is no such table.
        OSError: it cannot be written.
    """
    kept: list[list[str]] = []
    if path.exists():
        read_rates(path, ())
        with path.open(encoding="utf-8", newline="") as file:
            kept = [
                [record.text(head, "") for head in _HEADS]
                for record in records(path, file, ",", OddLines())
                if record.text("kind") != kind
            ]
    new_rows = [[kind, row.device, str(row.devices), *(f"{v:.6g}" for v in row.steps_per_s), ""] for row in rows]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([_HEADS, *kept, *new_rows])
    with scratch.write_whole(path) as partial:
        partial.write_text(text.getvalue(), encoding="utf-8")


def _complete(
    rates: Mapping[tuple[str, int], Mapping[str, float]], pairs: dict[tuple[str, int], dict[str, dict[str, float]]]
) -> None:
    """Fills in the pairs that were not run together, where at least a tenth was."""
    places = {
        (device, devices) for (_, devices), by_device in pairs.items() for device, shared in by_device.items() if shared
    }
    for device, devices in sorted(places):
        kinds = [kind for (kind, count), by_device in rates.items() if count == devices and device in by_device]
        alone = np.array([rates[kind, devices][device] for kind in kinds])
        shared = [pairs.get((kind, devices), {}).get(device, {}) for kind in kinds]
        speeds = np.array([[mates.get(other, np.nan) for other in kinds] for mates in shared]) / alone[:, None]
        if np.isfinite(speeds).mean() < _LEAST_KNOWN or np.isfinite(speeds).all():
            continue
        for kind, rate, row in zip(kinds, alone, complete_speeds(speeds), strict=True):
            mate_rates = {other: float(rate * speed) for other, speed in zip(kinds, row, strict=True)}
            pairs.setdefault((kind, devices), {})[device] = mate_rates


def _gavel(
    path: Path, pairs: dict[tuple[str, int], dict[str, dict[str, float]]]
) -> dict[tuple[str, int], dict[str, float]]:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise DecodeError("it is too large")
        data = parse(path.read_text(encoding="utf-8"))
        solo_rates: dict[tuple[str, int], dict[str, float]] = {}
        for device, jobs in data.items():
            for label, rates in jobs.items() if not device.endswith("_unconsolidated") else ():
                match = _GAVEL.fullmatch(label)
                rate = rates["null"]
                if match is not None and isinstance(rate, int | float) and 0.0 < rate < 1e9:
                    solo_rates.setdefault((match[1], int(match[2])), {})[device] = float(rate)
                    shared = pairs.setdefault((match[1], int(match[2])), {}).setdefault(device, {})
                    for other, both in rates.items():
                        mate = _GAVEL.fullmatch(other)
                        if mate is not None and mate[2] == match[2] and isinstance(both, list) and 0 <= both[0] < 1e9:
                            shared[mate[1]] = float(both[0])
        return solo_rates
    except (DecodeError, AttributeError, KeyError, IndexError, TypeError) as error:
        raise UnknownHistory(path=path, reason=f"it is no table of rates: {error or type(error).__name__}") from error


def _table(
    path: Path, pairs: dict[tuple[str, int], dict[str, dict[str, float]]], spreads: list[float]
) -> dict[tuple[str, int], dict[str, float]]:
    solo_rates: dict[tuple[str, int], dict[str, float]] = {}
    odd = OddLines()
    with path.open(encoding="utf-8", newline="") as file:
        for record in records(path, file, ",", odd):
            key, device, other = (
                (record.text("kind"), record.whole("devices")),
                record.text("device"),
                record.text("partner", ""),
            )
            rate = record.number("steps_per_s", least=0.0 if other else 1e-12, most=1e12)
            if other:
                pairs.setdefault(key, {}).setdefault(device, {})[other] = rate
            else:
                solo_rates.setdefault(key, {})[device] = rate
                low, high = (record.number(column, rate, 1e-12, 1e12) for column in ("low", "high"))
                if not low <= rate <= high:
                    raise record.error(f"{rate:g} is not between low, {low:g}, and high, {high:g}", "steps_per_s")
                if high > low:
                    spreads.append(math.log(high / low) / _WIDTH)
    _refuse(odd)
    return solo_rates


def _refuse(odd: OddLines) -> None:
    """Of rates no line is left out: a job without its rate would be left out with it.

    Raises:
        BadHistory: a line is none of the table's.
    """
    if odd.first is not None:
        raise odd.first


def _curves(path: Path, kinds: list[str]) -> dict[tuple[str, int], dict[str, float]]:
    if len(kinds) != 1:
        raise UnknownHistory(path=path, reason=f"curves are of one kind of devices, and the cluster has {len(kinds)}")
    curves: dict[tuple[str, int], dict[str, float]] = {}
    odd = OddLines()
    for file in sorted(path.glob("*.csv")):
        with file.open(encoding="utf-8", newline="") as text:
            for record in records(file, text, ",", odd):
                batch = record.whole("global_batch_size", most=1 << 40)
                for column in record.values:
                    if column != "global_batch_size":
                        rate = _curve_rate(record, column)
                        if rate:
                            curves[f"{file.stem} (batch size {batch})", int(column)] = {kinds[0]: rate}
    _refuse(odd)
    return curves


def _curve_rate(record: Record, column: str) -> float:
    if not column.isdecimal():
        raise BadHistory(path=record.path, line=1, column="", reason=f"'{column}' is no number of devices")
    return record.number(column, 0.0, most=1e12)
