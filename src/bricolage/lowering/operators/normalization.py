# ruff: noqa: ARG001 -- the signature is the operator's schema: attributes that change nothing are named all the same
"""Normalisations."""

from __future__ import annotations

import math

from bricolage.lowering.arrays import Arrays
from bricolage.lowering.common import Array, Results, front_axis, normalise_axes, operator

Ints = tuple[int, ...]


def _per_channel(v: Array, rank: int) -> Array:
    return v.reshape((1, -1) + (1,) * (rank - 2))


def moments(xp: Arrays, x: Array, axes: Ints) -> tuple[Array, Array, Array]:
    """Mean, centred values and population variance over `axes`, kept as size 1."""
    mean = xp.mean(x, axes, True)
    centred = x - mean
    return mean, centred, xp.mean(centred * centred, axes, True)


@operator("BatchNormalization", since=9)
def batch_normalization(
    xp: Arrays,
    x: Array,
    scale: Array,
    bias: Array,
    mean: Array,
    var: Array,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> Results:
    wide = xp.widen(x)
    if training_mode:
        axes = (0, *range(2, x.ndim))
        new_mean, centred, new_var = moments(xp, wide, axes)
        y = centred / xp.lib.sqrt(new_var + epsilon) * _per_channel(scale, x.ndim) + _per_channel(bias, x.ndim)
        running_mean = mean * momentum + new_mean.reshape((-1,)) * (1 - momentum)
        running_var = var * momentum + new_var.reshape((-1,)) * (1 - momentum)
        return xp.astype(y, x.dtype), xp.astype(running_mean, mean.dtype), xp.astype(running_var, var.dtype)
    factor = xp.widen(scale) / xp.lib.sqrt(xp.widen(var) + epsilon)
    y = (wide - _per_channel(mean, x.ndim)) * _per_channel(factor, x.ndim) + _per_channel(bias, x.ndim)
    return xp.astype(y, x.dtype)


@operator("BatchNormalization", since=7, until=8)
def batch_normalization_7(
    xp: Arrays,
    x: Array,
    scale: Array,
    bias: Array,
    mean: Array,
    var: Array,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    spatial: int = 1,
) -> Array:
    if spatial:
        return batch_normalization(xp, x, scale, bias, mean, var, epsilon=epsilon)
    return (x - mean) / xp.lib.sqrt(var + epsilon) * scale + bias


@operator("LayerNormalization", since=17)
def layer_normalization(
    xp: Arrays,
    x: Array,
    scale: Array,
    bias: Array = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
    _outputs: int = 1,
) -> Results:
    axis = front_axis(x.ndim, axis)
    wide = xp.widen(x)
    mean, centred, var = moments(xp, wide, tuple(range(axis, x.ndim)))
    inverse = 1 / xp.lib.sqrt(var + epsilon)
    y = xp.astype(centred * inverse, x.dtype) * scale
    y = y if bias is None else y + bias
    return y if _outputs == 1 else (y, mean, inverse)


@operator("RMSNormalization", since=23)
def rms_normalization(
    xp: Arrays, x: Array, scale: Array, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Array:
    axes = tuple(range(front_axis(x.ndim, axis), x.ndim))
    wide = xp.widen(x)
    y = wide / xp.lib.sqrt(xp.mean(wide * wide, axes, True) + epsilon)
    return xp.astype(y, x.dtype) * scale


@operator("InstanceNormalization", since=6)
def instance_normalization(xp: Arrays, x: Array, scale: Array, bias: Array, *, epsilon: float = 1e-5) -> Array:
    _, centred, var = moments(xp, xp.widen(x), tuple(range(2, x.ndim)))
    y = centred / xp.lib.sqrt(var + epsilon) * _per_channel(scale, x.ndim) + _per_channel(bias, x.ndim)
    return xp.astype(y, x.dtype)


def _normalize_groups(xp: Arrays, x: Array, groups: int, epsilon: float) -> Array:
    n, c = x.shape[:2]
    split = xp.widen(x).reshape((n, groups, (c // groups) * math.prod(x.shape[2:])))
    _, centred, var = moments(xp, split, (2,))
    return centred / xp.lib.sqrt(var + epsilon)


@operator("GroupNormalization", since=21)
def group_normalization(
    xp: Arrays, x: Array, scale: Array, bias: Array, *, num_groups: int, epsilon: float = 1e-5, stash_type: int = 1
) -> Array:
    y = xp.astype(_normalize_groups(xp, x, num_groups, epsilon).reshape(tuple(x.shape)), x.dtype)
    return y * _per_channel(scale, x.ndim) + _per_channel(bias, x.ndim)


@operator("GroupNormalization", since=18, until=20)
def group_normalization_18(
    xp: Arrays, x: Array, scale: Array, bias: Array, *, num_groups: int, epsilon: float = 1e-5
) -> Array:
    """This version's scale and bias are one number for each group."""
    y = _normalize_groups(xp, x, num_groups, epsilon) * scale.reshape((1, -1, 1)) + bias.reshape((1, -1, 1))
    return xp.astype(y, x.dtype).reshape(tuple(x.shape))


@operator("MeanVarianceNormalization", since=9)
def mean_variance_normalization(xp: Arrays, x: Array, *, axes: Ints = (0, 2, 3)) -> Array:
    """(x - E[x]) / (sqrt(E[x^2] - E[x]^2) + 1e-9), computed from centred values."""
    _, centred, var = moments(xp, x, normalise_axes(axes, x.ndim))
    return centred / (xp.lib.sqrt(var) + 1e-9)


@operator("LpNormalization")
def lp_normalization(xp: Arrays, x: Array, *, axis: int = -1, p: int = 2) -> Array:
    """x / ||x||_p; where the norm is 0 the result is 0."""
    axes = (front_axis(x.ndim, axis),)
    norm = xp.sum(abs(x), axes, True) if p == 1 else xp.lib.sqrt(xp.sum(x * x, axes, True))
    return xp.where(norm == 0, 0, x / xp.where(norm == 0, 1, norm))


@operator("LRN")
def lrn(xp: Arrays, x: Array, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Array:
    """Local response normalisation over `size` neighbouring channels."""
    before = (size - 1) // 2
    widths = [(0, 0)] * x.ndim
    widths[1] = (before, size - 1 - before)
    squares = xp.pad(x * x, widths, 0)
    total = sum(xp.slice_axis(squares, 1, i, i + x.shape[1], 1) for i in range(size))
    return x / xp.power(total * (alpha / size) + bias, beta)
