"""Lowerings of element-wise operators."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from bricolage.backends.native.ir.lowerings.context import NoLowering, OpContext, lowering
from bricolage.backends.native.ir.lowerings.views import pointwise
from bricolage.backends.native.ir.tensors import C_TYPES, Constant, Node

_UNARY = {
    "Relu": "relu",
    "Neg": "neg",
    "Sqrt": "sqrt",
    "Reciprocal": "reciprocal",
    "Exp": "exp",
    "Log": "log",
    "Erf": "erf",
    "Tanh": "tanh",
    "Sigmoid": "sigmoid",
    "Softplus": "softplus",
    "Floor": "floor",
    "Ceil": "ceil",
    "Round": "round",
    "Abs": "abs",
    "HardSwish": "hardswish",
}
_BINARY = {"Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "PRelu": "prelu"}
_COMPARE = {
    "Equal": "equal",
    "Less": "less",
    "LessOrEqual": "less_equal",
    "Greater": "greater",
    "GreaterOrEqual": "greater_equal",
}
_LOGIC = {"And": "and", "Or": "or"}
_FOLDS = {"Max": "maximum", "Min": "minimum", "Sum": "add"}


@lowering(*_UNARY)
def unary(op: OpContext) -> Node:
    """Functions of one float32 input."""
    x = op.tensor(0)
    if x.dtype != "float32":
        raise NoLowering(f"{op.op_type} of {x.dtype}")
    return pointwise(_UNARY[op.op_type], x)


@lowering(*_BINARY)
def binary(op: OpContext) -> Node:
    """Functions of two inputs that broadcast; integers divide towards zero."""
    left, right = op.tensor(0), op.tensor(1)
    if op.op_type == "Div" and left.dtype != "float32":
        return pointwise("quotient", left, right)
    return pointwise(_BINARY[op.op_type], left, right)


@lowering(*_COMPARE)
def compare(op: OpContext) -> Node:
    """Comparisons of two inputs that broadcast, with conditions as results."""
    return pointwise(_COMPARE[op.op_type], op.tensor(0), op.tensor(1), dtype="bool")


@lowering(*_LOGIC)
def logic(op: OpContext) -> Node:
    """And, Or."""
    return pointwise(_LOGIC[op.op_type], op.tensor(0), op.tensor(1), dtype="bool")


@lowering("Not")
def negation(op: OpContext) -> Node:
    """Not."""
    return pointwise("not", op.tensor(0), dtype="bool")


@lowering(*_FOLDS)
def fold(op: OpContext) -> Node:
    """Max, Min and Sum of any number of inputs, from the left to the right."""
    total = op.tensor(0)
    for position in range(1, len(op.inputs)):
        total = pointwise(_FOLDS[op.op_type], total, op.tensor(position))
    return total


@lowering("Where")
def where(op: OpContext) -> Node:
    """Where, with all three inputs broadcast."""
    return pointwise("where", op.tensor(0), op.tensor(1), op.tensor(2))


@lowering("Cast")
def cast(op: OpContext) -> Node:
    """Cast to the type that `to` names."""
    return converted(op.tensor(0), ir.DataType(op.get("to")).numpy().name)


def converted(x: Node, wanted: str) -> Node:
    """With another element type."""
    if wanted == x.dtype:
        return x
    if wanted not in C_TYPES:
        raise NoLowering(f"Cast from {x.dtype} to {wanted}")
    if wanted == "bool":
        return pointwise("to_bool", x, dtype=wanted)
    return pointwise(f"cast_{wanted}" if x.dtype == "float32" else "cast", x, dtype=wanted)


@lowering("Pow")
def power(op: OpContext) -> Node:
    """Pow of float32."""
    x, exponent = op.tensor(0), op.tensor(1)
    if x.dtype != "float32":
        raise NoLowering(f"Pow of {x.dtype}")
    return raised(x, exponent)


def raised(x: Node, exponent: Node) -> Node:
    """A power; those that are common take a product, a root or a quotient."""
    known = (
        float(exponent.array.reshape(-1)[0]) if isinstance(exponent, Constant) and exponent.elements == 1 else math.nan
    )
    if known not in _POWERS or len(exponent.shape) > len(x.shape):
        return pointwise("pow", x, converted(exponent, "float32"))
    for function in _POWERS[known]:
        x = pointwise(function, x)
    return x


_POWERS = {
    1.0: ("identity",),
    2.0: ("square",),
    3.0: ("cube",),
    4.0: ("square", "square"),
    0.5: ("sqrt",),
    -0.5: ("sqrt", "reciprocal"),
    -1.0: ("reciprocal",),
    -2.0: ("square", "reciprocal"),
}


@lowering("Clip")
def clip(op: OpContext) -> Node:
    """Clip: constant bounds as parameters, computed ones as maximum and minimum."""
    x, bounds = op.tensor(0), (op.optional(1), op.optional(2))
    if x.dtype == "float32" and all(bound is None or isinstance(bound, Constant) for bound in bounds):
        if op.opset < 11:
            known = (op.get("min", -math.inf), op.get("max", math.inf))
        else:
            known = (op.scalar(1, -math.inf), op.scalar(2, math.inf))
        return pointwise("clip", x, parameters=known)
    for function, bound in zip(("maximum", "minimum"), bounds, strict=True):
        x = x if bound is None else pointwise(function, x, bound)
    return x


@lowering("LeakyRelu")
def leaky_relu(op: OpContext) -> Node:
    """LeakyRelu: alpha times what is negative."""
    return pointwise("leaky", op.tensor(0), parameters=(op.get("alpha", 0.01),))


@lowering("Elu")
def elu(op: OpContext) -> Node:
    """Elu: alpha·(exp(x) − 1) for what is negative."""
    return pointwise("elu", op.tensor(0), parameters=(op.get("alpha", 1.0),))


@lowering("HardSigmoid")
def hard_sigmoid(op: OpContext) -> Node:
    """HardSigmoid: alpha·x + beta, kept between 0 and 1."""
    return pointwise("hardsigmoid", op.tensor(0), parameters=(op.get("alpha", 0.2), op.get("beta", 0.5)))


@lowering("Gelu")
def gelu(op: OpContext) -> Node:
    """Gelu, exact or by its approximation with tanh."""
    tanh = op.get("approximate", "none") == "tanh"
    return pointwise("gelu_tanh" if tanh else "gelu", op.tensor(0))


@lowering("Identity")
def identity(op: OpContext) -> Node:
    """Identity."""
    return op.tensor(0)


@lowering("Dropout")
def dropout(op: OpContext) -> Node:
    """Dropout in inference, which changes nothing."""
    training = op.optional(2)
    if training is not None and not (isinstance(training, Constant) and not training.array.any()):
        raise NoLowering("Dropout in training mode")
    return op.tensor(0)


@lowering("BatchNormalization")
def batch_normalization(op: OpContext) -> Node:
    """BatchNormalization in inference, as one factor and one summand for each channel, made in float64."""
    if op.get("training_mode", 0):
        raise NoLowering("BatchNormalization in training mode")
    x, (scale, bias, mean, variance) = op.tensor(0), (op.tensor(i) for i in range(1, 5))
    if not all(isinstance(node, Constant) for node in (scale, bias, mean, variance)):
        raise NoLowering("BatchNormalization with computed statistics")
    arrays = [node.array.astype(np.float64) for node in (scale, bias, mean, variance) if isinstance(node, Constant)]
    factor = arrays[0] / np.sqrt(arrays[3] + op.get("epsilon", 1e-5))
    shift = arrays[1] - arrays[2] * factor
    column = (len(factor), *(1,) * (len(x.shape) - 2))
    return pointwise(
        "add",
        pointwise("mul", x, Constant(column, "float32", factor.astype(np.float32).reshape(column))),
        Constant(column, "float32", shift.astype(np.float32).reshape(column)),
    )
