"""The final race: our best plans against every baseline, interleaved. It decides what ships; where none can be held,
what was known before decides, and where other processes disturbed it, both together."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from bricolage.backends.capabilities import switched_off
from bricolage.costs.entries import Cost
from bricolage.deadline import Deadline
from bricolage.driver.describe import whole_model
from bricolage.driver.evidence import Evidence, fastest, of_baseline, of_plan, weighed
from bricolage.driver.profile import Profile
from bricolage.driver.stage import Stage
from bricolage.driver.state import Challenger, DecisionState
from bricolage.measure.race import Race, race
from bricolage.measure.specs import CandidateSpec, RegionTask
from bricolage.measure.statistics import THRESHOLD, Ratio, significant
from bricolage.plan.field_types import DecidedBy
from bricolage.plan.plan import ORIGINAL, Contestant, other_tool
from bricolage.plan.schedules import PlannedSchedule
from bricolage.work.implementation import Implementation, Placement

_OUT_OF_REACH = 1.5
"""A baseline that was clearly this many times slower than the best does not race again; its time, interleaved like
any, is shown."""
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


@dataclass(frozen=True)
class _Decision:
    """Who ships, the best baseline, the speed-up of the first over the second, and on which grounds."""

    chosen: str
    best: str
    speedup: Ratio
    by: DecidedBy
    evidence: Mapping[str, Evidence]


class FinalRace(Stage[DecisionState]):
    """Races the challengers against all baselines within reach.

    Rule: the fastest baseline is the incumbent: that of the lowest median, unless another is surely faster in the rounds that both
    had. The fastest challenger replaces it only if it wins by more than the
    interval and by more than 2 %. A challenger that did not race never ships. Tuned kernels for the whole original are a challenger
    like any. The best other tool races in any case, however slow it is: what ships is compared with it, too.

    If load leaves the race inconclusive when the budget ends, its ratios are pooled with earlier measurements, weighted by
    inverse variance. The fastest baseline is then the incumbent. The fastest challenger ships if it wins by more than 2 %."""

    name: ClassVar[str] = "race"
    reads: ClassVar[frozenset[str]] = frozenset({"profiles", "challengers"})
    adds: ClassVar[frozenset[str]] = frozenset({"race"})

    def share(self, state: DecisionState) -> float:
        """The race's seconds: never given to anybody else."""
        return state.session.options.race_seconds(len(state.variants[0].graph))

    def run(self, state: DecisionState, deadline: Deadline) -> None:
        """Always runs, except after Ctrl-C, and, where the effort says so, if the fastest is known without it."""
        original = state.original
        forgone = state.session.options.profile.forgone
        if forgone is not None and not state.challengers and _settled(original, forgone):
            return
        baselines = {str(one): one for one in original.whole}
        measured = {str(one): cost for one, cost in original.whole.items()}
        racing = with_other_tool(within_reach(measured), measured, baselines)
        if not racing:
            return
        incumbent = next((name for name in racing if not baselines[name].tuned), racing[0])
        specs = {name: original.whole_spec(baselines[name]) for name in racing}
        specs.update(
            {c.name: state.profiles[c.variant].placement_spec(c.placement, c.cores) for c in state.challengers}
        )
        specs = {name: replace(spec, kept=True) for name, spec in specs.items()}  # each is loaded several times
        if len(specs) > 1 and not deadline.interrupted:
            tasks = {
                c.name: state.profiles[c.variant].task([specs[c.name]])
                for c in state.challengers
                if not state.profiles[c.variant].oracle.judges_as(original.oracle)
            }
            state.race = _race(original, specs, incumbent, lambda: deadline.left, tasks)


# --- what follows from it -------------------------------------------------------------------------------------------


def race_result(state: DecisionState) -> RaceResult | None:
    """Who ships, by the race where one was held; None when nothing is correct and alive."""
    ran, original = state.race, state.original
    arrived = {name: cost.ms for name, cost in (ran.costs if ran is not None else {}).items() if cost.ms is not None}
    found = _decision(state, arrived)
    if found is None:
        return None
    table = _table(state, found, arrived)
    other = _best_other(table, found.best, arrived)
    if other:
        over = {c.name: _over(c.name, other, found.by, ran, found.evidence) for c in table}
        table = [_beside_other(c, over[c.name]) for c in table]
    shipped = next((c for c in state.challengers if c.name == found.chosen), None)
    baselines = {str(one): one for one in original.whole}
    return RaceResult(
        chosen=found.chosen,
        variant=shipped.variant if shipped is not None else ORIGINAL,
        placement=shipped.placement if shipped is not None else original.placement_of(baselines[found.chosen]),
        best_baseline=found.best,
        speedup=found.speedup,
        significant=found.chosen != found.best and significant(found.speedup),
        contestants=tuple(table),
        decided_by=found.by,
        best_other=other,
        schedule=shipped.schedule if shipped is not None else None,
        starts_ms=shipped.starts_ms if shipped is not None else (),
    )


def _decision(state: DecisionState, arrived: Mapping[str, float]) -> _Decision | None:
    """Who ships. `arrived`: medians of all that the race timed, ms."""
    original, ran = state.original, state.race
    by_name = {str(one): one for one in original.whole}
    measured = {str(one): cost for one, cost in original.whole.items()}
    raced = {name: ms for name, ms in arrived.items() if name in by_name}
    held = ran is not None and bool(raced) and len(arrived) > 1
    raced = {name: ms for name, ms in raced.items() if not by_name[name].tuned} or raced
    rivals = sorted((name for name in arrived if name not in raced), key=arrived.__getitem__)
    # Who failed in a race that came to nothing must not ship.
    before = measured if held or ran is None else {**measured, **ran.costs}
    evidence = {name: of_baseline(name, before[name], original, one) for name, one in by_name.items()}
    by: DecidedBy = "race"
    found: _Found | None
    if ran is None or not held:
        usual = [one for name, one in evidence.items() if not by_name[name].tuned]
        by, best = "prior evidence", fastest(usual) or fastest([*evidence.values()])
        found = None if best is None else (best, best, _ITSELF)
    elif ran.inconclusive:
        by = "race and prior evidence"
        evidence |= {
            c.name: of_plan(c.name, c.placement, state.profiles[c.variant], c.cores)
            for c in state.challengers
            if c.name in arrived
        }
        found = _by_all(ran, raced, rivals, evidence)
    else:
        found = _by_race(ran, raced, rivals)
    return None if found is None else _Decision(*found, by, evidence)


def _table(state: DecisionState, found: _Decision, arrived: Mapping[str, float]) -> list[Contestant]:
    """All contestants, the fastest first, and the baselines that were not measured."""
    original, ran = state.original, state.race
    by_name = {str(one): one for one in original.whole}
    challengers = {c.name: c for c in state.challengers}
    costs = {str(one): cost for one, cost in original.whole.items()}
    for name, cost in (ran.costs if ran is not None else {}).items():  # where it raced, its code lay in the cache
        first = costs[name].compile_s if name in costs else 0.0
        costs[name] = replace(cost, compile_s=max(cost.compile_s, first))
    known = {
        name: weighed(name, found.best, ran, found.evidence)
        for name in arrived
        if ran is not None and found.by == "race and prior evidence" and name != found.best
    }
    dropped = {str(one): cost.ms for one, cost in original.dropped.items()}
    table = [
        _contestant(
            name,
            cost,
            challengers.get(name),
            by_name.get(name),
            ran,
            found.chosen,
            found.best,
            dropped.get(name),
            known.get(name),
        )
        for name, cost in costs.items()
    ]
    told = {
        str(one): "; ".join(filter(None, (original.replacing.get(one), _done_without(original, one))))
        for one in original.whole
    }
    table = [replace(c, reason="; ".join(filter(None, (told.get(c.name), c.reason)))) for c in table]
    table += [
        Contestant(str(one), "baseline", None, None, None, False, _unmeasured(state, one), implementation=one)
        for one in original.candidates.whole
        if one not in original.whole
    ]
    return sorted(table, key=lambda c: (c.median_ms is None, c.median_ms or 0.0, c.name))


def _done_without(profile: Profile, one: Implementation) -> str:
    """Which optimisations of its own a backend does without on this graph, since they are in quarantine."""
    names = switched_off(profile.session.backend(one.backend), profile.graph.model)
    return f"without {', '.join(names)}, which would make it wrong (docs/backend-bugs.md)" if names else ""


def _settled(profile: Profile, forgone: float) -> bool:
    """Whether the fastest by what was measured already surely loses no more than this share to any other."""
    known = [
        of_baseline(str(one), cost, profile, one) for one, cost in profile.whole.items() if cost.latency is not None
    ]
    best = min(known, key=lambda one: one.ms or math.inf, default=None)
    ratios = [best.speedup(one) for one in known if best is not None and one is not best]
    return bool(ratios) and all(ratio is not None and ratio.low > 1.0 - forgone for ratio in ratios)


_ITSELF = Ratio(1.0, 1.0, 1.0, 0)
_Found = tuple[str, str, Ratio]
"""Who ships, the best baseline, and the speed-up of the first over the second."""


def _unmeasured(state: DecisionState, one: Implementation) -> str:
    """Why the whole graph was not measured on an implementation."""
    for entry in state.agenda:
        if entry.name == whole_model(one):
            if entry.outcome == "left out":
                return f"left out: it could save {100 * entry.most:.1f} % at most ({entry.because})"
            if entry.outcome == "no time":
                return f"not measured: it was expected to take {entry.expected_s:.0f} s, longer than was left"
    return "not measured: the time was up"


def _by_race(ran: Race, raced: Mapping[str, float], challengers: Sequence[str]) -> _Found:
    """By the race alone. `raced`: medians of the baselines; `challengers`: who else arrived, fastest first."""
    best = min(raced, key=raced.__getitem__)
    for name in sorted(raced, key=raced.__getitem__):  # medians drift apart where pairs do not
        ratio = ran.ratio(name, best, through=ran.incumbent)
        best = name if name != best and ratio is not None and ratio.low > 1.0 else best
    for name in challengers:
        ratio = ran.ratio(name, best, through=ran.incumbent)
        if ratio is not None and significant(ratio):
            return name, best, ratio
    return best, best, _ITSELF


def _by_all(
    ran: Race, raced: Mapping[str, float], challengers: Sequence[str], evidence: Mapping[str, Evidence]
) -> _Found:
    """By the race and what was known before. Arguments as for `_by_race`; challengers may come in any order."""

    def fastest_of(names: Sequence[str], reference: str, least: float) -> tuple[str, Ratio]:
        ratios = {name: weighed(name, reference, ran, evidence) for name in names if name != reference}
        better = {name: ratio for name, ratio in ratios.items() if ratio is not None and ratio.value > least}
        return max(better.items(), key=lambda one: (one[1].value, one[0]), default=(reference, _ITSELF))

    best, _ = fastest_of(list(raced), min(raced, key=raced.__getitem__), 1.0)
    chosen, speedup = fastest_of(challengers, best, 1.0 + THRESHOLD)
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
    others = {name for name, one in baselines.items() if other_tool(one)}
    timed = {name: cost.ms for name, cost in costs.items() if cost.ms is not None and name in others}
    if others.intersection(racing) or not timed:
        return list(racing)
    return [*racing, min(timed, key=lambda name: (timed[name], name))]


def _best_other(table: Sequence[Contestant], best: str, arrived: Mapping[str, float]) -> str:
    """The best baseline where it is another tool; else the fastest of those that arrived, else of those that have a time."""
    others = [c for c in table if c.other_tool and c.accepted and c.median_ms is not None]
    order = sorted(others, key=lambda c: (c.name != best, c.name not in arrived, c.median_ms or 0.0, c.name))
    return order[0].name if order else ""


def _over(
    name: str, other: str, decided_by: DecidedBy, ran: Race | None, evidence: Mapping[str, Evidence]
) -> Ratio | None:
    """Speed-up over the best other tool by the evidence that decided; by what was known before where they did not meet."""
    if name == other:
        return _ITSELF
    if ran is not None and decided_by == "race and prior evidence":
        return weighed(name, other, ran, evidence)
    raced = ran.ratio(name, other, through=ran.incumbent) if ran is not None and decided_by == "race" else None
    known = evidence[name].speedup(evidence[other]) if name in evidence and other in evidence else None
    return raced or (Ratio(known.value, known.low, known.high, 0) if known is not None else None)


def _beside_other(one: Contestant, ratio: Ratio | None) -> Contestant:
    if ratio is None:
        return one
    return replace(one, over_other=ratio.value, over_other_ci=(ratio.low, ratio.high))


# --- the race -------------------------------------------------------------------------------------------------------


def _race(
    profile: Profile,
    specs: Mapping[str, CandidateSpec],
    incumbent: str,
    left: Callable[[], float],
    tasks: Mapping[str, RegionTask],
) -> Race:
    session, effort = profile.session, profile.session.options.profile
    session.progress.start("final race", effort.race_rounds * len(specs))
    inputs, expected, bound = profile.oracle.files(profile.graph.everything)
    ran = race(
        session.measurer,
        specs,
        inputs,
        expected,
        bound,
        rounds=effort.race_rounds,
        seconds=session.options.race_seconds(len(profile.graph)),
        incumbent=incumbent,
        progress=lambda name, _: session.progress.advance(1, name),
        processes=effort.race_processes,
        left=left,
        variations=profile.oracle.variations(),
        tasks=tasks,
    )
    session.progress.finish()
    return ran


def _contestant(
    name: str,
    cost: Cost,
    challenger: Challenger | None,
    baseline: Implementation | None,
    ran: Race | None,
    chosen: str,
    best: str,
    dropped_ms: float | None,
    known: Ratio | None,
) -> Contestant:
    """Of the plan. `known`: its speed-up over the best baseline by all evidence, where that decided."""
    latency, plan = cost.latency, challenger is not None or (baseline is not None and baseline.tuned)
    ratio = ran.ratio(name, best) if ran is not None and latency is not None and name in ran.costs else None
    over = known if known is not None else ratio
    reason = cost.reason
    if not reason and name != chosen:
        if known is not None:
            raced = f"{ratio} of {best} in the race, " if ratio is not None else ""
            reason = f"{raced}{known} together with earlier measurements"
        elif plan and ratio is None:
            reason = "not raced"
        elif plan and ratio is not None:
            found = "behind the winner" if significant(ratio) else "not a significant gain"
            reason = f"{ratio} of {best}: {found}"
        elif ran is not None and name not in ran.costs:
            reason = "out of reach in the first measurement"
    return Contestant(
        name=name,
        kind="plan" if plan else "baseline",
        median_ms=latency.median_ms if latency else None,
        ci_ms=(latency.low_ms, latency.high_ms) if latency else None,
        error=cost.error,
        accepted=cost.outcome == "ok",
        reason=f"{cost.outcome}: {reason}" if cost.outcome != "ok" else reason,
        compile_s=cost.compile_s,
        first_run_ms=ran.first_ms.get(name) if ran is not None else None,
        regions=1 if challenger is None else len(challenger.placement),
        implementation=baseline,
        dropped_ms=dropped_ms,
        speedup=over.value if over is not None else None,
        speedup_ci=(over.low, over.high) if over is not None else None,
    )
