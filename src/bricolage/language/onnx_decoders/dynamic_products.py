"""Products of ONNX Runtime's `quantize_dynamic`, whose rows are rounded to bytes at each call: as products with the integers of
their weights, since a description rounds no rows.

    DynamicQuantizeLinear(x) -> MatMulInteger(bytes, weights) -> Cast -> Mul(scale of x · scales of weights)
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from bricolage.graph.constant_folding import is_known


def read_rows_whole(graph: ir.Graph) -> None:
    """Replaces such products by MatMul and DequantizeLinear, and rows of an embedding in bytes by those of one in floats, in
    place. What looks otherwise stays, and is refused later."""
    for node in list(graph):
        if node.domain:
            continue
        if node.op_type == "MatMulInteger":
            _replace_product(graph, node)
        elif node.op_type == "DequantizeLinear":
            _replace_gather(graph, node)


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
