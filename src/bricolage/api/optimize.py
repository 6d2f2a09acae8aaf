"""`optimize`: from a model to the fastest verified way to run it on this machine."""

from __future__ import annotations

import datetime
import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bricolage import scratch
from bricolage._version import __version__
from bricolage.api.sources import (
    Prepared,
    Source,
    measuring_inputs,
    open_source,
    tensor_specs,
    working_folder,
)
from bricolage.backends import registry
from bricolage.backends.interface import Backend
from bricolage.cache import trim
from bricolage.codec import DecodeError, decode, encode
from bricolage.device.device import Device
from bricolage.device.host import selected
from bricolage.driver.decide import decide
from bricolage.driver.profile import Session
from bricolage.driver.variants import made_again, write
from bricolage.graph.identity import Identities
from bricolage.measure.database import Database
from bricolage.measure.loading import Limits
from bricolage.measure.measurer import Measurer
from bricolage.measure.pool import Pool
from bricolage.measure.rounds import TimingPolicy
from bricolage.measure.selfcheck import self_checked
from bricolage.options import Options
from bricolage.plan.plan import ORIGINAL, Bucket, Plan, Provenance
from bricolage.progress import Progress, Silent
from bricolage.rewrite.variants import GraphVariant, rewritten_variants
from bricolage.runtime.executable import Executable

_LOG = logging.getLogger(__name__)


def optimize(
    source: Any,
    options: Options | None = None,
    *,
    example_inputs: Any = None,
    dynamic: Any = None,
    inputs: Mapping[str, np.ndarray] | None = None,
    replan: bool = False,
    progress: Progress | None = None,
) -> Executable:
    """The fastest verified way to run a model on this machine, as an executable with its plan.

    Args:
        source: path of an ONNX file or of an artifact, an `onnx.ModelProto`, an `onnx_ir.Model`, a `torch.nn.Module` with
            `example_inputs`, or a `torch.export.ExportedProgram`.
        options: precision, effort, threads, shapes ...
        example_inputs: for a module, its arguments; they also serve for measuring unless `inputs` are given.
        dynamic: for a module, its `dynamic_shapes` (see `torch.export.export`).
        inputs: real inputs by name for measuring and verifying; by default inputs are generated.
        replan: decide afresh even when the decision for the same model, options, versions and hardware is known. Costs that
            were measured are used again, failures that may have been bad luck are not.
        progress: is told what happens, and hears of every shape bucket as soon as it is decided.

    Raises:
        UsageError: bad model, input or option.
        NoBackend, NoPlacement: nothing installed can run it.
        NotAccurate: nothing reaches the accuracy asked for.
        NotWritable: the cache's disk is full or cannot be written.

    Ctrl-C while measuring keeps what is finished and returns the best plan so far; a second one gives up.
    """
    options, progress = options or Options(), progress or Silent()
    options.check_here()
    backends, device = registry.available(options.backends), selected(options.isa, options.cores)
    directory = working_folder()
    with scratch.using(directory, keep=True):
        opened = open_source(source, options, directory, example_inputs=example_inputs, dynamic=dynamic, given=inputs)
        decided: list[Bucket] = []
        with Database() as database:
            for bucket in opened.buckets:
                decided.append(_decide(opened, bucket, options, backends, device, replan, progress, database))
                progress.decided(decided[-1])
    for path in directory.glob("*.npz"):
        path.unlink(missing_ok=True)  # only measuring needed them
    trim()
    return Executable(make_plan(opened, decided, options, backends, device), directory, temporary=True)


def make_plan(
    opened: Source, decided: Sequence[Bucket], options: Options, backends: Sequence[Backend], device: Device
) -> Plan:
    """The decisions for all buckets, with where they come from."""
    return Plan(
        model=opened.name,
        digest=opened.digest,
        inputs=tensor_specs(opened.model.graph.inputs, opened.model),
        outputs=tensor_specs(opened.model.graph.outputs, opened.model),
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
    """The worker processes of one run."""
    return Pool(options.memory_limit_mb << 20 if options.memory_limit_mb else None)


def open_session(
    options: Options,
    backends: Sequence[Backend],
    device: Device,
    database: Database,
    pool: Pool,
    opened: Source,
    operators: int,
    progress: Progress,
    *,
    retrying: bool = False,
) -> Session:
    """What a decision for a graph of so many operators is made with: the limits and rounds of the effort. `retrying`: as
    for `Measurer`."""
    measurer = Measurer(
        database,
        pool,
        opened.store.directory,
        limits=Limits(compile_s=options.compile_limit(operators)),
        policy=TimingPolicy(rounds=options.profile.rounds),
        cores=device.threads,
        retrying=retrying,
    )
    return Session(options, tuple(backends), device, measurer, opened.store, progress)


def _decide(
    opened: Source,
    bucket: Prepared,
    options: Options,
    backends: Sequence[Backend],
    device: Device,
    replan: bool,
    progress: Progress,
    database: Database,
) -> Bucket:
    key = decision_key(opened, bucket, options, backends, device)
    known = None if replan else _known_decision(database, key)
    if known is not None and (made := made_again(known, bucket.graph)) is not None:
        if made.name != ORIGINAL:
            write(made, opened.store)
        return replace(known, graph=opened.store.graph(made.graph))
    variants = [GraphVariant(ORIGINAL, bucket.graph), *(rewritten_variants(bucket.graph) if options.rewrite else ())]
    for variant in variants[1:]:
        write(variant, opened.store)
    arrays, origin = measuring_inputs(opened, bucket.graph, options)
    checked = self_checked(backends, [bucket.graph], progress, retrying=replan)
    with open_pool(options) as pool:
        size = len(bucket.graph)
        session = open_session(options, checked, device, database, pool, opened, size, progress, retrying=replan)
        found = decide(session, variants, arrays, opened.digest)
    decision = replace(found, sizes=dict(bucket.sizes), inputs_from=origin)
    if pool.losses:
        _LOG.warning(
            "worker processes were ended from outside or by --memory-limit: the same command decides once more"
        )
    elif not decision.interrupted:
        database.put_race(key, encode(decision))
    return decision


def decision_key(
    opened: Source, bucket: Prepared, options: Options, backends: Sequence[Backend], device: Device
) -> str:
    """Everything on which a decision rests, hashed. What of it is an option derives from the fields of `Options`."""
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
