"""Operands of one type where ONNX wants one.

Operators of PyTorch take tensors of several types where ONNX's take one: under autocast a LayerNorm reads bfloat16 values and
float32 weights. The exporter writes what it was given, which is no valid ONNX. PyTorch computes such operators in the wider type
and rounds the result to the type that it promised; so the operands are cast to that, and the result back. So they are where an
operator of ONNX has no such narrow type.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
import onnx_ir as ir

_HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_WIDE = (ir.DataType.DOUBLE, ir.DataType.FLOAT)


def unify_types(model: ir.Model) -> int:
    """Casts operands to a common type where an operator of ONNX takes one type and is given several, and results back to the types
    that are stated, in place. A model without such operators stays as it is. Returns for how many operators it did so."""
    opset = model.opset_imports.get("", 0)
    mended = 0
    for graph in (model.graph, *(subgraph for subgraph in model.graphs() if subgraph is not model.graph)):
        for node in list(graph):
            if node.domain in ("", "ai.onnx"):
                mended += _unify(node, opset, anywhere=mended > 0)
    return mended


def common_type(types: Iterable[ir.DataType]) -> ir.DataType | None:
    """The narrowest type that holds what all of these do; None where numbers and something else are mixed."""
    given = set(types)
    floats = {dtype for dtype in given if dtype.is_floating_point()}
    if len(floats) > 1:
        return next((dtype for dtype in _WIDE if dtype in floats), ir.DataType.FLOAT)
    if floats:
        whole = given - floats
        return next(iter(floats)) if all(dtype.is_integer() or dtype == ir.DataType.BOOL for dtype in whole) else None
    if not all(dtype.is_integer() or dtype == ir.DataType.BOOL for dtype in given):
        return None
    return ir.DataType.from_numpy(np.result_type(*(dtype.numpy() for dtype in given)))


def _unify(node: ir.Node, opset: int, *, anywhere: bool) -> int:
    """`anywhere`: whether an operator before was changed, so that types that follow may differ from those that are stated."""
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError:
        return 0
    variables = {constraint.type_param_str for constraint in schema.type_constraints}
    bound: dict[str, list[int]] = {}
    for place, value in enumerate(node.inputs):
        formal = schema.inputs[min(place, len(schema.inputs) - 1)] if schema.inputs else None
        if formal is not None and formal.type_str in variables and formal.is_homogeneous and _dtype(value) is not None:
            bound.setdefault(formal.type_str, []).append(place)
    types: dict[str, ir.DataType] = {}
    changed = 0
    for variable, places in bound.items():
        given = [dtype for place in places if (dtype := _dtype(node.inputs[place])) is not None]
        common = common_type(given)
        if common is None:
            continue
        allowed = next(
            constraint.allowed_type_strs
            for constraint in schema.type_constraints
            if constraint.type_param_str == variable
        )
        if common in _HALVES and f"tensor({common.name.lower()})" not in allowed and "tensor(float)" in allowed:
            common = ir.DataType.FLOAT  # Conv has no bfloat16 before opset 22
        types[variable] = common
        if set(given) != {common}:
            changed = 1
            for place in places:
                _cast_operand(node, place, common)
    if changed or anywhere:
        for place, value in enumerate(node.outputs):
            formal = schema.outputs[min(place, len(schema.outputs) - 1)]
            _cast_result(node, value, types.get(formal.type_str))
    return changed


def _dtype(value: ir.Value | None) -> ir.DataType | None:
    return value.dtype if value is not None and isinstance(value.type, ir.TensorType) else None


def _cast_operand(node: ir.Node, place: int, to: ir.DataType) -> None:
    value = node.inputs[place]
    if value is None or value.dtype == to:
        return
    cast = ir.node("Cast", [value], attributes={"to": to})
    cast.outputs[0].type, cast.outputs[0].shape = ir.TensorType(to), value.shape
    node.prepend(cast)
    node.replace_input_with(place, cast.outputs[0])


def _cast_result(node: ir.Node, value: ir.Value, made: ir.DataType | None) -> None:
    """`made`: the type that the operator makes, where its operands' says it."""
    stated = _dtype(value)
    if made is None or made == stated:
        return
    if stated is None:
        if value.type is None:
            value.type = ir.TensorType(made)
        return
    name = value.name
    cast = ir.node("Cast", [value], attributes={"to": stated})
    result = cast.outputs[0]
    result.type, result.shape = value.type, value.shape
    value.type = ir.TensorType(made)
    node.append(cast)
    for user, place in list(value.uses()):
        if user is not cast:
            user.replace_input_with(place, result)
    graph = node.graph
    if graph is not None and value.is_graph_output():
        for place, output in enumerate(graph.outputs):
            if output is value:
                graph.outputs[place] = result
        value.name, result.name = f"{name}_wide", name
