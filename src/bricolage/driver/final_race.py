"""The final race: our best plans against every baseline, interleaved. It decides what ships; where none can be held,
what was known before decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from bricolage.deadline import Deadline
from bricolage.driver.profile import Profile
from bricolage.driver.stage import Stage
from bricolage.driver.state import Challenger, State
from bricolage.measure.entries import Cost
from bricolage.measure.loading import CandidateSpec
from bricolage.measure.race import Race, race
from bricolage.measure.statistics import Ratio, significant
from bricolage.plan.plan import ORIGINAL, Contestant
from bricolage.work.implementation import Implementation, Placement

_PROCESSES = 3
"""Of each contestant: one process runs the same program up to a few percent faster than another."""
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
    decided_by: Literal["race", "prior evidence"]


class FinalRace(Stage[State]):
    """Races the challengers against all baselines within reach.

    Rule: the fastest baseline is the incumbent. The fastest challenger replaces it only if it wins by more than the
    interval and by more than 2 %. A challenger that did not race never ships."""

    name: ClassVar[str] = "race"

    def __init__(self) -> None:
        """It holds the race until `result` is asked for."""
        self._ran: Race | None = None
        self._incumbent = ""

    def share(self, state: State) -> float:
        """The race's seconds: never given to anybody else."""
        return state.session.options.race_seconds(len(state.variants[0].graph))

    def run(self, state: State, deadline: Deadline) -> None:
        """Holds it, however little time is left; only after an interruption there is none."""
        baselines = {str(one): (one, cost) for one, cost in state.original.whole.items()}
        racing = within_reach({name: cost for name, (_, cost) in baselines.items()})
        if not racing:
            return
        self._incumbent = racing[0]
        specs = {name: state.original.whole_spec(baselines[name][0]) for name in racing}
        specs.update({c.name: state.profiles[c.variant].placement_spec(c.placement) for c in state.challengers})
        if len(specs) > 1 and not deadline.interrupted:
            self._ran = _race(state.original, specs, self._incumbent)

    def result(self, state: State) -> RaceResult | None:
        """The decision; None when nothing is correct and alive."""
        original, ran = state.original, self._ran
        measured = {str(one): cost for one, cost in original.whole.items()}
        by_name = {str(one): one for one in original.whole}
        costs = {**measured, **(dict(ran.costs) if ran is not None else {})}
        arrived = {
            name: cost.ms for name, cost in (ran.costs if ran is not None else {}).items() if cost.ms is not None
        }
        raced = {name: ms for name, ms in arrived.items() if name in by_name}
        held = bool(raced) and len(arrived) > 1
        if held:
            best = min(raced, key=raced.__getitem__)
        else:
            found = prior_choice([Prior.of(name, costs[name], original, one) for name, one in by_name.items()])
            if found is None:
                return None
            best = found
        chosen, speedup = best, Ratio(1.0, 1.0, 1.0, 0)
        challengers = {c.name: c for c in state.challengers}
        for name in sorted((name for name in challengers if name in arrived), key=arrived.__getitem__):
            ratio = ran.ratio(name, best, through=self._incumbent) if ran is not None else None
            if ratio is not None and significant(ratio):
                chosen, speedup = name, ratio
                break
        shipped = challengers.get(chosen)
        dropped = {str(one): cost.ms for one, cost in original.dropped.items()}
        table = [
            _contestant(name, cost, challengers.get(name), by_name.get(name), ran, chosen, best, dropped.get(name))
            for name, cost in costs.items()
        ]
        table += [
            Contestant(
                str(one), "baseline", None, None, None, False, "not measured: the time was up", implementation=one
            )
            for one in original.candidates.whole
            if one not in original.whole
        ]
        table.sort(key=lambda c: (c.median_ms is None, c.median_ms or 0.0, c.name))
        return RaceResult(
            chosen=chosen,
            variant=shipped.variant if shipped is not None else ORIGINAL,
            placement=shipped.placement if shipped is not None else original.placement_of(by_name[best]),
            best_baseline=best,
            speedup=speedup,
            significant=chosen != best,
            contestants=tuple(table),
            decided_by="race" if held else "prior evidence",
        )


def within_reach(costs: Mapping[str, Cost]) -> list[str]:
    """Names of those that race, fastest first: the first few in any case, the others unless they were slower beyond
    the noise of both measurements."""
    timed = sorted((cost.latency.median_ms, name) for name, cost in costs.items() if cost.latency is not None)
    order = [name for _, name in timed]
    latencies = {name: cost.latency for name, cost in costs.items() if cost.latency is not None}
    limit = _OUT_OF_REACH * latencies[order[0]].high_ms if order else 0.0
    return [name for place, name in enumerate(order) if place < _AT_LEAST or latencies[name].low_ms <= limit]


# --- without a race -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prior:
    """What was known of a baseline before the race; milliseconds."""

    name: str
    low_ms: float
    median_ms: float
    high_ms: float
    """Its first measurement, with its interval."""
    others_ms: tuple[float, ...] = ()
    """From other sources: an earlier run, the sum of its regions."""

    @staticmethod
    def of(name: str, cost: Cost, profile: Profile, implementation: Implementation) -> Prior | None:
        """From a profile; None for what failed."""
        latency = cost.latency
        if latency is None:
            return None
        earlier = profile.session.measurer.earlier.get(profile.whole_spec(implementation))
        sources = (earlier.ms if earlier is not None else None, sum_of_regions(profile, implementation))
        return Prior(
            name,
            latency.low_ms,
            latency.median_ms,
            latency.high_ms,
            tuple(ms for ms in sources if ms is not None),
        )


def prior_choice(priors: Sequence[Prior | None]) -> str | None:
    """The baseline to ship without a race: the fastest by its first measurement if that is sure; else, among those
    whose intervals reach the fastest's, the one that looks fastest in any source. Neighbours on the machine only ever
    add time, so the least of several times is nearest to the truth."""
    known = [prior for prior in priors if prior is not None]
    if not known:
        return None
    first = min(known, key=lambda prior: (prior.median_ms, prior.name))
    tied = [prior for prior in known if prior.low_ms <= first.high_ms]
    return min(tied, key=lambda prior: (min(prior.low_ms, *prior.others_ms, prior.median_ms), prior.name)).name


def sum_of_regions(profile: Profile, implementation: Implementation) -> float | None:
    """What an implementation takes for all segments of a graph, one after another, ms; None where one was not measured."""
    total = 0.0
    keys = {region: group.key for group in profile.candidates.groups for region in group.regions}
    for segment in profile.candidates.segments:
        cost = profile.regions.get((keys.get(segment, ""), implementation))
        if cost is None or cost.ms is None:
            return None
        total += cost.ms
    return total or None


# --- the race -------------------------------------------------------------------------------------------------------


def _race(profile: Profile, specs: Mapping[str, CandidateSpec], incumbent: str) -> Race:
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
        processes=_PROCESSES,
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
) -> Contestant:
    latency = cost.latency
    ratio = ran.ratio(name, best) if ran is not None and latency is not None and name in ran.costs else None
    reason = cost.reason
    if not reason and name != chosen:
        if challenger is not None and ratio is None:
            reason = "not raced"
        elif challenger is not None and ratio is not None:
            found = "behind the winner" if significant(ratio) else "not a significant gain"
            reason = f"{ratio} of {best}: {found}"
        elif ran is not None and name not in ran.costs:
            reason = "out of reach in the first measurement"
    return Contestant(
        name=name,
        kind="baseline" if challenger is None else "plan",
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
        speedup=ratio.value if ratio is not None else None,
        speedup_ci=(ratio.low, ratio.high) if ratio is not None else None,
    )
