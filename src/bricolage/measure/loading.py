"""Compiling candidates in their workers, several workers at a time, and checking them: correct before fast."""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from bricolage.base.codec import encode
from bricolage.base.options import BOUNDS
from bricolage.measure.candidate_job import Job
from bricolage.measure.log import MeasurementLog
from bricolage.measure.pool import Pool
from bricolage.measure.specs import Limits, Regime, Stop, never
from bricolage.measure.worker_process import Answer, WorkerProcess
from bricolage.verify.compare import Deviation, deviation, too_far
from bricolage.verify.held_back import HeldBackSample
from bricolage.verify.named_arrays import load_limits, load_values
from bricolage.verify.variations import Allowance, Variation

_LOG = logging.getLogger(__name__)
_ATTEMPTS = 3
_WAIT_S = 0.2
SURE = BOUNDS["highest"]
"""Relative error that every precision accepts, whatever rounding does. A judgement on record has to hold for other precisions,
too, so this run's own bound cannot say which answers need no limits."""


class Loader:
    """Brings jobs to `ready`, or to an outcome with its reason."""

    def __init__(
        self,
        pool: Pool,
        scratch: Path,
        cores: int,
        limits: Limits,
        *,
        caching: bool = True,
        log: MeasurementLog | None = None,
    ) -> None:
        """`scratch`: folder for outputs on their way; `cores`: workers busy at a time; `caching`: whether compiled code is
        kept; `log`: of the decision."""
        self.pool = pool
        self._log = log or MeasurementLog()
        self.limits = limits
        self._scratch = scratch
        self._caching = caching
        self.cores = max(1, cores)
        self._ids = itertools.count()
        self._expected: dict[tuple[Path, tuple[str, ...]], tuple[list[object], list[float]]] = {}

    def load(
        self, jobs: Sequence[Job], should_stop: Stop = never, finished: Callable[[Job], None] | None = None
    ) -> None:
        """Compiles and checks all jobs. `finished` hears of each job that fails, as soon as it does.

        When `should_stop` says so, what is being compiled or waits for its limits is given up; such jobs are neither ready nor
        have an outcome.
        """
        with self.pool.compiling():
            doubtful = self._compile(jobs, should_stop, finished)
        # Their workers may have died since, once too often.
        for job in [suspect for suspect in doubtful if suspect.state != "failed"]:
            if should_stop():
                job.unload()
            else:
                if job.limits is not None:
                    self._judge(job, job.limits)
                self._judge_variations(job, doubting=False)
                job.passed()
                if job.state == "failed" and finished is not None:
                    finished(job)
            self._forget(job)
        self._expected.clear()

    def _compile(self, jobs: Sequence[Job], should_stop: Stop, finished: Callable[[Job], None] | None) -> list[Job]:
        """As `load`; answers those that cannot be judged without their limits."""
        doubtful: list[Job] = []
        queues: dict[Regime, deque[Job]] = {}
        for job in jobs:
            queues.setdefault(job.regime, deque()).append(job)
        active: dict[WorkerProcess, Job] = {}
        hosted: dict[WorkerProcess, list[Job]] = {}
        while active or any(queues.values()):
            if should_stop():
                for worker in active:
                    self.pool.end(worker.regime)
                break
            busy = {worker.regime for worker in active}
            for regime, queue in queues.items():
                if queue and regime not in busy and len(active) < self.cores:
                    job = queue.popleft()
                    active[self._begin(job)] = job
            for worker, answer in self.pool.wait(_WAIT_S):
                job = active.pop(worker)
                self._log.heard(answer)
                if not worker.alive:
                    self._on_worker_death(job, answer, hosted.pop(worker, []), queues[job.regime])
                elif answer.ok and "compile_s" in answer.facts:
                    job.compiled(float(str(answer.facts["compile_s"])))
                    hosted.setdefault(worker, []).append(job)
                    path = str(self._outputs(job))
                    variations = [
                        [str(variation.inputs), str(self._outputs(job, variation))] for variation in job.variations
                    ]
                    self.pool.submit(worker, self.limits.run_s, "outputs", id=job.id, path=path, variations=variations)
                    active[worker] = job
                elif answer.ok:
                    if not self._check(job, answer) and not any(suspect is job for suspect in doubtful):
                        doubtful.append(job)
                else:
                    job.fail(answer.outcome, answer.reason)
                if job.state == "failed" and finished is not None:
                    finished(job)
        return doubtful

    def drop(self, jobs: Sequence[Job]) -> None:
        """Frees what the jobs hold in workers that still live."""
        by_worker: dict[WorkerProcess, list[str]] = {}
        for job in jobs:
            if job.worker is not None and job.worker.alive:
                by_worker.setdefault(job.worker, []).append(job.id)
            job.unload()
        for worker, ids in by_worker.items():
            self._log.heard(self.pool.ask(worker, self.limits.run_s, "drop", ids=ids))

    def _begin(self, job: Job) -> WorkerProcess:
        worker = self.pool.worker(job.regime)
        job.begin(worker, str(next(self._ids)))
        self.pool.submit(
            worker,
            self.limits.compile_s,
            "load",
            id=job.id,
            steps=[encode(step) for step in job.spec.steps],
            inputs=str(job.inputs),
            outputs=list(job.spec.outputs),
            threads=job.spec.threads,
            alone=job.spec.alone,
            caching=self._caching,
            ephemeral=not (self.pool.sharing or job.spec.kept),
            cores=[list(core) for core in job.spec.cores],
            in_place=dict(job.spec.in_place),
            **({} if job.spec.serving is None else {"serving": encode(job.spec.serving)}),
            **({} if job.spec.call is None else {"call": encode(job.spec.call)}),
        )
        return worker

    def _on_worker_death(self, job: Job, answer: Answer, others: Sequence[Job], queue: deque[Job]) -> None:
        """After a worker's death: its other jobs are loaded again, and the one at work too if it may be innocent,
        because earlier ones had used the worker (memory leaks, corruption), or is so, because it was ended from outside. It
        then goes first, alone in a fresh worker."""
        for other in reversed(others):
            if other is not job and other.state == "lost":
                self._again(other, queue)
        if answer.outcome == "lost":
            self._again(job, queue, answer.reason)
        elif answer.fresh or answer.outcome == "timed-out" or job.attempts >= 2:
            job.fail(answer.outcome, answer.reason)
            if answer.outcome == "timed-out":
                job.compiled(self.limits.compile_s)
        else:
            self._again(job, queue)

    def _again(self, job: Job, queue: deque[Job], cause: str = "") -> None:
        job.unload()
        if job.attempts >= _ATTEMPTS:
            cause = cause or f"other candidates of {job.spec.title} kept crashing"
            job.fail("lost", f"given up after {job.attempts} attempts: {cause}")
        else:
            queue.appendleft(job)

    def _check(self, job: Job, answer: Answer) -> bool:
        """Compares the outputs with the reference; False where their limits have to be known for that. Then the outputs are
        kept."""
        job.ran(float(str(answer.facts["first_ms"])))
        self._judge(job, None)
        off = job.deviation is not None and job.deviation.excess > SURE
        if job.limits is not None and job.state != "failed" and off:
            return False
        if not self._judge_variations(job, doubting=True):
            return False
        job.passed()
        self._forget(job)
        return True

    def _judge(self, job: Job, limits: Callable[[], Mapping[str, float]] | None) -> None:
        """A wrong candidate gets no time at all. Without its `limits`, one that needs them is not judged yet."""
        try:
            if job.expected is not None:
                names = job.spec.outputs
                if (job.expected, names) not in self._expected:
                    values = load_values(job.expected, names)
                    wanted = [values[name] for name in names]
                    self._expected[job.expected, names] = wanted, load_limits(job.expected, names)
                reference, accepted = self._expected[job.expected, names]
                if limits is not None:
                    computed_limits = limits()
                    accepted = [computed_limits[name] for name in names]
                    self._expected[job.expected, names] = reference, accepted
                actual = load_values(self._outputs(job), names)
                job.compared(deviation([actual[name] for name in names], reference, accepted))
        except (ValueError, KeyError, TypeError, OSError) as error:
            job.fail("failed", f"the outputs cannot be compared: {type(error).__name__}: {error}")
        waits = job.limits is not None and limits is None
        if job.deviation is not None and job.deviation.excess > job.bound and not waits:
            job.fail("wrong", too_far(job.deviation, job.bound))
        if job.state == "failed":
            _LOG.info("%s: %s (%s)", job.spec.title, job.outcome, job.reason)

    def _judge_variations(self, job: Job, *, doubting: bool) -> bool:
        """Compares the answers to variations; while `doubting`, False where it has to be known first what rounding does there."""
        names = job.spec.outputs
        for variation in job.variations if job.state != "failed" else ():
            if isinstance(variation, HeldBackSample):
                continue
            if not self._outputs(job, variation).exists():
                continue  # the candidate refused these inputs
            try:
                if (variation.expected, names) not in self._expected:
                    values = load_values(variation.expected, names)
                    self._expected[variation.expected, names] = (
                        [values[name] for name in names],
                        load_limits(variation.expected, names),
                    )
                reference, accepted = self._expected[variation.expected, names]
                found = load_values(self._outputs(job, variation), names)
                wanted = dict(zip(names, reference, strict=True))
                first = {name: Allowance(limit) for name, limit in zip(names, accepted, strict=True)}
                excess = variation.excess(found, wanted, first)
                if excess > SURE:
                    if doubting:
                        return False
                    excess = variation.excess(found, wanted, variation.allowances())
            except (ValueError, KeyError, TypeError, OSError) as error:
                job.fail("failed", f"the outputs cannot be compared: {type(error).__name__}: {error}")
                return True
            before = job.deviation or Deviation(0.0, 0.0)
            worst = Deviation(before.error, max(before.excess, excess))
            job.compared(worst)
            if excess > job.bound:
                job.fail("wrong", f"{too_far(worst, job.bound)} on other inputs ({variation.kind})")
                _LOG.info("%s: %s (%s)", job.spec.title, job.outcome, job.reason)
                break
        if job.state != "failed":
            self._judge_held_back(job)
        return True

    def _judge_held_back(self, job: Job) -> None:
        """Compares the answers to the samples that are held back, all together.

        Raises:
            MetricFails: the user's measure of accuracy does.
        """
        samples = [variation for variation in job.variations if isinstance(variation, HeldBackSample)]
        group = samples[0].group if samples else None
        if group is None:
            return
        names = job.spec.outputs
        try:
            answers = [load_values(self._outputs(job, sample), names) for sample in samples]
        except (ValueError, KeyError, TypeError, OSError) as error:
            job.fail("failed", f"it gives no answer to a sample that is held back: {type(error).__name__}: {error}")
            return
        reached = group.judged(
            [
                {name: np.asarray(answer[output]) for name, output in zip(group.names, names, strict=True)}
                for answer in answers
            ]
        )
        group.reached[job.spec] = reached
        before, excess = job.deviation or Deviation(0.0, 0.0), group.excess(reached)
        job.compared(Deviation(before.error, max(before.excess, excess)))
        if excess > job.bound:
            job.fail("wrong", f"{reached.told} ({group.data.origin})")
            _LOG.info("%s: %s (%s)", job.spec.title, job.outcome, job.reason)

    def _forget(self, job: Job) -> None:
        self._outputs(job).unlink(missing_ok=True)
        for variation in job.variations:
            self._outputs(job, variation).unlink(missing_ok=True)

    def _outputs(self, job: Job, variation: Variation | None = None) -> Path:
        kind = "" if variation is None else f"-{variation.kind}"
        return self._scratch / f"outputs-{job.regime.owner or job.spec.title}-{job.id}{kind}.npz".replace("/", "_")
