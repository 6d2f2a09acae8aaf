"""Which operators are analytic functions of floats: those that agree on tried numbers then agree on all.

A clip at 6 is the same as nothing on numbers around 1. So an operator that has a corner or a step is refused where it reads what
depends on tokens. Masks, positions and sizes do not.
"""

from __future__ import annotations

import onnx_ir as ir

from bricolage.language.onnx_decoders.bound_graph import BoundGraph
from bricolage.language.onnx_decoders.reading_failure import NotUnderstood

_CORNERS = frozenset(
    [
        *(
            "Abs",
            "ArgMax",
            "ArgMin",
            "BitCast",
            "Ceil",
            "Celu",
            "Clip",
            "Compress",
            "Elu",
            "Equal",
            "Floor",
            "GlobalMaxPool",
        ),
        *("Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "Hardmax", "If", "LeakyRelu", "Less", "LessOrEqual"),
        *("Loop", "LpNormalization", "LpPool", "Max", "MaxPool", "MaxRoiPool", "MaxUnpool", "Min", "Mod"),
        *(
            "NonMaxSuppression",
            "NonZero",
            "PRelu",
            "ReduceL1",
            "ReduceMax",
            "ReduceMin",
            "Relu",
            "Round",
            "Scan",
            "Selu",
        ),
        *("Shrink", "Sign", "Softsign", "ThresholdedRelu", "TopK", "Unique"),
    ]
)
"""Of ONNX's operators. Where is none: its condition is a constant, or rests on one of these, or on IsNaN, which finite numbers are
not."""
_ROUNDING = frozenset(["DynamicQuantizeLinear", "QuantizeLinear"])


def check_smoothness(graph: BoundGraph) -> None:
    """
    Raises:
        NotUnderstood: an operator has a corner or a step in what depends on tokens.
    """
    for node in graph.nodes:
        floats = [value for value in node.inputs if value is not None and value in graph.computed and _is_float(value)]
        if floats and node.op_type in _ROUNDING and not node.domain:
            raise NotUnderstood(
                f"'{node.name}' ({node.op_type}) rounds rows to integers, and only weights may be integers"
            )
        if floats and _has_corners(node):
            raise NotUnderstood(
                f"'{node.name}' ({node.op_type}) has a corner: no decoder of these architectures has one"
            )


def _is_float(value: ir.Value) -> bool:
    return value.dtype is None or value.dtype.is_floating_point()


def _has_corners(node: ir.Node) -> bool:
    if node.domain:
        return False
    return node.op_type in _CORNERS or (node.op_type == "Cast" and not _is_float(node.outputs[0]))
