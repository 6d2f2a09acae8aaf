"""From a loaded model to a graph that can be placed: dimensions bound, constants folded, types and shapes known.

Shape computations of exported models (Shape → Gather → Concat → Reshape) become constants once the inputs have sizes, so
folding and inference alternate until nothing changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
import onnx_ir as ir
from onnx_ir.passes.common import (
    DeduplicateInitializersPass,
    IdentityEliminationPass,
    LiftConstantsToInitializersPass,
    OutputFixPass,
    RemoveUnusedNodesPass,
    ShapeInferencePass,
)

from bricolage.errors import InvalidGraph, UnboundDimension, UnknownDimension
from bricolage.graph.folding import fold
from bricolage.graph.graph import Graph
from bricolage.graph.lengths import settle

_ROUNDS = 8
_INLINE_BYTES = 1024
_GROUPED, _ALIKE = "GroupNormalization", "InstanceNormalization"
"""onnx 1.23 infers no shape of the first where another operator reads it; of the second it does, and that is its input's, too."""


def symbolic_dimensions(model: ir.Model) -> dict[str, list[str]]:
    """Names of the symbolic dimensions, each with the inputs that have it. A nameless one gets `input.axis`."""
    found: dict[str, list[str]] = {}
    for value in model.graph.inputs:
        if not _sized(model, value):
            continue
        assert value.shape is not None
        for axis, dimension in enumerate(value.shape):
            if not isinstance(dimension, int):
                found.setdefault(dimension_name(value, axis), []).append(value.name or "")
    return found


def _sized(model: ir.Model, value: ir.Value) -> bool:
    """Whether an input is a tensor with a shape; that of a sequence is its elements', which may differ."""
    is_tensor = value.type is None or isinstance(value.type, ir.TensorType)
    return is_tensor and value.shape is not None and value.name not in model.graph.initializers


def dimension_name(value: ir.Value, axis: int) -> str:
    """Name under which the user binds a symbolic dimension of an input."""
    assert value.shape is not None
    dimension = value.shape[axis]
    return str(dimension.value) if isinstance(dimension, ir.SymbolicDim) and dimension.value else f"{value.name}.{axis}"


def buckets(shapes: Mapping[str, Sequence[int]]) -> list[dict[str, int]]:
    """Bindings of all dimensions: sizes are paired by position, and a dimension with a single size keeps it.

    Raises:
        InvalidGraph: two dimensions have different numbers of sizes (other than one).
    """
    count = max((len(sizes) for sizes in shapes.values()), default=1)
    for name, sizes in shapes.items():
        if len(sizes) not in (1, count):
            raise InvalidGraph(reason=f"--shape {name} has {len(sizes)} sizes where another dimension has {count}")
    return [{name: sizes[i if len(sizes) > 1 else 0] for name, sizes in shapes.items()} for i in range(count)]


def prepare(model: ir.Model, sizes: Mapping[str, int]) -> Graph:
    """The graph of `model` with its symbolic dimensions bound to `sizes`, folded and inferred. A copy: `model` is not changed.

    Raises:
        UnboundDimension, UnknownDimension: as `bind`.
        InvalidGraph: type inference finds a contradiction.
    """
    bound = bind(model, sizes)
    check_shapes(bound)
    return simplify(bound)


def bind(model: ir.Model, sizes: Mapping[str, int]) -> ir.Model:
    """A copy of `model` whose inputs have `sizes` for their symbolic dimensions. Shapes in between that were symbolic are gone.

    Raises:
        UnboundDimension: a symbolic dimension of an input is not in `sizes`.
        UnknownDimension: `sizes` names a dimension that the model does not have.
    """
    known = symbolic_dimensions(model)
    for name in sizes:
        if name not in known:
            raise UnknownDimension(dimension=name, known=", ".join(known) or "none, all its shapes are fixed")
    bound = model.clone()
    for value in bound.graph.inputs:
        if not _sized(bound, value):
            continue
        assert value.shape is not None
        shape: list[int] = []
        for axis, dimension in enumerate(value.shape):
            if isinstance(dimension, int):
                shape.append(dimension)
                continue
            name = dimension_name(value, axis)
            if name not in sizes:
                raise UnboundDimension(input=value.name, dimension=name)
            shape.append(sizes[name])
        value.shape = ir.Shape(shape)
    _forget_shapes(bound)
    return bound


def simplify(model: ir.Model) -> Graph:
    """Changes `model` in place: lifts constants, infers and folds to a fix-point, and drops what is unused.

    Returns:
        The operators of `model` itself, numbered; further changes of `model` make this graph invalid.
    """
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    infer(model)
    for _ in range(_ROUNDS):
        if not fold(model):
            break
        infer(model)
    names = [value.name for value in model.graph.outputs]
    IdentityEliminationPass()(model)
    OutputFixPass()(model)
    _keep_names(model, names)
    RemoveUnusedNodesPass()(model)
    DeduplicateInitializersPass(size_limit=1024)(model)
    infer(model)
    if settle(model):
        infer(model)
    return Graph(model)


def _keep_names(model: ir.Model, names: Sequence[str | None]) -> None:
    """Gives the outputs their names back, which passes lose where one output is another one's Identity."""
    changed = [(value, name) for value, name in zip(model.graph.outputs, names, strict=True) if value.name != name]
    for number, (value, _) in enumerate(changed):
        value.name = f"{value.name}.renamed.{number}"
    for value, name in changed:
        value.name = name


def infer(model: ir.Model) -> None:
    """Changes `model` in place: types and shapes are inferred. What cannot be inferred stays open."""
    grouped = [node for node in model.graph.all_nodes() if node.op_type == _GROUPED and not node.domain]
    try:
        for node in grouped:
            node.op_type = _ALIKE
        ShapeInferencePass(check_type=False, strict_mode=False, data_prop=True)(model)
    finally:
        for node in grouped:
            node.op_type = _GROUPED


def check_shapes(model: ir.Model) -> None:
    """Looks for contradictions between shapes, which lenient inference passes over. `model` is not changed.

    Raises:
        InvalidGraph: two shapes that must fit do not.
    """
    lean = model.clone()  # large constants matter by shape alone, and would not fit into one message beyond 2 GB
    for name, value in list(lean.graph.initializers.items()):
        if value.const_value is not None and value.const_value.nbytes > _INLINE_BYTES:
            lean.graph.initializers.pop(name)
            value.const_value = None
            lean.graph.inputs.append(value)
    try:
        onnx.shape_inference.infer_shapes(ir.to_proto(lean), strict_mode=True)
    except onnx.shape_inference.InferenceError as error:
        # Strict inference also stumbles over operators that it merely does not know; only contradictions count.
        contradictions = [line for line in str(error).splitlines() if "ncompatible" in line or "mismatch" in line]
        if contradictions:
            raise InvalidGraph(reason=contradictions[0].strip()) from error


def _forget_shapes(model: ir.Model) -> None:
    """Drops recorded shapes that were symbolic: they were written for any size and would now hide the bound ones."""
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        for value in node.outputs:
            if value.shape is not None and not all(isinstance(dimension, int) for dimension in value.shape):
                value.shape = None
    for value in model.graph.outputs:
        if value.shape is not None and not all(isinstance(dimension, int) for dimension in value.shape):
            value.shape = None
