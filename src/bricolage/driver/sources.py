"""From what the user gives (a path, a model, inputs) to prepared graphs in a working folder."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from bricolage.base import scratch
from bricolage.base.cache import cache_directory
from bricolage.base.options import Options
from bricolage.driver.constants import data_without_constants, fix_inputs, without_constants
from bricolage.driver.given_samples import NO_DATA, GivenData, first_inputs, first_rows
from bricolage.driver.user_file import keep_file
from bricolage.errors import BadOption, CacheNotWritable, NotBatchable
from bricolage.frontends import open_program, to_model
from bricolage.frontends.clean import forget_stated
from bricolage.frontends.torch_module import examples_of
from bricolage.graph import model_interface
from bricolage.graph.extract import write_model
from bricolage.graph.graph import Graph
from bricolage.graph.model_interface import externalise_model
from bricolage.graph.open_sizes import settle_sizes
from bricolage.graph.prepare import prepare, prepare_for_call, shape_buckets
from bricolage.graph.store import WEIGHTS, Store
from bricolage.plan import artifact
from bricolage.plan.constant_inputs import ConstantInput
from bricolage.plan.plan import Bucket
from bricolage.plan.planned_interface import batch_dimension, default_specs, input_specs, output_specs
from bricolage.runtime import signature
from bricolage.verify import inputs
from bricolage.verify.held_back import GivenSamples
from bricolage.verify.index_guard import IndexGuard
from bricolage.verify.reference import Evaluate

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class PreparedBucket:
    """One shape bucket, ready to be placed."""

    sizes: dict[str, int]
    graph: Graph
    overridden: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Inputs with a default that the graph takes, with their shapes: those that the user gave."""

    def complete_decision(self, decided: Bucket, inputs_from: str = "generated") -> Bucket:
        """A decision for its graph, with what that does not say: its sizes, and where the inputs came from."""
        program = replace(decided.program, sizes=dict(self.sizes), overridden=dict(self.overridden))
        verification = replace(decided.verification, inputs_from=inputs_from)
        return replace(decided, program=program, verification=verification)


@dataclass(frozen=True)
class Source:
    """A model in a working folder, with its shape buckets and its weights."""

    name: str
    model: ir.Model
    digest: str
    """Hash of structure and weights."""
    buckets: tuple[PreparedBucket, ...]
    store: Store
    inputs: Mapping[str, np.ndarray] | None = None
    """By name, where the user gave any: for measuring, or as examples for tracing a module."""
    inputs_from: str = "given"
    data: GivenData = NO_DATA
    """To calibrate with, and to judge accuracy by."""
    file: str = ""
    """Hash of the user's own file, which lies in the folder (`plan.program_step.USER_FILE`); empty where there is none."""
    batch: str = ""
    """Where throughput is asked for: the symbolic dimension along which requests are put together; empty where there is none."""
    constants: tuple[ConstantInput, ...] = ()
    """Inputs that never change: defaults of the model that no call overrides."""


def fixed_tensors(model: ir.Model, constants: Sequence[ConstantInput]) -> dict[str, onnx.TensorProto]:
    """Values of inputs that never change, by name, as they stand in a file."""
    defaults = model_interface.interface(model).defaults
    return {
        constant.name: numpy_helper.from_array(defaults[constant.name].numpy(), constant.name)
        for constant in constants
        if constant.name in defaults
    }


def working_folder() -> Path:
    """A fresh folder for models and measurements, on the disk of the cache (weights may be large); to be removed with
    `bricolage.base.scratch.remove`. Those of runs that were killed go now.

    Raises:
        CacheNotWritable, UnsafeCache
    """
    parent = cache_directory() / "work"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        return scratch.make(parent)
    except OSError as error:
        raise CacheNotWritable(path=parent, reason=error.strerror or error) from error


@dataclass(frozen=True)
class GivenModel:
    """A model as the user gives it, with what goes with it."""

    source: object
    """As for `optimize`."""
    example_inputs: object = None
    """Of a module, with which it is traced."""
    dynamic: object = None
    """Of a module, its `dynamic_shapes`."""
    inputs: Mapping[str, object] | None = None
    """By name, for measuring."""
    data: GivenData = NO_DATA
    """Of the user's, whose sizes open dimensions take where nothing else says them."""
    believing: bool = True
    """Whether sizes that the model states hold where nothing else says what they are."""


def open_source(given: GivenModel, options: Options, directory: Path) -> Source:
    """Loads, checks and prepares a model, and writes it with its weights to `directory`.

    Raises:
        UsageError: the model, its shapes or the example inputs are not usable.
    """
    model, name, example_inputs, fixed = _load(given)
    if not given.believing:
        forget_stated(model)
    arrays: Mapping[str, Any] | None = None if given.inputs is None else _without_maps(model, given.inputs)
    origin = "given"
    if arrays is None and example_inputs is not None:
        arrays, origin = example_arrays(model, example_inputs), "example inputs"
    constants = fix_inputs(model, options, arrays, fixed)
    arrays = without_constants(model, constants, arrays)
    data = data_without_constants(model, constants, given.data)
    batch = _batch(model) if options.objective == "throughput" else ""
    sized = arrays if arrays is not None or not data.named else first_rows(model, data)
    prepared = _prepare_buckets(model, options, sized, batch)
    _correct_outputs(model, prepared)
    store, written = Store(directory), externalise_model(model)
    store.share([model, written, *(bucket.graph.model for bucket in prepared)])
    write_model(written, directory / artifact.MODEL)
    digest, latency = _digest(directory), options.objective == "latency"  # a server's own queue races no file
    file = keep_file(given.source, directory, fixed_tensors(model, constants)) if latency else ""
    return Source(
        name,
        model,
        digest=digest,
        buckets=tuple(prepared),
        store=store,
        inputs=arrays,
        inputs_from=origin,
        data=data,
        file=file,
        batch=batch,
        constants=constants,
    )


def _load(given: GivenModel) -> tuple[ir.Model, str, Any, tuple[str, ...]]:
    """The model, its name, example inputs (those given, else those that an exported program carries), and which inputs are
    constant in the artifact that it comes from."""
    name, source, example_inputs = "", given.source, given.example_inputs
    if isinstance(source, str | Path):
        path, name = Path(source), Path(source).stem
        if artifact.is_named(path):
            plan, directory = artifact.load_artifact(path)
            return (
                model_interface.read_written_model(directory / artifact.MODEL),
                plan.model,
                example_inputs,
                tuple(constant.name for constant in plan.constants),
            )
    source = open_program(source)
    model = to_model(source, example_inputs=example_inputs, dynamic=given.dynamic)
    if example_inputs is None:
        example_inputs = examples_of(source) or None
    return model, name or model.graph.name or type(source).__name__, example_inputs, ()


def _batch(model: ir.Model) -> str:
    try:
        return batch_dimension(model.graph.name or "model", input_specs(model), output_specs(model))
    except NotBatchable:
        return ""


def _without_maps(model: ir.Model, given: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs by name, with the rows of maps."""
    specs = {spec.name: spec for spec in input_specs(model) if signature.stands_for_map(spec)}
    return {
        name: signature.row(specs[name], value) if name in specs and isinstance(value, Mapping) else value
        for name, value in given.items()
    }


def _prepare_buckets(
    model: ir.Model, options: Options, given: Mapping[str, np.ndarray] | None, batch: str
) -> list[PreparedBucket]:
    """One graph for each binding of the symbolic dimensions: the sizes asked for, else those of the given inputs, else what the
    model settles by itself, which is told. For throughput, the smallest `batch`, 1 where none is asked for.

    Raises:
        UnboundDimension: dimensions have no size.
        BadOption: for throughput, a dimension other than the batch has several sizes.
    """
    shapes = {name: tuple(sizes) for name, sizes in options.shapes.items()}
    if batch:
        shapes[batch] = (min(shapes.get(batch, (1,))),)
    if options.objective == "throughput":
        for name, sizes in shapes.items():
            if len(set(sizes)) > 1:
                advice = "An operating point is for one size of each dimension but the batch"
                raise BadOption(option="--shape", value=f"{name}={','.join(map(str, sizes))}", advice=advice)
    if given is not None:
        for name, size in _sizes_of(model, given).items():
            shapes.setdefault(name, (size,))
    bindings = settle_sizes(model, shapes)
    for note in bindings.notes:
        _LOG.warning("%s", note)
    overridden = _overridden(model, given or {})
    ready = prepare if given is None and not options.shapes else prepare_for_call  # whose fault it is that nothing fits
    return [
        PreparedBucket(sizes, ready(model, sizes, overridden), overridden) for sizes in shape_buckets(bindings.shapes)
    ]


def _overridden(model: ir.Model, given: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shapes of arrays that take the place of defaults."""
    return {spec.name: np.shape(given[spec.name]) for spec in default_specs(model) if spec.name in given}


def _correct_outputs(model: ir.Model, prepared: Sequence[PreparedBucket]) -> None:
    """Forgets what the model states of sizes of its outputs where they come out otherwise, in place."""
    for index, value in enumerate(model.graph.outputs):
        for bucket in prepared:
            actual_shape = bucket.graph.outputs[index].shape
            if value.shape is None or actual_shape is None:
                continue
            stated = [size if isinstance(size, int) else size.value for size in value.shape]
            if len(stated) != len(actual_shape):
                value.shape = None
            else:
                pairs = [
                    (bucket.sizes.get(dimension, new) if isinstance(dimension, str) else dimension, new)
                    for dimension, new in zip(stated, actual_shape, strict=True)
                ]
                wrong = [
                    isinstance(dimension, int) and isinstance(new, int) and dimension != new for dimension, new in pairs
                ]
                value.shape = ir.Shape(
                    [None if bad else dimension for dimension, bad in zip(stated, wrong, strict=True)]
                )
            if value.shape is None or any(wrong):
                _LOG.warning(
                    "output '%s' is declared as %s, and is %s: the declaration is ignored",
                    value.name,
                    stated,
                    list(actual_shape),
                )


def _sizes_of(model: ir.Model, given: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Sizes of symbolic dimensions, read off arrays; a shape that does not fit is reported when the inputs are checked."""
    sizes: dict[str, int] = {}
    for spec in input_specs(model):
        array = given.get(spec.name)
        if array is None or spec.shape is None or np.ndim(array) != len(spec.shape):
            continue
        sizes.update({d: int(s) for d, s in zip(spec.shape, np.shape(array), strict=True) if isinstance(d, str)})
    return sizes


def example_arrays(model: ir.Model, examples: Any) -> dict[str, np.ndarray] | None:
    """The arguments with which a module was traced, by the names of the model's inputs. None where they do not
    correspond one to one (arguments that are no tensors, or structures of them)."""
    names = [spec.name for spec in input_specs(model)]
    values = examples if isinstance(examples, Mapping | list | tuple) else (examples,)
    by_name = values if isinstance(values, Mapping) else dict(zip(names, values, strict=False))
    if len(values) != len(names) or set(by_name) != set(names):
        return None
    arrays = {
        name: value.detach().cpu().numpy() if hasattr(value, "detach") else value for name, value in by_name.items()
    }
    return arrays if all(isinstance(array, np.ndarray) for array in arrays.values()) else None


def measuring_inputs(
    opened: Source, graph: Graph, options: Options, evaluate: Evaluate, samples: GivenSamples | None = None
) -> tuple[dict[str, np.ndarray], str]:
    """Inputs for measuring and verifying one bucket's graph, and where they come from: the user's for the bucket of
    their shape, else a sample of the user's data, else generated ones. Where there is no other bucket, inputs given for
    measuring must fit. Generated ones are chosen by what `evaluate` makes of them.

    Raises:
        MissingInput, UnknownInput, WrongType, WrongShape: the given ones do not fit.
        IndexBeyond: an operator may not take what is in them.
        NoReference, InvalidGraph: generated ones cannot be evaluated.
    """
    given, wanted = opened.inputs, opened.inputs_from == "given" and len(opened.buckets) == 1
    if given is not None and (wanted or _of_this_shape(graph, given)):
        checked = inputs.check_inputs(graph.model, given)
        IndexGuard(graph.model).check(checked)
        names = ", ".join(f"'{name}'" for name in inputs.not_finite(checked))
        return dict(checked), opened.inputs_from + (f"; NaN or infinite values in {names}" if names else "")
    if samples is not None:
        return first_inputs(graph, samples)
    sample = inputs.choose_sample(graph.model, options.seed, evaluator=partial(evaluate, graph.model))
    note = f"; {sample.note}" if sample.note else ""
    return dict(sample.inputs), f"generated with seed {options.seed}{note}"


def _of_this_shape(graph: Graph, given: Mapping[str, np.ndarray]) -> bool:
    return all(np.shape(given[info.name]) == info.shape for info in graph.inputs if info.name in given)


def _digest(directory: Path) -> str:
    """Hash of the model as written: structure, small constants, weights."""
    digest = hashlib.sha256()
    for path in sorted(directory.iterdir()):
        if path.name in (artifact.MODEL, WEIGHTS):
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:32]
