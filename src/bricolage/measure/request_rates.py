"""Measuring how many requests a second programs answer, and how long each request takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bricolage.costs.entries import Cost
from bricolage.measure.measurer import Measurer, cost_of
from bricolage.measure.rounds import compare_jobs
from bricolage.measure.specs import CandidateSpec, Stop, TimingPolicy, never

TAIL = 0.99
"""The quantile of latencies that limits are for."""


@dataclass(frozen=True)
class ServedLoad:
    """How a program answered requests, or why it did not. Where `cost` has a latency, that is the wall time by requests."""

    cost: Cost
    p50_ms: float | None = None
    p99_ms: float | None = None
    """Of single requests."""

    @classmethod
    def of(cls, cost: Cost, latencies: Sequence[float]) -> ServedLoad:
        """From the latencies of calls."""
        if cost.latency is None or not latencies:
            return cls(cost)
        p50, p99 = np.quantile(latencies, [0.5, TAIL])
        return cls(cost, float(p50), float(p99))

    @property
    def rate(self) -> float | None:
        """Requests a second."""
        return None if self.cost.ms is None else 1e3 / self.cost.ms

    @property
    def rate_ci(self) -> tuple[float, float] | None:
        """The 95 % interval of `rate`."""
        latency = self.cost.latency
        return None if latency is None else (1e3 / latency.high_ms, 1e3 / latency.low_ms)

    def within(self, limit_ms: float | None) -> bool:
        """Whether it answered, and 99 of 100 requests in time."""
        return self.p99_ms is not None and (limit_ms is None or self.p99_ms <= limit_ms)


def time_serving(
    measurer: Measurer,
    contestants: Mapping[str, CandidateSpec],
    inputs: Path,
    expected: Path,
    bound: float,
    policy: TimingPolicy,
    should_stop: Stop = never,
) -> dict[str, ServedLoad]:
    """Times programs (by name) that answer several requests at a time, interleaved; their specs have `serving`. All are compiled
    and checked against `expected` first. What `should_stop` cut off is absent. Nothing is stored."""
    jobs = {name: measurer.job(spec, inputs, expected, bound) for name, spec in contestants.items()}
    measurer.loader.load(list(jobs.values()), should_stop)
    ready = [job for job in jobs.values() if job.ready]
    if ready and not should_stop():
        compare_jobs(measurer.pool, ready, measurer.log, policy, should_stop)
    loads = {
        name: ServedLoad.of(cost_of(job), job.served)
        for name, job in jobs.items()
        if job.state == "failed" or job.rounds
    }
    measurer.loader.drop(list(jobs.values()))
    measurer.pool.recycle()
    return loads
