"""From what the user gives (a path, a model, inputs) to prepared graphs in a working folder."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from bricolage.cache import cache_directory
from bricolage.errors import NotWritable, UnboundDimension
from bricolage.frontends import to_model
from bricolage.graph.extract import WEIGHTS, share_weights, write_model
from bricolage.graph.graph import Graph, describe
from bricolage.graph.prepare import buckets, dimension_name, prepare, symbolic_dimensions
from bricolage.options import Options
from bricolage.plan import artifact
from bricolage.plan.plan import TensorSpec
from bricolage.verify import inputs


@dataclass(frozen=True)
class Prepared:
    """One shape bucket, ready to be placed: its graph, and the file of the working folder that holds it."""

    sizes: dict[str, int]
    graph: Graph
    file: str


@dataclass(frozen=True)
class Source:
    """A model in a working folder, with its shape buckets and its weights beside it."""

    name: str
    model: ir.Model
    digest: str
    """Hash of structure and weights."""
    buckets: tuple[Prepared, ...]
    directory: Path


def working_folder() -> Path:
    """A fresh folder for models and measurements, on the disk of the cache (weights may be large)."""
    parent = cache_directory() / "work"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(dir=parent))
    except OSError as error:
        raise NotWritable(path=parent, reason=error.strerror or error) from error


def open_source(
    source: Any,
    options: Options,
    directory: Path,
    *,
    example_inputs: Any,
    dynamic: Any,
    given: Mapping[str, Any] | None,
) -> Source:
    """Loads, checks and prepares a model, and writes it with its weights to `directory`.

    Raises:
        UsageError: the model, its shapes or the example inputs are not usable.
    """
    model, name = _load(source, example_inputs, dynamic)
    prepared = _prepare_buckets(model, options, given)
    share_weights([model, *(bucket.graph.model for bucket in prepared)], directory)
    write_model(model, directory / artifact.MODEL)
    for bucket in prepared:
        write_model(bucket.graph.model, directory / bucket.file)
    return Source(name, model, _digest(directory), tuple(prepared), directory)


def _load(source: Any, example_inputs: Any, dynamic: Any) -> tuple[ir.Model, str]:
    if isinstance(source, str | Path):
        path = Path(source)
        if path.suffix == artifact.SUFFIX:
            plan, directory = artifact.load(path)
            return ir.load(directory / artifact.MODEL), plan.model
        return to_model(path), path.stem
    model = to_model(source, example_inputs=example_inputs, dynamic=dynamic)
    return model, model.graph.name or type(source).__name__


def _prepare_buckets(model: ir.Model, options: Options, given: Mapping[str, np.ndarray] | None) -> list[Prepared]:
    """One graph for each binding of the symbolic dimensions: the sizes asked for, else those of the given inputs.

    Raises:
        UnboundDimension: a dimension has no size.
    """
    shapes = {name: tuple(sizes) for name, sizes in options.shapes.items()}
    if given is not None:
        for name, size in _sizes_of(model, given).items():
            shapes.setdefault(name, (size,))
    for name, readers in symbolic_dimensions(model).items():
        if name not in shapes:
            raise UnboundDimension(input=readers[0], dimension=name)
    return [
        Prepared(sizes, prepare(model, sizes), f"graph-{index}.onnx") for index, sizes in enumerate(buckets(shapes))
    ]


def _sizes_of(model: ir.Model, given: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Sizes of symbolic dimensions, read off arrays; a shape that does not fit is reported when the inputs are checked."""
    sizes: dict[str, int] = {}
    for spec in tensor_specs(model.graph.inputs, model):
        array = given.get(spec.name)
        if array is None or spec.shape is None or np.ndim(array) != len(spec.shape):
            continue
        sizes.update({d: int(s) for d, s in zip(spec.shape, np.shape(array), strict=True) if isinstance(d, str)})
    return sizes


def measuring_inputs(
    graph: Graph, options: Options, given: Mapping[str, np.ndarray] | None, *, alone: bool
) -> tuple[dict[str, np.ndarray], str]:
    """Inputs for measuring and verifying one bucket's graph, and where they come from: the given ones for the bucket of
    their shape (and where there is no other), generated ones for the rest.

    Raises:
        MissingInput, UnknownInput, WrongType, WrongShape, NotFinite: the given ones do not fit.
    """
    if given is not None and (alone or _of_this_shape(graph, given)):
        return dict(inputs.check(graph.model, given)), "given"
    return dict(inputs.choose(graph.model, options.seed).inputs), f"generated with seed {options.seed}"


def _of_this_shape(graph: Graph, given: Mapping[str, np.ndarray]) -> bool:
    return all(np.shape(given[info.name]) == info.shape for info in graph.inputs if info.name in given)


def tensor_specs(values: Sequence[ir.Value], model: ir.Model) -> tuple[TensorSpec, ...]:
    """Names, types and sizes (None where symbolic) of graph inputs or outputs, leaving out those that are weights."""
    specs: list[TensorSpec] = []
    for value in values:
        if value.name in model.graph.initializers:
            continue
        info = describe(value)
        shape = None
        if value.shape is not None:
            shape = tuple(
                d if isinstance(d, int) else dimension_name(value, axis) for axis, d in enumerate(value.shape)
            )
        dtype = "str" if info.dtype == ir.DataType.STRING else info.numpy.name if info.dtype else str(value.type)
        specs.append(TensorSpec(info.name, dtype, shape))
    return tuple(specs)


def _digest(directory: Path) -> str:
    """Hash of the model as written: structure, small constants, weights."""
    digest = hashlib.sha256()
    for path in sorted(directory.iterdir()):
        if path.name in (artifact.MODEL, WEIGHTS):
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:32]
