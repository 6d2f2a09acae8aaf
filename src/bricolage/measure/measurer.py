"""Measuring the candidates of many regions: known costs from the database, the others in workers, each stored at
once."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from bricolage.backends import registry
from bricolage.cache import compiled_directory
from bricolage.device.machine import Hardware, this_machine
from bricolage.errors import BrokenPlugin, MissingBackend, NotWritable
from bricolage.measure.database import Database
from bricolage.measure.entries import Cost, CostKey
from bricolage.measure.loading import CandidateSpec, Job, Limits, Loader, Stop, never
from bricolage.measure.pool import Pool
from bricolage.measure.rounds import Schedule, compare, latency
from bricolage.options import available_cores

_LOG = logging.getLogger(__name__)
_CHUNK = 48
"""Candidates compiled together before they are timed; more would hold more memory."""
_PASSES = 4
_UNSURE = 0.1
"""Width of the interval, relative to the median, from which on the known time of a whole model is measured again: the machine was
busy, and a backend may be left out for it."""
_PATIENCE = 1.5
"""A time-out is tried again when the limit has grown by this factor."""


@dataclass(frozen=True)
class RegionTask:
    """A region with all the candidates that compete for it."""

    inputs: Path
    """.npz with the region's inputs, by name (see `bricolage.verify.tensors`)."""
    expected: Path
    """.npz with the float64 outputs, by name."""
    bound: float
    """Relative error accepted."""
    candidates: tuple[CandidateSpec, ...]


@dataclass(frozen=True)
class Event:
    """Progress: one candidate is finished."""

    kind: Literal["known", "measured", "failed"]
    spec: CandidateSpec
    cost: Cost
    done: int
    total: int


def _silent(_event: Event) -> None:
    """The progress callback that tells nobody."""


class Measurer:
    """Measures candidates. Holds the pool's workers alive between calls, since importing a framework takes seconds."""

    def __init__(
        self,
        database: Database,
        pool: Pool,
        scratch: Path,
        *,
        hardware: Hardware | None = None,
        limits: Limits | None = None,
        schedule: Schedule | None = None,
        cores: int | None = None,
        cache: Path | None = None,
    ) -> None:
        """`scratch`: an existing folder for this run. `cores`: workers that compile at a time. `cache`: folder for
        compiled code, by default the one of this hardware and these versions in the user's cache."""
        self.database = database
        self.pool = pool
        self.scratch = scratch
        self.hardware = hardware or this_machine()
        self.limits = limits or Limits()
        self.schedule = schedule or Schedule()
        self._versions: dict[str, str] = {}
        self._fingerprint = self.hardware.fingerprint()
        self.cache = cache if cache is not None else compiled_directory(self._fingerprint, registry_versions())
        self.loader = Loader(pool, scratch, self.cache, cores or available_cores(), self.limits)

    def key(self, spec: CandidateSpec) -> CostKey:
        """The database key of a candidate.

        Raises:
            UnknownBackend, MissingBackend: a step's backend is not there.
        """
        return CostKey(
            region=spec.region_key,
            backend="+".join(step.backend for step in spec.steps),
            version="+".join(self._version(step.backend) for step in spec.steps),
            variant="+".join(step.variant for step in spec.steps),
            hardware=self._fingerprint,
            threads=spec.threads,
            alone=spec.alone,
        )

    def known(self, spec: CandidateSpec, bound: float) -> Cost | None:
        """What the database knows of a candidate, judged by this bound; None when it has to be measured."""
        cost = self.database.get(self.key(spec))
        if cost is None:
            return None
        if cost.outcome == "ok" and cost.error is not None and cost.error > bound:
            return replace(
                cost,
                outcome="wrong",
                latency=None,
                reason=f"the relative error is {cost.error:.2e}, the bound {bound:.2e}",
            )
        if cost.outcome == "wrong" and cost.error is not None and cost.error <= bound:
            return None  # it failed a stricter bound and was never timed
        if spec.alone and cost.latency is not None and cost.latency.width > _UNSURE:
            return None
        if cost.outcome == "timed-out" and cost.compile_s * _PATIENCE <= self.limits.compile_s:
            return None
        return cost

    def measure(
        self,
        tasks: Sequence[RegionTask],
        progress: Callable[[Event], None] = _silent,
        should_stop: Stop = never,
    ) -> dict[CandidateSpec, Cost]:
        """Costs of all candidates of all regions; what `should_stop` cut off is absent.

        Candidates of one region are timed in interleaved rounds with nothing else running; near-ties get more rounds.
        Every finished measurement is in the database before the next begins.

        Raises:
            NotWritable: the disk is full.
        """
        results: dict[CandidateSpec, Cost] = {}
        total = len({spec for task in tasks for spec in task.candidates})

        def finish(kind: Literal["known", "measured", "failed"], spec: CandidateSpec, cost: Cost) -> None:
            results[spec] = cost
            if kind == "failed" and os.strerror(errno.ENOSPC) in cost.reason:
                # Nothing that is true of the candidate, so nothing to remember.
                raise NotWritable(path=self.cache, reason=os.strerror(errno.ENOSPC))
            if kind != "known":
                self.database.put(self.key(spec), cost)
            progress(Event(kind, spec, cost, len(results), total))

        todo: list[tuple[RegionTask, list[Job]]] = []
        queued: set[CandidateSpec] = set()
        for task in tasks:
            jobs: list[Job] = []
            for spec in task.candidates:
                if spec in queued:
                    continue
                queued.add(spec)
                cost = self.known(spec, task.bound)
                if cost is not None:
                    finish("known", spec, cost)
                else:
                    jobs.append(self.job(spec, task.inputs, task.expected, task.bound))
            if jobs:
                todo.append((task, jobs))
        for chunk in _chunks(todo):
            if should_stop():
                break
            self._measure_chunk([jobs for _, jobs in chunk], finish, should_stop)
        return results

    def job(self, spec: CandidateSpec, inputs: Path, expected: Path | None, bound: float, owner: str = "") -> Job:
        """A job for the loader. With an `owner`, it gets worker processes of its own."""
        return Job(spec, inputs, expected, bound, replace(spec.regime, owner=owner))

    def _measure_chunk(
        self,
        regions: Sequence[Sequence[Job]],
        finish: Callable[[Literal["known", "measured", "failed"], CandidateSpec, Cost], None],
        should_stop: Stop,
    ) -> None:
        """Compiles all candidates of some regions, then times region by region. A candidate whose worker died through
        another one while being timed is compiled again."""

        def failed(job: Job) -> None:
            finish("failed", job.spec, cost_of(job))

        for _ in range(_PASSES):
            waiting = [job for jobs in regions for job in jobs if job.outcome is None and not job.rounds]
            if not waiting or should_stop():
                break
            self.loader.load(waiting, should_stop, failed)
            for jobs in regions:
                ready = [job for job in jobs if job.ready and not job.rounds]
                if should_stop() or not ready:
                    continue
                open_ids = compare(self.pool, ready, self.schedule, should_stop)
                for job in ready:
                    if job.outcome is not None:
                        failed(job)
                    elif len(job.rounds) >= min(self.schedule.probe, self.schedule.rounds):
                        finish("measured", job.spec, cost_of(job, noisy=job.id in open_ids))
                    else:
                        job.rounds.clear()
            self.loader.drop([job for jobs in regions for job in jobs])
        self.pool.recycle()

    def _version(self, backend: str) -> str:
        if backend not in self._versions:
            self._versions[backend] = registry.version(backend)
        return self._versions[backend]


def cost_of(job: Job, noisy: bool = False) -> Cost:
    """What a finished job says."""
    if job.outcome is not None:
        return Cost(job.outcome, None, job.error, job.compile_s, job.reason)
    return Cost("ok", latency(job), job.error, job.compile_s, noisy=noisy)


def registry_versions(names: Iterable[str] | None = None) -> Mapping[str, str]:
    """Versions of the backends that are installed."""
    versions: dict[str, str] = {}
    for name in registry.names() if names is None else names:
        try:
            versions[name] = registry.version(name)
        except (MissingBackend, BrokenPlugin) as error:
            _LOG.debug("%s", error)
    return versions


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
