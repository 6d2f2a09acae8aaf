"""What a decision for one shape bucket takes, and how it is kept."""

from __future__ import annotations

import datetime
import hashlib
import json
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from bricolage._version import __version__
from bricolage.backends import registry
from bricolage.backends.interface import Backend
from bricolage.base.budget import DecisionBudget
from bricolage.base.codec import DecodeError, decode, encode
from bricolage.base.options import Options
from bricolage.costs.database import Database
from bricolage.costs.entries import SCHEMA
from bricolage.costs.models.learned.installed import model_in_use
from bricolage.costs.models.track_record import DecisionSubject, shipped_record
from bricolage.device.device import Device
from bricolage.driver.attempts import log_decision
from bricolage.driver.context import DecisionContext
from bricolage.driver.decide import decide
from bricolage.driver.describe import whole_model
from bricolage.driver.given_samples import samples_of
from bricolage.driver.promising_variants import made_again, write_variant_files
from bricolage.driver.provisional import Continuation, is_continued, provisional_reasons
from bricolage.driver.sources import PreparedBucket, Source
from bricolage.driver.suggesting import suggest_constants
from bricolage.graph.identity import Identities
from bricolage.measure.log import MeasurementLog
from bricolage.measure.time_taken import share_taken
from bricolage.plan.agenda_record import WHOLE
from bricolage.plan.plan import Bucket, Plan, Provenance
from bricolage.plan.planned_interface import default_specs, input_specs, output_specs
from bricolage.plan.shipped_program import ORIGINAL
from bricolage.rewrite.variants import GraphVariant
from bricolage.verify.accuracy_measures import AccuracyDemand
from bricolage.verify.held_back import GivenSamples
from bricolage.verify.named_arrays import digest
from bricolage.verify.oracle import JUDGEMENT
from bricolage.work.implementation import Implementation

_LOG = logging.getLogger(__name__)


def make_plan(
    opened: Source, decided: Sequence[Bucket], options: Options, backends: Sequence[Backend], device: Device
) -> Plan:
    """The decisions for all buckets, with where they come from."""
    return Plan(
        model=opened.name,
        digest=opened.digest,
        inputs=input_specs(opened.model),
        defaults=default_specs(opened.model),
        constants=opened.constants,
        outputs=output_specs(opened.model),
        buckets=tuple(decided),
        provenance=Provenance(
            bricolage=__version__,
            versions={backend.name: registry.version(backend.name) for backend in backends},
            fingerprint=device.fingerprint(),
            hardware=str(device),
            options=options,
            created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        ),
    )


_REACH = 2.0
"""A baseline that took that many times longer than the fastest on a looser target is not measured on a tighter one."""
_SHARE = 0.5
"""Of the budget, for a target that starts from its parent's decision."""


@dataclass(frozen=True)
class Start:
    """What a decision starts from in addition to the model: a decision for a looser target, and a limit that costs do not know."""

    without: frozenset[str] = frozenset()
    """Items of the agenda that gained nothing there, or were out of reach."""
    first: tuple[Implementation, ...] = ()
    """The baselines within reach there."""
    budget: float = 1.0
    """Share of the budget that it has."""
    memory_mb: int | None = None

    @staticmethod
    def after(parent: Bucket, memory_mb: int | None = None, *, same_device: bool = True) -> Start:
        """Without what was measured for the parent and gained nothing, what was far slower there alone, and searches for which
        there was no time. What is left needs less of it. Where threads or the instruction set are others, who runs the whole model
        fastest may be another one: all are raced that a decision of its own would race."""
        idle = {item.name for item in parent.record.agenda if item.outcome == "measured" and item.gained <= 0.0}
        idle -= {item.name for item in parent.record.agenda if item.gained > 0.0}
        alone = [
            contestant
            for contestant in parent.race.contestants
            if contestant.kind == "baseline" and contestant.implementation and contestant.accepted
        ]
        least = min(
            (contestant.median_ms for contestant in alone if contestant.median_ms is not None), default=math.inf
        )
        near = [
            contestant
            for contestant in alone
            if contestant.median_ms is not None and contestant.median_ms <= _REACH * least
        ]
        near += [
            contestant for contestant in alone if contestant.name == parent.race.best_other and contestant not in near
        ]
        first = tuple(contestant.implementation for contestant in near if contestant.implementation is not None)
        late = {
            item.name for item in parent.record.agenda if item.outcome == "no time" and not item.name.startswith(WHOLE)
        }
        far = {
            whole_model(contestant.implementation)
            for contestant in alone
            if contestant.implementation and contestant not in near
        }
        if not same_device:
            idle = {name for name in idle if not name.startswith(WHOLE)}
            return Start(frozenset(idle | late), (), _SHARE, memory_mb)
        return Start(frozenset(idle | far | late), first, _SHARE, memory_mb)

    def key(self, decision: str) -> str:
        """Of a decision that starts so."""
        if self == Start():
            return decision
        facts = json.dumps([decision, sorted(self.without), sorted(map(str, self.first)), self.budget, self.memory_mb])
        return hashlib.sha256(facts.encode()).hexdigest()[:32]


def decide_bucket(
    context: DecisionContext,
    opened: Source,
    bucket: PreparedBucket,
    log: MeasurementLog | None = None,
    start: Start = Start(),
    spent_s: float = 0.0,
) -> Bucket:
    """The decision for one shape bucket, found again or made. What happens while it measures is written into `log`; `spent_s` of
    its seconds are over already.

    Raises:
        As `optimize`.
    """
    samples = samples_of(bucket.graph, opened.data, context.options)
    key = start.key(decision_key(opened, bucket, context.options, context.backends, context.device))
    earlier = None if context.replan else _recall_decision(context, key, bucket, samples)
    if earlier is not None and not _goes_on(context, earlier.before):
        return _as_stored(earlier, opened)
    before = None if earlier is None else earlier.before
    if before is not None:
        context.progress.start("going on with a decision that is provisional")
        context.progress.finish()
    # Where others disturbed it, what failed is tried again.
    measuring = context if before is None else replace(context, replan=before.race.under_load)
    budget = DecisionBudget.of(context.options, len(bucket.graph), start.budget, spent_s)
    session = replace(
        measuring.session(opened, bucket.graph, log, budget),
        samples=samples,
        plan_of=partial(_plan_of, context, opened, bucket),
    )
    arrays, origin = context.inputs(opened, bucket.graph, session)
    decided = decide(
        session,
        [GraphVariant(ORIGINAL, bucket.graph)],
        inputs=arrays,
        digest=opened.digest,
        without=start.without,
        first=start.first,
        earlier=earlier,
    )
    most = context.options.profile.continued
    decision = bucket.complete_decision(decided, origin)
    record = replace(
        decision.record,
        provisional=provisional_reasons(decided, before, most),
        continued=0 if before is None else before.record.continued + 1,
        constant_gains=suggest_constants(session, opened, bucket, arrays, decided),
    )
    decision = replace(decision, record=record)
    if session.measurer.log.lost:
        _LOG.warning(
            "worker processes were ended from outside or by --memory-limit: the same command decides once more"
        )
    elif not decision.record.interrupted:
        _keep(context, key, bucket, decision, opened.name)
    elif earlier is not None:  # it is no worse than what was found until now
        stored = _as_stored(earlier, opened)
        return replace(stored, record=replace(stored.record, interrupted=True))
    return decision


def _keep(context: DecisionContext, key: str, bucket: PreparedBucket, decision: Bucket, name: str) -> None:
    """Stores a decision, and what it saw in the log of decisions."""
    context.database.put_race(key, encode(decision))
    subject = DecisionSubject.of(bucket.graph, context.device)
    context.database.add_decision(log_decision(decision, subject, name))


def _plan_of(context: DecisionContext, opened: Source, prepared: PreparedBucket, decided: Bucket) -> Plan:
    """The plan of one decision for a bucket."""
    return make_plan(opened, [prepared.complete_decision(decided)], context.options, context.backends, context.device)


def _recall_decision(
    context: DecisionContext, key: str, bucket: PreparedBucket, samples: GivenSamples | None
) -> Continuation | None:
    """The decision on record, with the variant of the graph that it ships; None where there is none that holds."""
    recorded = _known_decision(context.database, key)
    variant = None if recorded is None else made_again(recorded, bucket.graph, context.options, samples)
    return None if recorded is None or variant is None else Continuation(recorded, variant)


def _goes_on(context: DecisionContext, known: Bucket) -> bool:
    """Whether a decision on record is gone on with."""
    most, look = context.options.profile.continued, partial(share_taken, context.device.cores)
    return not context.provisional and is_continued(known, most, look)


def _as_stored(earlier: Continuation, opened: Source) -> Bucket:
    """The decision on record, with the file of its graph."""
    if earlier.variant.name != ORIGINAL:
        write_variant_files(earlier.variant, opened.store)
    program = replace(earlier.before.program, graph=opened.store.graph(earlier.variant.graph))
    return replace(earlier.before, program=program)


def decision_key(
    opened: Source,
    bucket: PreparedBucket,
    options: Options,
    backends: Sequence[Backend],
    device: Device,
    batches: Sequence[int] = (),
) -> str:
    """Everything on which a decision rests, hashed. What of it is an option derives from the fields of `Options`. `batches`: for
    throughput, the batch sizes to try."""
    given = None
    if opened.inputs is not None:
        given = digest("", opened.inputs)
    facts = {
        "graph": Identities(bucket.graph).key(bucket.graph.everything),
        "model": opened.digest,
        "sizes": bucket.sizes,
        "options": encode({**options.deciding(), "shapes": None}),  # of the shapes, this bucket's sizes alone
        "inputs": given,
        "file": opened.file,
        "data": opened.data.digest,
        "metric": AccuracyDemand(options.accuracy, options.bound).digest,
        "versions": {backend.name: registry.version(backend.name) for backend in backends},
        "device": device.fingerprint(),
        "bricolage": __version__,
        "judgement": JUDGEMENT,
        "schema": SCHEMA,  # what rests on costs that are not found any more is decided again
        "record": shipped_record().digest,
        "costs": costs.digest if options.predict and (costs := model_in_use()) is not None else None,
        **({"batches": list(batches)} if batches else {}),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def _known_decision(database: Database, key: str) -> Bucket | None:
    stored = database.get_race(key)
    if stored is None:
        return None
    try:
        return decode(Bucket, stored)
    except DecodeError as error:  # written by another build of the same version: decide again
        _LOG.info("a stored decision has another graph (%s)", error)
        return None
