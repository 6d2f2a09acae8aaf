"""Element types: which this library computes with, and which operators work on the rarer ones."""

from __future__ import annotations

import onnx_ir as ir

from bricolage.lowering.common import element_types
from bricolage.lowering.torch.arrays import DTYPES

WIDE_UNSIGNED = frozenset({4, 12, 13})
"""uint16, uint32 and uint64: PyTorch stores them, but has few kernels for them."""

_STORED_ONLY = frozenset(
    {
        "BitCast",
        "Cast",
        "CastLike",
        "Constant",
        "DequantizeLinear",
        "Identity",
        "QuantizeLinear",
        "Reshape",
        "Shape",
        "Size",
        "Squeeze",
        "Transpose",
        "Unsqueeze",
    }
)
"""Operators that need no arithmetic on their elements."""


def type_refusal(node: ir.Node) -> str | None:
    """Why the node's element types stand in the way; None when they do not."""
    types = element_types(node)
    attribute = node.attributes.get("to")
    if attribute is not None and node.op_type in ("Cast", "BitCast"):
        types.append(int(attribute.value))
    for value in (*node.inputs, *node.outputs):
        if value is not None and value.type is not None and not isinstance(value.type, ir.TensorType):
            return f"{type(value.type).__name__} values have no lowering"
    for kind in types:
        if kind and kind not in DTYPES:
            return f"PyTorch does not compute with {ir.DataType(kind).name}"
        if kind in WIDE_UNSIGNED and node.op_type not in _STORED_ONLY:
            return f"PyTorch has no {ir.DataType(kind).name} kernel for {node.op_type}"
    return None
