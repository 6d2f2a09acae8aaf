"""Rows that a graph rounds to integers, left whole: a description rounds no rows. Weights keep their integers.

ONNX Runtime's `quantize_dynamic` rounds the rows of products at each call, by one of

    DynamicQuantizeLinear(x) -> MatMulInteger(bytes, weights) -> Cast -> Mul(scale of x · scales of weights)
    DynamicQuantizeLinear(x) -> MatMulIntegerToFloat(bytes, weights, scales, zero points, bias)
    DynamicQuantizeMatMul(x, weights, scales, zero points, bias)

and `quantize_static` rounds whatever a calibration has seen, by scales that are constants:

    QuantizeLinear(x) -> DequantizeLinear

Operators: docs/Operators.md of onnx/onnx and docs/ContribOperators.md of microsoft/onnxruntime.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from bricolage.graph.constant_folding import constant_elements, is_known

ROUNDING_OPERATORS = frozenset(["DynamicQuantizeLinear", "DynamicQuantizeMatMul", "MatMulNBits", "QuantizeLinear"])
"""Operators that round rows, or may; `MatMulNBits` at its `accuracy_level`."""
_MICROSOFT = "com.microsoft"


def leave_rows_whole(graph: ir.Graph) -> None:
    """Replaces such products by MatMul and DequantizeLinear, rows of an embedding in bytes by those of one in floats, and rows that
    are rounded by constants by what they are made of, in place. What looks otherwise stays, and is refused later."""
    for node in list(graph):
        match node.domain, node.op_type:
            case "", "MatMulInteger":
                _replace_product(graph, node)
            case "", "DequantizeLinear":
                _replace_gather(graph, node)
            case (domain, "DynamicQuantizeMatMul") if domain == _MICROSOFT:
                _replace_fused(graph, node, node.inputs[0], _at(node, 2), _at(node, 3), _at(node, 4))
            case (domain, "MatMulIntegerToFloat") if domain == _MICROSOFT:
                _replace_fused(graph, node, _find_rounded(node), _at(node, 3), _at(node, 5), _at(node, 6))
    for node in list(graph):
        if (node.domain, node.op_type) == ("", "DequantizeLinear"):
            _skip_rounding(graph, node)


def _at(node: ir.Node, place: int) -> ir.Value | None:
    return node.inputs[place] if place < len(node.inputs) else None


def _find_rounded(node: ir.Node) -> ir.Value | None:
    """What the rows of MatMulIntegerToFloat are made of at each call; None where they are made otherwise."""
    rounded, scale, zero = node.inputs[0], _at(node, 2), _at(node, 4)
    maker = None if rounded is None else rounded.producer()
    if maker is None or maker.op_type != "DynamicQuantizeLinear" or (rounded, scale, zero) != tuple(maker.outputs):
        return None
    return maker.inputs[0]


def _replace_fused(
    graph: ir.Graph,
    node: ir.Node,
    rows: ir.Value | None,
    scales: ir.Value | None,
    zero: ir.Value | None,
    bias: ir.Value | None,
) -> None:
    """One operator for a product of rows and bytes, and a bias."""
    weights = _at(node, 1)
    constants = [weights, scales, *([] if zero is None else [zero])]
    if rows is None or not all(value is not None and is_known(value) for value in constants):
        return
    floats = _new("DequantizeLinear", [weights, scales, *([] if zero is None else [zero])], f"{node.name}.weights")
    nodes = [floats, _new("MatMul", [rows, floats.outputs[0]], f"{node.name}.product")]
    if bias is not None:
        nodes.append(_new("Add", [nodes[-1].outputs[0], bias], f"{node.name}.biased"))
    _put_in_place(graph, node, nodes)


def _skip_rounding(graph: ir.Graph, node: ir.Node) -> None:
    """DequantizeLinear behind QuantizeLinear of the same scale."""
    rounded = node.inputs[0]
    maker = None if rounded is None else rounded.producer()
    if maker is None or (maker.domain, maker.op_type) != ("", "QuantizeLinear"):
        return
    x = maker.inputs[0]
    if x is None or is_known(x) or not all(_is_same_scalar(_at(maker, place), _at(node, place)) for place in (1, 2)):
        return
    result = node.outputs[0]
    if result.is_graph_output():
        alike = _new("Identity", [x], f"{node.name}.whole")
        _put_in_place(graph, node, [alike])
        return
    result.replace_all_uses_with(x)
    graph.remove(node, safe=True)


def _is_same_scalar(first: ir.Value | None, second: ir.Value | None) -> bool:
    if first is None or second is None:
        return first is second
    arrays = [constant_elements(value) if is_known(value) else None for value in (first, second)]
    return all(array is not None and array.size == 1 for array in arrays) and np.array_equal(*arrays)  # type: ignore[arg-type]


def _replace_product(graph: ir.Graph, node: ir.Node) -> None:
    rounded, weights, *points = node.inputs
    maker = None if rounded is None else rounded.producer()
    cast = _only_reader(node.outputs[0], "Cast")
    scaled = None if cast is None else _only_reader(cast.outputs[0], "Mul")
    if maker is None or maker.op_type != "DynamicQuantizeLinear" or cast is None or scaled is None:
        return
    others = [value for value in scaled.inputs if value is not cast.outputs[0]]
    product = None if len(others) != 1 or others[0] is None else others[0].producer()
    if product is None or product.op_type != "Mul" or maker.outputs[1] not in product.inputs:
        return
    scales = [value for value in product.inputs if value is not maker.outputs[1]]
    zero = points[1] if len(points) > 1 else None
    constants = [weights, *scales, *([] if zero is None else [zero])]
    whole = len(points) > 0 and points[0] is maker.outputs[2] and rounded is maker.outputs[0]
    if len(scales) != 1 or not whole or not all(value is not None and is_known(value) for value in constants):
        return
    floats = _new("DequantizeLinear", [weights, scales[0], *([] if zero is None else [zero])], f"{node.name}.weights")
    multiplied = _new("MatMul", [maker.inputs[0], floats.outputs[0]], f"{node.name}.product")
    _put_in_place(graph, scaled, [floats, multiplied])


def _replace_gather(graph: ir.Graph, node: ir.Node) -> None:
    rows, *constants = node.inputs
    gather = None if rows is None else rows.producer()
    constant = all(value is None or is_known(value) for value in constants)
    if gather is None or (gather.domain, gather.op_type) != ("", "Gather") or not constant:
        return
    table, scale = gather.inputs[0], constants[0]
    if (
        table is None
        or not is_known(table)
        or scale is None
        or scale.shape is None
        or scale.shape.numpy() not in ((), (1,))
    ):
        return
    floats = _new("DequantizeLinear", [table, *constants], f"{node.name}.table")
    gathered = _new("Gather", [floats.outputs[0], gather.inputs[1]], f"{node.name}.rows")
    _put_in_place(graph, node, [floats, gathered])


def _only_reader(value: ir.Value, kind: str) -> ir.Node | None:
    readers = value.consumers()
    return readers[0] if len(readers) == 1 and (readers[0].domain, readers[0].op_type) == ("", kind) else None


def _new(kind: str, inputs: Sequence[ir.Value | None], name: str) -> ir.Node:
    node = ir.node(kind, list(inputs), name=name)
    node.outputs[0].name = name
    return node


def _put_in_place(graph: ir.Graph, node: ir.Node, nodes: Sequence[ir.Node]) -> None:
    """Nodes for one whose result is that of the last of them."""
    result, new = node.outputs[0], nodes[-1].outputs[0]
    new.type, new.shape = result.type, result.shape
    graph.insert_before(node, nodes)
    result.replace_all_uses_with(new, replace_graph_outputs=True)
    graph.remove(node, safe=True)
