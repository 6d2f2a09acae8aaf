"""`KernelSearch`: one search for the kernels of a region, in a worker of its own."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from bricolage.backends.kernel_trials import Build, KernelTiming, Trial
from bricolage.base.codec import decode, encode
from bricolage.base.deadline import Deadline
from bricolage.costs.entries import TaskKey, TrialRecord
from bricolage.device.device import Device
from bricolage.measure.measurer import Measurer
from bricolage.measure.scale_out.messages import TriedBuilds
from bricolage.measure.specs import Regime
from bricolage.measure.statistics import Ratio, paired_ratio
from bricolage.measure.worker_process import Answer
from bricolage.plan.program_step import Step
from bricolage.plan.tuned import TunedKernels, TunedTask
from bricolage.tune.grid import Grid, History, Point
from bricolage.tune.task_scheduler import TaskProgress, next_tasks
from bricolage.tune.technique import Technique
from bricolage.tune.techniques import technique
from bricolage.tune.tuning_options import TuningOptions
from bricolage.work.config_space import USUAL, Choice, ConfigSpace, TuningTask
from bricolage.work.implementation import Implementation, KernelConfig

_LOG = logging.getLogger(__name__)
_ANSWER_S = 120.0
"""Longest that one request to the worker may take."""
_CONFIRMING = 0.2
"""Part of the time that is kept for timing the best again ..."""
_CONFIRMING_S = 45.0
"""... but no more than this number of seconds; an interrupted search takes them, too."""
_OVERRUN_S = 10.0
"""By which a request may be late before its worker is ended: what it has done so far would be lost."""
_UNFINISHED = "another combination is expected to be faster"
_KNOWN = 20
"""Choices of a task among which one is looked for that was timed long enough to be taken over without a trial."""
_HINTS = 3
"""Choices of other machines, builds and workloads that are tried first."""


@dataclass(frozen=True)
class Snapshot:
    """A search so far: what its tasks take in one call of the region."""

    seconds: float
    trials: int
    failed: int
    usual_ms: float
    best_ms: float

    @property
    def saved(self) -> float:
        """Part of the usual time, by first timings."""
        return 1.0 - self.best_ms / self.usual_ms if self.usual_ms > 0 else 0.0


@dataclass(frozen=True)
class TuningResult:
    """What a search found."""

    tuned: TunedKernels
    curve: tuple[Snapshot, ...] = ()
    reason: str = ""
    """Why there was no search."""


@dataclass
class _Task:
    """A task in a search."""

    what: TuningTask
    key: TaskKey
    grid: Grid
    history: History
    technique: Technique
    usual_ms: float
    hints: list[Point]
    progress: TaskProgress
    trials: int = 0
    failed: int = 0

    def propose(self) -> Point | None:
        """The next point to try: hints first."""
        while self.hints:
            point = next(self.history.fresh([self.hints.pop(0)]), None)
            if point is not None:
                self.history.pending.add(point)
                return point
        return self.technique.propose()

    @property
    def ms(self) -> float:
        """By the fastest trial so far."""
        return self.usual_ms * min(1.0, self.history.least)


@dataclass
class _Final:
    choice: Choice = USUAL
    share: float = 1.0
    """Of the usual time."""
    gain: Ratio | None = None


def regime(backend: str, threads: int, device: Device) -> Regime:
    """Of the worker that a search has for itself."""
    return Regime((backend,), threads, True, device, owner="tuning")


class KernelSearch:
    """One search, in a worker of its own; every other one stops while that works."""

    def __init__(
        self,
        step: Step,
        region_key: str,
        version: str,
        measurer: Measurer,
        device: Device,
        threads: int,
        options: TuningOptions,
        since: float,
    ) -> None:
        self._since = since
        self._step, self._region_key, self._version = step, region_key, version
        self._measurer, self._device, self._threads, self._options = measurer, device, threads, options
        self._regime = regime(step.implementation.backend, threads, device)
        self._begun = time.monotonic()
        self._tasks: list[_Task] = []
        self._usual_ms = 0.0
        self._curve: list[Snapshot] = []

    def run(self, deadline: Deadline, told: Callable[[Snapshot], None], *, final: bool) -> TuningResult:
        """The whole of it."""
        implementation, stays = self._step.implementation, False
        try:
            reason = self._open(deadline)
            if reason:
                _LOG.info("%s is not tuned: %s", implementation, reason)
                return TuningResult(TunedKernels(implementation), reason=reason)
            searching = deadline.reserve(min(_CONFIRMING * deadline.left, _CONFIRMING_S) if final else 0.0)
            with searching.catching_interrupts():
                self._trials_until(searching, told)
            if not final and not deadline.interrupted:
                stays = True
                return self._told([(task, self._pick(task)) for task in self._tasks], implementation, _UNFINISHED)
            if deadline.interrupted:
                self._measurer.pool.end(self._regime)  # it still works on what is not waited for
            finalists = self._confirm(Deadline(_CONFIRMING_S) if deadline.interrupted else deadline)
        finally:
            if not stays:
                self._measurer.pool.end(self._regime)
        config = self._space.config(
            {task.what.name: finalist.choice for task, finalist in finalists if finalist.choice}
        )
        return self._told(finalists, replace(implementation, config=config), "")

    def _told(self, found: Sequence[tuple[_Task, _Final]], implementation: Implementation, reason: str) -> TuningResult:
        tasks = sorted((self._result(task, entry) for task, entry in found), key=lambda entry: -entry.usual_ms)
        return TuningResult(TunedKernels(implementation, tuple(tasks)), tuple(self._curve), reason)

    @staticmethod
    def _pick(task: _Task) -> _Final:
        """The best of a task by its trials so far."""
        best = next(iter(task.history.best(1)), task.grid.origin)
        return _Final(task.grid.choice(best), task.history.shares.get(best, 1.0))

    def structures(self, deadline: Deadline) -> tuple[KernelConfig, ...]:
        """The backend's further options."""
        answer = self._space_alone(deadline)
        return decode(tuple[KernelConfig, ...], answer.facts.get("structures", []), "structures") if answer.ok else ()

    def _space_alone(self, deadline: Deadline) -> Answer:
        try:
            return self._ask(deadline, "space")
        finally:
            self._measurer.pool.end(self._regime)

    def transferred(self, deadline: Deadline) -> KernelConfig:
        """What is known of the same tasks to be faster than usual, without a trial."""
        base, answer = self._step.implementation.config, self._space_alone(deadline)
        if not answer.ok:
            return base
        space, database = decode(ConfigSpace, answer.facts["space"], "space"), self._measurer.database
        choices: dict[str, Choice] = {}
        for task in space.tasks:
            trials = database.best_trials(self._task_key(task), _KNOWN)
            best = [trial for trial in trials if not trial.foreign and trial.rounds >= self._options.final_rounds]
            if task.workload and best and best[0].share is not None and best[0].share * self._options.least_gain < 1.0:
                choices[task.name] = best[0].choice
        return space.config({name: choice for name, choice in choices.items() if self._holds(space, name, choice)})

    @staticmethod
    def _holds(space: ConfigSpace, name: str, choice: Choice) -> bool:
        return any(task.name == name and task.holds(choice) for task in space.tasks)

    def _open(self, deadline: Deadline) -> str:
        """Asks for the space and the usual times; answers why there is nothing to search, if so."""
        answer = self._ask(deadline, "space")
        if not answer.ok:
            return f"{answer.outcome} ({answer.reason})"
        self._space = decode(ConfigSpace, answer.facts["space"], "space")
        if not self._space.tasks:
            return "there is nothing to choose"
        answer = self._ask(deadline, "trial", builds=[], rounds=self._options.rounds)
        if not answer.ok:
            return f"{answer.outcome} ({answer.reason})"
        usual = decode(dict[str, float], answer.facts["usual"], "usual")
        self._tasks_a_build, self._builds_at_once = (
            max(1, int(str(answer.facts[name]))) for name in ("tasks_a_build", "builds_at_once")
        )
        self._tasks = [
            self._task(tuning_task, usual[tuning_task.name], n)
            for n, tuning_task in enumerate(self._space.tasks)
            if tuning_task.name in usual
        ]
        self._usual_ms = sum(task.usual_ms for task in self._tasks)
        return "" if self._tasks else "nothing of it can be timed"

    def _task(self, what: TuningTask, usual_ms: float, number: int) -> _Task:
        """With what is known of it: trials of this machine count, those of others are hints."""
        grid, history, options = Grid(what), History(), self._options
        key, database = self._task_key(what), self._measurer.database
        for point, record in [(grid.point(trial.choice), trial) for trial in database.trials(key, self._since)]:
            if point is not None:
                history.tell(point, math.inf if record.share is None else record.share)
        hints = [grid.point(trial.choice) for trial in database.best_trials(key, _HINTS)]
        hints += [grid.point(trial.choice) for trial in database.nearest_trials(key, what, _HINTS)]
        progress = TaskProgress(usual_ms, what.flops * len(what.kernels), what.kind, exhausted=False)
        searcher = technique(options.technique, grid, history, options.seed + number)
        fresh = [point for point in dict.fromkeys(hints) if point is not None and point != grid.origin]
        history.shares.setdefault(grid.origin, 1.0)
        return _Task(
            what, key, grid=grid, history=history, technique=searcher, usual_ms=usual_ms, hints=fresh, progress=progress
        )

    def _task_key(self, what: TuningTask) -> TaskKey:
        implementation = self._step.implementation
        return TaskKey(
            what.workload or self._region_key,
            implementation.backend,
            self._version,
            implementation.config.base.text,
            self._device.fingerprint(),
            self._threads,
        )

    def _trials_until(self, deadline: Deadline, told: Callable[[Snapshot], None]) -> None:
        batch_s, limit = 0.0, math.inf if self._options.trials is None else self._options.trials
        while not deadline() and deadline.left > batch_s and sum(task.trials for task in self._tasks) < limit:
            begun = time.monotonic()
            progress = [task.progress for task in self._tasks]
            picked = [self._tasks[number] for number in next_tasks(progress, self._tasks_a_build)]
            builds: list[dict[str, tuple[_Task, Point]]] = []
            for _ in range(self._builds_at_once * max(1, self._others)):
                build = {task.what.name: (task, point) for task in picked if (point := task.propose()) is not None}
                builds += [build] if build else []
            for task in picked:
                task.progress.exhausted = not any(task.what.name in build for build in builds)
            if not builds:
                if not picked:
                    break
                continue
            self._try(builds, deadline)
            for task in picked:
                task.progress.tell(task.ms)
                task.progress.exhausted |= len(task.history.shares) >= task.grid.size
            self._curve.append(self._snapshot())
            batch_s = time.monotonic() - begun
            told(self._curve[-1])

    def _snapshot(self) -> Snapshot:
        return Snapshot(
            time.monotonic() - self._begun,
            sum(task.trials for task in self._tasks),
            sum(task.failed for task in self._tasks),
            self._usual_ms,
            sum(task.ms for task in self._tasks),
        )

    def _try(self, builds: Sequence[Mapping[str, tuple[_Task, Point]]], deadline: Deadline) -> None:
        """Times points, on other machines where there are any, and tells everybody."""
        asked = [{name: task.grid.choice(point) for name, (task, point) in build.items()} for build in builds]
        rounds, elsewhere = self._options.rounds, self._tried_elsewhere(asked, deadline)
        here = [build for build, reply in zip(asked, elsewhere, strict=True) if reply is None]
        local_trials = iter(self._ran(here, rounds, deadline) if here and not deadline() else [{} for _ in here])
        for build, reply in zip(builds, elsewhere, strict=True):
            build_trials = next(local_trials) if reply is None else reply.trials[0]
            for name, (task, point) in build.items():
                trial = build_trials.get(name)
                if trial is None:  # no fault of the configuration: it may be tried another time
                    task.history.pending.discard(point)
                    continue
                self._tell(task, point, trial, None if reply is None else reply.machine)

    @property
    def _others(self) -> int:
        """Other machines that time choices."""
        cluster = self._measurer.pool.cluster
        return 0 if cluster is None else cluster.measuring

    def _tried_elsewhere(self, builds: Sequence[Build], deadline: Deadline) -> Sequence[TriedBuilds | None]:
        cluster = self._measurer.pool.cluster
        if cluster is None or not cluster.measuring:
            return [None] * len(builds)
        limit = min(_ANSWER_S, deadline.left)
        return cluster.trials(self._step, builds, self._options.rounds, self._threads, limit, deadline)

    def _tell(self, task: _Task, point: Point, trial: Trial, machine: str | None) -> None:
        task.trials += 1
        if isinstance(trial, KernelTiming):
            share, ms = trial.share, min(trial.ms) / len(task.what.kernels)
            record = TrialRecord(task.grid.choice(point), share, ms, len(trial.ms))
        else:
            task.failed += 1
            share, record = math.inf, TrialRecord(task.grid.choice(point), None, None, 0, trial)
        task.history.tell(point, share)
        task.technique.tell(point, share)
        self._measurer.database.put_trial(task.key, task.what, record, machine)

    def _confirm(self, deadline: Deadline) -> list[tuple[_Task, _Final]]:
        """Times the best of each task again, one by one of each together, and keeps what is surely faster."""
        options = self._options
        builds: list[dict[str, Choice]] = [{} for _ in range(options.finalists)]
        for task in self._tasks:
            hopeful = [p for p in task.history.best(options.finalists) if task.history.shares[p] < 1.0]
            for build, point in zip(builds, hopeful, strict=False):
                build[task.what.name] = task.grid.choice(point)
        builds = [build for build in builds if build]
        finals = {task.what.name: _Final() for task in self._tasks}
        tasks = {task.what.name: task for task in self._tasks}
        trials = (
            self._ran(builds, options.final_rounds, deadline) if builds and not deadline() else [{} for _ in builds]
        )
        for build, timings in zip(builds, trials, strict=True):
            for name, choice in build.items():
                trial = timings.get(name)
                if not isinstance(trial, KernelTiming) or min(*trial.ms, *trial.usual_ms) <= 0:
                    continue
                task = tasks[name]
                record = TrialRecord(choice, trial.share, min(trial.ms) / len(task.what.kernels), len(trial.ms))
                self._measurer.database.put_trial(task.key, task.what, record)
                gain = paired_ratio([[ms] for ms in trial.usual_ms], [[ms] for ms in trial.ms])
                best = finals[name].gain
                if gain.value >= options.least_gain and gain.low > 1.0 and (best is None or gain.value > best.value):
                    finals[name] = _Final(choice, 1.0 / gain.value, gain)
        return [(task, finals[task.what.name]) for task in self._tasks]

    def _result(self, task: _Task, final: _Final) -> TunedTask:
        gain = final.gain
        return TunedTask(
            task.what.name,
            task.what.kind,
            kernels=len(task.what.kernels),
            sizes=task.what.sizes,
            usual_ms=task.usual_ms,
            ms=task.usual_ms * min(1.0, final.share),
            choice=final.choice,
            gain=None if gain is None else gain.value,
            gain_ci=None if gain is None else (gain.low, gain.high),
            trials=task.trials,
            failed=task.failed,
        )

    # --- the worker -------------------------------------------------------------------------------------------------

    def _ran(self, builds: Sequence[Build], rounds: int, deadline: Deadline) -> list[Mapping[str, Trial]]:
        """What came of each choice. Where the worker dies, the culprit is found by asking for half of them at a time; choices for
        which there was no time have no answer."""
        answer = self._ask(deadline, "trial", builds=[encode(dict(build)) for build in builds], rounds=rounds)
        if answer.ok:
            return list(decode(tuple[dict[str, Trial], ...], answer.facts["trials"], "trials"))
        singles = [(n, name, choice) for n, build in enumerate(builds) for name, choice in build.items()]
        if len(singles) == 1:
            _, name, _ = singles[0]
            lost = answer.outcome == "lost" or deadline()
            return [{} if lost else {name: f"{answer.outcome}: {answer.reason}"}]
        build_trials: list[dict[str, Trial]] = [{} for _ in builds]
        middle = len(singles) // 2
        for half in (singles[:middle], singles[middle:]):
            if deadline():
                break
            numbers = sorted({n for n, _, _ in half})
            again = [{name: choice for n, name, choice in half if n == number} for number in numbers]
            for number, half_trials in zip(numbers, self._ran(again, rounds, deadline), strict=True):
                build_trials[number].update(half_trials)
        return list(build_trials)

    def _ask(self, deadline: Deadline, command: str, **facts: object) -> Answer:
        pool = self._measurer.pool
        limit = min(_ANSWER_S, deadline.left + _OVERRUN_S)
        given = {"step": encode(self._step), "threads": self._threads, **facts}
        with pool.exclusive():
            return self._measurer.log.heard(pool.ask(pool.worker(self._regime), limit, command, **given))
