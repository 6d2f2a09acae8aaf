"""Operators that do two things at once, taken apart: a sum lies apart from what normalises it, a bias from its product."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from bricolage.frontends.contributed import IN_ONNX_OWN_DOMAIN

_MICROSOFT = "com.microsoft"
_NORM = next(iter(IN_ONNX_OWN_DOMAIN))
_BIAS = 5
"""Input of MatMulNBits."""


def take_apart(model: ir.Model) -> None:
    """Replaces SkipSimplifiedLayerNormalization by Add and SimplifiedLayerNormalization, and products with a bias by a product and
    Add, in place."""
    for node in list(model.graph):
        match node.domain, node.op_type:
            case (domain, "SkipSimplifiedLayerNormalization") if domain == _MICROSOFT:
                _part_norm(model.graph, node)
            case (domain, "MatMulNBits") if domain == _MICROSOFT and _input(node, _BIAS) is not None:
                bias = node.inputs[_BIAS]
                node.replace_input_with(_BIAS, None)
                _add_behind(model.graph, node, bias)
            case ("", "Gemm") if _is_plain(node):
                _part_product(model.graph, node)


def _input(node: ir.Node, place: int) -> ir.Value | None:
    return node.inputs[place] if place < len(node.inputs) else None


def _new(
    kind: str, inputs: Sequence[ir.Value | None], like: ir.Value, name: str, **words: int | float | Sequence[int]
) -> ir.Node:
    node = ir.node(kind, list(inputs), dict(words), name=name)
    node.outputs[0].name = name
    node.outputs[0].type, node.outputs[0].shape = like.type, like.shape
    return node


def _part_norm(graph: ir.Graph, node: ir.Node) -> None:
    first, skip, scale = node.inputs[:3]
    bias, name = _input(node, 3), node.name or "norm"
    normal = node.outputs[0]
    nodes = [_new("Add", [first, skip], normal, f"{name}.sum")]
    if bias is not None:
        nodes.append(_new("Add", [nodes[0].outputs[0], bias], normal, f"{name}.biased"))
    total = nodes[-1].outputs[0]
    words = {"axis": -1, "epsilon": node.attributes.get_float("epsilon", 1e-12)}
    nodes.append(_new(_NORM, [total, scale], normal, f"{name}.norm", **words))
    graph.insert_before(node, nodes)
    normal.replace_all_uses_with(nodes[-1].outputs[0], replace_graph_outputs=True)
    if len(node.outputs) > 3:
        node.outputs[3].replace_all_uses_with(total, replace_graph_outputs=True)
    graph.remove(node, safe=True)


def _add_behind(graph: ir.Graph, node: ir.Node, bias: ir.Value | None) -> None:
    result = node.outputs[0]
    total = _new("Add", [result, bias], result, f"{node.name}.biased")
    result.replace_all_uses_with(total.outputs[0], replace_graph_outputs=True)
    total.replace_input_with(0, result)
    graph.insert_after(node, total)


def _is_plain(node: ir.Node) -> bool:
    attributes = node.attributes
    factors = [attributes.get_float(name, 1.0) for name in ("alpha", "beta")]
    return factors == [1.0, 1.0] and not attributes.get_int("transA", 0)


def _part_product(graph: ir.Graph, node: ir.Node) -> None:
    x, weights = node.inputs[:2]
    bias, result, nodes = _input(node, 2), node.outputs[0], list[ir.Node]()
    if node.attributes.get_int("transB", 0) and weights is not None:
        turned = ir.node("Transpose", [weights], {"perm": [1, 0]}, name=f"{node.name}.turned")
        turned.outputs[0].name = turned.name
        nodes.append(turned)
        weights = turned.outputs[0]
    nodes.append(_new("MatMul", [x, weights], result, f"{node.name}.product"))
    graph.insert_before(node, nodes)
    result.replace_all_uses_with(nodes[-1].outputs[0], replace_graph_outputs=True)
    graph.remove(node, safe=True)
    if bias is not None:
        _add_behind(graph, nodes[-1], bias)
