"""Forms of a graph in placement: where they lie, which of them a search over rewrites proposes, and which could win."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

from bricolage.deadline import Stopper
from bricolage.errors import EndlessRewriting
from bricolage.graph.extract import share_weights, write_model
from bricolage.graph.graph import Graph
from bricolage.graph.identity import Identities
from bricolage.graph.region import Region
from bricolage.optimize import final_race as contest
from bricolage.optimize.final_race import Challenger
from bricolage.optimize.profile import Survey
from bricolage.perf.calibrated import Calibrated, Sample
from bricolage.plan.plan import ORIGINAL, Bucket, PlannedRecipe, RewriteStep, numbers
from bricolage.rewrite.catalogue import chosen
from bricolage.rewrite.pipeline import EnabledRule, RewriteConfig
from bricolage.rewrite.search.options import SearchOptions
from bricolage.rewrite.variants import GraphVariant, recreated_variant, searched_variants
from bricolage.rewrite.variants import tailored_variant as made_by
from bricolage.tune.rewrites import RewriteTuner
from bricolage.work import bits as bitset

_LOG = logging.getLogger(__name__)

_EXPLORING_SHARE = 0.1
"""Part of the budget for searching better graphs."""
_TAILORING_SHARE = 0.25
"""Part of the budget for forms that are raced on the fastest backend."""
_CLEARLY = 1.02
"""A form is placed before the original only if it is faster by more than that: regions of the original are more often known."""
_PROMISING = 1.05
"""Forms of the graph that are within this factor of the fastest, each on its best backend, may win as mixtures."""


def file_of(file: str, form: str) -> str:
    """Name of the file that holds a form of the graph whose original is in `file`."""
    return file if form == ORIGINAL else f"{Path(file).stem}-{form}.onnx"


def write(form: GraphVariant, file: str, directory: Path) -> None:
    """Writes a form beside the original, which is in `file`. What rules folded out of weights goes into a file of its own.

    Raises:
        NotWritable: the disk is full or the folder is not writable.
    """
    target = file_of(file, form.name)
    share_weights([form.graph.model], directory, f"{Path(target).stem}.data")
    write_model(form.graph.model, directory / target)


def recorded(form: GraphVariant) -> tuple[RewriteStep, ...]:
    """How a form was made, for the plan."""
    return tuple(RewriteStep(step.rule, step.pattern, step.roots, step.bound) for step in form.steps)


def recorded_recipe(form: GraphVariant) -> PlannedRecipe | None:
    """The same for a form that was tailored."""
    if form.rewrite_config is None:
        return None
    exploring = tuple((one.rule, tuple(sorted(one.not_at))) for one in form.rewrite_config.enabled)
    return PlannedRecipe(tuple(sorted(form.rewrite_config.disabled)), exploring, form.rewrite_config.opset)


def _recipe(recorded: PlannedRecipe | None) -> RewriteConfig | None:
    if recorded is None:
        return None
    exploring = tuple(EnabledRule(rule, frozenset(not_at)) for rule, not_at in recorded.exploring)
    return RewriteConfig(frozenset(recorded.without), exploring, recorded.opset)


def made_again(bucket: Bucket, graph: Graph) -> GraphVariant | None:
    """The form of a graph that a decision divides, from its record; None where the rules do not make it any more."""
    steps = tuple(RewriteStep(s.rule, s.pattern, s.roots, s.bound) for s in bucket.steps)
    form = recreated_variant(graph, bucket.form, steps, _recipe(bucket.recipe))
    if form is None or len(form.graph) != bucket.operators:
        return None
    identities = Identities(form.graph)
    regions = [(Region(form.graph, bitset.of(numbers(region.operators))), region.key) for region in bucket.regions]
    return form if all(identities.key(region) == key for region, key in regions) else None


def samples(survey: Survey) -> list[Sample]:
    """Everything that was measured of a graph, each region with the time of its fastest backend."""
    graph = survey.oracle.graph
    found = [Sample.of(graph.everything, fastest[1])] if (fastest := survey.fastest) is not None else []
    for group in survey.candidates.groups:
        times = (survey.regions.get((group.key, way)) for way in group.ways)
        ms = _least(cost.ms for cost in times if cost is not None)
        if ms is not None:
            found.append(Sample.of(Region(graph, group.regions[0]), ms))
    return found


def _least(times: Iterable[float | None]) -> float | None:
    return min((ms for ms in times if ms is not None), default=None)


def tailor(surveys: Mapping[str, Survey], file: str, stop: Stopper) -> list[Survey]:
    """The variant that the fastest backend so far runs fastest, by racing variants; none where none beats the known ones."""
    original = surveys[ORIGINAL]
    oracle, options = original.oracle, original.options
    seconds = min(stop.left, _TAILORING_SHARE * options.budget(len(oracle.graph)))
    ways = [found for survey in surveys.values() if (found := survey.fastest) is not None]
    if seconds <= 0.0 or not ways:
        return []
    way, _ = min(ways, key=lambda found: found[1])
    backend = next(backend for backend in original.backends if backend.name == way.backend)
    tuner = RewriteTuner(
        oracle.graph.model,
        {},
        chosen(stable=True, generated=False),
        oracle,
        backend,
        options,
        original.measurer,
        original.progress,
        variant=way.variant,
        prefix=Path(file).stem,
    )
    try:
        recipe = tuner.search(stop.reserve(max(0.0, stop.left - seconds)))
    except EndlessRewriting as error:
        _LOG.warning("no variant is tuned: %s", error)
        return []
    finally:
        tuner.clear()
    if recipe == RewriteConfig():
        return []
    form = made_by(oracle.graph, recipe)
    write(form, file, oracle.directory)
    survey = original.beside(form)
    survey.measure_beside(original, stop)
    return [survey]


def explore(surveys: Mapping[str, Survey], model: Calibrated, file: str, stop: Stopper) -> list[Survey]:
    """Graphs that are cheaper by the cost model, timed as wholes."""
    original = surveys[ORIGINAL]
    oracle, options = original.oracle, original.options
    seconds = min(stop.left, _EXPLORING_SHARE * options.budget(len(oracle.graph)))
    if seconds <= 0.0:
        return []
    original.progress.start("search for rewrites")
    limits = SearchOptions(seconds=seconds, keep=options.profile.searched)
    known = [survey.form for survey in surveys.values()]
    forms = searched_variants(oracle.graph, model, limits, known, generated=options.profile.generated_rules)
    original.progress.finish()
    found: list[Survey] = []
    for form in forms:
        write(form, file, oracle.directory)
        survey = original.beside(form)
        survey.measure_beside(original, stop)
        found.append(survey)
    return found


def promising(surveys: Mapping[str, Survey]) -> list[Survey]:
    """The forms that could win, best first; the original before what is hardly faster."""
    times = {name: found[1] for name, survey in surveys.items() if (found := survey.fastest) is not None}
    limit = _PROMISING * min(times.values(), default=0.0)
    shown = {name: ms / _CLEARLY if name == ORIGINAL else ms for name, ms in times.items()}
    return [surveys[name] for name in sorted(times, key=lambda name: shown[name]) if times[name] <= limit]


def rewritten_singles(surveys: Iterable[Survey]) -> tuple[Challenger, ...]:
    """The fastest single backend on each rewritten form. All of them race: a survey is too coarse to leave one out, and who is
    clearly beaten retires early."""
    found: list[Challenger] = []
    for survey in surveys:
        form, fastest = survey.form, survey.fastest
        if form.name != ORIGINAL and fastest is not None:
            division = ((form.graph.everything.bits, fastest[0]),)
            name = contest.division_name(division, form.name)
            found.append(Challenger(name, division, form.predicted_ms, form.name))
    return tuple(found)
