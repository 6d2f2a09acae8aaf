# ruff: noqa: ARG001 -- the signature is the operator's schema: attributes that change nothing are named all the same
"""Element-wise operators: arithmetic, comparison, logic, bits, and activations."""

from __future__ import annotations

import functools
import math
import operator as py
from collections.abc import Callable

import onnx_ir as ir

from bricolage.errors import UnsupportedOperator
from bricolage.lowering.arrays import Arrays
from bricolage.lowering.common import Array, Results, constant_of, operator

UNARY = {
    "Abs": "abs",
    "Acos": "arccos",
    "Acosh": "arccosh",
    "Asin": "arcsin",
    "Asinh": "arcsinh",
    "Atan": "arctan",
    "Atanh": "arctanh",
    "BitwiseNot": "bitwise_not",
    "Ceil": "ceil",
    "Cos": "cos",
    "Cosh": "cosh",
    "Exp": "exp",
    "Floor": "floor",
    "IsNaN": "isnan",
    "Log": "log",
    "Neg": "negative",
    "Not": "logical_not",
    "Reciprocal": "reciprocal",
    "Round": "round",  # half to even in both libraries
    "Sign": "sign",
    "Sin": "sin",
    "Sinh": "sinh",
    "Sqrt": "sqrt",
    "Tan": "tan",
    "Tanh": "tanh",
}
"""Operators that are one function of one array; the function's name is the same in every array library."""

BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "Add": py.add,
    "And": py.and_,
    "BitwiseAnd": py.and_,
    "BitwiseOr": py.or_,
    "BitwiseXor": py.xor,
    "Equal": py.eq,
    "Greater": py.gt,
    "GreaterOrEqual": py.ge,
    "Less": py.lt,
    "LessOrEqual": py.le,
    "Mul": py.mul,
    "Or": py.or_,
    "Sub": py.sub,
    "Xor": py.xor,
}


def _register_tables() -> None:
    def unary(function: str) -> Callable[[Arrays, Array], Array]:
        return lambda xp, x: getattr(xp.lib, function)(x)

    def binary(function: Callable[[Array, Array], Array]) -> Callable[[Arrays, Array, Array], Array]:
        def run(xp: Arrays, a: Array, b: Array) -> Array:
            return function(a, b)

        return run

    for name, function in UNARY.items():
        operator(name, since=6 if name in ("Abs", "Ceil", "Exp", "Floor", "Log", "Neg", "Reciprocal", "Sqrt") else 1)(
            unary(function)
        )
    for name, combine in BINARY.items():
        operator(name, since=7)(binary(combine))


_register_tables()


@operator("Identity")
def identity(xp: Arrays, x: Array) -> Array:
    return x


@operator("Div", since=7)
def div(xp: Arrays, a: Array, b: Array) -> Array:
    """Integers divide towards zero."""
    return xp.truncate_divide(a, b) if xp.kind(a) in "iu" else a / b


@operator("Mod", since=10)
def mod(xp: Arrays, a: Array, b: Array, *, fmod: int = 0) -> Array:
    """fmod = 0: the sign of the divisor; fmod = 1: the sign of the dividend."""
    return xp.fmod(a, b) if fmod else a % b


@operator("Pow", since=7)
def pow_(xp: Arrays, a: Array, b: Array) -> Array:
    return xp.power(a, b)


@operator("BitShift", since=11)
def bit_shift(xp: Arrays, a: Array, b: Array, *, direction: str) -> Array:
    return a << b if direction == "LEFT" else xp.shift_right(a, b)


@operator("Max", since=8)
def max_(xp: Arrays, *xs: Array) -> Array:
    return functools.reduce(xp.maximum, xs)


@operator("Min", since=8)
def min_(xp: Arrays, *xs: Array) -> Array:
    return functools.reduce(xp.minimum, xs)


@operator("Sum", since=8)
def sum_(xp: Arrays, *xs: Array) -> Array:
    return functools.reduce(py.add, xs)


@operator("Mean", since=8)
def mean(xp: Arrays, *xs: Array) -> Array:
    return functools.reduce(py.add, xs) / len(xs)


@operator("Where", since=9)
def where(xp: Arrays, condition: Array, a: Array, b: Array) -> Array:
    return xp.where(condition, a, b)


@operator("Clip", since=11)
def clip(xp: Arrays, x: Array, low: Array = None, high: Array = None) -> Array:
    """The upper bound wins when the bounds cross."""
    if low is not None:
        x = xp.maximum(x, low)
    return x if high is None else xp.minimum(x, high)


@operator("Clip", since=6, until=10)
def clip_by_attributes(xp: Arrays, x: Array, *, min: float = -math.inf, max: float = math.inf) -> Array:
    return xp.minimum(xp.maximum(x, min), max)


@operator("IsInf", since=10)
def is_inf(xp: Arrays, x: Array, *, detect_negative: int = 1, detect_positive: int = 1) -> Array:
    infinite = xp.lib.isinf(x)
    if not detect_negative:
        infinite = infinite & (x > 0)
    return infinite if detect_positive else infinite & (x < 0)


@operator("Cast", since=6)
def cast(xp: Arrays, x: Array, *, to: int, saturate: int = 1, round_mode: str = "up") -> Array:
    return xp.cast(x, to)


@operator("CastLike", since=15)
def cast_like(xp: Arrays, x: Array, target: Array, *, saturate: int = 1, round_mode: str = "up") -> Array:
    return xp.astype(x, target.dtype)


@operator("BitCast", since=26)
def bit_cast(xp: Arrays, x: Array, *, to: int) -> Array:
    return xp.bitcast(x, to)


# --- activations -------------------------------------------------------------------------------------------------


@operator("Relu", since=6)
def relu(xp: Arrays, x: Array) -> Array:
    return xp.maximum(x, 0)


@operator("LeakyRelu", since=6)
def leaky_relu(xp: Arrays, x: Array, *, alpha: float = 0.01) -> Array:
    return xp.where(x < 0, x * alpha, x)


@operator("ThresholdedRelu", since=10)
def thresholded_relu(xp: Arrays, x: Array, *, alpha: float = 1.0) -> Array:
    return xp.where(x > alpha, x, 0)


@operator("PRelu", since=7)
def prelu(xp: Arrays, x: Array, slope: Array) -> Array:
    return xp.where(x < 0, x * slope, x)


@operator("Elu", since=6)
def elu(xp: Arrays, x: Array, *, alpha: float = 1.0) -> Array:
    return xp.where(x < 0, xp.lib.expm1(xp.minimum(x, 0)) * alpha, x)


@operator("Celu", since=12)
def celu(xp: Arrays, x: Array, *, alpha: float = 1.0) -> Array:
    return xp.maximum(x, 0) + xp.lib.expm1(xp.minimum(x, 0) / alpha) * alpha


@operator("Selu", since=6)
def selu(
    xp: Arrays, x: Array, *, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875
) -> Array:
    return xp.where(x > 0, x, xp.lib.expm1(xp.minimum(x, 0)) * alpha) * gamma


@operator("Sigmoid", since=6)
def sigmoid(xp: Arrays, x: Array) -> Array:
    return xp.sigmoid(x)


@operator("HardSigmoid", since=6)
def hard_sigmoid(xp: Arrays, x: Array, *, alpha: float = 0.2, beta: float = 0.5) -> Array:
    return xp.minimum(xp.maximum(x * alpha + beta, 0), 1)


@operator("HardSwish", since=14)
def hard_swish(xp: Arrays, x: Array) -> Array:
    return x * xp.minimum(xp.maximum(x * (1 / 6) + 0.5, 0), 1)


@operator("Softplus")
def softplus(xp: Arrays, x: Array) -> Array:
    return xp.softplus(x)


@operator("Softsign")
def softsign(xp: Arrays, x: Array) -> Array:
    return x / (abs(x) + 1)


@operator("Mish", since=18)
def mish(xp: Arrays, x: Array) -> Array:
    return x * xp.lib.tanh(xp.softplus(x))


@operator("Swish", since=24)
def swish(xp: Arrays, x: Array, *, alpha: float = 1.0) -> Array:
    return x * xp.sigmoid(x * alpha)


@operator("SwiGLU", since=28)
def swiglu(xp: Arrays, a: Array, b: Array, *, alpha: float = 1.0) -> Array:
    return a * xp.sigmoid(a * alpha) * b


@operator("Shrink", since=9)
def shrink(xp: Arrays, x: Array, *, bias: float = 0.0, lambd: float = 0.5) -> Array:
    middle = xp.where(x > lambd, x - bias, 0.0)
    return xp.astype(xp.where(x < -lambd, x + bias, middle), x.dtype)


@operator("Erf", since=9)
def erf(xp: Arrays, x: Array) -> Array:
    return xp.erf(x)


@operator("Gelu", since=20)
def gelu(xp: Arrays, x: Array, *, approximate: str = "none") -> Array:
    if approximate == "tanh":
        return 0.5 * x * (1 + xp.lib.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1 + xp.erf(x * math.sqrt(0.5)))


@operator("Dropout", since=7, until=11)
def dropout_attribute(xp: Arrays, x: Array, *, ratio: float = 0.5, _outputs: int = 1) -> Results:
    """Inference: the identity."""
    return (x, xp.full(x.shape, True, xp.dtype(9), x)) if _outputs > 1 else x


def _training(node: ir.Node) -> str | None:
    mode = constant_of(node.inputs[2]) if len(node.inputs) > 2 else None
    return "Dropout in training mode is random" if mode is not None and bool(mode.reshape(-1)[0]) else None


@operator("Dropout", since=12, host=("training_mode",), unless=_training)
def dropout(
    xp: Arrays, x: Array, ratio: Array = None, training_mode: Array = None, *, seed: int = 0, _outputs: int = 1
) -> Results:
    if training_mode:
        raise UnsupportedOperator(library="bricolage", op_type="Dropout", opset="any", reason="training mode is random")
    return (x, xp.full(x.shape, True, xp.dtype(9), x)) if _outputs > 1 else x
