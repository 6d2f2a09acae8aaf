"""numpy as an array library, for the operators of shape arithmetic: far quicker than compiling each one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bricolage.lowering.common import Array, Dtype
from bricolage.lowering.jax.arrays import JaxArrays

_NAMES = """
    Abs Add And Cast Ceil Concat ConstantOfShape Div Equal Expand Flatten Floor Gather Greater GreaterOrEqual Identity
    Less LessOrEqual Max Min Mod Mul Neg Not Or Range Reciprocal ReduceMax ReduceMin ReduceProd ReduceSum Reshape Slice
    Split Sqrt Squeeze Sub Sum Tile Transpose Unsqueeze Where
"""
OPERATORS = frozenset(_NAMES.split())
"""Operators that this library serves; their portable definitions use nothing that it does not replace."""


class StaticArrays(JaxArrays):
    """The part of `lowering.arrays.Arrays` that `OPERATORS` use, over numpy."""

    lib = np

    def constant(self, value: np.ndarray, like: Array | None = None) -> Array:  # noqa: ARG002
        return np.asarray(value)

    def arange(self, start: Array, stop: Array, step: Array, dtype: Dtype) -> Array:
        return np.arange(start, stop, step, dtype=dtype)

    def where(self, condition: Array, a: Array, b: Array) -> Array:
        return np.where(condition, a, b)

    def maximum(self, a: Array, b: Array) -> Array:
        return np.maximum(a, b)

    def minimum(self, a: Array, b: Array) -> Array:
        return np.minimum(a, b)

    def truncate_divide(self, a: Array, b: Array) -> Array:
        quotient = np.abs(a) // np.abs(b)
        return np.where((a < 0) == (b < 0), quotient, -quotient).astype(a.dtype)

    def fmod(self, a: Array, b: Array) -> Array:
        return np.fmod(a, b)

    def sum(self, x: Array, axes: tuple[int, ...], keepdims: bool = False) -> Array:
        return np.sum(x, axes, dtype=x.dtype, keepdims=keepdims)

    def prod(self, x: Array, axes: tuple[int, ...], keepdims: bool = False) -> Array:
        return np.prod(x, axes, dtype=x.dtype, keepdims=keepdims)

    def max(self, x: Array, axes: tuple[int, ...], keepdims: bool = False) -> Array:
        return np.max(x, axes, keepdims=keepdims, initial=self.lowest(x.dtype))

    def min(self, x: Array, axes: tuple[int, ...], keepdims: bool = False) -> Array:
        return np.min(x, axes, keepdims=keepdims, initial=self.highest(x.dtype))

    def transpose(self, x: Array, perm: Sequence[int]) -> Array:
        return np.transpose(x, tuple(perm))

    def broadcast_to(self, x: Array, shape: Sequence[int]) -> Array:
        return np.broadcast_to(x, tuple(shape))

    def concat(self, xs: Sequence[Array], axis: int) -> Array:
        return np.concatenate(tuple(xs), axis)

    def tile(self, x: Array, repeats: Sequence[int]) -> Array:
        return np.tile(x, tuple(repeats))

    def take(self, x: Array, indices: Array, axis: int) -> Array:
        return np.take(x, indices, axis, mode="clip")
