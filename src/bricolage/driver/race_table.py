"""What a plan says of everybody who raced or could have: a contestant each, with its times and why it does not ship."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bricolage.backends.capabilities import switched_off
from bricolage.costs.entries import Cost
from bricolage.driver.describe import whole_model
from bricolage.driver.evidence import Evidence, weigh_evidence
from bricolage.driver.state import Challenger, DecisionState
from bricolage.driver.timed_variant import TimedVariant
from bricolage.measure.race_record import Race
from bricolage.measure.statistics import Ratio, significant
from bricolage.plan.field_types import DecidedBy
from bricolage.plan.other_pattern import PatternLoss
from bricolage.plan.race_outcome import Contestant
from bricolage.work.implementation import Implementation

_TIME_UP = "no time: it was up before its turn"
ITSELF = Ratio(1.0, 1.0, 1.0, 0)


@dataclass(frozen=True)
class RaceDecision:
    """Who ships, the best baseline, the speed-up of the first over the second, and on which grounds."""

    chosen: str
    best: str
    speedup: Ratio
    by: DecidedBy
    evidence: Mapping[str, Evidence]


def make_table(state: DecisionState, found: RaceDecision, arrived: Mapping[str, float]) -> list[Contestant]:
    """All contestants, the fastest first, and the baselines that were not measured."""
    original, ran = state.original, state.race
    by_name = {str(implementation): implementation for implementation in original.alone}
    challengers = {c.name: c for c in state.challengers}
    costs = {str(implementation): cost for implementation, cost in original.alone.items()}
    for name, cost in (ran.costs if ran is not None else {}).items():  # where it raced, its code lay in the cache
        first = costs[name].compile_s if name in costs else 0.0
        costs[name] = replace(cost, compile_s=max(cost.compile_s, first))
    ratios = {
        name: weigh_evidence(name, found.best, ran, found.evidence)
        for name in arrived
        if ran is not None and found.by == "race and prior evidence" and name != found.best
    }
    dropped = {str(implementation): cost.ms for implementation, cost in original.dropped.items()}
    table = [
        _contestant(
            name,
            cost,
            challenger=challengers.get(name),
            baseline=by_name.get(name),
            ran=ran,
            chosen=found.chosen,
            best=found.best,
            dropped_ms=dropped.get(name),
            known=ratios.get(name),
        )
        for name, cost in costs.items()
    ]
    reasons = {
        str(implementation): "; ".join(
            filter(None, (original.replacing.get(implementation), _done_without(original, implementation)))
        )
        for implementation in original.whole
    }
    table = [replace(c, reason="; ".join(filter(None, (reasons.get(c.name), c.reason)))) for c in table]
    table += [
        Contestant(
            str(implementation),
            "baseline",
            None,
            None,
            None,
            False,
            _explain_unmeasured(state, implementation),
            implementation=implementation,
        )
        for implementation in original.candidates.whole
        if implementation not in original.whole
    ]
    table += [
        Contestant(str(implementation), "baseline", None, None, None, False, _TIME_UP, implementation=implementation)
        for implementation in original.file_implementations
        if implementation not in original.files
    ]
    if ran is not None:
        table = [_compare_with_file(_with_other_pattern(c, ran), table, ran) for c in table]
    return sorted(table, key=lambda c: (c.median_ms is None, c.median_ms or 0.0, c.name))


def _with_other_pattern(contestant: Contestant, ran: Race) -> Contestant:
    """With its time in the pattern of calls that does not decide, where it was timed so."""
    if contestant.median_ms is None or not ran.other_pattern.samples(contestant.name):
        return contestant
    latency = ran.other_pattern.latency(contestant.name)
    interval = latency.low_ms, latency.high_ms
    return replace(contestant, other_pattern_ms=latency.median_ms, other_pattern_ci_ms=interval)


def _compare_with_file(contestant: Contestant, table: Sequence[Contestant], ran: Race) -> Contestant:
    """Says where a tool runs the graph that we prepared more slowly than the user's file, or does not take the graph at all."""
    implementation = contestant.implementation
    if implementation is None or contestant.as_it_comes or not contestant.other_tool:
        return contestant
    file = next((c for c in table if c.as_it_comes and c.accepted and _backend(c) == implementation.backend), None)
    if file is None or implementation.config.team:
        return contestant
    if not any(c.accepted and not c.as_it_comes and _backend(c) == implementation.backend for c in table):
        return replace(contestant, reason=f"{contestant.reason}; it runs the file as it comes")
    ratio = ran.ratio(file.name, contestant.name)
    if ratio is None or not significant(ratio):
        return contestant
    slower = f"the file as it comes is {ratio} of this tool on the graph as prepared here"
    return replace(contestant, reason="; ".join(filter(None, [contestant.reason, slower])))


def _backend(contestant: Contestant) -> str:
    return contestant.implementation.backend if contestant.implementation is not None else ""


def compare_other_pattern(table: Sequence[Contestant], chosen: str, ran: Race | None) -> PatternLoss | None:
    """What ships against the best other tool in the pattern of calls that did not decide."""
    others = [c for c in table if c.other_tool and c.accepted and c.other_pattern_ms is not None]
    if ran is None or not others:
        return None
    best = min(others, key=lambda c: (c.other_pattern_ms or 0.0, c.name))
    ratio = ITSELF if best.name == chosen else ran.other_pattern.ratio(chosen, best.name)
    return None if ratio is None else PatternLoss(best.name, ratio.value, (ratio.low, ratio.high))


def _done_without(variant: TimedVariant, one: Implementation) -> str:
    """Which optimisations of its own a backend does without on this graph, since they are in quarantine."""
    names = switched_off(variant.session.backend(one.backend), variant.graph.model)
    return f"without {', '.join(names)}, which would make it wrong (docs/reference/backend-bugs.md)" if names else ""


def _explain_unmeasured(state: DecisionState, one: Implementation) -> str:
    """Why the whole graph was not measured on an implementation."""
    for entry in state.agenda:
        if entry.name == whole_model(one):
            if entry.outcome == "bounded":
                return f"bounded: it cannot save more than {100 * (entry.bound or 0.0):.1f} % ({entry.because})"
            if entry.outcome == "unlikely":
                chance = "an unknown chance" if entry.chance is None else f"a chance of {100 * entry.chance:.1f} %"
                return f"unlikely: {chance} to save {100 * entry.gain:.1f} % ({entry.because})"
            if entry.outcome == "no time":
                return f"no time: it was expected to take {entry.expected_s:.0f} s, longer than was left"
    return _TIME_UP


def find_best_other(table: Sequence[Contestant], best: str, arrived: Mapping[str, float]) -> str:
    """The best baseline where it is another tool; else the fastest of those that arrived, else of those that have a time."""
    others = [c for c in table if c.other_tool and c.accepted and c.median_ms is not None]
    order = sorted(others, key=lambda c: (c.name != best, c.name not in arrived, c.median_ms or 0.0, c.name))
    return order[0].name if order else ""


def speedup_over_other(
    name: str, other: str, decided_by: DecidedBy, ran: Race | None, evidence: Mapping[str, Evidence]
) -> Ratio | None:
    """Speed-up over the best other tool by the evidence that decided; by what was known before where they did not meet."""
    if name == other:
        return ITSELF
    if ran is not None and decided_by == "race and prior evidence":
        return weigh_evidence(name, other, ran, evidence)
    raced = ran.ratio(name, other, through=ran.incumbent) if ran is not None and decided_by == "race" else None
    prior = evidence[name].speedup(evidence[other]) if name in evidence and other in evidence else None
    return raced or (Ratio(prior.value, prior.low, prior.high, 0) if prior is not None else None)


def beside_other(one: Contestant, ratio: Ratio | None) -> Contestant:
    """With its speed-up over the best other tool, where there is one."""
    if ratio is None:
        return one
    return replace(one, over_other=ratio.value, over_other_ci=(ratio.low, ratio.high))


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
            verdict = "behind the winner" if significant(ratio) else "not a significant gain"
            reason = f"{ratio} of {best}: {verdict}"
        elif ran is not None and name not in ran.costs:
            waiting = baseline is not None and str(replace(baseline, config=replace(baseline.config, team="waiting")))
            stepped = waiting in ran.costs and waiting != name
            reason = (
                "its threads spin, and others use the cores" if stepped else "out of reach in the first measurement"
            )
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
