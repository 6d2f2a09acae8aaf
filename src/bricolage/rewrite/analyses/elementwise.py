"""Operators that work on each element alone, so that moving elements before or after is the same."""

from __future__ import annotations

import onnx_ir as ir

from bricolage.rewrite.engine.matching import Match
from bricolage.rewrite.pattern import Op, ValuePattern, op
from bricolage.rewrite.predicates import require
from bricolage.rewrite.rule import Operators

UNARY = (
    "Abs",
    "Cast",
    "Ceil",
    "Celu",
    "Cos",
    "Elu",
    "Erf",
    "Exp",
    "Floor",
    "Gelu",
    "HardSigmoid",
    "HardSwish",
    "LeakyRelu",
    "Log",
    "Mish",
    "Neg",
    "Not",
    "Reciprocal",
    "Relu",
    "Round",
    "Selu",
    "Sigmoid",
    "Sign",
    "Sin",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Swish",
    "Tanh",
    "ThresholdedRelu",
)
"""One input, one output of the same shape."""

BINARY = (
    "Add",
    "And",
    "Div",
    "Equal",
    "Greater",
    "GreaterOrEqual",
    "Less",
    "LessOrEqual",
    "Max",
    "Min",
    "Mul",
    "Or",
    "Pow",
    "Sub",
    "Xor",
)
"""Two inputs that broadcast to the shape of the output."""


def gates(source: ValuePattern, again: ValuePattern) -> list[Op]:
    """Patterns of a value and what an element-wise function makes of it (x · Sigmoid(x)); `again` is `source` by another name."""
    inner = op.one_of(*UNARY)(again, name="inner")
    return [op.one_of(*BINARY)(source, inner, name="gate"), op.one_of(*BINARY)(inner, source, name="gate")]


def require_gate(match: Match, source: str, again: str) -> None:
    """Both names are one operator.

    Raises:
        MatchFailure
    """
    require(match.node(source) is match.node(again), "the two are not of one value")


def copy_gate(op: Operators, match: Match, value: ir.Value) -> ir.Value:
    """The gate of another value."""
    gate, inner = match.node("gate"), match.node("inner")
    inner_copy = op.copy(inner, value)
    return op.copy(gate, *(inner_copy if read is inner.outputs[0] else value for read in gate.inputs))


def doubled_gelu(value: ir.Value) -> bool:
    """Whether a value is x · (1 + Erf(…)) or x · (1 + Tanh(…)): a GELU but for its factor ½, by which runtimes know it."""
    product = value.producer()
    if product is None or product.op_type != "Mul":
        return False
    sums = [factor.producer() for factor in product.inputs if factor is not None]
    return any(_one_plus_gate(node) for node in sums if node is not None)


def _one_plus_gate(node: ir.Node) -> bool:
    terms = [term.producer() for term in node.inputs if term is not None]
    return node.op_type == "Add" and any(term is not None and term.op_type in ("Erf", "Tanh") for term in terms)
