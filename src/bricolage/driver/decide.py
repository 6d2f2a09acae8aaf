"""The decision for one shape bucket: its stages in order, and what they have found as a part of the plan."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from bricolage.base.deadline import Deadline
from bricolage.driver.agenda import Agenda, Item
from bricolage.driver.describe import planned_regions
from bricolage.driver.final_race import FinalRace, RaceResult, find_evidence, race_result
from bricolage.driver.items import items
from bricolage.driver.provisional import Continuation
from bricolage.driver.session import Session
from bricolage.driver.stage import Runner, Stage, StageTime
from bricolage.driver.stages.continuing import EarlierDecision
from bricolage.driver.stages.profiling import Baselines, Reference
from bricolage.driver.state import Challenger, DecisionState
from bricolage.errors import NotAccurate
from bricolage.measure.statistics import Ratio, UncertainValue
from bricolage.measure.time_taken import TimeTaken
from bricolage.plan.accuracy_record import JudgedAccuracy, Verification
from bricolage.plan.agenda_record import AgendaItem
from bricolage.plan.decision_record import DecisionRecord, ModelUse
from bricolage.plan.plan import Bucket
from bricolage.plan.race_outcome import Contestant, Quality, RaceOutcome
from bricolage.plan.shipped_program import ShippedProgram
from bricolage.rewrite.variants import GraphVariant
from bricolage.work.implementation import Implementation


def decide(
    session: Session,
    variants: Sequence[GraphVariant],
    inputs: Mapping[str, np.ndarray],
    digest: str,
    without: Collection[str] = (),
    first: Sequence[Implementation] = (),
    earlier: Continuation | None = None,
) -> Bucket:
    """Decides how to run a graph, given as its `variants`, the original first, whose files the session's store holds.
    `digest` is that of the model with its weights. Items of the agenda whose names are in `without` are not tried, and the
    baselines are `first` where there are several. `earlier`: what it goes on with. Sizes and the origin of the inputs are the
    caller's to add.

    Raises:
        NoBackend, NoPlacement: nothing installed can run it.
        NotAccurate: nothing that can is accurate enough.
    """
    state = DecisionState(session, list(variants), inputs, digest)
    settled: set[str] = set()

    def list_open_items(state: DecisionState) -> list[Item]:
        offered = [item for item in items(state) if item.name not in without]
        settled.update(item.name for item in offered if earlier is not None and earlier.settles(item))
        return [item for item in offered if item.name not in settled]

    earlier_stages = [EarlierDecision(earlier)] if earlier is not None else []
    bucket = _conclude(
        session, [Reference(first=first), Baselines(first=first), *earlier_stages, Agenda(list_open_items)], state
    )
    if earlier is None:
        return bucket
    agenda = (*earlier.settled(settled), *bucket.record.agenda)
    return replace(bucket, record=replace(bucket.record, agenda=agenda))


def compete(
    session: Session,
    variants: Sequence[GraphVariant],
    inputs: Mapping[str, np.ndarray],
    digest: str,
    challengers: Sequence[Challenger],
    *,
    varied: bool = True,
) -> Bucket:
    """Only the race: every baseline and the given challengers, checked on variations of the inputs too unless they are not
    `varied`. Arguments and errors as `decide`."""
    state = DecisionState(session, list(variants), inputs, digest)
    state.challenge(*challengers)
    return _conclude(session, [Reference(varied=varied), Baselines(every=True)], state)


def _conclude(session: Session, stages: Sequence[Stage[DecisionState]], state: DecisionState) -> Bucket:
    deadline = session.budget.start(TimeTaken(session.device.cores))
    times = Runner([*stages, FinalRace()]).run(state, deadline)
    result = race_result(state)
    if result is None:
        raise NotAccurate(error=float("inf"), bound=state.oracle.bound)
    return _describe_decision(state, result, times, deadline)


def _describe_decision(
    state: DecisionState, result: RaceResult, times: Sequence[StageTime], deadline: Deadline
) -> Bucket:
    return Bucket(
        _shipped_program(state, result),
        _race_outcome(state, result, deadline),
        Verification(
            original_error=state.oracle.original_error,
            bound=state.oracle.bound,
            without_float64=tuple(sorted(state.oracle.borrowed)),
            accuracy=_accuracy(state, result),
            quantised=tuple(state.quantised),
        ),
        _decision_record(state, result, times, deadline),
    )


def _shipped_program(state: DecisionState, result: RaceResult) -> ShippedProgram:
    variant, search = state.timed_variants[result.variant], state.searches.get(result.variant)
    predictor = search.predictor if search is not None else None
    one_by_one = len(result.placement) > 1 and result.schedule is None
    timeline = predictor.timeline(result.placement) if predictor is not None and one_by_one else None
    return ShippedProgram(
        sizes={},
        graph=state.session.store.graph(variant.graph),
        operators=len(variant.graph),
        regions=planned_regions(variant, result.placement, predictor, result.starts_ms),
        peak_bytes=dict(timeline.peak_bytes) if timeline is not None else {},
        variant=result.variant,
        rules=variant.graph_variant.rules,
        steps=variant.graph_variant.steps,
        rewrite_config=variant.graph_variant.rewrite_config,
        schedule=result.schedule,
        tuned=tuple(
            state.tuned[implementation]
            for implementation in dict.fromkeys(assignment.implementation for assignment in result.placement)
            if implementation in state.tuned
        ),
    )


def _race_outcome(state: DecisionState, result: RaceResult, deadline: Deadline) -> RaceOutcome:
    return RaceOutcome(
        chosen=result.chosen,
        contestants=tuple(_on_samples(state, contestant) for contestant in result.contestants),
        best_baseline=result.best_baseline,
        speedup_vs_baseline=result.speedup.value,
        speedup_ci=(result.speedup.low, result.speedup.high),
        significant=result.significant,
        quality=_quality(state, result),
        decided_by=result.decided_by,
        disturbance=replace(state.session.disturbance, given_back_s=round(deadline.given_back, 3)),
        best_other=result.best_other,
        pattern=result.pattern,
        other_pattern=result.other_pattern,
    )


def _proposal(state: DecisionState, result: RaceResult) -> Challenger | None:
    """The plan that the additive model is judged on: what ships; where another contestant does, the first that was predicted and
    timed."""
    timed = {c.name for c in result.contestants if c.median_ms is not None}
    predicted = (c for c in state.challengers if c.name in timed and c.predicted_ms is not None)
    return next((c for c in state.challengers if c.name == result.chosen), next(predicted, None))


def _quality(state: DecisionState, result: RaceResult) -> Quality:
    medians = {c.name: c.median_ms for c in result.contestants if c.median_ms is not None}
    tried = [ms for search in state.searches.values() for ms in search.measured_ms]
    baselines = [c.median_ms for c in result.contestants if c.kind == "baseline" and c.median_ms is not None]
    losses = assess(medians[result.chosen], baselines_ms=baselines, everything_ms=[*medians.values(), *tried])
    proposal = _proposal(state, result)
    if proposal is None or not proposal.predicted_ms:
        return losses
    model = assess(medians[proposal.name], predicted_ms=proposal.predicted_ms)
    return replace(losses, additive_error=model.additive_error)


def _decision_record(
    state: DecisionState, result: RaceResult, times: Sequence[StageTime], deadline: Deadline
) -> DecisionRecord:
    search, proposal = state.searches.get(result.variant), _proposal(state, result)
    names = dict.fromkeys(stage.name for stage in times)
    return DecisionRecord(
        predicted_ms=proposal.predicted_ms if proposal is not None else None,
        transfers=search.transfers if search is not None else (),
        proof=search.proof if search is not None else None,
        seconds={name: round(sum(stage.seconds for stage in times if stage.name == name), 3) for name in names},
        shares={time.name: round(time.share, 3) for time in times},
        interrupted=deadline.interrupted,
        model_use=_model_use(state),
        model_error=state.calibration_error,
        attempts=tuple(state.attempts),
        agenda=tuple(_with_race(state, item) for item in state.agenda),
    )


def _with_race(state: DecisionState, item: AgendaItem) -> AgendaItem:
    """An item of the agenda with what its best candidate gained by the race, or by all that was measured of the two before it."""
    ran, names = state.race, (item.candidate, item.incumbent)
    if not item.candidate:
        return item
    ratio: Ratio | UncertainValue | None = None
    if ran is not None and all(name in ran.costs for name in names):
        ratio = ran.ratio(*names, through=ran.incumbent)
    if ratio is None:
        candidate, incumbent = (find_evidence(state, name) for name in names)
        ratio = candidate.speedup(incumbent) if candidate is not None and incumbent is not None else None
    if ratio is None:
        return item
    gained, low, high = (1.0 - 1.0 / speedup for speedup in (ratio.value, ratio.low, ratio.high))
    return replace(item, gained=gained, interval=(low, high))


def _on_samples(state: DecisionState, one: Contestant) -> Contestant:
    """A contestant with what it reached on samples that are held back."""
    challenger = next((c for c in state.challengers if c.name == one.name), None)
    variant = state.original if challenger is None else state.timed_variants[challenger.variant]
    held = variant.oracle.held_back
    if held is None or (challenger is None and one.implementation is None):
        return one
    if challenger is not None:
        spec = variant.placement_spec(challenger.placement, challenger.cores)
    else:
        assert one.implementation is not None
        spec = variant.whole_spec(one.implementation)
    accuracy = held.reached.get(replace(spec, kept=True)) or held.reached.get(spec)
    return one if accuracy is None else replace(one, reached=accuracy.value, held_back_error=accuracy.error)


def _accuracy(state: DecisionState, result: RaceResult) -> JudgedAccuracy | None:
    """What was asked for on samples that are held back, and what the one that ships reached."""
    variant = state.timed_variants[result.variant]
    held = variant.oracle.held_back
    if held is None:
        return None
    shipped = next(
        (_on_samples(state, contestant) for contestant in result.contestants if contestant.name == result.chosen), None
    )
    demand = held.data.demand
    return JudgedAccuracy(
        state.session.options.accuracy,
        demand.name,
        demand.limit,
        demand.at_least,
        len(held.reference),
        held.data.origin,
        None if shipped is None else shipped.reached,
    )


def _model_use(state: DecisionState) -> ModelUse | None:
    """None where nothing was decided by predictions."""
    session = state.session
    chose = session.profile.baselines is not None
    used = [variant for variant in state.timed_variants.values() if variant.left_out] or [state.original] * chose
    if not used:
        return None
    return ModelUse(
        session.costs_title,
        sum(len(variant.left_out) for variant in used),
        sum(len(group.implementations) for variant in used for group in variant.candidates.groups),
        tuple(sorted({str(implementation) for variant in used for implementation in variant.forecast.unknown})),
    )


def assess(
    measured_ms: float,
    *,
    predicted_ms: float | None = None,
    baselines_ms: Iterable[float] = (),
    everything_ms: Iterable[float] = (),
) -> Quality:
    """The quality of a plan that takes `measured_ms` end to end, by Collage's three measures.

    Their names come from the RFC that brought Collage to TVM (rfcs/0062). All are signed ratios minus one, so 0.02 reads as 2 %.

    `predicted_ms` is its total in the additive model, boundaries included; `baselines_ms` are the times of the single
    backends, and `everything_ms` those of all other contestants and plans measured in the same regime. All times in ms;
    infinite ones (failures) are passed over.
    Raises ValueError unless every time is positive.
    """
    baselines = [_positive(value) for value in baselines_ms if value != math.inf]
    everything = [_positive(value) for value in everything_ms if value != math.inf]
    measured = _positive(measured_ms)
    return Quality(
        additive_error=None if predicted_ms is None else _positive(predicted_ms) / measured - 1.0,
        apparent_loss=measured / min(baselines) - 1.0 if baselines else None,
        optimality_loss=measured / min((measured, *baselines, *everything)) - 1.0,
    )


def _positive(value: float) -> float:
    if not 0.0 < value < math.inf:
        raise ValueError(f"a time must be positive and finite, not {value}")
    return value
