"""What is quantised, in steps of the scale at once: factors that are constant become one.

A number that becomes a byte is divided by a scale. Where it is a product's sum times constants, or a sum of two dequantised bytes,
the division goes into these constants, so that an epilogue has fewer instructions for each element.
"""

from __future__ import annotations

import numpy as np

from bricolage.native.ir.lowerings.integers import Dequantised, match_dequantised, numbers_of
from bricolage.native.ir.lowerings.views import pointwise
from bricolage.native.ir.tensors import Constant, Conv, MatMul, Node, Pointwise

_NEAR = 2.0**-21
"""Of the size of two terms: more than rounding to float32 does to their sum in steps, in whatever order it is computed."""
_PAIRS_NEAR = 1e-3
"""Share of all pairs of bytes whose sum may be that near to a tie."""
_NORMAL = (2.0**-60, 2.0**60)
"""Factors of which no product with an int32 is subnormal or infinite."""


def without_relu(x: Node) -> Node:
    """What a rectifier is of, where the smallest byte is zero: bytes keep the rest out."""
    return x.inputs[0] if isinstance(x, Pointwise) and x.function == "relu" else x


def product_in_steps(x: Node, inverse: np.float32) -> Node | None:
    """Sums of a product of bytes times a constant, plus a constant or not, in steps; None of anything else. Where exactly a tie of
    what is rounded before lies, says nothing."""
    if not isinstance(x, Pointwise):
        return None
    constants = [source for source in x.inputs if isinstance(source, Constant)]
    others = [source for source in x.inputs if not isinstance(source, Constant)]
    if len(constants) != 1 or len(others) != 1 or constants[0].dtype != "float32":
        return None
    with np.errstate(all="ignore"):
        scaled_array = np.asarray(constants[0].array.reshape(constants[0].shape) * inverse, np.float32)
    scaled = Constant(scaled_array.shape, "float32", scaled_array)
    if x.function == "mul":
        sums = others[0]
        if not isinstance(sums, Pointwise) or sums.function != "cast" or not _of_product(sums.inputs[0]):
            return None
        sizes = np.abs(scaled_array)
        return pointwise("mul", sums, scaled) if _NORMAL[0] < sizes.min() and sizes.max() < _NORMAL[1] else None
    if x.function != "add" or not np.isfinite(scaled_array).all():
        return None
    inner = product_in_steps(others[0], inverse)
    return None if inner is None else pointwise("add", inner, scaled)


def _of_product(node: Node) -> bool:
    """Whether these are sums in int32 of a product, less constants."""
    while isinstance(node, Pointwise) and node.function in ("add", "sub") and isinstance(node.inputs[1], Constant):
        node = node.inputs[0]
    return isinstance(node, (Conv, MatMul)) and node.dtype == "int32"


def sum_in_steps(x: Node, scale: np.float32) -> Node | None:
    """A sum of two dequantised bytes in steps of a scale; None of anything else. All 65,536 pairs are looked at: where many sums
    are ties, as where the scales are the same, None too, for only the quotient that the operator defines says where those go."""
    if not isinstance(x, Pointwise) or x.function != "add":
        return None
    terms = [match_dequantised(source) for source in x.inputs]
    if any(term is None or not isinstance(term.scale, Constant) for term in terms):
        return None
    addends = [term for term in terms if term is not None]
    with np.errstate(all="ignore"):
        factors = [np.float32(_scale(addend)) / scale for addend in addends]
    if not all(_NORMAL[0] < abs(factor) < _NORMAL[1] for factor in factors):
        return None
    bytes_ = np.arange(256, dtype=np.float64)
    byte_steps = [(bytes_ - addend.zero) * float(_scale(addend)) / float(scale) for addend in addends]
    steps = byte_steps[0][:, None] + byte_steps[1][None]
    away = np.abs(steps - np.floor(steps) - 0.5)
    near = away < _NEAR * (np.abs(byte_steps[0])[:, None] + np.abs(byte_steps[1])[None])
    if near.mean() >= _PAIRS_NEAR:
        return None
    scaled = [
        numbers_of(addend.integers, addend.zero, Constant((), "float32", np.asarray(factor, np.float32)))
        for addend, factor in zip(addends, factors, strict=True)
    ]
    return pointwise("add", *scaled)


def _scale(term: Dequantised) -> np.float32:
    assert isinstance(term.scale, Constant)
    return np.float32(term.scale.array.reshape(-1)[0])
