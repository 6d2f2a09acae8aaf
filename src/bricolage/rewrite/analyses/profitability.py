"""When a rewrite is profitable by counting: the one place that says so.

A canonicalising rule is applied where what it removes costs more than what it adds, and nothing about it costs more:
contractions (their number and their FLOPs), bytes moved and operators each do not grow, and one of them shrinks. All are
natural numbers, so rewriting comes to an end. Operators that only reckon with sizes count where all others are equally many.
What a rule computes from constants counts nothing, since it is folded. Other FLOPs are left out: element-wise work is bound by
memory, and the bytes say it better (a LayerNormalization counts 8 operations an element, its nine operators together 7).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from bricolage.graph.graph import Operator, describe
from bricolage.graph.operator_kinds import ANCHORS, VIEWS
from bricolage.graph.properties import SYMBOLIC_SIZE
from bricolage.graph.work import flops


@dataclass(frozen=True)
class StaticCost:
    """What operators cost before running, by numbers of which none may grow; the last may, if the one before it shrinks."""

    contractions: int
    contraction_flops: int
    bytes: int
    operators: int
    sizes: int = 0
    """Operators that reckon with sizes alone."""

    def __add__(self, other: StaticCost) -> StaticCost:
        return StaticCost(
            self.contractions + other.contractions,
            self.contraction_flops + other.contraction_flops,
            self.bytes + other.bytes,
            self.operators + other.operators,
            self.sizes + other.sizes,
        )

    def __le__(self, other: StaticCost) -> bool:
        return (
            self.contractions <= other.contractions
            and self.contraction_flops <= other.contraction_flops
            and self.bytes <= other.bytes
            and (self.operators, self.sizes) <= (other.operators, other.sizes)
        )

    def __lt__(self, other: StaticCost) -> bool:
        return self <= other and self != other


def compare_costs(gone: Sequence[ir.Node], new: Sequence[ir.Node], opset: int) -> tuple[StaticCost, StaticCost]:
    """The costs of what a rewrite removes and of what it adds.

    Symbolic dimensions count with a size of their own; where the new side has others than the old (a flattened dimension
    against its factors), bytes cannot be compared and are left out of both.
    """
    comparable = _symbols(new) <= _symbols(gone) and "?" not in _symbols(gone)
    return _cost(gone, opset, comparable), _cost(new, opset, comparable)


def _cost(nodes: Sequence[ir.Node], opset: int, with_bytes: bool) -> StaticCost:
    total = StaticCost(0, 0, 0, 0)
    for node in nodes:
        contraction = node.op_type in ANCHORS or (node.op_type == "Einsum" and len(node.inputs) > 1)
        work = flops(Operator(0, node, opset)) if contraction else 0
        moved = sum(map(bytes_of, _values(node))) if with_bytes and node.op_type not in VIEWS else 0
        sizes = _reckons_with_sizes(node)
        total += StaticCost(int(contraction), work, moved, int(not sizes), int(sizes))
    return total


def _reckons_with_sizes(node: ir.Node) -> bool:
    """Whether an operator gives sizes that are known only when the model runs: Shape, or what puts such numbers together."""
    if node.op_type == "Shape":
        return True
    infos = [describe(value) for value in _values(node)]
    return node.op_type in ("Concat", "Gather", "Slice", "Squeeze", "Unsqueeze") and all(
        info.dtype == ir.DataType.INT64 and info.shape is not None and len(info.shape) < 2 for info in infos
    )


def _values(node: ir.Node) -> list[ir.Value]:
    return list(dict.fromkeys(value for value in (*node.inputs, *node.outputs) if value is not None))


def _symbols(nodes: Sequence[ir.Node]) -> set[str]:
    """Names of the symbolic dimensions of what nodes read and write; views move nothing, so that theirs do not matter."""
    shapes = [describe(value).shape for node in nodes if node.op_type not in VIEWS for value in _values(node)]
    return {d for shape in shapes for d in (("?",) if shape is None else shape) if isinstance(d, str)}


def bytes_of(value: ir.Value) -> int:
    """Size of a value; symbolic dimensions count with a size of their own, what is not known nothing."""
    info = describe(value)
    if info.dtype is None or info.shape is None or info.dtype == ir.DataType.STRING:
        return 0
    elements = math.prod(d if isinstance(d, int) else SYMBOLIC_SIZE for d in info.shape)
    return math.ceil(elements * info.dtype.bitwidth / 8)
