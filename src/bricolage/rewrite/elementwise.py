"""Operators that work on each element alone, so that moving elements before or after is the same."""

from __future__ import annotations

import onnx_ir as ir

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
