"""What a region holds, as far as it decides whether a configuration of a backend changes anything in it: asked of its operators
and their bodies alone, before anything is compiled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx_ir as ir

from bricolage.graph.graph import Region, describe, with_bodies
from bricolage.graph.operator_kinds import CONVOLUTIONS, PRODUCTS, RECURRENT

MULTIPLYING = CONVOLUTIONS | PRODUCTS | RECURRENT
"""Operators that are products, or that backends compute as products."""
_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16})


def nodes_of(region: Region) -> Iterator[ir.Node]:
    """The nodes of a region, those in bodies of control flow included."""
    for operator in region.operators:
        yield from with_bodies(operator.node)


def may_multiply(node: ir.Node, others: Iterable[str] = ()) -> bool:
    """Whether a node may compute products of floats: by its type, or by one of `others`. Nothing is known of types
    that are not ONNX's own."""
    if node.domain not in ("", "ai.onnx"):
        return True
    return (node.op_type in MULTIPLYING or node.op_type in others) and not _integer(node)


def _integer(node: ir.Node) -> bool:
    """Whether its first input is known to hold integers."""
    first = node.inputs[0] if node.inputs else None
    kind = None if first is None else describe(first).dtype
    return kind is not None and kind.is_integer()


def reads_floats(region: Region) -> bool:
    """Whether some tensor in it is, or may be, one of float32 or float16."""
    values = (value for node in nodes_of(region) for value in (*node.inputs, *node.outputs) if value is not None)
    kinds = {describe(value).dtype for value in values}
    return None in kinds or bool(kinds & _FLOATS)


def convolution_weights(node: ir.Node) -> tuple[int | str, ...] | None:
    """Sizes of the weights of an ONNX convolution, transposed or not; None for other nodes and unknown ranks."""
    if node.domain or node.op_type not in ("Conv", "ConvTranspose") or len(node.inputs) < 2 or node.inputs[1] is None:
        return None
    return describe(node.inputs[1]).shape


def is_depthwise(node: ir.Node) -> bool:
    """Whether a convolution has groups of one input channel each."""
    weights, group = convolution_weights(node), node.attributes.get_int("group", 1)
    if weights is None or group == 1:
        return False
    return weights[1] == 1 and (node.op_type == "Conv" or weights[0] == group)
