"""What a decision for one shape bucket takes, and how it is kept."""

from __future__ import annotations

import datetime
import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bricolage._version import __version__
from bricolage.api.sources import Prepared, Source, measuring_inputs
from bricolage.backends import registry
from bricolage.backends.interface import Backend
from bricolage.codec import DecodeError, decode, encode
from bricolage.device.device import Device
from bricolage.device.host import selected
from bricolage.driver.decide import decide
from bricolage.driver.profile import Session
from bricolage.driver.variants import made_again, write
from bricolage.graph.graph import Graph
from bricolage.graph.identity import Identities
from bricolage.measure.database import Database
from bricolage.measure.loading import Limits
from bricolage.measure.measurer import Measurer
from bricolage.measure.pool import Pool
from bricolage.measure.reference import WorkerReference, reference_limit
from bricolage.measure.rounds import TimingPolicy
from bricolage.measure.selfcheck import self_checked
from bricolage.options import Options
from bricolage.perf.learned.installed import model_in_use
from bricolage.perf.track_record import shipped
from bricolage.plan.interface import default_specs, input_specs, output_specs
from bricolage.plan.plan import ORIGINAL, Bucket, Plan, Provenance
from bricolage.progress import Progress
from bricolage.rewrite.variants import GraphVariant, rewritten_variants
from bricolage.verify.oracle import JUDGEMENT
from bricolage.verify.reference import Evaluate

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


def open_pool(options: Options) -> Pool:
    """The worker processes of one run, and the nodes of a cluster where one is named.

    Raises:
        MissingLibrary, UnreachableCluster, NoMeasuringNode: the cluster cannot be used.
    """
    limit = options.memory_limit_mb << 20 if options.memory_limit_mb else None
    pool = Pool(limit)
    if options.ray is not None:
        from bricolage.measure.scale_out.cluster import Cluster  # few have one

        try:
            pool.scale_out(Cluster(options.ray, selected(options.isa, options.cores), limit))
        except BaseException:
            pool.close()
            raise
    return pool


def open_reference(opened: Source, graph: Graph, options: Options, device: Device, pool: Pool) -> WorkerReference:
    """What computes the references of a graph and its regions: a worker with limits of time and memory."""
    limit_s = reference_limit(graph, options.budget(len(graph)))
    return WorkerReference(pool, device, opened.store.directory, limit_s)


def open_session(
    options: Options,
    backends: Sequence[Backend],
    device: Device,
    database: Database,
    pool: Pool,
    opened: Source,
    operators: int,
    progress: Progress,
    evaluate: Evaluate,
    *,
    retrying: bool = False,
) -> Session:
    """What a decision for a graph of so many operators is made with: the limits and rounds of the effort, and what computes
    references. `retrying`: as for `Measurer`."""
    measurer = Measurer(
        database,
        pool,
        opened.store.directory,
        limits=Limits(compile_s=options.compile_limit(operators)),
        policy=TimingPolicy(rounds=options.profile.rounds),
        cores=device.threads,
        retrying=retrying,
    )
    costs = model_in_use() if options.predict else None
    return Session(options, tuple(backends), device, measurer, opened.store, progress, evaluate, opened.digest, costs)


def decide_bucket(
    opened: Source,
    bucket: Prepared,
    options: Options,
    backends: Sequence[Backend],
    device: Device,
    replan: bool,
    progress: Progress,
    database: Database,
    pool: Pool,
) -> Bucket:
    """The decision for one shape bucket, found again or made. Nothing that was loaded in the workers before is kept.

    Raises:
        As `optimize`.
    """
    key = decision_key(opened, bucket, options, backends, device)
    known = None if replan else _known_decision(database, key)
    if known is not None and (made := made_again(known, bucket.graph)) is not None:
        if made.name != ORIGINAL:
            write(made, opened.store)
        return replace(known, graph=opened.store.graph(made.graph))
    variants = [GraphVariant(ORIGINAL, bucket.graph), *(rewritten_variants(bucket.graph) if options.rewrite else ())]
    for variant in variants[1:]:
        write(variant, opened.store)
    pool.begin()
    reference = open_reference(opened, bucket.graph, options, device, pool)
    arrays, origin = measuring_inputs(opened, bucket.graph, options, reference)
    checked = self_checked(backends, [bucket.graph], progress, retrying=replan)
    size = len(bucket.graph)
    session = open_session(options, checked, device, database, pool, opened, size, progress, reference, retrying=replan)
    found = decide(session, variants, arrays, opened.digest)
    decision = replace(found, sizes=dict(bucket.sizes), overridden=dict(bucket.overridden), inputs_from=origin)
    if pool.losses:
        _LOG.warning(
            "worker processes were ended from outside or by --memory-limit: the same command decides once more"
        )
    elif not decision.interrupted:
        database.put_race(key, encode(decision))
    return decision


def decision_key(
    opened: Source,
    bucket: Prepared,
    options: Options,
    backends: Sequence[Backend],
    device: Device,
    batches: Sequence[int] = (),
) -> str:
    """Everything on which a decision rests, hashed. What of it is an option derives from the fields of `Options`. `batches`: for
    throughput, the batch sizes to try."""
    given = None
    if opened.inputs is not None:
        given = {name: hashlib.sha256(np.asarray(array).tobytes()).hexdigest() for name, array in opened.inputs.items()}
    facts = {
        "graph": Identities(bucket.graph).key(bucket.graph.everything),
        "model": opened.digest,
        "sizes": bucket.sizes,
        "options": encode({**options.deciding(), "shapes": None}),  # of the shapes, this bucket's sizes alone
        "inputs": given,
        "versions": {backend.name: registry.version(backend.name) for backend in backends},
        "device": device.fingerprint(),
        "bricolage": __version__,
        "judgement": JUDGEMENT,
        "record": shipped().digest,
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
