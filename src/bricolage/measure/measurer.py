"""Measuring the candidates of many regions: known costs from the database, the others in workers, each stored at
once."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from bricolage.backends import registry
from bricolage.base.cache import cache_directory
from bricolage.base.codec import encode
from bricolage.base.options import available_cores
from bricolage.costs.database import Database
from bricolage.costs.entries import EXPIRING, Cost, CostKey
from bricolage.errors import CacheNotWritable
from bricolage.measure.candidate_job import Job, JobState
from bricolage.measure.executor import Executor
from bricolage.measure.loading import Loader
from bricolage.measure.log import MeasurementLog
from bricolage.measure.pool import Pool
from bricolage.measure.rounds import compare_jobs, is_disturbed, job_latency
from bricolage.measure.specs import CandidateSpec, Limits, RegionTask, Stop, TimingPolicy, never
from bricolage.verify.compare import Deviation, too_far
from bricolage.verify.variations import Variation
from bricolage.work.workload import Workload

_LOG = logging.getLogger(__name__)
_CHUNK = 12
"""Candidates compiled together before they are timed: enough to keep the compiling workers busy, and few, since the time may end
meanwhile."""
_GRACE_S = 2.0
"""By which timing what is compiled may outlast the end of the time: compiling it took longer."""
_PASSES = 4
_UNSURE = 0.1
"""Width of the interval, relative to the median, from which on the known time of a whole model is measured again: the
machine was busy, and a backend may be left out for it."""
_UNLOADED: tuple[JobState, ...] = ("waiting", "lost")
_PATIENCE = 1.5
"""A time-out is tried again when the limit has grown by this factor."""


Kind = Literal["known", "measured", "failed"]


@dataclass(frozen=True)
class Event:
    """Progress: one candidate is finished."""

    kind: Kind
    spec: CandidateSpec
    cost: Cost
    done: int
    total: int


def _silent(_event: Event) -> None:
    """The progress callback that does nothing."""


class _Results:
    """Costs of one call of `Measurer.measure` as they come in: remembered, and told."""

    def __init__(self, measurer: Measurer, tasks: Sequence[RegionTask], progress: Callable[[Event], None]) -> None:
        self.costs: dict[CandidateSpec, Cost] = {}
        self._measurer, self._progress = measurer, progress
        self._tasks = {spec: task for task in tasks for spec in task.candidates}
        self._workloads = {spec.region_key: task.workload for task in tasks for spec in task.candidates}

    def finish(self, kind: Kind, spec: CandidateSpec, cost: Cost, machine: str | None = None) -> None:
        """A candidate has its cost. `machine`: another one that measured it.

        Raises:
            CacheNotWritable: the disk is full.
        """
        self.costs[spec] = cost = replace(cost, foreign=machine is not None or cost.foreign)
        if kind == "failed" and os.strerror(errno.ENOSPC) in cost.reason:
            # Nothing that is true of the candidate, so nothing to remember.
            raise CacheNotWritable(path=cache_directory(), reason=os.strerror(errno.ENOSPC))
        if kind != "known":
            data, workload = self._tasks[spec].data, self._workloads[spec.region_key]
            self._measurer.remember(spec, cost, data, workload, machine)
        self._progress(Event(kind, spec, cost, len(self.costs), len(self._tasks)))


@dataclass(frozen=True)
class _Recalled:
    """What the database knows of a candidate, as far as it can be used."""

    timed: Cost | None
    """Its latency or failure."""
    deviation: Deviation | None
    """On these weights and inputs."""

    def cost(self, bound: float) -> Cost | None:
        """Judged by this bound; None where something is missing."""
        deviation = self.deviation
        if deviation is not None and deviation.excess > bound:
            return judge_cost(_with(Cost("ok"), deviation), bound)
        if self.timed is None or (self.timed.outcome == "ok" and deviation is None):
            return None
        return _with(self.timed, deviation)


class Measurer:
    """Measures candidates. Holds the pool's workers alive between calls, since importing a framework takes seconds."""

    def __init__(
        self,
        database: Database,
        pool: Pool,
        scratch: Path,
        *,
        limits: Limits | None = None,
        policy: TimingPolicy | None = None,
        cores: int | None = None,
        caching: bool = True,
        retrying: bool = False,
        log: MeasurementLog | None = None,
    ) -> None:
        """`scratch`: an existing folder for this run. `cores`: workers that compile at a time. `caching`: whether
        code that takes long to compile is kept between runs. `retrying`: whether failures of earlier runs that may have
        been bad luck are tried again, however young. `log`: of the decision that it measures for."""
        self.log = log or MeasurementLog()
        self.database = database
        self.pool = pool
        self.scratch = scratch
        self.limits = limits or Limits()
        self.policy = policy or TimingPolicy()
        self.earlier: dict[CandidateSpec, Cost] = {}
        """What was known and is measured again, because it was unsure or other processes had disturbed it."""
        self.finished: set[CostKey | str] = set()
        """Keys of what was measured in this run."""
        self._told: dict[tuple[CostKey, str], Deviation] = {}
        """How far answers were off that other machines compared in this run, by key and data: good for choosing among regions. It
        is not kept, and what ships is compared here."""
        self._retrying, self._caching = retrying, caching
        self._versions: dict[str, str] = {}
        self.loader = Loader(pool, scratch, cores or available_cores(), self.limits, caching=caching, log=self.log)

    def key(self, spec: CandidateSpec) -> CostKey:
        """The database key of a candidate.

        Raises:
            UnknownBackend, MissingBackend: a step's backend is not there.
        """
        chosen = [step.implementation for step in spec.steps]
        return CostKey(
            region=spec.region_key,
            backend="+".join(implementation.backend for implementation in chosen),
            version="+".join(self._version(implementation.backend) for implementation in chosen),
            config="+".join(implementation.config.text for implementation in chosen),
            device=spec.device.fingerprint(),
            threads=spec.threads,
            alone=spec.alone,
        )

    def cached(self, asked: Sequence[tuple[CandidateSpec, str]], bound: float) -> list[Cost | None]:
        """What the database knows of candidates on weights and inputs (their digest), judged by this bound. None when one has
        to be measured, or (where its time is known) at least compared."""
        return [entry.cost(bound) for entry in self._recall_costs(asked)]

    def _recall_costs(self, asked: Sequence[tuple[CandidateSpec, str]]) -> list[_Recalled]:
        keys = [(self.key(spec), data) for spec, data in asked]
        costs, deviations = self.database.costs(key for key, _ in keys), self.database.deviations(keys)
        return [
            _Recalled(
                self._usable(spec, key, costs[key]) if key in costs else None,
                deviations.get((key, data)) or self._told.get((key, data)),
            )
            for (spec, _), (key, data) in zip(asked, keys, strict=True)
        ]

    def _usable(self, spec: CandidateSpec, key: CostKey, cost: Cost) -> Cost | None:
        """The stored latency or failure. None if it is expired, uncertain, was measured under load in an earlier run, or comes from
        another machine and is about a whole model or a failure."""
        elsewhere = cost.foreign and (spec.alone or (cost.outcome in EXPIRING and key not in self.finished))
        if self.outdated(cost, key) or elsewhere:
            return None
        unsure = spec.alone and cost.latency is not None and cost.latency.width > _UNSURE
        if unsure or (cost.disturbed and key not in self.finished):
            self.earlier[spec] = cost
            return None
        if cost.outcome == "timed-out" and cost.compile_s * _PATIENCE <= self.limits.compile_s:
            return None
        return cost

    def recorded(self, spec: CandidateSpec) -> tuple[Cost, ...]:
        """What is on record of a candidate, whatever has been compared: of this run or an earlier one, and of an earlier one
        where it was measured again."""
        costs = (self.database.get(self.key(spec)), self.earlier.get(spec))
        return tuple(cost for cost in costs if cost is not None and not cost.foreign)

    def outdated(self, cost: Cost, key: CostKey | str) -> bool:
        """Whether what is on record under a key is a failure that is worth another try."""
        return cost.expired or (self._retrying and cost.outcome in EXPIRING and key not in self.finished)

    def measure(
        self, tasks: Sequence[RegionTask], progress: Callable[[Event], None] = _silent, should_stop: Stop = never
    ) -> dict[CandidateSpec, Cost]:
        """Costs of all candidates of all regions; what `should_stop` cut off is absent.

        Candidates of one region are timed in interleaved rounds with nothing else running; near-ties get more rounds.
        Every finished measurement is in the database before the next begins.

        Raises:
            CacheNotWritable: the disk is full.
        """
        results = _Results(self, tasks, progress)
        todo = self._unknown(tasks, results)
        if self.pool.cluster is not None and todo:
            self._scale_out(self.pool.cluster, todo, results.finish, should_stop)
            todo = [(task, [job for job in jobs if job.spec not in results.costs]) for task, jobs in todo]
        for chunk in _chunks([(task, jobs) for task, jobs in todo if jobs]):
            if should_stop():
                break
            self._measure_chunk([jobs for _, jobs in chunk], results.finish, should_stop)
        return results.costs

    def compile_ahead(self, specs: Sequence[CandidateSpec]) -> None:
        """Has workers compile what will be measured, where the cache keeps their code, while this process goes on."""
        for spec in specs:
            backends = [registry.get(step.implementation.backend) for step in spec.steps]
            if (
                spec.kept
                and self._caching
                and not self.pool.sharing
                and all(backend.travels != "no" for backend in backends)
            ):
                facts = {"steps": [encode(step) for step in spec.steps], "threads": spec.threads, "alone": spec.alone}
                self.pool.ahead(spec.regime, "compile_ahead", **facts)

    def _unknown(self, tasks: Sequence[RegionTask], results: _Results) -> list[tuple[RegionTask, list[Job]]]:
        """What has to be measured or compared, by region; `results` hears of what is known."""
        todo: list[tuple[RegionTask, list[Job]]] = []
        first = {spec: task for task in reversed(tasks) for spec in task.candidates}
        recalled = dict(
            zip(first, self._recall_costs([(spec, task.data) for spec, task in first.items()]), strict=True)
        )
        for task in tasks:
            jobs: list[Job] = []
            for spec in task.candidates:
                if spec not in recalled:
                    continue
                entry = recalled.pop(spec)
                cost = entry.cost(task.bound)
                if cost is not None:
                    results.finish("known", spec, cost)
                    continue
                others = () if task.variations is None or spec.serving is not None else task.variations()
                given = (task.inputs, task.expected, task.bound, spec.regime, task.limits, others, entry.timed)
                jobs.append(Job(spec, *given))
            if jobs:
                todo.append((task, jobs))
        return todo

    def remember(
        self, spec: CandidateSpec, cost: Cost, data: str, workload: Callable[[], Workload] | None, machine: str | None
    ) -> None:
        """Writes what was measured, here or on another `machine`, into the database. `data` is that of the region's task."""
        key = self.key(spec)
        self.finished.add(key)
        # The user's limit may be another next time.
        if cost.outcome != "out-of-memory" or not self.pool.limited:
            self.database.put(key, cost, machine)
            self.database.describe(key, workload if len(spec.steps) == 1 else None, spec.device)
        if cost.deviation is not None and machine is not None:
            self._told[key, data] = cost.deviation
        elif cost.deviation is not None:
            self.database.put_deviation(key, data, cost.deviation)

    def _scale_out(
        self,
        cluster: Executor,
        todo: Sequence[tuple[RegionTask, Sequence[Job]]],
        finish: Callable[[Kind, CandidateSpec, Cost, str | None], None],
        should_stop: Stop,
    ) -> None:
        """Has candidates compiled on other machines, and those measured of which another machine's word is enough: regions, whose
        choice the race forgives. The others, and what no other machine found out, are measured here afterwards."""
        cluster.compile([job.spec for _, jobs in todo for job in jobs], self.limits.compile_s, should_stop)
        regions = [(task, [job.spec for job in jobs if job.spec.is_region]) for task, jobs in todo]

        def take(spec: CandidateSpec, cost: Cost, machine: str) -> None:
            finish("measured" if cost.outcome == "ok" else "failed", spec, cost, machine)

        cluster.measure(regions, self.policy, self.limits, take, should_stop, retrying=self._retrying)

    def job(
        self,
        spec: CandidateSpec,
        inputs: Path,
        expected: Path | None,
        bound: float,
        *,
        owner: str = "",
        fresh: bool = False,
        variations: tuple[Variation, ...] = (),
    ) -> Job:
        """A job for the loader. With an `owner`, it gets worker processes of its own; for `fresh` see `Regime`."""
        regime = replace(spec.regime, owner=owner, fresh=fresh)
        return Job(spec, inputs, expected, bound, regime, variations=variations)

    def _measure_chunk(
        self, regions: Sequence[Sequence[Job]], finish: Callable[[Kind, CandidateSpec, Cost], None], should_stop: Stop
    ) -> None:
        """Compiles all candidates of some regions, then times region by region. A candidate whose worker died through
        another one, or was ended from outside, while being timed is compiled again."""

        def report_failure(job: Job) -> None:
            finish("failed", job.spec, cost_of(job))

        for _ in range(_PASSES):
            waiting = [job for jobs in regions for job in jobs if job.state in _UNLOADED]
            if not waiting or should_stop():
                break
            self.loader.load(waiting, should_stop, report_failure)
            stop = should_stop if not should_stop() else _grace()
            for jobs in regions:
                for job in jobs:
                    # Its time was known; its answer is right on these weights, too.
                    if job.ready and job.known is not None:
                        finish("measured", job.spec, _with(job.known, job.deviation))
                        job.retire()
                ready = [job for job in jobs if job.ready]
                if stop() or not ready:
                    continue
                open_ids = compare_jobs(self.pool, ready, self.log, self.policy, stop)
                for job in ready:
                    if job.state == "failed":
                        report_failure(job)
                    elif len(job.rounds) >= min(self.policy.probe, self.policy.rounds):
                        finish("measured", job.spec, cost_of(job, noisy=job.id in open_ids))
                        job.retire()
                    else:
                        job.untime()
            self.loader.drop([job for jobs in regions for job in jobs])
        else:
            for job in (job for jobs in regions for job in jobs):
                if job.state in _UNLOADED and not should_stop():
                    job.fail("lost", f"given up after {_PASSES} attempts: its process kept being ended by others")
                    report_failure(job)
        self.pool.recycle()

    def _version(self, backend: str) -> str:
        if backend not in self._versions:
            self._versions[backend] = registry.version(backend)
        return self._versions[backend]


def cost_of(job: Job, noisy: bool = False) -> Cost:
    """What a finished job says."""
    if job.outcome is not None:
        cost = Cost(job.outcome, compile_s=job.compile_s, reason=job.reason)
    else:
        cost = Cost("ok", job_latency(job), compile_s=job.compile_s, noisy=noisy, disturbed=is_disturbed(job))
    return _with(cost, job.deviation)


def _with(cost: Cost, found: Deviation | None) -> Cost:
    return replace(cost, error=found.error if found else None, excess=found.excess if found else None)


def judge_cost(cost: Cost, bound: float) -> Cost:
    """The cost, "wrong" where its error exceeds the bound."""
    deviation = cost.deviation
    if deviation is None or deviation.excess <= bound or cost.outcome not in ("ok", "wrong"):
        return cost
    return replace(cost, outcome="wrong", latency=None, reason=too_far(deviation, bound))


def _grace() -> Stop:
    """Stops `_GRACE_S` from now."""
    end = time.monotonic() + _GRACE_S
    return lambda: time.monotonic() >= end


def _chunks(todo: Sequence[tuple[RegionTask, list[Job]]]) -> Iterable[list[tuple[RegionTask, list[Job]]]]:
    """Regions in their order, in groups of some `_CHUNK` candidates."""
    chunk: list[tuple[RegionTask, list[Job]]] = []
    count = 0
    for task, jobs in todo:
        if chunk and count + len(jobs) > _CHUNK:
            yield chunk
            chunk, count = [], 0
        chunk.append((task, jobs))
        count += len(jobs)
    if chunk:
        yield chunk
