"""`optimize`: from a model to the fastest verified way to run it on this machine."""

from __future__ import annotations

import datetime
import hashlib
import json
import logging
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

import bricolage
from bricolage.api.executable import Executable
from bricolage.backends import registry
from bricolage.backends.interface import Backend
from bricolage.cache import cache_directory
from bricolage.cost.database import Database
from bricolage.cost.hardware import this_machine
from bricolage.cost.loading import Limits
from bricolage.cost.measure import Measurer
from bricolage.cost.pool import Pool
from bricolage.cost.rounds import Schedule
from bricolage.errors import UnboundDimension
from bricolage.frontends import to_model
from bricolage.graph.extract import share_weights, write_model
from bricolage.graph.graph import Graph, describe
from bricolage.graph.identity import Identities
from bricolage.graph.prepare import buckets, prepare, symbolic_dimensions
from bricolage.options import Options
from bricolage.placement.place import place
from bricolage.plan import artifact
from bricolage.plan.codec import DecodeError, decode, encode
from bricolage.plan.plan import Bucket, Plan, Provenance, TensorSpec
from bricolage.progress import Progress, Silent
from bricolage.verify.inputs import check_inputs, generate_inputs

_LOG = logging.getLogger(__name__)


def optimize(
    source: Any,
    options: Options | None = None,
    *,
    example_inputs: Any = None,
    inputs: Mapping[str, np.ndarray] | None = None,
    replan: bool = False,
    progress: Progress | None = None,
) -> Executable:
    """The fastest verified way to run a model on this machine, as an executable with its plan.

    `source`: path of an ONNX file or of an artifact, an `onnx.ModelProto`, an `onnx_ir.Model`, a `torch.nn.Module` with
    `example_inputs`, or a `torch.export.ExportedProgram`. `inputs`: real inputs by name for measuring and verifying (one shape
    bucket); by default inputs are generated. `replan`: decide afresh even when a decision for the same model, options,
    versions and hardware is known.

    Raises:
        UsageError: bad model, input or option. NoBackend, NoPlacement: nothing installed can run it. NotAccurate: nothing
        reaches the accuracy asked for. Ctrl-C during measuring keeps what is finished and returns the best plan so far.
    """
    options, progress = options or Options(), progress or Silent()
    backends = registry.available(options.backends)
    model, name = _load(source, example_inputs)
    directory = Path(tempfile.mkdtemp(prefix="work-", dir=_folder(cache_directory() / "work")))
    try:
        with Database() as database:
            return _optimize(model, name, options, backends, inputs, replan, progress, directory, database)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise


@dataclass(frozen=True)
class _Prepared:
    """One shape bucket, ready to be placed."""

    sizes: dict[str, int]
    graph: Graph
    file: str


def _optimize(
    model: ir.Model,
    name: str,
    options: Options,
    backends: Sequence[Backend],
    inputs: Mapping[str, np.ndarray] | None,
    replan: bool,
    progress: Progress,
    directory: Path,
    database: Database,
) -> Executable:
    prepared = _prepare(model, options, inputs)
    share_weights([model, *(p.graph.model for p in prepared)], directory)
    write_model(model, directory / artifact.MODEL)
    for p in prepared:
        write_model(p.graph.model, directory / p.file)
    digest = _digest(directory)
    versions = {backend.name: registry.version(backend.name) for backend in backends}
    profile = options.profile
    decided: list[Bucket] = []
    for p in prepared:
        key = _decision_key(p, digest, options, versions, inputs)
        known = None if replan else _known_decision(database, key)
        if known is not None:
            decided.append(replace(known, graph=p.file))
            continue
        arrays, origin = _inputs(p.graph, options, inputs)
        pool = Pool(options.memory_limit_mb << 20 if options.memory_limit_mb else None)
        with pool:
            measurer = Measurer(
                database,
                pool,
                directory,
                limits=Limits(compile_s=min(profile.compile_limit_s, options.budget)),
                schedule=Schedule(rounds=profile.rounds),
                cores=options.threads,
            )
            bucket = place(
                p.graph, arrays, backends, options, measurer, directory, progress,
                sizes=p.sizes, graph_file=p.file, inputs_from=origin,
            )  # fmt: skip
        database.put_race(key, encode(bucket))
        decided.append(bucket)
    here = this_machine()
    provenance = Provenance(
        bricolage=bricolage.__version__,
        versions=versions,
        fingerprint=here.fingerprint(),
        hardware=str(here),
        threads=options.threads,
        effort=options.effort,
        seed=options.seed,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
    plan = Plan(
        model=name,
        digest=digest,
        precision=options.precision,
        tolerance=options.tolerance,
        inputs=_specs(model.graph.inputs, model),
        outputs=_specs(model.graph.outputs, model),
        buckets=tuple(decided),
        provenance=provenance,
    )
    _forget_measurements(directory)
    return Executable(plan, directory, temporary=True)


def _load(source: Any, example_inputs: Any) -> tuple[ir.Model, str]:
    if isinstance(source, str | Path) and Path(source).suffix == artifact.SUFFIX:
        plan, directory = artifact.load(Path(source))
        return ir.load(directory / artifact.MODEL), plan.model
    model = to_model(source, example_inputs=example_inputs)
    name = Path(source).stem if isinstance(source, str | Path) else type(source).__name__
    return model, model.graph.name or name if name == "Model" else name


def _prepare(model: ir.Model, options: Options, inputs: Mapping[str, np.ndarray] | None) -> list[_Prepared]:
    """One graph for each binding of the symbolic dimensions: the sizes asked for, else those of the given inputs.

    Raises:
        UnboundDimension: a dimension has no size.
    """
    shapes = {name: tuple(sizes) for name, sizes in options.shapes.items()}
    if inputs is not None:
        for name, size in _sizes_of(model, inputs).items():
            shapes.setdefault(name, (size,))
    for name, readers in symbolic_dimensions(model).items():
        if name not in shapes:
            raise UnboundDimension(input=readers[0], dimension=name)
    return [
        _Prepared(sizes, prepare(model, sizes), f"graph-{index}.onnx") for index, sizes in enumerate(buckets(shapes))
    ]


def _sizes_of(model: ir.Model, inputs: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Sizes of symbolic dimensions, read off arrays; a shape that does not fit is reported when the inputs are checked."""
    sizes: dict[str, int] = {}
    for spec in _specs(model.graph.inputs, model):
        array = inputs.get(spec.name)
        if array is None or spec.shape is None or np.ndim(array) != len(spec.shape):
            continue
        sizes.update({d: int(s) for d, s in zip(spec.shape, np.shape(array), strict=True) if isinstance(d, str)})
    return sizes


def _inputs(
    graph: Graph, options: Options, given: Mapping[str, np.ndarray] | None
) -> tuple[dict[str, np.ndarray], str]:
    if given is not None:
        return check_inputs(graph, given), "given"
    return generate_inputs(graph, seed=options.seed), f"generated with seed {options.seed}"


def _specs(values: Sequence[ir.Value], model: ir.Model) -> tuple[TensorSpec, ...]:
    from bricolage.graph.prepare import dimension_name

    specs: list[TensorSpec] = []
    for value in values:
        if value.name in model.graph.initializers:
            continue
        info = describe(value)
        shape = None
        if value.shape is not None:
            shape = tuple(d if isinstance(d, int) else dimension_name(value, axis) for axis, d in enumerate(value.shape))
        dtype = "str" if info.dtype == ir.DataType.STRING else info.numpy.name if info.dtype else str(value.type)
        specs.append(TensorSpec(info.name, dtype, shape))
    return tuple(specs)


def _digest(directory: Path) -> str:
    """Hash of the model as written: structure, small constants, weights."""
    digest = hashlib.sha256()
    for path in sorted(directory.iterdir()):
        if path.name in (artifact.MODEL, "weights.data"):
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:32]


def _decision_key(
    prepared: _Prepared,
    digest: str,
    options: Options,
    versions: Mapping[str, str],
    inputs: Mapping[str, np.ndarray] | None,
) -> str:
    """Everything on which a decision rests, hashed."""
    given = None
    if inputs is not None:
        given = {name: hashlib.sha256(np.ascontiguousarray(array)).hexdigest() for name, array in inputs.items()}
    facts = {
        "graph": Identities(prepared.graph).key(prepared.graph.everything),
        "model": digest,
        "sizes": prepared.sizes,
        "precision": options.precision,
        "tolerance": options.tolerance,
        "effort": options.effort,
        "budget": options.budget,
        "threads": options.threads,
        "seed": options.seed,
        "inputs": given,
        "versions": dict(versions),
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
    except DecodeError as error:  # written by another version of the same number: decide again
        _LOG.info("a stored decision is of an older shape (%s)", error)
        return None


def _forget_measurements(directory: Path) -> None:
    """Drops what only measuring needed: inputs, references, the regions that were not chosen."""
    for path in directory.glob("*.npz"):
        path.unlink(missing_ok=True)


def _folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path
