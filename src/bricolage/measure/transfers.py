"""Transfers: what it takes to hand a tensor from one endpoint to another, measured where it happens.

In one process, for one size, three programs take turns: Relu on A, Relu on B, and Relu on A followed by Relu on B. What
the last takes beyond the other two is the transfer: copies, layout and cache misses, and threads that change hands.
"""

from __future__ import annotations

import hashlib
import json
import logging
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from bricolage.backends import registry
from bricolage.base.options import Precision
from bricolage.costs.entries import EXPIRING, SCHEMA, Cost
from bricolage.costs.latency import enough
from bricolage.costs.models.measured_transfer import MeasuredTransferCosts, Pair
from bricolage.device.device import Device
from bricolage.measure.candidate_job import Job
from bricolage.measure.measurer import Measurer
from bricolage.measure.probes import relu_region, vector
from bricolage.measure.rounds import take_turn, track_machine
from bricolage.measure.specs import CandidateSpec, Stop, TimingPolicy, never
from bricolage.measure.turns import take_turns
from bricolage.plan.program_step import Step
from bricolage.work.implementation import Endpoint, Implementation, KernelConfig

_LOG = logging.getLogger(__name__)

SIZES = (4 << 10, 64 << 10, 1 << 20, 8 << 20)
"""Bytes at which transfers are measured."""
_ROUNDS = 9
_BOUND = 1e-6
_PROBE_PRECISION: Precision = "highest"


class TransferMeasurer:
    """Measures transfer costs for the pairs asked for, or takes them from the database."""

    def __init__(self, measurer: Measurer, threads: int, device: Device, sizes: Sequence[int] = SIZES) -> None:
        self._measurer = measurer
        self._threads, self._device = threads, device
        self._sizes = tuple(sorted(sizes))
        self._versions = registry.versions()

    def costs(self, pairs: Iterable[Pair], should_stop: Stop = never) -> MeasuredTransferCosts:
        """Costs for ordered pairs of endpoints. Pairs that `should_stop` cut off get the default of unmeasured
        ones.

        A pair that is refused keeps its reason until either version changes; another failure as long as those of
        candidates do.
        """
        table: dict[Pair, list[tuple[int, float]]] = {}
        failures: dict[Pair, str] = {}
        for pair in dict.fromkeys(pairs):
            for size in self._sizes:
                key = self._key(pair, size)
                record = self._measurer.database.get_transfer(key)
                if isinstance(record, dict) and self._is_outdated(record, key):
                    record = None
                if record is None and not should_stop():
                    record = self._measure(pair, size, should_stop)
                if not isinstance(record, dict):
                    break
                if "reason" in record:
                    failures[pair] = str(record["reason"])
                    table.pop(pair, None)
                    break
                table.setdefault(pair, []).append((size, float(record["ms"])))
        return MeasuredTransferCosts(table, failures)

    def _is_outdated(self, found: Mapping[str, object], key: str) -> bool:
        """Whether what is on record is a failure that is worth another try."""
        outcome = next((candidate for candidate in EXPIRING if candidate == found.get("outcome")), None)
        if "reason" not in found or outcome is None:
            return False
        return self._measurer.outdated(Cost(outcome, date=float(str(found.get("date", 0)))), key)

    def _key(self, pair: Pair, size: int) -> str:
        facts = {
            "pair": [
                [endpoint.backend, self._versions.get(endpoint.backend, ""), endpoint.device] for endpoint in pair
            ],
            "size": size,
            "threads": self._threads,
            "device": self._device.fingerprint(),
            "schema": SCHEMA,
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]

    def _measure(self, pair: Pair, size: int, should_stop: Stop) -> dict[str, object] | None:
        jobs = self._jobs(pair, size)
        measurer = self._measurer
        measurer.loader.load(jobs, should_stop)
        policy = TimingPolicy(warm_s=0.02, run_s=measurer.limits.run_s)
        pool, log, cores = measurer.pool, measurer.log, self._device.cores

        def remaining(number: int, _: list[Job]) -> Sequence[Job]:
            return jobs if number < _ROUNDS and all(job.ready for job in jobs) and not should_stop() else ()

        with pool.exclusive():
            take_turns(
                jobs,
                lambda job: take_turn(pool, job, log, policy),
                remaining,
                around=lambda: track_machine(log.tally, cores),
            )
        measurer.loader.drop(jobs)
        broken = next((job for job in jobs if job.state == "failed"), None)
        record: dict[str, object]
        if broken is not None:
            record = {"reason": f"{broken.outcome}: {broken.reason}", "outcome": broken.outcome, "date": time.time()}
            _LOG.info("transfer %s → %s: %s", *pair, record["reason"])
        elif any(len(job.rounds) < _ROUNDS for job in jobs):
            return None
        else:
            first, second, both = ([statistics.median(samples) for samples in job.rounds] for job in jobs)
            differences = [c - a - b for a, b, c in zip(first, second, both, strict=True)]
            bad = [any(turns) for turns in zip(*(job.disturbed for job in jobs), strict=True)]
            clean = [difference for difference, out in zip(differences, bad, strict=True) if not out]
            used = clean if enough(len(clean), len(differences)) else differences
            record = {"ms": max(0.0, statistics.median(used))}
        if broken is None or broken.outcome != "lost":
            measurer.finished.add(self._key(pair, size))
            measurer.database.put_transfer(self._key(pair, size), record)
        return record

    def _jobs(self, pair: Pair, size: int) -> list[Job]:
        """Relu on the producer, on the consumer, and on both one after the other, all in one process."""
        scratch = self._measurer.scratch
        elements = size // 4
        first, second = relu_region(scratch, "x", "y", elements), relu_region(scratch, "y", "z", elements)
        inputs = vector(scratch, ("x", "y"), elements)
        expected = vector(scratch, ("y", "z"), elements, rectified=True)
        producer, consumer = (
            Step(Implementation(end.backend, probe_config(end.backend, self._device), end.device), path)
            for end, path in zip(pair, (first, second), strict=True)
        )
        programs = [((producer,), ("y",)), ((consumer,), ("z",)), ((producer, consumer), ("z",))]
        jobs: list[Job] = []
        for steps, outputs in programs:
            spec = CandidateSpec(f"transfer {size}", steps, outputs, self._threads, alone=False, device=self._device)
            names = tuple(sorted({end.backend for end in pair}))
            regime = replace(spec.regime, backends=names, owner="transfer")
            jobs.append(Job(spec, inputs, expected, _BOUND, regime))
        return jobs


def probe_config(backend: str, device: Device) -> KernelConfig:
    """The configuration in which probes run: a backend's first one of full precision."""
    return registry.get(backend).configs(_PROBE_PRECISION, device)[0]


def adjacent_pairs(endpoints: Sequence[Endpoint]) -> list[Pair]:
    """All ordered pairs of different endpoints, such that pairs that share a process follow each other."""
    return [
        pair
        for number, first in enumerate(endpoints)
        for second in endpoints[number + 1 :]
        for pair in ((first, second), (second, first))
    ]
