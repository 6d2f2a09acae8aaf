"""`optimize`: from a model to the fastest verified way to run it on this machine."""

from __future__ import annotations

import datetime
import hashlib
import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import bricolage
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
from bricolage.device.machine import this_machine
from bricolage.graph.identity import Identities
from bricolage.measure.database import Database
from bricolage.measure.loading import Limits
from bricolage.measure.measurer import Measurer
from bricolage.measure.pool import Pool
from bricolage.measure.rounds import Schedule
from bricolage.optimize import variants as forms
from bricolage.optimize.place import place
from bricolage.options import Options
from bricolage.plan.codec import DecodeError, decode, encode
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
        replan: decide afresh even when the decision for the same model, options, versions and hardware is known.
        progress: is told what happens.

    Raises:
        UsageError: bad model, input or option.
        NoBackend, NoPlacement: nothing installed can run it.
        NotAccurate: nothing reaches the accuracy asked for.

    Ctrl-C while measuring keeps what is finished and returns the best plan so far; a second one gives up.
    """
    options, progress = options or Options(), progress or Silent()
    backends = registry.available(options.backends)
    directory = working_folder()
    try:
        opened = open_source(source, options, directory, example_inputs=example_inputs, dynamic=dynamic, given=inputs)
        with Database() as database:
            decided = [
                _decide(opened, bucket, options, backends, inputs, replan, progress, database)
                for bucket in opened.buckets
            ]
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    for path in directory.glob("*.npz"):
        path.unlink(missing_ok=True)  # only measuring needed them
    trim()
    return Executable(make_plan(opened, decided, options, backends), directory, temporary=True)


def make_plan(opened: Source, decided: Sequence[Bucket], options: Options, backends: Sequence[Backend]) -> Plan:
    """The decisions for all buckets, with where they come from."""
    here = this_machine()
    return Plan(
        model=opened.name,
        digest=opened.digest,
        precision=options.precision,
        tolerance=options.tolerance,
        inputs=tensor_specs(opened.model.graph.inputs, opened.model),
        outputs=tensor_specs(opened.model.graph.outputs, opened.model),
        buckets=tuple(decided),
        provenance=Provenance(
            bricolage=bricolage.__version__,
            versions={backend.name: registry.version(backend.name) for backend in backends},
            fingerprint=here.fingerprint(),
            hardware=str(here),
            threads=options.threads,
            effort=options.effort,
            seed=options.seed,
            created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        ),
    )


def open_pool(options: Options) -> Pool:
    """The worker processes of one run."""
    return Pool(options.memory_limit_mb << 20 if options.memory_limit_mb else None)


def make_measurer(options: Options, database: Database, pool: Pool, opened: Source, operators: int) -> Measurer:
    """A measurer with the limits and rounds of the effort."""
    profile = options.profile
    return Measurer(
        database,
        pool,
        opened.directory,
        limits=Limits(compile_s=options.compile_limit(operators)),
        schedule=Schedule(rounds=profile.rounds),
        cores=options.threads,
    )


def _decide(
    opened: Source,
    bucket: Prepared,
    options: Options,
    backends: Sequence[Backend],
    inputs: Mapping[str, np.ndarray] | None,
    replan: bool,
    progress: Progress,
    database: Database,
) -> Bucket:
    key = _decision_key(opened, bucket, options, backends, inputs)
    known = None if replan else _known_decision(database, key)
    if known is not None and (made := forms.made_again(known, bucket.graph)) is not None:
        if made.name != ORIGINAL:
            forms.write(made, bucket.file, opened.directory)
        return replace(known, graph=forms.file_of(bucket.file, made.name))
    rewritten_forms = rewritten_variants(bucket.graph) if options.rewrite else ()
    for form in rewritten_forms:
        forms.write(form, bucket.file, opened.directory)
    arrays, origin = measuring_inputs(bucket.graph, options, inputs, alone=len(opened.buckets) == 1)
    with open_pool(options) as pool:
        decision = place(
            (GraphVariant(ORIGINAL, bucket.graph), *rewritten_forms),
            arrays,
            backends,
            options,
            make_measurer(options, database, pool, opened, len(bucket.graph)),
            opened.directory,
            progress,
            sizes=bucket.sizes,
            file=bucket.file,
            inputs_from=origin,
        )
    if not decision.interrupted:
        database.put_race(key, encode(decision))
    return decision


def _decision_key(
    opened: Source,
    bucket: Prepared,
    options: Options,
    backends: Sequence[Backend],
    inputs: Mapping[str, np.ndarray] | None,
) -> str:
    """Everything on which a decision rests, hashed."""
    given = None
    if inputs is not None:
        given = {name: hashlib.sha256(np.asarray(array).tobytes()).hexdigest() for name, array in inputs.items()}
    facts = {
        "graph": Identities(bucket.graph).key(bucket.graph.everything),
        "model": opened.digest,
        "sizes": bucket.sizes,
        "precision": options.precision,
        "tolerance": options.tolerance,
        "effort": options.effort,
        "budget": options.budget_s,
        "threads": options.threads,
        "seed": options.seed,
        "rewrite": options.rewrite,
        "inputs": given,
        "versions": {backend.name: registry.version(backend.name) for backend in backends},
        "hardware": this_machine().fingerprint(),
        "bricolage": bricolage.__version__,
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
