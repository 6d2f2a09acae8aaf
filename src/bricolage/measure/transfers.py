"""Boundary costs: what it takes to hand a tensor from one backend to another, measured where it happens.

In one process, for one size, three programs take turns: Relu on A, Relu on B, and Relu on A followed by Relu on B. What
the last takes beyond the other two is the boundary: copies, layout and cache misses, and threads that change hands.
"""

from __future__ import annotations

import bisect
import hashlib
import json
import logging
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from bricolage.backends import registry
from bricolage.measure.entries import SCHEMA
from bricolage.measure.loading import CandidateSpec, Job, Stop, never
from bricolage.measure.measurer import Measurer, registry_versions
from bricolage.measure.probes import relu_region, vector
from bricolage.measure.rounds import Schedule, one_round
from bricolage.options import Precision
from bricolage.plan.step import Step

_LOG = logging.getLogger(__name__)

SIZES = (4 << 10, 64 << 10, 1 << 20, 8 << 20)
"""Bytes at which boundaries are measured."""
_FALLBACK_MS = 0.02
_FALLBACK_MS_PER_BYTE = 1 / 4e6
_ROUNDS = 9
_BOUND = 1e-6
_VARIANT_PRECISION: Precision = "highest"

Pair = tuple[str, str]
"""(producer, consumer)."""


@dataclass(frozen=True)
class BoundaryCosts:
    """Cost in ms to hand `size` bytes from `producer` to `consumer`: `costs(producer, consumer, size)`.

    Between measured sizes the cost is linear in bytes, below the smallest it is constant, above the largest it goes on
    with the last slope; it never falls with size. A pair that was not measured costs as much as the worst measured pair
    at that size (0 within one backend), and where no pair is measured 20 µs plus a copy at 4 GB/s: a placement must not
    count on a hand-over that nobody has seen.
    """

    table: Mapping[Pair, Sequence[tuple[int, float]]]
    """(bytes, ms) in ascending order of bytes."""
    failures: Mapping[Pair, str] = field(default_factory=dict)
    """Pairs that do not work in one process, with the reason."""

    def __call__(self, producer: str, consumer: str, size: int, /) -> float:
        points = self._rising.get((producer, consumer))
        if points is not None:
            return _interpolate(points, size)
        if producer == consumer:
            return 0.0
        worst = (_interpolate(known, size) for (a, b), known in self._rising.items() if a != b)
        return max(worst, default=_FALLBACK_MS + size * _FALLBACK_MS_PER_BYTE)

    @cached_property
    def _rising(self) -> dict[Pair, list[tuple[int, float]]]:
        """The table with noise that makes a larger tensor cheaper taken out."""
        rising: dict[Pair, list[tuple[int, float]]] = {}
        for pair, points in self.table.items():
            highest = 0.0
            for size, ms in sorted(points):
                highest = max(highest, ms)
                rising.setdefault(pair, []).append((size, highest))
        return rising


def _interpolate(points: Sequence[tuple[int, float]], size: int) -> float:
    after = bisect.bisect_left(points, size, key=lambda point: point[0])
    if after == 0:
        return points[0][1]
    if after == len(points):
        if len(points) == 1:
            return points[0][1]
        after -= 1
    (low, low_ms), (high, high_ms) = points[after - 1], points[after]
    return low_ms + (size - low) * (high_ms - low_ms) / (high - low)


class Boundaries:
    """Measures boundary costs for the pairs asked for, or takes them from the database."""

    def __init__(self, measurer: Measurer, threads: int, sizes: Sequence[int] = SIZES) -> None:
        self._measurer = measurer
        self._threads = threads
        self._sizes = tuple(sorted(sizes))
        self._versions = registry_versions()

    def costs(self, pairs: Iterable[Pair], should_stop: Stop = never) -> BoundaryCosts:
        """Costs for ordered pairs of backend names. Pairs that `should_stop` cut off get the default of unmeasured
        ones.

        A pair that fails keeps its reason; it is tried again when either version changes.
        """
        table: dict[Pair, list[tuple[int, float]]] = {}
        failures: dict[Pair, str] = {}
        for pair in dict.fromkeys(pairs):
            for size in self._sizes:
                found = self._measurer.database.get_boundary(self._key(pair, size))
                if found is None and not should_stop():
                    found = self._measure(pair, size, should_stop)
                if not isinstance(found, dict):
                    break
                if "reason" in found:
                    failures[pair] = str(found["reason"])
                    table.pop(pair, None)
                    break
                table.setdefault(pair, []).append((size, float(found["ms"])))
        return BoundaryCosts(table, failures)

    def _key(self, pair: Pair, size: int) -> str:
        facts = {
            "pair": [[name, self._versions.get(name, "")] for name in pair],
            "size": size,
            "threads": self._threads,
            "hardware": self._measurer.hardware.fingerprint(),
            "schema": SCHEMA,
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]

    def _measure(self, pair: Pair, size: int, should_stop: Stop) -> dict[str, object] | None:
        jobs = self._jobs(pair, size)
        measurer = self._measurer
        measurer.loader.load(jobs, should_stop)
        schedule = Schedule(warm_s=0.02, run_s=measurer.limits.run_s)
        with measurer.pool.exclusive():
            for number in range(_ROUNDS):
                if should_stop() or not all(job.ready for job in jobs):
                    break
                one_round(measurer.pool, jobs, number, schedule)
        measurer.loader.drop(jobs)
        broken = next((job for job in jobs if job.outcome is not None), None)
        found: dict[str, object]
        if broken is not None:
            found = {"reason": f"{broken.outcome}: {broken.reason}"}
            _LOG.info("boundary %s → %s: %s", *pair, found["reason"])
        elif any(len(job.rounds) < _ROUNDS for job in jobs):
            return None
        else:
            first, second, both = ([statistics.median(samples) for samples in job.rounds] for job in jobs)
            found = {"ms": max(0.0, statistics.median(c - a - b for a, b, c in zip(first, second, both, strict=True)))}
        measurer.database.put_boundary(self._key(pair, size), found)
        return found

    def _jobs(self, pair: Pair, size: int) -> list[Job]:
        """Relu on the producer, on the consumer, and on both one after the other, all in one process."""
        scratch = self._measurer.scratch
        elements = size // 4
        first, second = relu_region(scratch, "x", "y", elements), relu_region(scratch, "y", "z", elements)
        inputs = vector(scratch, ("x", "y"), elements)
        expected = vector(scratch, ("y", "z"), elements, rectified=True)
        one, other = (Step(name, variant(name), path) for name, path in zip(pair, (first, second), strict=True))
        programs = [((one,), ("y",)), ((other,), ("z",)), ((one, other), ("z",))]
        made: list[Job] = []
        for steps, outputs in programs:
            spec = CandidateSpec(f"boundary {size}", steps, outputs, self._threads, alone=False)
            job = self._measurer.job(spec, inputs, expected, _BOUND)
            job.regime = replace(job.regime, backends=tuple(sorted(set(pair))), owner="boundary")
            made.append(job)
        return made


def variant(backend: str) -> str:
    """The variant in which probes run: a backend's first one of full precision."""
    return registry.get(backend).variants(_VARIANT_PRECISION)[0]


def adjacent_pairs(names: Sequence[str]) -> list[Pair]:
    """All ordered pairs of different backends, such that pairs that share a process follow each other."""
    return [
        pair
        for number, first in enumerate(names)
        for second in names[number + 1 :]
        for pair in ((first, second), (second, first))
    ]
