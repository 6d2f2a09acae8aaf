"""The pipeline: survey → exact op-level optimum → evolutionary refinement → tuning → final race → the decision for one bucket.

Forms of the graph are surveyed as a whole; the most promising ones go on. Whatever form a plan runs, it races against every
single backend on the original."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bricolage.backends.interface import Backend
from bricolage.deadline import Stopper
from bricolage.errors import NoBackend, NoPlacement, NotAccurate
from bricolage.graph.region import Region
from bricolage.measure.entry_costs import fixed_costs
from bricolage.measure.measurer import Measurer
from bricolage.measure.transfers import Boundaries, BoundaryCosts, adjacent_pairs
from bricolage.optimize import final_race as contest
from bricolage.optimize import variants as formed
from bricolage.optimize.candidates import Way, work_graph
from bricolage.optimize.describe import planned_regions
from bricolage.optimize.final_race import Challenger, Division, Verdict
from bricolage.optimize.mixed_precision import proposals
from bricolage.optimize.profile import NEAR, Survey, survey_of
from bricolage.optimize.quality import assess
from bricolage.options import Options
from bricolage.perf.calibrated import Calibrated, calibrate
from bricolage.perf.merge_gain import EngineModel, fit
from bricolage.perf.prediction import Predictor
from bricolage.plan.plan import ORIGINAL, Boundary, Bucket
from bricolage.progress import Progress
from bricolage.rewrite.variants import GraphVariant
from bricolage.search.evolve import EvolutionOptions, MergedPlacement, evolve
from bricolage.search.exact import solve
from bricolage.verify.oracle import Oracle
from bricolage.work.graph import Candidate, WorkGraph

_LOG = logging.getLogger(__name__)
_CHALLENGERS = 2
_CONTENDERS = 4
_NOTICEABLE = 0.05
"""Share of the work that a backend must do best to take part in mixing, if it is slow on the whole model."""
_SEARCH_SECONDS = 10.0
_AT_A_TIME = 2
"""Divisions in two precisions that are compiled before they are timed."""
_FORMS_SHARE = 0.15
_REGIONS_SHARE = 0.2
_REFINEMENT_SHARE = 0.2
_TUNING_SHARE = 0.2
"""Parts of the budget kept free for rewritten forms, measuring regions, refining plans and tuning, however long whole models
compile."""


_Timed = tuple[Division, float]
"""A division and its time end to end in ms."""


@dataclass(frozen=True)
class _Mix:
    """What the search for mixtures found: plans for the race, and the evidence behind them."""

    challengers: tuple[Challenger, ...] = ()
    form: str = ORIGINAL
    """The form of the graph to which boundaries and predictions belong."""
    measured_ms: tuple[float, ...] = ()
    """End-to-end times of everything tried."""
    boundaries: tuple[Boundary, ...] = ()
    predictor: Predictor | None = None


@dataclass
class _Clock:
    """Wall clock per phase."""

    seconds: dict[str, float]
    _began: float = 0.0

    def lap(self, phase: str) -> None:
        now = time.monotonic()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._began
        self._began = now


def place(
    forms: Sequence[GraphVariant],
    inputs: Mapping[str, np.ndarray],
    backends: Sequence[Backend],
    options: Options,
    measurer: Measurer,
    directory: Path,
    progress: Progress,
    *,
    sizes: Mapping[str, int],
    file: str,
    inputs_from: str,
) -> Bucket:
    """Decides how to run a graph, given as its `forms`, the original first. `directory` holds the weights and the forms, the
    original in `file`, and takes the models of regions.

    Raises:
        NoBackend: no backend can run the whole graph.
        NotAccurate: none that can is accurate enough.
    """
    clock, stop, surveys = _begin(forms, inputs, backends, options, measurer, directory, progress)
    original = surveys[ORIGINAL]
    operators = len(original.oracle.graph)
    budget, race = options.budget(operators), options.race_seconds(operators)
    reserved = race + options.profile.tunes * _TUNING_SHARE * budget
    mixing = len(backends) > 1 and any(form.graph.static and len(form.graph) > 1 for form in forms)
    whole = stop.reserve(reserved + mixing * (_REGIONS_SHARE + _REFINEMENT_SHARE) * budget)
    with stop.catching_interrupts():
        original.measure_singles(whole.reserve(options.rewrite * _FORMS_SHARE * budget))
    clock.lap("whole models")
    _check_singles(original)
    with stop.catching_interrupts():
        for survey in surveys.values():
            if survey is not original:
                survey.measure_beside(original, whole)
    clock.lap("rewritten models")
    if options.rewrite:
        with stop.catching_interrupts():
            found = formed.tailor(surveys, file, whole)
            surveys.update({survey.form.name: survey for survey in found})
        clock.lap("tailored models")
    promising = formed.promising(surveys)
    mixes = [_Mix(challengers=formed.rewritten_singles(surveys.values()))]
    placed = promising[: options.profile.forms] if mixing else ()
    mixes += [_mixture(survey, stop, clock, reserved, _REFINEMENT_SHARE * budget) for survey in placed]
    challengers = [challenger for mix in mixes for challenger in mix.challengers]
    model: Calibrated | None = None
    if options.rewrite and mixing:
        with stop.catching_interrupts():
            model = calibrate([sample for survey in surveys.values() for sample in formed.samples(survey)])
            found = formed.explore(surveys, model, file, stop.reserve(reserved))
            surveys.update({survey.form.name: survey for survey in found})
            challengers += formed.rewritten_singles(found)
        clock.lap("search for rewrites")
    if options.profile.tunes:
        with stop.catching_interrupts():
            original.measure_tuned(stop.reserve(race))
            challengers += _tuned(surveys, challengers, stop.reserve(race))
        clock.lap("tuning")
    bucket = _conclude(surveys, challengers, mixes, stop, clock, sizes=sizes, file=file, inputs_from=inputs_from)
    return bucket if model is None else replace(bucket, model_error=model.error)


def _mixture(survey: Survey, stop: Stopper, clock: _Clock, reserved: float, refinement: float) -> _Mix:
    """Measures the regions of one form and searches for mixtures. `reserved` seconds are for what follows, `refinement`
    seconds for the search."""
    form = survey.form
    mix = _Mix(form=form.name)
    if not form.graph.static or len(form.graph) < 2:
        return mix
    with stop.catching_interrupts():
        survey.measure_regions(stop.reserve(reserved + refinement))
    clock.lap("regions")
    two: list[_Timed] = []
    with stop.catching_interrupts():  # few and promising, so they come before anything else takes the time
        two = _mixed_precisions(survey, stop.reserve(reserved))
    clock.lap("mixed precisions")
    names = tuple(Challenger(contest.division_name(d, form.name), d, None, form.name) for d, _ in _best(two))
    mix = replace(mix, challengers=names)
    with stop.catching_interrupts():
        mixture = _Mixing(survey, stop.reserve(reserved))
        clock.lap("boundary costs")
        mix = mixture.search(two, stop.reserve(reserved), clock)
    return mix  # noqa: RET504 - an interruption skips the last assignment


def compete(
    forms: Sequence[GraphVariant],
    inputs: Mapping[str, np.ndarray],
    backends: Sequence[Backend],
    options: Options,
    measurer: Measurer,
    directory: Path,
    progress: Progress,
    *,
    challengers: Sequence[Challenger],
    sizes: Mapping[str, int],
    file: str,
    inputs_from: str,
) -> Bucket:
    """Only the race: every single backend and the given challengers. Arguments and errors as `place`."""
    clock, stop, surveys = _begin(forms, inputs, backends, options, measurer, directory, progress)
    with stop.catching_interrupts():
        surveys[ORIGINAL].measure_singles(stop)
    clock.lap("whole models")
    _check_singles(surveys[ORIGINAL])
    return _conclude(surveys, challengers, (), stop, clock, sizes=sizes, file=file, inputs_from=inputs_from)


def _begin(
    forms: Sequence[GraphVariant],
    inputs: Mapping[str, np.ndarray],
    backends: Sequence[Backend],
    options: Options,
    measurer: Measurer,
    directory: Path,
    progress: Progress,
) -> tuple[_Clock, Stopper, dict[str, Survey]]:
    clock = _Clock({}, time.monotonic())
    oracle = Oracle(forms[0].graph, inputs, directory, options.bound)
    stop = Stopper(options.budget(len(oracle.graph)))
    progress.start("float64 reference")
    oracle.compute()
    progress.finish()
    clock.lap("reference")
    original = survey_of(forms[0], oracle, backends, options, measurer, progress)
    surveys = {form.name: original.beside(form) if form.name != ORIGINAL else original for form in forms}
    clock.lap("candidates")
    return clock, stop, surveys


def _conclude(
    surveys: Mapping[str, Survey],
    challengers: Sequence[Challenger],
    mixes: Sequence[_Mix],
    stop: Stopper,
    clock: _Clock,
    *,
    sizes: Mapping[str, int],
    file: str,
    inputs_from: str,
) -> Bucket:
    verdict = contest.hold(surveys, challengers, stop)
    clock.lap("race")
    if verdict is None:
        raise NotAccurate(error=float("inf"), bound=surveys[ORIGINAL].oracle.bound)
    bucket = _bucket(surveys, verdict, challengers, mixes, clock, sizes=sizes, file=file, inputs_from=inputs_from)
    return replace(bucket, interrupted=stop.interrupted)


def _check_singles(survey: Survey) -> None:
    if not survey.candidates.whole:
        graph = survey.oracle.graph
        for operator in graph.operators:
            if not any(bits >> operator.number & 1 for bits in survey.candidates.claimed.values()):
                raise NoPlacement(name=operator.name, op_type=operator.op_type)
        raise NoBackend(why=" for the whole model")
    if not any(cost.ms is not None for cost in survey.singles.values()):
        wrong = [cost.error for cost in survey.singles.values() if cost.outcome == "wrong" and cost.error is not None]
        if wrong:
            raise NotAccurate(error=min(wrong), bound=survey.oracle.bound)
        reasons = "; ".join(f"{way.backend}: {cost.reason}" for way, cost in survey.singles.items())
        raise NoBackend(why=f" for this model ({reasons})" if reasons else " in the time given")


class _Mixing:
    """Everything that lies between measured regions and challengers for the race."""

    def __init__(self, survey: Survey, stop: Stopper) -> None:
        self.survey = survey
        self.graph: WorkGraph = work_graph(survey.oracle.graph)
        self.kinds = {backend.name: backend.kind for backend in survey.backends}
        self.candidates = survey.priced()
        self.names = self._contenders()
        self.candidates = [c for c in self.candidates if c.backend in self.names]
        self.boundary = self._boundary_costs(stop)
        self.predictor = Predictor(self.graph, self.candidates, self._engine_model(stop), self.boundary)

    def _contenders(self) -> list[str]:
        """Backends that could be part of a winning mix, the most promising `_CONTENDERS`: near the best as a whole, or best
        on a noticeable share of the work. Boundaries are measured for every pair of them, so they are few."""
        times: dict[str, float] = {}
        for way, cost in self.survey.singles.items():
            if cost.ms is not None:
                times[way.backend] = min(cost.ms, times.get(way.backend, cost.ms))
        fastest = min(times.values()) if times else 0.0
        best: dict[int, Candidate] = {}
        for candidate in self.candidates:
            known = best.get(candidate.region)
            if known is None or candidate.cost_ms < known.cost_ms:
                best[candidate.region] = candidate
        total = sum(candidate.cost_ms for candidate in best.values()) or 1.0
        merit: dict[str, float] = {}
        for name in self.kinds:
            share = sum(c.cost_ms for c in best.values() if c.backend == name) / total
            near = fastest / times[name] if name in times and times[name] <= NEAR * fastest else 0.0
            if near or share > _NOTICEABLE:
                merit[name] = near + share
        chosen = sorted(merit, key=lambda name: -merit[name])[:_CONTENDERS]
        return [name for name in self.kinds if name in chosen]

    def _boundary_costs(self, stop: Stopper) -> BoundaryCosts:
        pairs = adjacent_pairs(self.names)
        self.survey.progress.start("boundary costs", len(pairs))
        costs = Boundaries(self.survey.measurer, self.survey.options.threads).costs(pairs, stop)
        self.survey.progress.finish()
        return costs

    def _engine_model(self, stop: Stopper) -> EngineModel:
        engines = sorted({(c.backend, c.variant) for c in self.candidates})
        fixed = fixed_costs(self.survey.measurer, engines, self.survey.options.threads, should_stop=stop)
        return fit(fixed, Predictor.merged_samples(self.candidates))

    def _boundary_table(self) -> tuple[Boundary, ...]:
        return tuple(
            Boundary(producer, consumer, size, ms)
            for (producer, consumer), points in self.boundary.table.items()
            for size, ms in points
        )

    def search(self, timed: Sequence[_Timed], stop: Stopper, clock: _Clock) -> _Mix:
        """The exact op-level optimum, refined end to end; beside it, the divisions that are `timed` already."""
        optimum = solve(self.graph, self.candidates, self.boundary, _SEARCH_SECONDS)
        clock.lap("op-level search")
        profile = self.survey.options.profile
        options = EvolutionOptions(
            population=profile.population,
            offspring=profile.population,
            generations=profile.generations,
            seed=self.survey.options.seed,
        )
        self.survey.progress.start("plans end to end", None)
        result = evolve(
            self.graph,
            optimum.choices,
            allowed=self._allowed,
            measure=lambda placements: self._measure(placements, stop),
            predict=self.predictor.merged,
            mergeable=lambda candidate: self.kinds[candidate.backend] == "engine",
            options=options,
            should_stop=stop,
        )
        timed = [
            *timed,
            *((as_division(one.placement), one.measured_ms) for one in result.measured if one.measured_ms is not None),
        ]
        self.survey.progress.finish()
        clock.lap("refinement")
        form = self.survey.form.name
        return _Mix(
            challengers=tuple(challenger(division, self.predictor, form) for division, _ in _best(timed)),
            form=form,
            measured_ms=tuple(ms for _, ms in timed),
            boundaries=self._boundary_table(),
            predictor=self.predictor,
        )

    def _allowed(self, region: int) -> list[tuple[str, str]]:
        claimed = self.survey.candidates.claimed
        engines = dict.fromkeys((c.backend, c.variant) for c in self.candidates)
        return [
            (backend, variant)
            for backend, variant in engines
            if self.kinds[backend] == "engine" and claimed.get(backend, 0) & region == region
        ]

    def _measure(self, placements: list[MergedPlacement], stop: Stopper) -> list[float | None]:
        return _time(self.survey, [as_division(placement) for placement in placements], stop)


def challenger(division: Division, predictor: Predictor, form: str) -> Challenger:
    """A plan for the race, with its predicted time if the costs of all its regions are known: of divisions that were timed
    end to end they need not be."""
    predicted = predictor.merged(tuple((bits, way.backend, way.variant) for bits, way in division))
    name = contest.division_name(division, form)
    return Challenger(name, division, predicted if math.isfinite(predicted) else None, form)


def _best(timed: Sequence[_Timed]) -> list[_Timed]:
    """The fastest divisions that are mixtures."""
    return sorted((one for one in timed if len(one[0]) > 1), key=lambda one: one[1])[:_CHALLENGERS]


def _mixed_precisions(survey: Survey, stop: Stopper) -> list[_Timed]:
    """Divisions in two precisions, with their times end to end."""
    segments = survey.candidates.segments
    keys = [survey.region_key(Region(survey.oracle.graph, bits)) for bits in segments]
    waiting = proposals(segments, keys, survey.singles, survey.regions, survey.oracle.bound)
    if not waiting:
        return []
    survey.progress.start("two precisions end to end", len(waiting))
    timed: list[_Timed] = []
    while waiting and not stop():  # few at a time: compiling all of them could take all the time there is
        now, waiting = waiting[:_AT_A_TIME], waiting[_AT_A_TIME:]
        divisions = [proposal.division for proposal in now]
        timed += [(d, ms) for d, ms in zip(divisions, _time(survey, divisions, stop), strict=True) if ms is not None]
        best = min((ms for _, ms in timed), default=math.inf)
        waiting = [proposal for proposal in waiting if proposal.predicted_ms < best]
    survey.progress.finish()
    return timed


def _tuned(surveys: Mapping[str, Survey], challengers: Sequence[Challenger], stop: Stopper) -> list[Challenger]:
    """The challengers with tuned kernels, where they have any and are then faster."""
    found: list[Challenger] = []
    for one in challengers:
        survey = surveys[one.form]
        division = tuple((bits, survey.tuned(way) or way) for bits, way in one.division)
        if division == one.division or stop():
            continue
        (before,), (after,) = _time(survey, [one.division], stop), _time(survey, [division], stop)
        if before is not None and after is not None and after < before:
            found.append(Challenger(contest.division_name(division, one.form), division, None, one.form))
    return found


def _time(survey: Survey, divisions: Sequence[Division], stop: Stopper) -> list[float | None]:
    """End-to-end times in ms; None for what failed or was not measured."""
    specs = [survey.plan_spec(division) for division in divisions]
    costs = survey.measurer.measure([survey.whole_task(specs)], survey.note, stop) if specs else {}
    return [cost.ms if (cost := costs.get(spec)) is not None else None for spec in specs]


def as_division(placement: MergedPlacement) -> Division:
    return tuple((region, Way(backend, variant)) for region, backend, variant in placement)


def _bucket(
    surveys: Mapping[str, Survey],
    verdict: Verdict,
    challengers: Sequence[Challenger],
    mixes: Sequence[_Mix],
    clock: _Clock,
    *,
    sizes: Mapping[str, int],
    file: str,
    inputs_from: str,
) -> Bucket:
    survey = surveys[verdict.form]
    mix = next((mix for mix in mixes if mix.form == verdict.form and mix.predictor is not None), _Mix())
    measured = [ms for mix in mixes for ms in mix.measured_ms]
    times = {c.name: c.median_ms for c in verdict.contestants if c.median_ms is not None}
    best = next((c for c in challengers if c.name in times and c.predicted_ms is not None), None)
    shown = next((c for c in challengers if c.name == verdict.chosen), best)
    predicted = shown.predicted_ms if shown is not None else None
    # The model is judged on the plan it proposed, also where another contestant ships.
    model = assess(times[shown.name], predicted_ms=predicted) if shown is not None and predicted else None
    singles = [c.median_ms for c in verdict.contestants if c.kind == "single" and c.median_ms is not None]
    losses = assess(times[verdict.chosen], singles_ms=singles, everything_ms=[*times.values(), *measured])
    return Bucket(
        sizes=dict(sizes),
        graph=formed.file_of(file, verdict.form),
        operators=len(survey.oracle.graph),
        chosen=verdict.chosen,
        regions=planned_regions(survey, verdict.division, mix.predictor),
        contestants=verdict.contestants,
        best_single=verdict.best_single,
        speedup_vs_best_single=verdict.speedup.value,
        speedup_ci=(verdict.speedup.low, verdict.speedup.high),
        significant=verdict.significant,
        predicted_ms=predicted,
        original_error=survey.oracle.original_error,
        bound=survey.oracle.bound,
        quality=replace(losses, additive_error=model.additive_error if model is not None else None),
        boundaries=mix.boundaries,
        seconds={phase: round(seconds, 3) for phase, seconds in clock.seconds.items()},
        inputs_from=inputs_from,
        form=verdict.form,
        rules=survey.form.rules,
        steps=formed.recorded(survey.form),
        recipe=formed.recorded_recipe(survey.form),
    )
