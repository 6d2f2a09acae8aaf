"""What a model must fulfil before anything is planned for it. Each refusal names the node or tensor that causes it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TypeAlias

import onnx
import onnx_ir as ir

from bricolage.errors import (
    InvalidGraph,
    TooLarge,
    TrainingOperator,
    UnknownOperator,
    UnsupportedOpset,
    UnsupportedType,
)
from bricolage.frontends import contributed
from bricolage.graph.graph import bodies

Check: TypeAlias = Callable[[ir.Model], object]
"""Raises an error of the catalogue where a model does not fulfil it, and changes nothing."""

OLDEST_OPSET = 6
"""The first opset without the attributes of Caffe2's memory (`consumed_inputs`); `upgrade` knows of no older definitions."""

STANDARD = frozenset({"", "ai.onnx.ml", "ai.onnx.preview"})
"""Domains whose operators the onnx package defines."""
CONTRIBUTED = frozenset({"com.microsoft"})
"""Domains that a backend may know although the onnx package does not; placement refuses what no backend runs."""
TRAINING = frozenset({"ai.onnx.training", "ai.onnx.preview.training", "com.microsoft.training"})

HIGHEST_RANK = 32
"""Dimensions of a tensor: numpy, and with it the reference, ends at 64, and some operators need twice as many."""
_LONGEST = (1 << 31) - 1
"""Elements along a dimension; 32-bit indices are what backends have in places."""

_BIG = 1024  # bytes of a tensor that the checker need not see
_LAST_AXIS = (1 << 31) - 1
"""onnx takes axes for numbers of 32 bits."""


def newest_opset() -> int:
    """Newest opset of the default domain that is understood."""
    return int(onnx.defs.onnx_opset_version())


def check_strings(model: ir.Model) -> None:
    """Names, types and domains are text: protobuf hands damaged text over as bytes.

    Raises:
        InvalidGraph
    """
    texts: list[object] = [*model.graph.opset_imports, *model.functions]
    for node, _ in versioned_nodes(model):
        texts += [node.name or "", node.op_type, node.domain, *node.attributes, *(v.name or "" for v in node.outputs)]
        texts += [value.name or "" for value in node.inputs if value is not None]
    for graph in model.graphs():
        texts += [value.name or "" for value in (*graph.inputs, *graph.outputs, *graph.initializers.values())]
    for text in texts:
        if isinstance(text, bytes):
            raise InvalidGraph(reason=f"the name {text!r} is not valid text")


def check_shapes(model: ir.Model) -> None:
    """Whether every stated shape can be that of a tensor.

    Raises:
        InvalidGraph: a dimension is negative.
        TooLarge: a dimension, or the number of dimensions, is beyond what any backend takes.
    """
    for graph in model.graphs():
        for value in (*graph.inputs, *graph.initializers.values(), *graph.outputs):
            _check_shape(value)
    for node, _ in versioned_nodes(model):
        for value in node.outputs:
            _check_shape(value)


def check_opsets(model: ir.Model) -> None:
    """Opsets imported by the graph and by the functions that it calls.

    Raises:
        UnsupportedOpset: the default domain's opset is too old or too new, or another standard domain's is too new.
    """
    low, high = OLDEST_OPSET, newest_opset()
    newest = {"ai.onnx.ml": _newest("ai.onnx.ml"), "ai.onnx.preview": _newest("ai.onnx.preview")}
    for imports in (model.graph.opset_imports, *(function.opset_imports for function in model.functions.values())):
        for domain, version in imports.items():
            if domain == "" and not low <= version <= high:
                raise UnsupportedOpset(opset=version, domain="ai.onnx", low=low, high=high)
            if domain in newest and not 1 <= version <= newest[domain]:
                raise UnsupportedOpset(opset=version, domain=domain, low=1, high=newest[domain])


def check_operators(model: ir.Model) -> None:
    """Every operator, also in control-flow bodies and functions, is of a known domain and type.

    Raises:
        UnknownOperator, TrainingOperator: with the name of the node.
    """
    for node, imports in versioned_nodes(model):
        if node.op_identifier() in model.functions:
            continue
        if node.domain in TRAINING:
            raise TrainingOperator(name=node.name or node.op_type, domain=node.domain, op_type=node.op_type)
        if node.domain in CONTRIBUTED and node.op_type in contributed.OPERATORS:
            continue
        if node.domain in ("", "ai.onnx") and node.op_type in contributed.IN_ONNX_OWN_DOMAIN:
            continue
        opset = imports.get(node.domain)
        if node.domain not in STANDARD or opset is None or not _is_defined(node, opset):
            raise UnknownOperator(
                name=node.name or node.op_type,
                domain=node.domain or "ai.onnx",
                op_type=node.op_type,
                opset="?" if opset is None else opset,
            )


def check_inferable(model: ir.Model) -> None:
    """Nothing is in the model at which shape inference of the onnx package reads memory that is not there, and may end the process:
    operators without a first input, and some attributes. Functions are inlined: their callers say what is left
    out in them, and what their attributes are.

    Raises:
        InvalidGraph: with the name of the node.
    """
    for node, imports in versioned_nodes(model):
        if node.domain in STANDARD:
            reason = _without_input(node, imports.get(node.domain, 1)) or _wild_attribute(node)
            if reason is not None:
                raise InvalidGraph(reason=f"node '{node.name or node.op_type}' ({node.op_type}) {reason}")


def _without_input(node: ir.Node, opset: int) -> str | None:
    """Of further ones that definitions demand, runtimes do without some: `roi` of a Resize of opset 11."""
    given = bool(node.inputs) and node.inputs[0] is not None
    return None if given or not _needs_input(node.op_type, opset, node.domain) else "has no first input, which it needs"


def _wild_attribute(node: ir.Node) -> str | None:
    numbers = {a.name: a.as_int() for a in node.attributes.values() if a.type == ir.AttributeType.INT}
    if abs(numbers.get("axis", 0)) > _LAST_AXIS:
        return f"has the axis {numbers['axis']}"
    if node.op_type == "GatherND" and numbers.get("batch_dims", 0) < 0:
        return f"has batch_dims {numbers['batch_dims']}, which may not be negative"
    if node.op_type == "Split" and numbers.get("num_outputs", len(node.outputs)) < len(node.outputs):
        return f"has {len(node.outputs)} outputs, and num_outputs {numbers['num_outputs']}"
    return None


def check_structure(model: ir.Model) -> None:
    """Interfaces have names and types, and every value that is read comes from somewhere.

    Raises:
        InvalidGraph, UnsupportedType
    """
    if not model.graph.outputs:
        raise InvalidGraph(reason="the graph has no outputs")
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        for attribute in node.attributes.values():
            if attribute.is_ref():
                where = f"attribute '{attribute.name}' of node '{node.name or node.op_type}'"
                raise InvalidGraph(reason=f"{where} refers to a function's attribute, and is in none")
    _check_interface(model.graph)
    _check_scope(model.graph, set())


def check_with_onnx(model: ir.Model) -> None:
    """The checker of the onnx package, on the model without its large weights.

    Raises:
        InvalidGraph: with the checker's first line.
    """
    bare = strip_weights(model)
    (microsoft,) = CONTRIBUTED
    for node in bare.graph.all_nodes():
        if not node.domain and node.op_type in contributed.IN_ONNX_OWN_DOMAIN:
            node.domain = microsoft  # where the checker asks no more
            bare.graph.opset_imports.setdefault(microsoft, 1)
    for graph in bare.graphs():
        for value in (*graph.inputs, *graph.outputs):
            if value.type is None:  # only of outputs, and only behind operators that ONNX does not define
                value.type = ir.TensorType(ir.DataType.FLOAT)
            if value.shape is None and isinstance(value.type, ir.TensorType):
                value.shape = ir.Shape(())  # an unknown rank is fine; the checker only wants the field
    try:
        onnx.checker.check_model(to_proto(bare))
    except onnx.checker.ValidationError as error:
        raise InvalidGraph(reason=f"onnx's checker says: {first_line(error)}") from error


def strip_weights(model: ir.Model) -> ir.Model:
    """A copy in which large constants became inputs: its proto is small however large the weights are."""
    bare = model.clone()
    for graph in bare.graphs():
        for value in list(graph.initializers.values()):
            tensor = value.const_value
            if tensor is None or (tensor.nbytes <= _BIG and not isinstance(tensor, ir.ExternalTensor)):
                continue
            value.shape, value.dtype = ir.Shape(tensor.shape.numpy()), tensor.dtype
            del graph.initializers[value.name or ""]
            value.const_value = None
            if graph is bare.graph:
                graph.inputs.append(value)
            else:
                bare.graph.inputs.append(ir.Value(name=value.name, shape=value.shape, type=value.type))
    return bare


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """The model as a proto.

    Raises:
        InvalidGraph: some part of it cannot be written.
    """
    try:
        proto: onnx.ModelProto = ir.to_proto(model)
    except ir.serde.SerdeError as error:
        raise InvalidGraph(reason=first_line(innermost(error))) from error
    return proto


def innermost(error: BaseException) -> BaseException:
    """The end of a chain of causes: onnx_ir wraps what it meets once for each level of the model."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def first_line(error: BaseException) -> str:
    """The first line of an exception that says something, without a final full stop."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".")


def versioned_nodes(model: ir.Model) -> Iterator[tuple[ir.Node, dict[str, int]]]:
    """Every node with the opset imports that hold for it."""
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        yield node, model.graph.opset_imports
    for function in model.functions.values():
        for node in ir.traversal.RecursiveGraphIterator(function):
            yield node, function.opset_imports


def _newest(domain: str) -> int:
    return max(int(s.since_version) for s in onnx.defs.get_all_schemas() if s.domain == domain)


@functools.cache
def _needs_input(op_type: str, opset: int, domain: str) -> bool:
    """Whether an operator must have its first input."""
    inputs = onnx.defs.get_schema(op_type, opset, domain).inputs
    return bool(inputs) and inputs[0].option == onnx.defs.OpSchema.FormalParameterOption.Single


def _is_defined(node: ir.Node, opset: int) -> bool:
    try:
        return not onnx.defs.get_schema(node.op_type, opset, node.domain).deprecated
    except onnx.defs.SchemaError:
        return False


def _check_interface(graph: ir.Graph) -> None:
    for kind, values in (("input", graph.inputs), ("output", graph.outputs)):
        names = [value.name for value in values]
        if not all(names):
            raise InvalidGraph(reason=f"a graph {kind} has no name")
        twice = sorted({name for name in names if name and names.count(name) > 1})
        if twice and kind == "input":
            raise InvalidGraph(reason=f"two graph {kind}s have the name '{twice[0]}'")
    for value in graph.inputs:
        if value.type is None or value.dtype == ir.DataType.UNDEFINED:
            raise InvalidGraph(reason=f"graph input '{value.name}' has no type")
    for value in (*graph.inputs, *graph.outputs):
        if isinstance(value.type, ir.SparseTensorType):
            raise UnsupportedType(
                name=value.name, type="sparse tensor", who="bricolage", advice="Use a dense tensor at the interface"
            )


def _check_scope(graph: ir.Graph, outer: set[ir.Value]) -> None:
    visible_values = outer | set(graph.inputs) | set(graph.initializers.values())
    for node in graph:
        for value in node.inputs:
            if value is not None and value not in visible_values:
                reader = node.name or node.op_type
                raise InvalidGraph(reason=f"node '{reader}' reads '{value.name}', which nothing computes before it")
        for body in bodies(node):
            _check_scope(body, visible_values)
        visible_values.update(node.outputs)
    for value in graph.outputs:
        if value not in visible_values:
            raise InvalidGraph(reason=f"the output '{value.name}' is computed by nothing")


def _check_shape(value: ir.Value) -> None:
    if value.shape is None:
        return
    if len(value.shape) > HIGHEST_RANK:
        advice = f"Tensors of up to {HIGHEST_RANK} dimensions are taken"
        raise TooLarge(what=f"tensor '{value.name}'", reason=f"it has {len(value.shape)} dimensions", advice=advice)
    for dimension in value.shape:
        if not isinstance(dimension, int):
            continue
        if dimension < 0:
            raise InvalidGraph(reason=f"tensor '{value.name}' has the negative dimension {dimension}")
        if dimension > _LONGEST:
            advice = f"Dimensions of up to {_LONGEST} are taken"
            raise TooLarge(what=f"tensor '{value.name}'", reason=f"it has the dimension {dimension}", advice=advice)


AS_WRITTEN: tuple[Check, ...] = (check_strings, check_shapes, check_opsets, check_operators, check_structure)
"""What a model is checked for while it may still call functions, in this order: each relies on those before it."""
INLINED: tuple[Check, ...] = (check_inferable, check_with_onnx)
"""And once it calls none."""
