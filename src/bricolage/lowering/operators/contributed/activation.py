"""Activations (ContribOperators.md of microsoft/onnxruntime)."""

from __future__ import annotations

import math

from bricolage.errors import UnsupportedOperator
from bricolage.lowering.arrays import Arrays
from bricolage.lowering.common import MICROSOFT, Array, contributed

_CUBIC = 0.044715
"""Of the approximation of the error function by a hyperbolic tangent."""


def erf_gelu(xp: Arrays, x: Array) -> Array:
    """x times the normal distribution's cumulative function."""
    return 0.5 * x * (1 + xp.erf(x / math.sqrt(2)))


def apply_activation(xp: Arrays, x: Array, name: str, alpha: float | None = None, beta: float | None = None) -> Array:
    """An activation that is fused behind a product, by its ONNX name; the numbers are its attributes, ONNX's defaults where None.

    Raises:
        UnsupportedOperator: no kernel fuses it.
    """
    match name:
        case "":
            return x
        case "Relu":
            return xp.maximum(x, 0)
        case "LeakyRelu":
            return xp.where(x < 0, x * (0.01 if alpha is None else alpha), x)
        case "Tanh":
            return xp.lib.tanh(x)
        case "Sigmoid":
            return xp.sigmoid(x)
        case "Clip":
            low = x if alpha is None else xp.maximum(x, alpha)
            return low if beta is None else xp.minimum(low, beta)
        case "HardSigmoid":
            line = x * (0.2 if alpha is None else alpha) + (0.5 if beta is None else beta)
            return xp.minimum(xp.maximum(line, 0), 1)
    raise UnsupportedOperator(
        library="this lowering", op_type=f"{MICROSOFT}::{name}", opset=1, reason="it is no fused activation"
    )


@contributed("Gelu")
def gelu(xp: Arrays, x: Array) -> Array:
    """ContribOperators.md#com.microsoft.Gelu."""
    return erf_gelu(xp, x)


@contributed("BiasGelu")
def bias_gelu(xp: Arrays, a: Array, b: Array) -> Array:
    """ContribOperators.md#com.microsoft.BiasGelu."""
    return erf_gelu(xp, a + b)


@contributed("FastGelu")
def fast_gelu(xp: Arrays, x: Array, bias: Array = None) -> Array:
    """ContribOperators.md#com.microsoft.FastGelu."""
    x = x if bias is None else x + bias
    return 0.5 * x * (1 + xp.lib.tanh(math.sqrt(2 / math.pi) * (x + _CUBIC * x * x * x)))


@contributed("QuickGelu")
def quick_gelu(xp: Arrays, x: Array, *, alpha: float = 1.702) -> Array:
    """ContribOperators.md#com.microsoft.QuickGelu."""
    return x * xp.sigmoid(alpha * x)


@contributed("BiasSplitGelu")
def bias_split_gelu(xp: Arrays, x: Array, bias: Array) -> Array:
    """ContribOperators.md#com.microsoft.BiasSplitGelu."""
    both = x + bias
    half = both.shape[-1] // 2
    return both[..., :half] * erf_gelu(xp, both[..., half:])


@contributed("BiasAdd")
def bias_add(xp: Arrays, x: Array, bias: Array, skip: Array) -> Array:
    """ContribOperators.md#com.microsoft.BiasAdd."""
    del xp
    return x + bias + skip
