"""When a rewrite is a gain: the one place that says so.

A simplifying rule is applied where what it removes costs more than what it adds, and nothing about it costs more:
contractions (their number and their FLOPs), bytes moved and operators each do not grow, and one of them shrinks. All are
natural numbers that never grow, so rewriting comes to an end. What a rule computes from constants counts nothing, since
it is folded. Other FLOPs are left out: element-wise work is bound by memory, and the bytes say it better (a
LayerNormalization counts 8 operations an element, its nine operators together 7).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import onnx_ir as ir

from bricolage.graph.graph import Operator, describe
from bricolage.graph.work import ANCHORS, VIEWS, flops

_SYMBOLIC = 16
"""Size that an unknown dimension counts with."""


@dataclass(frozen=True)
class Cost:
    """What operators cost before running, by four numbers of which none may grow."""

    contractions: int
    contraction_flops: int
    bytes: int
    operators: int

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.contractions + other.contractions,
            self.contraction_flops + other.contraction_flops,
            self.bytes + other.bytes,
            self.operators + other.operators,
        )

    def __le__(self, other: Cost) -> bool:
        return (
            self.contractions <= other.contractions
            and self.contraction_flops <= other.contraction_flops
            and self.bytes <= other.bytes
            and self.operators <= other.operators
        )

    def __lt__(self, other: Cost) -> bool:
        return self <= other and self != other


def cost(nodes: Iterable[ir.Node], opset: int) -> Cost:
    """The cost of operators. Symbolic dimensions count with a size of their own; a value of unknown rank counts no bytes."""
    total = Cost(0, 0, 0, 0)
    for node in nodes:
        contraction = node.op_type in ANCHORS
        work = flops(Operator(0, node, opset)) if contraction else 0
        moved = 0
        if node.op_type not in VIEWS:
            moved = sum(map(_bytes, dict.fromkeys(v for v in (*node.inputs, *node.outputs) if v is not None)))
        total += Cost(int(contraction), work, moved, 1)
    return total


def _bytes(value: ir.Value) -> int:
    info = describe(value)
    if info.dtype is None or info.shape is None or info.dtype == ir.DataType.STRING:
        return 0
    elements = math.prod(d if isinstance(d, int) else _SYMBOLIC for d in info.shape)
    return math.ceil(elements * info.dtype.bitwidth / 8)
