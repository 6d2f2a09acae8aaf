"""Rules of element-wise operators."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from bricolage.backends.native.ir.lowerings.context import Call, NoRule, rule
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


@rule(*_UNARY)
def unary(call: Call) -> Node:
    x = call.tensor(0)
    if x.dtype != "float32":
        raise NoRule(f"{call.op_type} of {x.dtype}")
    return pointwise(_UNARY[call.op_type], x)


@rule(*_BINARY)
def binary(call: Call) -> Node:
    left, right = call.tensor(0), call.tensor(1)
    if call.op_type == "Div" and left.dtype != "float32":
        return pointwise("quotient", left, right)
    return pointwise(_BINARY[call.op_type], left, right)


@rule(*_COMPARE)
def compare(call: Call) -> Node:
    return pointwise(_COMPARE[call.op_type], call.tensor(0), call.tensor(1), dtype="bool")


@rule(*_LOGIC)
def logic(call: Call) -> Node:
    return pointwise(_LOGIC[call.op_type], call.tensor(0), call.tensor(1), dtype="bool")


@rule("Not")
def negation(call: Call) -> Node:
    return pointwise("not", call.tensor(0), dtype="bool")


@rule(*_FOLDS)
def fold(call: Call) -> Node:
    total = call.tensor(0)
    for position in range(1, len(call.inputs)):
        total = pointwise(_FOLDS[call.op_type], total, call.tensor(position))
    return total


@rule("Where")
def where(call: Call) -> Node:
    return pointwise("where", call.tensor(0), call.tensor(1), call.tensor(2))


@rule("Cast")
def cast(call: Call) -> Node:
    return converted(call.tensor(0), ir.DataType(call.get("to")).numpy().name)


def converted(x: Node, wanted: str) -> Node:
    """With another element type."""
    if wanted == x.dtype:
        return x
    if wanted not in C_TYPES:
        raise NoRule(f"Cast from {x.dtype} to {wanted}")
    if wanted == "bool":
        return pointwise("to_bool", x, dtype=wanted)
    return pointwise(f"cast_{wanted}" if x.dtype == "float32" else "cast", x, dtype=wanted)


@rule("Pow")
def power(call: Call) -> Node:
    x, exponent = call.tensor(0), call.tensor(1)
    if x.dtype != "float32":
        raise NoRule(f"Pow of {x.dtype}")
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


@rule("Clip")
def clip(call: Call) -> Node:
    x, bounds = call.tensor(0), (call.optional(1), call.optional(2))
    if x.dtype == "float32" and all(bound is None or isinstance(bound, Constant) for bound in bounds):
        if call.opset < 11:
            known = (call.get("min", -math.inf), call.get("max", math.inf))
        else:
            known = (call.scalar(1, -math.inf), call.scalar(2, math.inf))
        return pointwise("clip", x, parameters=known)
    for function, bound in zip(("maximum", "minimum"), bounds, strict=True):
        x = x if bound is None else pointwise(function, x, bound)
    return x


@rule("LeakyRelu")
def leaky_relu(call: Call) -> Node:
    return pointwise("leaky", call.tensor(0), parameters=(call.get("alpha", 0.01),))


@rule("Elu")
def elu(call: Call) -> Node:
    return pointwise("elu", call.tensor(0), parameters=(call.get("alpha", 1.0),))


@rule("HardSigmoid")
def hard_sigmoid(call: Call) -> Node:
    return pointwise("hardsigmoid", call.tensor(0), parameters=(call.get("alpha", 0.2), call.get("beta", 0.5)))


@rule("Gelu")
def gelu(call: Call) -> Node:
    tanh = call.get("approximate", "none") == "tanh"
    return pointwise("gelu_tanh" if tanh else "gelu", call.tensor(0))


@rule("Identity")
def identity(call: Call) -> Node:
    return call.tensor(0)


@rule("Dropout")
def dropout(call: Call) -> Node:
    training = call.optional(2)
    if training is not None and not (isinstance(training, Constant) and not training.array.any()):
        raise NoRule("Dropout in training mode")
    return call.tensor(0)


@rule("BatchNormalization")
def batch_normalization(call: Call) -> Node:
    if call.get("training_mode", 0):
        raise NoRule("BatchNormalization in training mode")
    x, (scale, bias, mean, variance) = call.tensor(0), (call.tensor(i) for i in range(1, 5))
    if not all(isinstance(node, Constant) for node in (scale, bias, mean, variance)):
        raise NoRule("BatchNormalization with computed statistics")
    arrays = [node.array.astype(np.float64) for node in (scale, bias, mean, variance) if isinstance(node, Constant)]
    factor = arrays[0] / np.sqrt(arrays[3] + call.get("epsilon", 1e-5))
    shift = arrays[1] - arrays[2] * factor
    column = (len(factor), *(1,) * (len(x.shape) - 2))
    return pointwise(
        "add",
        pointwise("mul", x, Constant(column, "float32", factor.astype(np.float32).reshape(column))),
        Constant(column, "float32", shift.astype(np.float32).reshape(column)),
    )
