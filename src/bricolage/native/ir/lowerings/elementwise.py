"""Lowerings of element-wise operators."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from bricolage.native.ir.lowerings.lowering_context import NoLowering, OpContext, lowering
from bricolage.native.ir.lowerings.views import broadcast_node, pointwise, reshape, scalar
from bricolage.native.ir.tensors import C_TYPES, FLOATS, HALVES, Constant, Node, numpy_type

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
_INTEGER = {"Relu": "relu", "Neg": "neg"}
"""Those that integers have, too."""
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
    """Functions of one input of floats, and some of integers."""
    x = op.tensor(0)
    if x.dtype in FLOATS or op.op_type in _INTEGER:
        return pointwise(_UNARY[op.op_type], x)
    if op.op_type == "Abs":
        negative = pointwise("less", x, scalar(0, x.dtype), dtype="bool")
        return pointwise("where", negative, pointwise("neg", x), x)
    raise NoLowering(f"{op.op_type} of {x.dtype}")


@lowering(*_BINARY)
def binary(op: OpContext) -> Node:
    """Functions of two inputs that broadcast; integers divide towards zero."""
    left, right = op.tensor(0), op.tensor(1)
    if op.op_type == "Div" and left.dtype not in FLOATS:
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
    return convert_node(op.tensor(0), ir.DataType(op.get("to")).numpy().name)


@lowering("CastLike")
def cast_like(op: OpContext) -> Node:
    """Cast to the type of the second input."""
    like = op.node.inputs[1]
    if like is None or like.dtype is None:
        raise NoLowering("CastLike to a type that is not known")
    return convert_node(op.tensor(0), like.dtype.numpy().name)


def convert_node(x: Node, wanted: str) -> Node:
    """With another element type."""
    if wanted == x.dtype:
        return x
    if wanted not in C_TYPES:
        raise NoLowering(f"Cast from {x.dtype} to {wanted}")
    if wanted == "bool":
        return pointwise("to_bool", x, dtype=wanted)
    if wanted in HALVES or (wanted, x.dtype) == ("float32", "float64"):
        return pointwise(f"narrow_{wanted}", x, dtype=wanted)
    of_floats = x.dtype in FLOATS or x.dtype in HALVES
    return pointwise(f"cast_{wanted}" if of_floats and wanted not in FLOATS else "cast", x, dtype=wanted)


@lowering("Pow")
def power(op: OpContext) -> Node:
    """Pow, of integers in float64."""
    x, exponent = op.tensor(0), op.tensor(1)
    if x.dtype in FLOATS:
        return raise_to_power(x, exponent)
    return convert_node(pointwise("pow", convert_node(x, "float64"), convert_node(exponent, "float64")), x.dtype)


def raise_to_power(x: Node, exponent: Node) -> Node:
    """A power; those that are common take a product, a root or a quotient."""
    constant_power = (
        float(exponent.array.reshape(-1)[0]) if isinstance(exponent, Constant) and exponent.elements == 1 else math.nan
    )
    if constant_power not in _POWERS or len(exponent.shape) > len(x.shape):
        return pointwise("pow", x, convert_node(exponent, x.dtype))
    for function in _POWERS[constant_power]:
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
            limits = (op.get("min", -math.inf), op.get("max", math.inf))
        else:
            limits = (op.scalar(1, -math.inf), op.scalar(2, math.inf))
        return pointwise("clip", x, parameters=limits)
    if op.opset < 11:
        raise NoLowering(f"Clip of {x.dtype} with attributes")
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
def dropout(op: OpContext) -> tuple[Node, ...]:
    """Dropout in inference, which changes nothing and keeps everything."""
    training = op.optional(2)
    if training is not None and not (isinstance(training, Constant) and not training.array.any()):
        raise NoLowering("Dropout in training mode")
    x = op.tensor(0)
    return x, broadcast_node(scalar(True, "bool"), x.shape)


@lowering("BatchNormalization")
def batch_normalization(op: OpContext) -> Node:
    """BatchNormalization in inference, as one factor and one summand for each channel: of constants made in float64."""
    if op.get("training_mode", 0):
        raise NoLowering("BatchNormalization in training mode")
    x, (scale, bias, mean, variance) = op.tensor(0), (op.tensor(i) for i in range(1, 5))
    if not all(isinstance(node, Constant) for node in (scale, bias, mean, variance)):
        shifted = pointwise("add", variance, scalar(op.get("epsilon", 1e-5), variance.dtype))
        factor_node = pointwise("div", scale, pointwise("sqrt", shifted))
        shift_node = pointwise("sub", bias, pointwise("mul", mean, factor_node))
        ones = (1,) * (len(x.shape) - 2)
        columns = [reshape(node, (node.elements, *ones)) for node in (factor_node, shift_node)]
        return pointwise("add", pointwise("mul", x, columns[0]), columns[1])
    arrays = [node.array.astype(np.float64) for node in (scale, bias, mean, variance) if isinstance(node, Constant)]
    factor = arrays[0] / np.sqrt(arrays[3] + op.get("epsilon", 1e-5))
    shift = arrays[1] - arrays[2] * factor
    column = (len(factor), *(1,) * (len(x.shape) - 2))
    return pointwise(
        "add",
        pointwise("mul", x, Constant(column, x.dtype, factor.astype(numpy_type(x.dtype)).reshape(column))),
        Constant(column, x.dtype, shift.astype(numpy_type(x.dtype)).reshape(column)),
    )
