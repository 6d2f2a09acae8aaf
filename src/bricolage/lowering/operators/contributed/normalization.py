# ruff: noqa: ARG001 -- the signature is the operator's schema: attributes that change nothing are named all the same
"""Normalisations (ContribOperators.md of microsoft/onnxruntime)."""

from __future__ import annotations

from bricolage.lowering.arrays import Arrays
from bricolage.lowering.common import Array, Results, contributed, front_axis, operator
from bricolage.lowering.operators.normalization import moments


@operator("SimplifiedLayerNormalization")
def simplified_layer_normalization(
    xp: Arrays, x: Array, scale: Array, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1, _outputs: int = 1
) -> Results:
    """Division by the root mean square: what ONNX calls RMSNormalization, as ONNX Runtime has it in ONNX's own domain."""
    wide = xp.widen(x)
    axes = tuple(range(front_axis(x.ndim, axis), x.ndim))
    inverse = 1 / xp.lib.sqrt(xp.mean(wide * wide, axes, True) + epsilon)
    y = xp.astype(wide * inverse, x.dtype) * scale
    return y if _outputs == 1 else (y, inverse)


def _add_skip(x: Array, skip: Array, bias: Array) -> Array:
    return x + skip if bias is None else x + skip + bias


@contributed("SkipLayerNormalization")
def skip_layer_normalization(
    xp: Arrays,
    x: Array,
    skip: Array,
    gamma: Array,
    beta: Array = None,
    bias: Array = None,
    *,
    epsilon: float = 1e-12,
    _outputs: int = 1,
) -> Results:
    """ContribOperators.md#com.microsoft.SkipLayerNormalization."""
    total = _add_skip(x, skip, bias)
    mean, centred, variance = moments(xp, xp.widen(total), (total.ndim - 1,))
    inverse = 1 / xp.lib.sqrt(variance + epsilon)
    y = xp.astype(centred * inverse, x.dtype) * gamma
    y = y if beta is None else y + beta
    return y if _outputs == 1 else (y, mean, inverse, total)[:_outputs]


@contributed("SkipSimplifiedLayerNormalization")
def skip_simplified_layer_normalization(
    xp: Arrays, x: Array, skip: Array, gamma: Array, bias: Array = None, *, epsilon: float = 1e-12, _outputs: int = 1
) -> Results:
    """ContribOperators.md#com.microsoft.SkipSimplifiedLayerNormalization. It has no mean; that output is zero."""
    total = _add_skip(x, skip, bias)
    y, inverse = simplified_layer_normalization(xp, total, gamma, epsilon=epsilon, _outputs=2)
    return y if _outputs == 1 else (y, inverse * 0, inverse, total)[:_outputs]


@contributed("EmbedLayerNormalization")
def embed_layer_normalization(
    xp: Arrays,
    input_ids: Array,
    segment_ids: Array,
    words: Array,
    positions: Array,
    segments: Array = None,
    gamma: Array = None,
    beta: Array = None,
    mask: Array = None,
    position_ids: Array = None,
    *,
    epsilon: float = 1e-12,
    mask_index_type: int = 1,
    _outputs: int = 1,
) -> Results:
    """ContribOperators.md#com.microsoft.EmbedLayerNormalization. The mask's index is how many words it has in each row."""
    batch, length = input_ids.shape
    total = xp.take(words, input_ids, 0)
    at = xp.slice_axis(positions, 0, 0, length, 1) if position_ids is None else xp.take(positions, position_ids, 0)
    total = total + at
    if segments is not None and segment_ids is not None:
        total = total + xp.take(segments, segment_ids, 0)
    _, centred, variance = moments(xp, xp.widen(total), (2,))
    y = xp.astype(centred / xp.lib.sqrt(variance + epsilon), words.dtype) * gamma + beta
    int32 = xp.dtype(6)
    index = xp.full((batch,), 0, int32, input_ids) if mask is None else xp.sum(xp.astype(mask, int32), (1,))
    return y if _outputs == 1 else (y, index, total)[:_outputs]


@contributed("GroupNorm")
def group_norm(
    xp: Arrays,
    x: Array,
    gamma: Array,
    beta: Array,
    *,
    activation: int,
    groups: int,
    channels_last: int = 1,
    epsilon: float = 1e-5,
) -> Array:
    """ContribOperators.md#com.microsoft.GroupNorm."""
    rank = x.ndim
    if channels_last:
        x = xp.transpose(x, (0, rank - 1, *range(1, rank - 1)))
    n, c, *rest = x.shape
    wide = xp.widen(x).reshape((n, groups, -1))
    _, centred, variance = moments(xp, wide, (2,))
    view = (1, c, *(1 for _ in rest))
    y = (centred / xp.lib.sqrt(variance + epsilon)).reshape((n, c, *rest)) * gamma.reshape(view) + beta.reshape(view)
    y = y * xp.sigmoid(y) if activation else y
    y = xp.astype(y, x.dtype)
    return xp.transpose(y, (0, *range(2, rank), 1)) if channels_last else y
