"""The stage that runs parts of a graph side by side: regions of mixed plans as they are, and branches of whole graphs that are cut
for it on purpose. What is proposed races like any other challenger."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from bricolage.base.deadline import Deadline
from bricolage.costs.measurements import Measurements
from bricolage.driver.candidates import CandidateGroup
from bricolage.driver.describe import placement_name
from bricolage.driver.pricing import work_shares
from bricolage.driver.promising_variants import promising
from bricolage.driver.region_costs import measure_groups
from bricolage.driver.region_schedule import measured_curves, region_problem, timetable
from bricolage.driver.stage import Stage
from bricolage.driver.state import Challenger, DecisionState
from bricolage.driver.timed_variant import TimedVariant
from bricolage.graph.graph import Region
from bricolage.graph.to_work import to_work
from bricolage.graph.work import workload
from bricolage.plan.schedules import ScheduleAttempt
from bricolage.search.schedules.branches import can_fork, cut_branches
from bricolage.search.schedules.candidate_schedules import propose_schedules
from bricolage.search.schedules.closure import TransitiveClosure
from bricolage.search.schedules.scheduling_problem import ScheduleProblem
from bricolage.search.schedules.simulate import BandwidthContention
from bricolage.work.implementation import Assignment, Implementation, Placement
from bricolage.work.work_graph import WorkGraph

PROMISE = 0.03
"""What side by side must promise to save at most, as a share, before anything is compiled for it."""
_NEAR = 1.05
"""Implementations of the whole graph within this factor of the fastest are divided ..."""
_MOST = 2
"""... and this many of them at most."""
_MOST_REGIONS = 256
"""More are not scheduled: measuring and scheduling them takes too long."""
_TIME_UP = "the time was up"
_FAILS = "a region by itself fails, or is not accurate enough"
_RACES = 1.1
"""A schedule within this factor of the plan without it, measured end to end, enters the race."""


class Scheduling(Stage[DecisionState]):
    """Schedules for the fastest implementations of the whole graph, and for the best mixture."""

    name: ClassVar[str] = "schedules"
    reads: ClassVar[frozenset[str]] = frozenset({"timed_variants", "challengers"})
    adds: ClassVar[frozenset[str]] = frozenset({"attempts", "challengers", "mixtures"})

    def __init__(self) -> None:
        """Nothing is known of the variants yet."""
        self._forks: dict[str, bool] = {}
        self._savings: dict[str, float] = {}

    def promise(self, state: DecisionState) -> float | None:
        """The share of the fastest whole graph's time that its branches side by side could save, even if more cores sped no branch
        up; None where nothing can run side by side."""
        if not self._applies(state):
            return None
        variants = [
            variant for variant in promising(state.timed_variants) if variant.graph.static and len(variant.graph) > 1
        ]
        for variant in variants:
            if variant.name not in self._savings:  # a share of the whole, however long that takes
                self._savings[variant.name] = cut_branches(to_work(variant.graph), work_shares(variant), 0.0).promise
        return max((self._savings[variant.name] for variant in variants), default=None)

    def run(self, state: DecisionState, deadline: Deadline) -> None:
        """Tries one after the other, the most promising first."""
        if not self._applies(state):
            return
        targets = list(_targets(state, deadline))
        state.session.progress.start("schedules side by side", None)
        for target in targets:
            state.attempts.append(_attempt(state, target, deadline))
        state.session.progress.finish()

    def _applies(self, state: DecisionState) -> bool:
        for variant in state.variants:
            if variant.name not in self._forks:
                fits = variant.graph.static and len(variant.graph) > 1
                self._forks[variant.name] = fits and can_fork(to_work(variant.graph))
        return len(_cores(state)) > 1 and any(self._forks[variant.name] for variant in state.variants)


@dataclass(frozen=True)
class _Target:
    """A plan as it stands."""

    variant: TimedVariant
    placement: Placement
    ms: float
    """End to end."""
    name: str


def _cores(state: DecisionState) -> tuple[int, ...]:
    return state.session.device.cores[: state.session.options.threads]


def _targets(state: DecisionState, deadline: Deadline) -> Iterator[_Target]:
    whole = [
        (ms, variant, implementation)
        for variant in promising(state.timed_variants)
        if variant.graph.static and len(variant.graph) > 1
        for implementation, ms in variant.times.items()
    ]
    whole.sort(key=lambda entry: (entry[0], entry[1].name, entry[2]))
    for ms, variant, implementation in whole[:_MOST]:
        if ms <= _NEAR * whole[0][0]:
            placement = variant.placement_of(implementation)
            yield _Target(variant, placement, ms, placement_name(placement, variant.name))
    for challenger in state.challengers:
        if len(challenger.placement) > 1 and challenger.schedule is None:
            variant = state.timed_variants[challenger.variant]
            (measured_ms,) = variant.measure_placements([challenger.placement], deadline)
            if measured_ms is not None and whole and measured_ms <= _NEAR * whole[0][0]:
                yield _Target(variant, challenger.placement, measured_ms, challenger.name)
                return


def _attempt(state: DecisionState, target: _Target, deadline: Deadline) -> ScheduleAttempt:
    """Divides a plan where it is whole, looks for a schedule, and enters it where it is near."""
    variant, cores = target.variant, _cores(state)
    graph = to_work(variant.graph)
    placement = target.placement
    attempt = ScheduleAttempt(target.name, len(placement), target.ms, target.ms, _TIME_UP)
    if deadline():
        return attempt
    if len(placement) == 1:
        implementation = placement[0].implementation
        ms = [share * target.ms for share in work_shares(variant)]
        at_best = cut_branches(graph, ms, 0.0)
        if at_best.promise < PROMISE:  # even if more cores sped nothing up
            return replace(attempt, least_ms=at_best.least_ms, verdict=_too_little(at_best.promise))
        alone = _on_one_core(variant, implementation, deadline)
        if alone is None:
            return attempt if deadline() else replace(attempt, verdict="it fails on one core")
        division = cut_branches(graph, ms, alone / (len(cores) * target.ms))
        attempt = replace(attempt, regions=len(division.regions), least_ms=division.least_ms)
        if division.promise < PROMISE:
            return replace(attempt, verdict=_too_little(division.promise))
        placement = tuple(Assignment(region, implementation) for region in division.regions)
    regions = [assigned.region for assigned in placement]
    if len(regions) > _MOST_REGIONS:
        return replace(attempt, verdict=f"more than {_MOST_REGIONS} regions")
    if not _beside(graph, regions):
        return replace(attempt, verdict="each of its regions waits for the one before")
    if len(target.placement) == 1:
        divided = _that_run(variant, regions, target.placement[0].implementation, len(cores), deadline)
        if divided is None:
            return attempt if deadline() else replace(attempt, verdict=_FAILS)
        placement = divided
    curves = measured_curves(lambda used: _costs(variant, placement, used, len(cores), deadline), len(cores))
    if curves is None:
        return attempt if deadline() else replace(attempt, verdict=_FAILS)
    problem = region_problem(graph, regions, curves, len(cores))
    return _schedule_plan(state, replace(target, placement=placement), problem, attempt, deadline)


def _schedule_plan(
    state: DecisionState, target: _Target, problem: ScheduleProblem, attempt: ScheduleAttempt, deadline: Deadline
) -> ScheduleAttempt:
    """Looks for a schedule of a plan that is divided, and enters it where it is near."""
    timed_variant, placement, cores = target.variant, target.placement, _cores(state)
    moved = [float(workload(Region(timed_variant.graph, assignment.region)).bytes) for assignment in placement]
    peaks, shares = state.session.device.peaks, state.budget.shares
    contention = BandwidthContention.seen(moved, problem, peaks.gbytes)
    proposals = propose_schedules(problem, contention, exact_s=shares.schedules.exact_s)
    attempt = replace(attempt, least_ms=proposals.lower_ms)
    if proposals.lower_ms > (1.0 - PROMISE) * target.ms:
        return replace(attempt, verdict=_too_little(1.0 - proposals.lower_ms / target.ms))
    if proposals.best is None:
        return replace(attempt, verdict="no schedule is shorter than one region after the other")
    planned = timetable(proposals.best, proposals, cores)
    attempt = replace(attempt, predicted_ms=planned.schedule.predicted_ms)
    if proposals.best.simulated_ms >= target.ms:
        return replace(attempt, verdict="divided, it is predicted to be slower than in one piece")
    ordered = tuple(placement[region] for region in planned.order)
    spec = timed_variant.placement_spec(ordered, planned.schedule.cores)
    cost = timed_variant.session.measurer.measure([timed_variant.task([spec])], timed_variant.note, deadline).get(spec)
    if cost is None:
        return attempt
    if cost.ms is None:
        return replace(attempt, verdict=f"{cost.outcome}: {cost.reason}")
    attempt = replace(attempt, measured_ms=cost.ms)
    if cost.ms > _RACES * target.ms:
        return replace(attempt, verdict="measured, it is slower")
    variant = timed_variant.name
    name = f"{placement_name(ordered, variant)} scheduled"
    predicted = planned.schedule.predicted_ms
    state.mixtures[name] = cost.ms
    state.challenge(Challenger(name, ordered, predicted, variant, planned.schedule, planned.starts_ms))
    return replace(attempt, verdict=f"entered the race as '{name}'")


def _too_little(promise: float) -> str:
    return f"side by side could save {max(promise, 0.0):.1%} at most, and {PROMISE:.0%} are asked for"


def _beside(graph: WorkGraph, regions: Sequence[int]) -> bool:
    """Whether any two regions depend on each other in neither direction."""
    owner = {
        number: index for index, region in enumerate(regions) for number in range(len(graph)) if region >> number & 1
    }
    sources: list[set[int]] = [set() for _ in regions]
    for number, before in enumerate(graph.predecessors):
        sources[owner[number]] |= {owner[source] for source in before} - {owner[number]}
    reach = TransitiveClosure([tuple(sorted(region_sources)) for region_sources in sources])
    return any(reach.parallel(index) for index in range(len(regions)))


def _on_one_core(variant: TimedVariant, one: Implementation, deadline: Deadline) -> float | None:
    """Milliseconds of the whole graph; None where they are not known."""
    everything = variant.graph.everything
    group = CandidateGroup(variant.key, (everything.bits,), (one,), workload(everything), "maximal")
    cost = Measurements(measure_groups(variant, [group], deadline, 1)).of(variant.key).get(one)
    return cost.ms if cost is not None else None


def _that_run(
    variant: TimedVariant, regions: Sequence[int], one: Implementation, cores: int, deadline: Deadline
) -> Placement | None:
    """The regions on the backend that runs the whole: as `one` where they run so, otherwise in the backend's first
    configuration that they do run in. What is best for a whole (tiles of convolutions, a narrower type, tuned parameters) is
    refused by parts that have nothing of the kind. None where a region runs in none."""
    others = [i for i in variant.candidates.whole if i.backend == one.backend and i.endpoint == one.endpoint]
    assignments: dict[int, Assignment] = {}
    for implementation in dict.fromkeys((one, *others)):
        left = [Assignment(region, implementation) for region in regions if region not in assignments]
        times = _times(variant, left, cores, cores, deadline)
        assignments |= {assigned.region: assigned for assigned, ms in zip(left, times, strict=True) if ms is not None}
        if len(assignments) == len(regions):
            return tuple(assignments[region] for region in regions)
        if deadline():
            break
    return None


def _costs(variant: TimedVariant, placement: Placement, used: int, most: int, deadline: Deadline) -> list[float] | None:
    """Milliseconds of every region on `used` cores; None where one is not known."""
    times = [ms for ms in _times(variant, placement, used, most, deadline) if ms is not None]
    return times if len(times) == len(placement) else None


def _times(
    variant: TimedVariant, placement: Sequence[Assignment], used: int, most: int, deadline: Deadline
) -> list[float | None]:
    """Milliseconds of each region on `used` of `most` cores; None where they are not known."""
    keys = [variant.region_key(Region(variant.graph, assigned.region)) for assigned in placement]
    groups: dict[tuple[str, Implementation], CandidateGroup] = {}
    for key, assigned in zip(keys, placement, strict=True):
        region, implementation = Region(variant.graph, assigned.region), assigned.implementation
        groups.setdefault(
            (key, implementation), CandidateGroup(key, (region.bits,), (implementation,), workload(region), "maximal")
        )
    measured = measure_groups(variant, list(groups.values()), deadline, used)
    if used == most:
        variant.regions.add(measured)
    costs = Measurements(measured)
    region_costs = [costs.of(key).get(assigned.implementation) for key, assigned in zip(keys, placement, strict=True)]
    return [cost.ms if cost is not None else None for cost in region_costs]
