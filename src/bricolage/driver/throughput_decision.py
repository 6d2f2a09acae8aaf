"""Deciding for throughput: from a model to an operating point, with the shape buckets that its batches need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from bricolage.base.budget import DecisionBudget
from bricolage.base.codec import DecodeError, decode, encode
from bricolage.base.deadline import Deadline
from bricolage.device.device import Device
from bricolage.device.host import select_device
from bricolage.driver.batch_sizes import BatchedModel, batch_sizes, bound_to_rows
from bricolage.driver.bucket_decision import decide_bucket, decision_key
from bricolage.driver.context import DecisionContext
from bricolage.driver.describe import planned_regions
from bricolage.driver.operating_point_search import NotBatched, Place, ThroughputSearch
from bricolage.driver.promising_variants import made_again, write_variant_files
from bricolage.driver.serving import ServingCandidate, usable_cores
from bricolage.driver.session import Session
from bricolage.driver.sources import Source
from bricolage.driver.stage import Runner, Stage
from bricolage.errors import BadOption, ForeignPlan
from bricolage.graph.extract import graph_of
from bricolage.measure.log import MeasurementLog
from bricolage.measure.time_taken import TimeTaken
from bricolage.plan.accuracy_record import Verification
from bricolage.plan.decision_record import DecisionRecord
from bricolage.plan.operating_point import LONGEST_DELAY_MS, OperatingPoint
from bricolage.plan.plan import Bucket, Plan
from bricolage.plan.race_outcome import Contestant, RaceOutcome
from bricolage.plan.shipped_program import ORIGINAL, ShippedProgram
from bricolage.plan.throughput import Throughput
from bricolage.rewrite.variants import GraphVariant
from bricolage.runtime.programs import placement_of


@dataclass(frozen=True)
class Decision:
    """How requests are served: the buckets of the batch sizes up to that of the operating point, and the evidence."""

    buckets: tuple[Bucket, ...]
    throughput: Throughput
    point: OperatingPoint


def decide_throughput(context: DecisionContext, opened: Source) -> Decision:
    """The operating point, found again or decided.

    Raises:
        As `optimize`.
    """
    options, device, base = context.options, context.device, opened.buckets[0]
    sizes = batch_sizes(opened, options)
    key = decision_key(opened, base, options, context.backends, device, sizes)
    recalled = None if context.replan else _recall_decision(opened, context.database.get_race(key))
    if recalled is not None:
        return recalled
    # The decisions for streams within it have time given back, too: theirs is no more than this one's.
    budget = DecisionBudget.of(options, len(base.graph))
    deadline = budget.start(TimeTaken(device.cores))
    session = context.session(opened, base.graph, budget=budget)
    model = BatchedModel(opened, session)
    search = ThroughputSearch(session, model.at, sizes, options.latency_limit_ms)
    placed: dict[str, Bucket] = {}

    def place(candidate: ServingCandidate, time: Deadline) -> ServingCandidate | None:
        """A decision for latency, on the cores of one stream."""
        left = time.left  # read once: a Ctrl-C makes it 0
        if left < budget.shares.throughput.placing_s:
            return None
        group = candidate.point.groups(device.cores, usable_cores(session))[0]
        cores = options.cores if len(group) == len(device.cores) else group
        stream_options = replace(
            options, objective="latency", latency_limit_ms=None, shapes={}, threads=candidate.threads
        )
        stream_options = replace(stream_options, cores=cores, budget_s=left)
        given, on = model.given(candidate.batch.rows), select_device(options.isa, cores)
        log = MeasurementLog()
        bucket = decide_bucket(
            replace(context, options=stream_options, device=on, replan=False), given, given.buckets[0], log
        )
        session.measurer.log.lost += log.lost
        plan_candidate = _make_placed_candidate(candidate, bucket, device, session.store.directory)
        if plan_candidate is not None:
            placed[plan_candidate.name] = bucket
        return plan_candidate

    throughput = search_within(search, deadline, place)
    decision = _decision(search, throughput, model, opened, device, placed)
    if not (session.measurer.log.lost or deadline.interrupted):
        context.database.put_race(key, encode(decision))
    return decision


def compare_operating_points(
    context: DecisionContext, opened: Source, plans: Sequence[tuple[str, Plan, Path]]
) -> tuple[Bucket, Throughput]:
    """Every backend in every layout against plans, each at its own operating point: given by name, with the folders of their
    artifacts. Nothing is decided. The bucket is that of the smallest batch.

    Raises:
        ForeignPlan: a plan is for another model, or other sizes.
        As `optimize`.
    """
    options, base = context.options, opened.buckets[0]
    budget = DecisionBudget.of(options, len(base.graph))
    deadline = Deadline(budget.total_s)
    session = context.session(opened, base.graph, budget=budget)
    model = BatchedModel(opened, session)
    sizes = batch_sizes(opened, options)
    search = ThroughputSearch(session, model.at, sizes, options.latency_limit_ms)
    entered = [_make_plan_candidate(name, plan, folder, model, session) for name, plan, folder in plans]
    throughput = search_within(search, deadline, None, entered)
    bucket = _bucket(search, sizes[0], search.tried[throughput.chosen].candidate)
    return base.complete_decision(bucket, model.origin), replace(throughput, batch_dimension=opened.batch)


def _make_plan_candidate(
    name: str, plan: Plan, folder: Path, model: BatchedModel, session: Session
) -> ServingCandidate:
    """A plan at its operating point, as a candidate."""
    point = plan.operating_point or OperatingPoint(threads=usable_cores(session))
    sizes = dict(model.prepared(point.batch).sizes)
    bucket = next(
        (planned_bucket for planned_bucket in plan.buckets if dict(planned_bucket.program.sizes) == sizes), None
    )
    if bucket is None:
        raise ForeignPlan(name=name, difference=f"it has no bucket for {sizes or 'fixed shapes'}")
    batch = model.at(point.batch)
    graph = batch.variant.graph
    if bucket.program.variant != ORIGINAL:
        graph = graph_of(folder / bucket.program.graph)
        write_variant_files(GraphVariant(f"{bucket.program.variant} {name}", graph), session.store)
    if len(graph) != bucket.program.operators:
        raise ForeignPlan(
            name=name, difference=f"it has {bucket.program.operators} operators where the model has {len(graph)}"
        )
    placement = placement_of(bucket)
    return ServingCandidate(name, "plan", batch, graph, placement, point.streams, point.threads)


@dataclass
class _Serving:
    """The state of a decision: the search, what it is given, and what it finds."""

    search: ThroughputSearch
    place: Place | None
    """Decides placements; None where nothing is decided."""
    entered: Sequence[ServingCandidate]
    """From elsewhere."""
    budget: DecisionBudget
    found: Throughput | None = None


class _Exploring(Stage[_Serving]):
    """Single backends, in layouts of streams and batches.

    Raises (when run):
        BadOption: requests cannot be put together.
        KeyboardInterrupt: nothing was measured before a Ctrl-C.
        As `ThroughputSearch`.
    """

    name: ClassVar[str] = "single backends"

    def run(self, state: _Serving, deadline: Deadline) -> None:
        """Tries them; where placements come after, for a part of the time."""
        try:
            given = deadline if state.place is None else deadline.at_most(state.budget.serving_s("exploring"))
            state.search.explore(given)
        except NotBatched as reason:
            advice = f"Requests cannot be put together: {reason}. Leave the size out, or make it 1"
            raise BadOption(option="--shape", value=f"batches of {state.search.sizes[0]}", advice=advice) from None
        except KeyboardInterrupt:
            if not state.search.tried:
                deadline.interrupted = True  # there is nothing to finish with: this one ends the decision
            raise


class _Entering(Stage[_Serving]):
    """Plans that are given."""

    name: ClassVar[str] = "given plans"

    def run(self, state: _Serving, deadline: Deadline) -> None:
        """Measures them, whatever the clock says."""
        del deadline
        state.search.enter(state.entered)


class _PlacingStreams(Stage[_Serving]):
    """Decisions for latency on the cores of one stream."""

    name: ClassVar[str] = "placements of a stream"

    def run(self, state: _Serving, deadline: Deadline) -> None:
        """Makes them, where anything is to be decided."""
        if state.place is not None:
            state.search.place(state.place, deadline)


class _ServingRace(Stage[_Serving]):
    """The race of operating points."""

    name: ClassVar[str] = "race"
    adds: ClassVar[frozenset[str]] = frozenset({"found"})

    def share(self, state: _Serving) -> float:
        """Never given to anybody else."""
        return state.budget.serving_s("racing")

    def run(self, state: _Serving, deadline: Deadline) -> None:
        """Holds it; after a Ctrl-C what was measured decides."""
        state.found = state.search.decide(deadline)


def search_within(
    search: ThroughputSearch, deadline: Deadline, place: Place | None, entered: Sequence[ServingCandidate] = ()
) -> Throughput:
    """All of a search in some time: single backends, placements where there is `place`, and what was `entered` from elsewhere.
    After a Ctrl-C what was measured decides.

    Raises:
        As `ThroughputSearch`; KeyboardInterrupt: nothing was measured yet.
    """
    state = _Serving(search, place, entered, search.session.budget.within(deadline.left))
    Runner([_Exploring(), _Entering(), _PlacingStreams(), _ServingRace()]).run(state, deadline)
    return state.found if state.found is not None else search.decide(deadline)


def _make_placed_candidate(
    candidate: ServingCandidate, bucket: Bucket, device: Device, folder: Path
) -> ServingCandidate | None:
    """What a decision for latency ships, as a candidate with the same operating point; None where it is one backend on the
    original, which has been tried."""
    if bucket.race.chosen == bucket.race.best_baseline:
        return None
    graph = graph_of(folder / bucket.program.graph)
    return replace(
        candidate, program=bucket.race.chosen, kind="plan", graph=graph, placement=placement_of(_on(bucket, device))
    )


def _on(bucket: Bucket, device: Device) -> Bucket:
    """The bucket with its regions on a device: it was decided on the cores of one stream, and holds for those of any."""
    regions = tuple(
        replace(region, implementation=replace(region.implementation, device=device.name))
        for region in bucket.program.regions
    )
    return bucket.with_regions(regions, bucket.program.schedule)


def _decision(
    search: ThroughputSearch,
    throughput: Throughput,
    model: BatchedModel,
    opened: Source,
    device: Device,
    placed: Mapping[str, Bucket],
) -> Decision:
    """The buckets of all batch sizes that were tried up to the chosen one, and the operating point."""
    winner = throughput.winner
    chosen = search.tried[winner.name].candidate
    sizes = sorted({trial.candidate.batch.rows for trial in search.tried.values()})
    buckets = []
    for rows in (size for size in sizes if size <= winner.batch):
        if rows == winner.batch and winner.name in placed:
            bucket = _on(placed[winner.name], device)
        else:
            bucket = _bucket(search, rows, chosen)
        buckets.append(model.prepared(rows).complete_decision(bucket, model.origin))
    limit = throughput.latency_limit_ms
    room = LONGEST_DELAY_MS if limit is None else max(0.0, limit - (winner.p99_ms or 0.0))
    delay = 0.0 if winner.batch == 1 else min(winner.p50_ms or 0.0, room, LONGEST_DELAY_MS)
    point = replace(chosen.point, max_delay_ms=round(delay, 3))
    return Decision(tuple(buckets), replace(throughput, batch_dimension=opened.batch), point)


def _bucket(search: ThroughputSearch, rows: int, chosen: ServingCandidate) -> Bucket:
    """A bucket that a single backend runs: the chosen one, else the best one at this size."""
    here = [
        trial
        for trial in search.tried.values()
        if trial.candidate.batch.rows == rows and trial.candidate.kind == "copies"
    ]
    right = sorted((trial for trial in here if trial.served.rate), key=lambda trial: -(trial.served.rate or 0.0))
    ours = [trial for trial in right if trial.candidate.program == chosen.program]
    best = next((server for server in ours if server.candidate.threads == chosen.threads), (ours or right)[0])
    variant = best.candidate.batch.variant
    oracle = variant.oracle
    contestants = tuple(
        Contestant(
            name=trial.candidate.name,
            kind="baseline",
            median_ms=trial.served.p50_ms,
            ci_ms=None,
            error=trial.served.cost.error,
            accepted=trial.served.p50_ms is not None,
            reason=trial.served.cost.reason,
            compile_s=trial.served.cost.compile_s,
            implementation=trial.candidate.implementation,
        )
        for trial in here
    )
    (region,) = planned_regions(variant, best.candidate.placement, None)
    region = replace(region, cost_ms=best.served.p50_ms, measured=True, alternatives=())
    race = RaceOutcome.unraced(best.candidate.name, contestants)
    disturbance = search.session.disturbance
    borrowed = tuple(sorted(oracle.borrowed))
    return Bucket(
        ShippedProgram({}, search.session.store.graph(variant.graph), len(variant.graph), (region,)),
        replace(race, decided_by="prior evidence", disturbance=disturbance),
        Verification(oracle.original_error, oracle.bound, without_float64=borrowed),
        DecisionRecord(None),
    )


def _recall_decision(opened: Source, stored: object | None) -> Decision | None:
    """A stored decision with the graphs of its buckets; None where there is none that holds."""
    if stored is None:
        return None
    try:
        decision = decode(Decision, stored)
    except DecodeError:  # written by another build of the same version: decide again
        return None
    buckets = []
    for bucket in decision.buckets:
        variant = made_again(bucket, bound_to_rows(opened, bucket.program.sizes.get(opened.batch, 1)).graph)
        if variant is None:
            return None
        if variant.name != ORIGINAL:
            write_variant_files(variant, opened.store)
        program = replace(bucket.program, graph=opened.store.graph(variant.graph))
        buckets.append(replace(bucket, program=program))
    return replace(decision, buckets=tuple(buckets))
