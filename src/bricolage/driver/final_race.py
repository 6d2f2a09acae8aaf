"""The final race: our best plans against every baseline, interleaved. It decides what ships; where none can be held,
what was known before decides, and where other processes disturbed it, both together."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from bricolage.base.deadline import Deadline
from bricolage.base.options import Pattern
from bricolage.costs.entries import Cost
from bricolage.driver.describe import planned_regions
from bricolage.driver.evidence import Evidence, fastest, of_baseline, of_plan, weigh_evidence
from bricolage.driver.race_table import (
    ITSELF,
    RaceDecision,
    beside_other,
    compare_other_pattern,
    find_best_other,
    make_table,
    speedup_over_other,
)
from bricolage.driver.stage import Stage
from bricolage.driver.state import DecisionState
from bricolage.driver.timed_variant import TimedVariant
from bricolage.driver.whole_models import is_shared
from bricolage.measure.race import race
from bricolage.measure.race_record import Race
from bricolage.measure.specs import CandidateSpec, PlannedCall, RegionTask
from bricolage.measure.statistics import Ratio, significant
from bricolage.plan.field_types import DecidedBy
from bricolage.plan.other_pattern import PatternLoss
from bricolage.plan.plan import Bucket
from bricolage.plan.race_outcome import Contestant, other_tool
from bricolage.plan.schedules import PlannedSchedule
from bricolage.plan.shipped_program import ORIGINAL, ShippedProgram
from bricolage.work.gain import LEAST_GAIN
from bricolage.work.implementation import Implementation, Placement

_OUT_OF_REACH = 1.5
"""A baseline that was clearly this many times slower than the best does not race again; its time, interleaved like
any, is shown."""
_SHORT_MS = 1.0
"""Below this a call's own cost counts: contestants of ours race as the executables that a user would call."""
_AT_LEAST = 3
"""Baselines that race in any case: on a busy machine the first measurement of one may say anything."""


@dataclass(frozen=True)
class RaceResult:
    """Who ships, and the evidence."""

    chosen: str
    variant: str
    """The variant of the graph that the chosen one runs."""
    placement: Placement
    best_baseline: str
    speedup: Ratio
    """Chosen over the best baseline."""
    significant: bool
    contestants: tuple[Contestant, ...]
    decided_by: DecidedBy
    best_other: str = ""
    """The best other tool (`Contestant.other_tool`); empty where none has a time."""
    schedule: PlannedSchedule | None = None
    """Of the chosen one, with what it is faster than the best baseline."""
    starts_ms: tuple[float, ...] = ()
    """Of its regions."""
    pattern: Pattern | None = None
    """The pattern of calls that decided; None where both were not timed."""
    other_pattern: PatternLoss | None = None


class FinalRace(Stage[DecisionState]):
    """Races the challengers against all baselines within reach.

    Rule: the fastest baseline is the incumbent: that of the lowest median, unless another is surely faster in the rounds that both
    had, or as fast within 2 % and surely faster in the pattern of calls that does not decide. The fastest challenger replaces it
    only if it wins by more than the interval and by more than 2 %. A challenger that did not race never ships. Tuned kernels for
    the whole original are a challenger like any. The best other tool races in any case, however slow it is, and so does the user's
    file as it comes in each tool that reads it: what ships is compared with them, too. Each is called as a user calls it, in a
    process of its own.

    If load leaves the race inconclusive when the budget ends, its ratios are pooled with earlier measurements, weighted by
    inverse variance. The fastest baseline is then the incumbent. The fastest challenger ships if it wins by more than 2 %."""

    name: ClassVar[str] = "race"
    reads: ClassVar[frozenset[str]] = frozenset({"timed_variants", "challengers"})
    adds: ClassVar[frozenset[str]] = frozenset({"race"})

    def share(self, state: DecisionState) -> float:
        """The race's seconds: never given to anybody else."""
        return state.budget.race_s

    def run(self, state: DecisionState, deadline: Deadline) -> None:
        """Always runs, except after Ctrl-C, and, where the effort says so, if the fastest is known without it."""
        original = state.original
        forgone = state.session.profile.forgone
        if forgone is not None and not state.challengers and _is_settled(original, forgone):
            return
        baselines = {str(implementation): implementation for implementation in original.alone}
        measured = {str(implementation): cost for implementation, cost in original.alone.items()}
        if is_shared(state.session):
            baselines = without_spinning(baselines)
            measured = {name: measured[name] for name in baselines}
        racing = with_files(with_other_tool(within_reach(measured), measured, baselines), measured, baselines)
        if not racing:
            return
        incumbent = next((name for name in racing if not baselines[name].tuned), racing[0])
        specs = {name: original.whole_spec(baselines[name]) for name in racing}
        specs.update(
            {c.name: state.timed_variants[c.variant].placement_spec(c.placement, c.cores) for c in state.challengers}
        )
        specs = {name: replace(spec, kept=True) for name, spec in specs.items()}  # each is loaded several times
        if state.session.plan_of is not None and (state.incumbent_ms or math.inf) < _SHORT_MS:
            specs = {name: replace(spec, call=_call_of(state, name, spec)) for name, spec in specs.items()}
        if len(specs) > 1 and not deadline.interrupted:
            tasks = {
                c.name: state.timed_variants[c.variant].task([specs[c.name]])
                for c in state.challengers
                if not state.timed_variants[c.variant].oracle.judges_as(original.oracle)
            }
            state.race = _race(original, specs, incumbent, lambda: deadline.left, tasks)


# --- what follows from it -------------------------------------------------------------------------------------------


def race_result(state: DecisionState) -> RaceResult | None:
    """Who ships, by the race where one was held; None when nothing is correct and alive."""
    ran, original = state.race, state.original
    arrived = {name: cost.ms for name, cost in (ran.costs if ran is not None else {}).items() if cost.ms is not None}
    decision = _decision(state, arrived)
    if decision is None:
        return None
    table = make_table(state, decision, arrived)
    other = find_best_other(table, decision.best, arrived)
    if other:
        over = {c.name: speedup_over_other(c.name, other, decision.by, ran, decision.evidence) for c in table}
        table = [beside_other(c, over[c.name]) for c in table]
    shipped = next((c for c in state.challengers if c.name == decision.chosen), None)
    baselines = {str(implementation): implementation for implementation in original.alone}
    return RaceResult(
        chosen=decision.chosen,
        variant=shipped.variant if shipped is not None else ORIGINAL,
        placement=shipped.placement if shipped is not None else original.placement_of(baselines[decision.chosen]),
        best_baseline=decision.best,
        speedup=decision.speedup,
        significant=decision.chosen != decision.best and significant(decision.speedup),
        contestants=tuple(table),
        decided_by=decision.by,
        best_other=other,
        schedule=shipped.schedule if shipped is not None else None,
        starts_ms=shipped.starts_ms if shipped is not None else (),
        pattern=ran.pattern if ran is not None and ran.others else None,
        other_pattern=compare_other_pattern(table, decision.chosen, ran),
    )


def find_evidence(state: DecisionState, name: str) -> Evidence | None:
    """What was measured before the race of the whole original on an implementation, or of a challenger; None of other plans."""
    original = state.original
    baseline = next((implementation for implementation in original.alone if str(implementation) == name), None)
    if baseline is not None:
        return of_baseline(name, original.alone[baseline], original, baseline)
    challenger = next((candidate for candidate in state.challengers if candidate.name == name), None)
    if challenger is None:
        return None
    return of_plan(name, challenger.placement, state.timed_variants[challenger.variant], challenger.cores)


def _decision(state: DecisionState, arrived: Mapping[str, float]) -> RaceDecision | None:
    """Who ships. `arrived`: medians of all that the race timed, ms."""
    original, ran = state.original, state.race
    by_name = {str(implementation): implementation for implementation in original.alone}
    measured = {str(implementation): cost for implementation, cost in original.alone.items()}
    raced = {name: ms for name, ms in arrived.items() if name in by_name}
    held = ran is not None and bool(raced) and len(arrived) > 1
    raced = {name: ms for name, ms in raced.items() if not by_name[name].tuned} or raced
    rivals = sorted((name for name in arrived if name not in raced), key=arrived.__getitem__)
    # Who failed in a race that came to nothing must not ship.
    before = measured if held or ran is None else {**measured, **ran.costs}
    evidence = {
        name: of_baseline(name, before[name], original, implementation) for name, implementation in by_name.items()
    }
    by: DecidedBy = "race"
    verdict: _Found | None
    if ran is None or not held:
        usual = [entry for name, entry in evidence.items() if not by_name[name].tuned]
        by, best = "prior evidence", fastest(usual) or fastest([*evidence.values()])
        verdict = None if best is None else (best, best, ITSELF)
    elif ran.inconclusive:
        by = "race and prior evidence"
        evidence |= {
            c.name: of_plan(c.name, c.placement, state.timed_variants[c.variant], c.cores)
            for c in state.challengers
            if c.name in arrived
        }
        verdict = _by_all(ran, raced, rivals, evidence)
    else:
        verdict = _by_race(ran, raced, rivals)
    return None if verdict is None else RaceDecision(*verdict, by, evidence)


def _is_settled(variant: TimedVariant, forgone: float) -> bool:
    """Whether the fastest by what was measured already surely loses no more than this share to any other."""
    evidence = [
        of_baseline(str(implementation), cost, variant, implementation)
        for implementation, cost in variant.alone.items()
        if cost.latency is not None
    ]
    best = min(evidence, key=lambda entry: entry.ms or math.inf, default=None)
    ratios = [best.speedup(entry) for entry in evidence if best is not None and entry is not best]
    return bool(ratios) and all(ratio is not None and ratio.low > 1.0 - forgone for ratio in ratios)


_Found = tuple[str, str, Ratio]
"""Who ships, the best baseline, and the speed-up of the first over the second."""


def _by_race(ran: Race, raced: Mapping[str, float], challengers: Sequence[str]) -> _Found:
    """By the race alone. `raced`: medians of the baselines; `challengers`: who else arrived, fastest first."""
    best = min(raced, key=raced.__getitem__)
    for name in sorted(raced, key=raced.__getitem__):  # medians drift apart where pairs do not
        ratio = ran.ratio(name, best, through=ran.incumbent)
        best = name if name != best and ratio is not None and ratio.low > 1.0 else best
    best = _break_tie(ran, sorted(raced, key=raced.__getitem__), best)
    for name in challengers:
        ratio = ran.ratio(name, best, through=ran.incumbent)
        if ratio is not None and significant(ratio):
            return name, best, ratio
    return best, best, ITSELF


def _break_tie(ran: Race, names: Sequence[str], best: str) -> str:
    """Of those that are at most 2 % slower than the best, the fastest in the pattern of calls that does not decide, if it is surely
    faster there than the best; otherwise the best."""
    gains: dict[str, float] = {}
    for name in names:
        ratio = ran.ratio(name, best) if name != best else None
        other = ran.other_pattern.ratio(name, best) if name != best else None
        if ratio is not None and other is not None and ratio.value >= 1.0 - LEAST_GAIN and significant(other):
            gains[name] = other.value
    return max(gains, key=gains.__getitem__, default=best)


def _by_all(
    ran: Race, raced: Mapping[str, float], challengers: Sequence[str], evidence: Mapping[str, Evidence]
) -> _Found:
    """By the race and what was known before. Arguments as for `_by_race`; challengers may come in any order."""

    def fastest_of(names: Sequence[str], reference: str, least: float) -> tuple[str, Ratio]:
        ratios = {name: weigh_evidence(name, reference, ran, evidence) for name in names if name != reference}
        better = {name: ratio for name, ratio in ratios.items() if ratio is not None and ratio.value > least}
        return max(better.items(), key=lambda pair: (pair[1].value, pair[0]), default=(reference, ITSELF))

    best, _ = fastest_of(list(raced), min(raced, key=raced.__getitem__), 1.0)
    chosen, speedup = fastest_of(challengers, best, 1.0 + LEAST_GAIN)
    return chosen, best, speedup


def within_reach(costs: Mapping[str, Cost]) -> list[str]:
    """Names of those that race, fastest first: the first few in any case, the others unless they were slower beyond
    the noise of both measurements."""
    timed = sorted((cost.latency.median_ms, name) for name, cost in costs.items() if cost.latency is not None)
    order = [name for _, name in timed]
    latencies = {name: cost.latency for name, cost in costs.items() if cost.latency is not None}
    limit = _OUT_OF_REACH * latencies[order[0]].high_ms if order else 0.0
    return [name for place, name in enumerate(order) if place < _AT_LEAST or latencies[name].low_ms <= limit]


def with_other_tool(
    racing: Sequence[str], costs: Mapping[str, Cost], baselines: Mapping[str, Implementation]
) -> list[str]:
    """Those that race, with the fastest other tool at the end if none is among them."""
    others = {name for name, implementation in baselines.items() if other_tool(implementation)}
    timed = {name: cost.ms for name, cost in costs.items() if cost.ms is not None and name in others}
    if others.intersection(racing) or not timed:
        return list(racing)
    return [*racing, min(timed, key=lambda name: (timed[name], name))]


def without_spinning(baselines: Mapping[str, Implementation]) -> dict[str, Implementation]:
    """Baselines but those whose threads spin, where the same with threads that do not is among them. Files as they come stay."""
    waiting = {
        replace(baseline, config=baseline.config.of_all)
        for baseline in baselines.values()
        if baseline.config.team == "waiting"
    }
    return {name: implementation for name, implementation in baselines.items() if implementation not in waiting}


def with_files(racing: Sequence[str], costs: Mapping[str, Cost], baselines: Mapping[str, Implementation]) -> list[str]:
    """Those that race, with the user's file as it comes in every tool that runs it right."""
    files = [
        name
        for name, implementation in baselines.items()
        if implementation.config.as_it_comes and costs[name].ms is not None
    ]
    return [*racing, *(name for name in files if name not in racing)]


# --- the race -------------------------------------------------------------------------------------------------------


def _race(
    variant: TimedVariant,
    specs: Mapping[str, CandidateSpec],
    incumbent: str,
    left: Callable[[], float],
    tasks: Mapping[str, RegionTask],
) -> Race:
    session, effort = variant.session, variant.session.profile
    session.progress.start("final race", effort.pattern_rounds * len(specs))
    inputs, expected, bound = variant.oracle.files(variant.graph.everything)
    ran = race(
        session.measurer,
        specs,
        inputs,
        expected,
        bound,
        rounds=effort.pattern_rounds,
        seconds=session.budget.race_s,
        incumbent=incumbent,
        progress=lambda name, _: session.progress.advance(1, name),
        processes=effort.race_processes,
        left=left,
        variations=variant.oracle.variations(),
        tasks=tasks,
        pattern=session.options.pattern,
    )
    session.progress.finish()
    return ran


def _call_of(state: DecisionState, name: str, spec: CandidateSpec) -> PlannedCall | None:
    """A contestant as an executable would run it; None of a file as it comes, which its tool runs."""
    if spec.is_file:
        return None
    challenger = next((c for c in state.challengers if c.name == name), None)
    variant = state.original if challenger is None else state.timed_variants[challenger.variant]
    if challenger is None:
        placement = variant.placement_of(
            next(implementation for implementation in variant.whole if str(implementation) == name)
        )
    else:
        placement = challenger.placement
    session = state.session
    assert session.plan_of is not None
    regions = planned_regions(variant, placement, None, ())
    file = session.store.graph(variant.graph)
    schedule = challenger.schedule if challenger is not None else None
    shipped = ShippedProgram({}, file, len(variant.graph), regions, variant=variant.name, schedule=schedule)
    plan = session.plan_of(Bucket.unraced(shipped, name, state.oracle.bound))
    return PlannedCall(plan, session.store.directory)
