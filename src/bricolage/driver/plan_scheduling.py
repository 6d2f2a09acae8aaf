"""Regions of a plan side by side: their speed-up curves measured, a schedule found, and kept only if it wins a race.

A worker process runs the plan as it would run, with each region on the first core, then on more for as long as that makes some
region faster; the methods of `bricolage.search.schedules` propose schedules; the one that the simulator likes best races against
the plan as it is, both in this process.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from bricolage.backends import registry
from bricolage.base.deadline import Deadline
from bricolage.base.progress import Progress
from bricolage.device.host import select_device
from bricolage.driver.context import DecisionContext, open_context
from bricolage.driver.region_schedule import measured_problem, reorder_regions, timetable
from bricolage.driver.stage import Runner, Stage
from bricolage.graph.extract import graph_of
from bricolage.measure.in_place import step_ms_apart
from bricolage.measure.statistics import Ratio
from bricolage.measure.turns import make_turn, time_in_turns
from bricolage.plan import artifact
from bricolage.plan.plan import Bucket, Plan
from bricolage.plan.schedules import PlannedSchedule
from bricolage.runtime import signature
from bricolage.runtime.executable import Executable
from bricolage.runtime.programs import PlanSource
from bricolage.search.schedules.candidate_schedules import Proposals, propose_schedules
from bricolage.search.schedules.certificates import TypedTasks, new_b_1
from bricolage.search.schedules.path_bound import new_b_2
from bricolage.search.schedules.scheduling_problem import ScheduleProblem
from bricolage.search.schedules.simulate import BandwidthContention
from bricolage.verify.compare import relative_error

_LEAST_S = 60.0
"""That one timing of all regions may take, however late it is."""
_WORTH = 1.02
"""A schedule must be faster by this much as well as by more than the noise."""


@dataclass(frozen=True)
class Effort:
    """How much is measured."""

    runs: int = 9
    """Of which a region's time, on each count of cores, is the median."""
    rounds: int = 31
    """Of the race."""


@dataclass(frozen=True)
class Proposed:
    """A schedule that a method found. Times in milliseconds."""

    method: str
    makespan_ms: float
    simulated_ms: float
    """With the way to memory shared."""


@dataclass(frozen=True)
class Scheduled:
    """What was found. Times in milliseconds."""

    regions: int
    cores: int
    proposals: tuple[Proposed, ...]
    """By their simulated times."""
    sequential_ms: float
    """The regions one after the other, each on its best count of cores."""
    lower_ms: float
    """No schedule of the regions takes less, by their measured times."""
    new_b_2_ms: float
    """With one core a region, no order that leaves no core idle needlessly takes more."""
    new_b_1_ms: float
    """The same by the quicker and looser bound."""
    measured_ms: float | None = None
    """Of the first proposal, run for real; None where none beats one after the other."""
    speedup: Ratio | None = None
    """Over the plan as it was."""
    error: float | None = None
    """Between the answers of both, relative."""
    kept: bool = False
    """Whether it won, and was written."""


def schedule_plan(
    plan: Plan, directory: Path, inputs: Mapping[str, np.ndarray], out: Path, effort: Effort, progress: Progress
) -> Scheduled:
    """Searches for a schedule of a plan whose graphs and weights lie in `directory`; arguments and errors as for `schedule`."""
    options = plan.provenance.options
    device = select_device(options.isa, options.cores)
    plain = dataclasses.replace(plan, buckets=tuple(b.with_schedule(None) for b in plan.buckets))
    index, cores = _bucket_of(plain, directory, inputs), device.cores[: options.threads]
    if index is None or len(plan.buckets[index].program.regions) < 2 or len(cores) < 2:
        return Scheduled(
            1 if index is None else len(plan.buckets[index].program.regions), len(cores), (), 0.0, 0.0, 0.0, 0.0
        )
    backends = registry.available(tuple(sorted({name for bucket in plan.buckets for name in bucket.program.backends})))
    with open_context(options, backends, device, progress) as context:
        state = _Search(context, plain, index, directory, inputs, cores, effort)
        deadline = Deadline(options.profile.shares.schedules.alone_s)
        Runner([_Curves(), _Proposing(), _Racing()]).run(state, deadline)
    if state.kept is not None:
        artifact.save(state.kept, directory, out)
    assert state.outcome is not None  # curves are essential, and methods take no time that counts
    return state.outcome


def _bucket_of(plan: Plan, directory: Path, inputs: Mapping[str, np.ndarray]) -> int | None:
    """The bucket that inputs belong to; None where there is none, or its regions depend on values.

    Raises:
        MissingInput, UnknownInput, WrongType, WrongShape: the inputs do not fit the model.
    """
    source = PlanSource(plan, directory)
    arrays = source.collect((), inputs)
    sizes, overridden = signature.bound_dimensions(plan.inputs, arrays), signature.overridden(plan.defaults, arrays)
    index = source.planned(sizes, overridden)
    return index if index is not None and graph_of(directory / plan.buckets[index].program.graph).static else None


@dataclass
class _Search:
    """The state of one search: what the stages read and add to."""

    context: DecisionContext
    plan: Plan
    """Without schedules."""
    index: int
    """Of the bucket."""
    directory: Path
    """Of the plan's graphs and weights."""
    inputs: Mapping[str, np.ndarray]
    cores: Sequence[int]
    effort: Effort
    problem: ScheduleProblem | None = None
    proposals: Proposals | None = None
    outcome: Scheduled | None = None
    kept: Plan | None = None
    """With the schedule that won."""

    @property
    def bucket(self) -> Bucket:
        """The one that is scheduled."""
        return self.plan.buckets[self.index]

    def with_bucket(self, bucket: Bucket) -> Plan:
        """The plan with another one in its place."""
        buckets = (*self.plan.buckets[: self.index], bucket, *self.plan.buckets[self.index + 1 :])
        return dataclasses.replace(self.plan, buckets=buckets)


class _Curves(Stage[_Search]):
    """Speed-up curves of the regions, timed in place in a worker process."""

    name: ClassVar[str] = "curves"
    essential: ClassVar[bool] = True
    adds: ClassVar[frozenset[str]] = frozenset({"problem"})

    def run(self, state: _Search, deadline: Deadline) -> None:
        """Measures them."""
        context, runs = state.context, state.effort.runs
        context.progress.start("regions on one core and on more", None)
        state.problem = measured_problem(
            state.plan,
            state.index,
            state.directory,
            state.cores,
            lambda plan: step_ms_apart(
                context.pool, plan, state.directory, state.inputs, runs, context.device, max(deadline.left, _LEAST_S)
            ),
        )
        context.progress.finish()


class _Proposing(Stage[_Search]):
    """What each method makes of them."""

    name: ClassVar[str] = "methods"
    reads: ClassVar[frozenset[str]] = frozenset({"problem"})
    adds: ClassVar[frozenset[str]] = frozenset({"proposals", "outcome"})

    def run(self, state: _Search, deadline: Deadline) -> None:
        """Asks all methods, whatever the clock says."""
        del deadline
        problem, bucket = state.problem, state.bucket
        assert problem is not None
        moved = [float(region.bytes) for region in bucket.program.regions]
        contention = BandwidthContention.seen(moved, problem, state.context.device.peaks.gbytes)
        exact_s = state.context.options.profile.shares.schedules.exact_s
        proposals = state.proposals = propose_schedules(problem, contention, exact_s=exact_s)
        state.outcome = Scheduled(
            regions=len(problem),
            cores=len(state.cores),
            proposals=tuple(
                Proposed(proposal.schedule.method, proposal.schedule.makespan_ms, proposal.simulated_ms)
                for proposal in proposals.found
            ),
            sequential_ms=proposals.sequential_ms,
            lower_ms=proposals.lower_ms,
            new_b_2_ms=new_b_2(_narrow(problem)),
            new_b_1_ms=new_b_1(_narrow(problem)),
        )


class _Racing(Stage[_Search]):
    """The most promising schedule against the plan as it is."""

    name: ClassVar[str] = "race"
    reads: ClassVar[frozenset[str]] = frozenset({"proposals", "outcome"})
    adds: ClassVar[frozenset[str]] = frozenset({"outcome", "kept"})

    def run(self, state: _Search, deadline: Deadline) -> None:
        """Races them, except after a Ctrl-C; what wins is kept."""
        proposals, outcome = state.proposals, state.outcome
        if proposals is None or proposals.best is None or outcome is None or deadline.interrupted:
            return
        planned = reorder_regions(state.bucket, timetable(proposals.best, proposals, state.cores))
        as_planned = Executable(state.plan, state.directory)
        scheduled = Executable(state.with_bucket(planned), state.directory)
        results = as_planned.run(state.inputs), scheduled.run(state.inputs)  # which warms both
        error = relative_error(list(results[1].values()), list(results[0].values()))
        contestants = {
            "planned": make_turn(lambda: as_planned.run(state.inputs)),
            "scheduled": make_turn(lambda: scheduled.run(state.inputs)),
        }
        turns = time_in_turns(contestants, state.effort.rounds)
        ratio = turns.ratio("scheduled", "planned")
        assert ratio is not None, "both take part in every round"
        kept = ratio.low > 1.0 and ratio.value >= _WORTH and error <= state.bucket.verification.bound
        measured = turns.latency("scheduled").median_ms
        state.outcome = dataclasses.replace(outcome, measured_ms=measured, speedup=ratio, error=error, kept=kept)
        if kept:
            schedule = _add_race_outcome(planned.program.schedule, ratio)
            state.kept = state.with_bucket(planned.with_schedule(schedule))


def _narrow(problem: ScheduleProblem) -> TypedTasks:
    """Every region on one core."""
    ms = tuple(problem.ms(task, "cpu", 1) for task in range(len(problem)))
    return TypedTasks(problem.graph, ms, ("cpu",) * len(problem), problem.cores)


def _add_race_outcome(found: PlannedSchedule | None, ratio: Ratio) -> PlannedSchedule | None:
    """With the outcome of the race."""
    if found is None:
        return None
    return dataclasses.replace(found, speedup=ratio.value, speedup_ci=(ratio.low, ratio.high))
