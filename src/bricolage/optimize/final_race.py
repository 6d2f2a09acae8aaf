"""The final race: our best plans against every single backend, interleaved. It decides what ships."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bricolage.deadline import Stopper
from bricolage.measure.database import Cost
from bricolage.measure.loading import CandidateSpec
from bricolage.measure.race import Race, race
from bricolage.measure.statistics import Ratio, significant
from bricolage.optimize.candidates import Way
from bricolage.optimize.profile import Survey
from bricolage.plan.plan import ORIGINAL, Contestant

Division = tuple[tuple[int, Way], ...]
"""A placement as it runs: regions in executable order, each with who runs it."""
_PROCESSES = 3
"""Of each contestant: one process runs the same program up to a few percent faster than another."""
_OUT_OF_REACH = 1.5
"""A single backend that the survey found this many times slower than the best does not race again; its surveyed time,
interleaved like any, is shown."""


@dataclass(frozen=True)
class Challenger:
    """A plan that enters the race."""

    name: str
    division: Division
    predicted_ms: float | None
    form: str = ORIGINAL
    """The form of the graph that it runs."""


@dataclass(frozen=True)
class Verdict:
    """Who ships, and the oracle."""

    chosen: str
    form: str
    """The form of the graph that the chosen one runs."""
    division: Division
    best_single: str
    speedup: Ratio
    """Chosen over the best single backend."""
    significant: bool
    contestants: tuple[Contestant, ...]


def single_name(way: Way) -> str:
    """How a single backend is called in the race."""
    return f"{way.backend} {way.variant}"


def division_name(division: Division, form: str = ORIGINAL) -> str:
    """A short name that says what is mixed, "openvino+onnxruntime plan 3f2a", or that one backend runs a rewritten graph,
    "openvino f32 rewritten"."""
    rewritten = "" if form == ORIGINAL else f" {form}"
    if len(division) == 1:
        return single_name(division[0][1]) + rewritten
    backends = "+".join(dict.fromkeys(way.backend for _, way in division))
    text = ";".join(f"{bits:x} {way.backend} {way.variant}" for bits, way in division) + rewritten
    return f"{backends} plan {hashlib.sha256(text.encode()).hexdigest()[:4]}{rewritten}"


def hold(surveys: Mapping[str, Survey], challengers: Sequence[Challenger], stop: Stopper) -> Verdict | None:
    """Races the challengers against all singles within reach. None when no contestant is correct and alive. `surveys` are
    by form of the graph; singles run the original.

    Rule: the fastest single backend is the incumbent. The fastest challenger replaces it only if it wins by more than the
    interval and by more than 2 %.
    """
    survey = surveys[ORIGINAL]
    surveyed = {single_name(way): (way, cost) for way, cost in survey.singles.items()}
    alive = {name: cost.ms for name, (_, cost) in surveyed.items() if cost.ms is not None}
    if not alive:
        return None
    fastest = min(alive, key=lambda name: alive[name])
    racing = [
        name for name in sorted(alive, key=lambda name: alive[name]) if alive[name] <= _OUT_OF_REACH * alive[fastest]
    ]
    specs: dict[str, CandidateSpec] = {name: survey.whole_spec(surveyed[name][0]) for name in racing}
    specs.update({c.name: surveys[c.form].plan_spec(c.division) for c in challengers})
    ran: Race | None = None
    if len(specs) > 1 and not stop.interrupted:
        with stop.catching_interrupts():
            ran = _race(survey, specs, fastest)
    costs: dict[str, Cost] = {name: cost for name, (_, cost) in surveyed.items()}
    if ran is not None:
        costs.update(ran.costs)
    times = {name: cost.ms for name, cost in costs.items() if cost.ms is not None}
    singles = [name for name in surveyed if name in times]
    if not singles:
        return None
    best_single = min(singles, key=lambda name: times[name])
    chosen, speedup = best_single, Ratio(1.0, 1.0, 1.0, 0)
    for challenger in sorted((c for c in challengers if c.name in times), key=lambda c: times[c.name]):
        ratio = ran.ratio(challenger.name, best_single, through=fastest) if ran is not None else None
        if ratio is not None and significant(ratio):
            chosen, speedup = challenger.name, ratio
            break
    divisions = {c.name: c.division for c in challengers}
    division = divisions.get(chosen) or ((survey.oracle.graph.everything.bits, surveyed[chosen][0]),)
    form = next((c.form for c in challengers if c.name == chosen), ORIGINAL)
    table = [
        _contestant(
            name,
            cost,
            "plan" if name in divisions else "single",
            len(divisions.get(name, (0,))),
            ran,
            chosen,
            best_single,
        )
        for name, cost in costs.items()
    ]
    table += [
        Contestant(single_name(way), "single", None, None, None, False, "not measured: the time was up")
        for way in survey.candidates.whole
        if way not in survey.singles
    ]
    table.sort(key=lambda c: (c.median_ms is None, c.median_ms or 0.0, c.name))
    return Verdict(chosen, form, division, best_single, speedup, chosen != best_single, tuple(table))


def _race(survey: Survey, specs: Mapping[str, CandidateSpec], incumbent: str) -> Race:
    profile = survey.options.profile
    inputs, expected, bound = survey.oracle.files(survey.oracle.graph.everything)
    survey.progress.start("final race", profile.race_rounds * len(specs))
    ran = race(
        survey.measurer,
        specs,
        inputs,
        expected,
        bound,
        rounds=profile.race_rounds,
        seconds=survey.options.race_seconds(len(survey.oracle.graph)),
        incumbent=incumbent,
        progress=lambda name, _: survey.progress.advance(1, name),
        processes=_PROCESSES,
    )
    survey.progress.finish()
    return ran


def _contestant(
    name: str, cost: Cost, kind: str, regions: int, ran: Race | None, chosen: str, best_single: str
) -> Contestant:
    latency = cost.latency
    ratio = ran.ratio(name, best_single) if ran is not None and latency is not None and name in ran.costs else None
    reason = cost.reason
    if not reason and name != chosen:
        if kind == "plan" and ratio is None:
            reason = "not raced"
        elif kind == "plan" and ratio is not None:
            found = "behind the winner" if significant(ratio) else "not a significant gain"
            reason = f"{ratio} of {best_single}: {found}"
        elif ran is not None and name not in ran.costs:
            reason = "out of reach in the survey"
    return Contestant(
        name=name,
        kind=kind,
        median_ms=latency.median_ms if latency else None,
        ci_ms=(latency.low_ms, latency.high_ms) if latency else None,
        error=cost.error,
        accepted=cost.outcome == "ok",
        reason=f"{cost.outcome}: {reason}" if cost.outcome != "ok" else reason,
        compile_s=cost.compile_s,
        first_run_ms=ran.first_ms.get(name) if ran is not None else None,
        regions=regions,
        speedup=ratio.value if ratio is not None else None,
        speedup_ci=(ratio.low, ratio.high) if ratio is not None else None,
    )
