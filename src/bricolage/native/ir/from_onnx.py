"""From an ONNX region to the native engine's tensors. What has no lowering, the engine does not claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from bricolage.graph.graph import describe
from bricolage.lowering.common import MICROSOFT, attributes_of
from bricolage.native.ir.lowerings import NoLowering, OpContext, convert_node, lowered, pointwise
from bricolage.native.ir.lowerings.lowering_context import BatchDivision, keep_batch_whole
from bricolage.native.ir.tensors import C_TYPES, HALVES, Constant, Input, Node, Shape, numpy_type


def lower_region(
    model: ir.Model, origins: dict[Node, str] | None = None, divide_batch: BatchDivision = keep_batch_whole
) -> tuple[list[Node], list[Node]]:
    """The inputs and the outputs of a region. `origins` is filled with the names of the operators that nodes come from.
    `divide_batch` says which recurrences take parts of their batch apart.

    Raises:
        NoLowering: an operator, a type or a shape is not covered.
    """
    graph = model.graph
    values: dict[ir.Value, Node] = {}
    inputs: list[Node] = []
    for value in graph.inputs:
        if value.name in graph.initializers:
            continue
        info = describe(value)
        input_node = Input(_shape(value), _dtype(value), len(inputs))
        if info.dtype is None:
            raise NoLowering(f"'{value.name}' is not a tensor")
        inputs.append(input_node)
        values[value] = input_node
    opset = graph.opset_imports.get("", 1)
    for node in graph:
        lowered_nodes = _lower(node, values, opset, divide_batch)
        if origins is not None:
            _note(lowered_nodes, node.name or node.op_type, origins)
        values.update(zip(node.outputs, lowered_nodes, strict=False))
    return inputs, [_resolve_value(value, values) for value in graph.outputs]


def _note(nodes: Sequence[Node], name: str, origins: dict[Node, str]) -> None:
    """Whatever is new among the nodes and what they are made of comes from the operator `name`."""
    todo = list(nodes)
    while todo:
        node = todo.pop()
        if node not in origins and not isinstance(node, (Input, Constant)):
            origins[node] = name
            todo.extend(node.sources)


def lower_operator(node: ir.Node, opset: int) -> str | None:
    """None when there is a lowering of the operator as it stands, or the reason why not. Looks at shapes and constants only."""
    values: dict[ir.Value, Node] = {}
    try:
        for value in node.inputs:
            if value is not None and value.const_value is None:
                values[value] = Input(_shape(value), _dtype(value), 0)
        _lower(node, values, opset)
    except NoLowering as reason:
        return str(reason)
    return None


_CONSTANTS = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}


def _constant(node: ir.Node) -> Constant:
    """What a Constant operator holds.

    Raises:
        NoLowering: it is sparse, or text.
    """
    for name, attribute in node.attributes.items():
        if name == "value":
            array = np.asarray(attribute.value.numpy())
        elif name in _CONSTANTS:
            array = np.asarray(attribute.value, _CONSTANTS[name])
        else:
            continue
        if array.dtype.name in C_TYPES:
            return Constant(array.shape, array.dtype.name, array)
    raise NoLowering("Constant that is sparse, text or of a type not computed with")


def _lower(
    node: ir.Node, values: Mapping[ir.Value, Node], opset: int, divide_batch: BatchDivision = keep_batch_whole
) -> tuple[Node, ...]:
    if node.op_type == "Constant" and not node.domain:
        return (_constant(node),)
    if node.domain not in ("", "ai.onnx") and (node.domain, node.op_type) not in CONTRIBUTED:
        raise NoLowering(f"no rule for {node.op_type}")
    resolve = _stored_integers if node.op_type == "DequantizeLinear" else _resolve_value
    given = tuple(None if value is None or _left_out(node, value) else resolve(value, values) for value in node.inputs)
    inputs = tuple(None if operand is None else _widen_half(operand) for operand in given)
    shapes = tuple(_shape(value) for value in node.outputs if value.name)
    dtypes = [_dtype(value) if value.name else "" for value in node.outputs]
    if shapes and all(0 in shape for shape in shapes):
        return tuple(_nothing(value) for value in node.outputs)
    results = list(lowered(OpContext(node.op_type, inputs, attributes_of(node), shapes, opset, node, divide_batch)))
    for number, (value, dtype) in enumerate(zip(node.outputs, dtypes, strict=True)):
        if not value.name:
            continue
        if number >= len(results):
            raise NoLowering(f"{node.op_type} with {len(node.outputs)} outputs")
        result = results[number]
        if dtype in HALVES and result.dtype == "float32":
            result = results[number] = convert_node(result, dtype)
        if result.shape != _shape(value) or result.dtype != dtype:
            raise NoLowering(f"{node.op_type} came out as {result.dtype}{list(result.shape)}")
    return tuple(results)


def _widen_half(node: Node) -> Node:
    """What operators compute with: float16 and bfloat16 as float32."""
    if node.dtype not in HALVES:
        return node
    if isinstance(node, Constant):
        return Constant(node.shape, "float32", node.array.astype(np.float32))
    return pointwise("cast", node, dtype="float32")


def _nothing(value: ir.Value) -> Constant:
    """An empty tensor, which needs no computation."""
    if not value.name:
        return Constant((0,), "float32", np.zeros(0, np.float32))
    dtype = _dtype(value)
    return Constant(_shape(value), dtype, np.zeros(_shape(value), numpy_type(dtype)))


def _left_out(node: ir.Node, value: ir.Value) -> bool:
    """Whether an input says nothing: Resize takes empty tensors for regions, scales and sizes that are not given."""
    return node.op_type == "Resize" and value.const_value is not None and 0 in value.const_value.shape


def _resolve_value(value: ir.Value, values: Mapping[ir.Value, Node]) -> Node:
    if value in values:
        return values[value]
    if value.const_value is None:
        raise NoLowering(f"'{value.name}' is not known")
    return Constant(_shape(value), _dtype(value), np.asarray(value.const_value.numpy()))


def _stored_integers(value: ir.Value, values: Mapping[ir.Value, Node]) -> Node:
    """As `_known`; constants of 4 bits as bytes, which hold the same numbers."""
    stored = None if value in values or value.const_value is None else describe(value).numpy
    if stored is None or stored.name not in _OF_4_BITS:
        return _resolve_value(value, values)
    wide = _OF_4_BITS[stored.name]
    assert value.const_value is not None
    return Constant(_shape(value), wide, np.asarray(value.const_value.numpy()).astype(wide))


_OF_4_BITS = {"int4": "int8", "uint4": "uint8"}
CONTRIBUTED = frozenset([(MICROSOFT, "MatMulNBits")])
"""Operators of other domains that have a lowering."""


def _shape(value: ir.Value) -> Shape:
    info = describe(value)
    if not info.static:
        raise NoLowering(f"the shape of '{value.name}' is not known")
    return info.sizes


def _dtype(value: ir.Value) -> str:
    info = describe(value)
    name = info.numpy.name if info.static else "unknown"
    if name not in C_TYPES:
        raise NoLowering(f"'{value.name}' has the type {name}")
    return name
