# ruff: noqa: ARG001 -- the signature is the operator's schema: attributes that change nothing are named all the same
"""Attention of many heads, and positions by rotation (ContribOperators.md of microsoft/onnxruntime)."""

from __future__ import annotations

import math
from typing import TypedDict, Unpack

import onnx_ir as ir

from bricolage.errors import InvalidGraph
from bricolage.lowering.arrays import Arrays
from bricolage.lowering.common import Array, Results, contributed
from bricolage.lowering.operators.attention import merge_heads, rotary_embedding, split_heads

MASKED = -10000.0
"""What is added to the scores of keys that a mask hides, unless an attribute says otherwise."""


class ScoreAttributes(TypedDict, total=False):
    """Attributes of what scores keys."""

    mask_filter_value: float
    scale: float
    unidirectional: int


def hidden_keys(xp: Arrays, mask: Array, batch: int, total: int, like: Array, value: float) -> Array:
    """What a mask adds to scores [batch, heads, queries, total]: `value` where it hides a key. It has a number for each key (of
    each query), 0 where it is hidden; or the number of keys of each row; or their ends and their starts.

    Raises:
        InvalidGraph: it has another shape.
    """
    if mask.ndim == 1 and mask.shape[0] in (batch, 2 * batch):
        keys = xp.arange(0, total, 1, mask.dtype).reshape((1, total))
        seen = keys < mask[:batch].reshape((batch, 1))
        if mask.shape[0] == 2 * batch:
            seen = seen & (keys >= mask[batch:].reshape((batch, 1)))
        seen = seen.reshape((batch, 1, 1, total))
    elif mask.ndim == 2:
        seen = (mask > 0).reshape((mask.shape[0], 1, 1, mask.shape[1]))
    elif mask.ndim == 3:
        seen = (mask > 0).reshape((mask.shape[0], 1, *mask.shape[1:]))
    else:
        raise InvalidGraph(reason=f"a mask of the shape {list(mask.shape)} is none of those that attention takes")
    return xp.where(seen, xp.full((), 0, like.dtype, like), value)


def compute_attention(
    xp: Arrays, q: Array, k: Array, v: Array, mask: Array, bias: Array, attributes: ScoreAttributes
) -> tuple[Array, Array]:
    """Values [batch, heads, queries, size] and scores, of queries, keys and values in that layout, past ones included."""
    batch, _, queries, size = q.shape
    total = k.shape[2]
    scores = xp.matmul(q, xp.transpose(k, (0, 1, 3, 2))) * (attributes.get("scale") or 1 / math.sqrt(size))
    if bias is not None:
        scores = scores + bias
    if mask is not None:
        scores = scores + hidden_keys(xp, mask, batch, total, scores, attributes.get("mask_filter_value", MASKED))
    if attributes.get("unidirectional") and queries > 1:
        kind = xp.dtype(7)
        behind = xp.arange(0, total, 1, kind).reshape((1, total)) - xp.arange(0, queries, 1, kind).reshape((queries, 1))
        scores = xp.where(behind > total - queries, -math.inf, scores)
    return xp.matmul(xp.softmax(scores, 3), v), scores


def _bias_parts(xp: Arrays, bias: Array, sizes: tuple[int, ...]) -> list[Array]:
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [xp.slice_axis(bias, 0, start, start + size, 1) for start, size in zip(starts, sizes, strict=True)]


def _in_a_cache_of_beams(node: ir.Node) -> str | None:
    if any(value is not None for value in node.inputs[8:]):
        return "buffers that beams share are not handled"
    return None


@contributed("MultiHeadAttention", unless=_in_a_cache_of_beams)
def multi_head_attention(
    xp: Arrays,
    query: Array,
    key: Array = None,
    value: Array = None,
    bias: Array = None,
    key_padding_mask: Array = None,
    attention_bias: Array = None,
    past_key: Array = None,
    past_value: Array = None,
    past_sequence_length: Array = None,
    cache_indirection: Array = None,
    *,
    num_heads: int,
    _outputs: int = 1,
    **attributes: Unpack[ScoreAttributes],
) -> Results:
    """ContribOperators.md#com.microsoft.MultiHeadAttention. Queries, keys and values may come packed into one tensor, keys and
    values as earlier ones that are taken as they are."""
    q, k, v = _unpack_inputs(query, key, value)
    parts: list[Array] = [None, None, None]
    if bias is not None:
        width = q.shape[-1] * (1 if q.ndim == 3 else q.shape[2])
        parts = _bias_parts(xp, bias, (width, width, bias.shape[0] - 2 * width))
    heads = [
        x if x.ndim == 4 else split_heads(xp, x if part is None else x + part, num_heads)
        for x, part in zip((q, k, v), parts, strict=True)
    ]
    q, k, v = heads
    if past_key is not None:
        k, v = xp.concat((past_key, k), 2), xp.concat((past_value, v), 2)
    y, scores = compute_attention(xp, q, k, v, key_padding_mask, attention_bias, attributes)
    y = merge_heads(xp, y)
    return y if _outputs == 1 else (y, k, v, scores)[:_outputs]


def _unpack_inputs(query: Array, key: Array, value: Array) -> tuple[Array, Array, Array]:
    """Each as [batch, time, width], or as [batch, heads, time, size] where a cache holds it."""

    def flat(x: Array) -> Array:
        return x.reshape((*x.shape[:2], -1))

    if query.ndim == 5:
        return flat(query[:, :, :, 0]), flat(query[:, :, :, 1]), flat(query[:, :, :, 2])
    if key.ndim == 5:
        return query, flat(key[:, :, :, 0]), flat(key[:, :, :, 1])
    return query, key, value


def _with_rotation_or_shared_buffers(node: ir.Node) -> str | None:
    for name in ("do_rotary", "past_present_share_buffer"):
        if node.attributes.get_int(name, 0):
            return f"'{name}' is not handled"
    return None


@contributed("Attention", unless=_with_rotation_or_shared_buffers)
def attention(
    xp: Arrays,
    x: Array,
    weights: Array,
    bias: Array = None,
    mask_index: Array = None,
    past: Array = None,
    attention_bias: Array = None,
    past_sequence_length: Array = None,
    *,
    num_heads: int,
    do_rotary: int = 0,
    past_present_share_buffer: int = 0,
    qkv_hidden_sizes: tuple[int, ...] = (),
    rotary_embedding_dim: int = 0,
    _outputs: int = 1,
    **attributes: Unpack[ScoreAttributes],
) -> Results:
    """ContribOperators.md#com.microsoft.Attention."""
    projected = xp.matmul(x, weights)
    projected = projected if bias is None else projected + bias
    q, k, v = split_by_width(xp, projected, qkv_hidden_sizes, num_heads, past)
    y, _ = compute_attention(xp, q, k, v, mask_index, attention_bias, attributes)
    return merge_heads(xp, y) if _outputs == 1 else (merge_heads(xp, y), xp.stack((k, v), 0))


def split_by_width(
    xp: Arrays, projected: Array, widths: tuple[int, ...], num_heads: int, past: Array
) -> tuple[Array, Array, Array]:
    """Queries, keys and values that lie side by side in one tensor [batch, time, widths], with what is past [2, batch, heads, time,
    size] before keys and values."""
    sizes = widths or (projected.shape[2] // 3,) * 3
    edges = (0, sizes[0], sizes[0] + sizes[1], sum(sizes))
    q, k, v = (split_heads(xp, xp.slice_axis(projected, 2, edges[i], edges[i + 1], 1), num_heads) for i in range(3))
    return (q, k, v) if past is None else (q, xp.concat((past[0], k), 2), xp.concat((past[1], v), 2))


def _scaled_or_ragged(node: ir.Node) -> str | None:
    if node.attributes.get_int("is_packed_batching", 0):
        return "rows of different lengths behind each other are not handled"
    if node.attributes.get_float("scale", 1.0) != 1.0:
        return "a scale is not handled"
    return None


@contributed("RotaryEmbedding", unless=_scaled_or_ragged)
def contributed_rotary_embedding(
    xp: Arrays,
    x: Array,
    position_ids: Array,
    cos_cache: Array,
    sin_cache: Array,
    *,
    interleaved: int = 0,
    is_packed_batching: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
    scale: float = 1.0,
) -> Array:
    """ContribOperators.md#com.microsoft.RotaryEmbedding. A single position is that of the first word of each row."""
    length = x.shape[1] if x.ndim == 3 else x.shape[2]
    if position_ids.ndim == 1:
        position_ids = position_ids.reshape((1, 1)) + xp.arange(0, length, 1, position_ids.dtype).reshape((1, length))
    heads = num_heads
    if x.ndim == 3 and not rotary_embedding_dim:
        heads = x.shape[2] // (2 * cos_cache.shape[1])
    return apply_rotation(
        xp,
        x,
        positions=position_ids,
        cos=cos_cache,
        sin=sin_cache,
        interleaved=interleaved,
        heads=heads,
        size=rotary_embedding_dim,
    )


def apply_rotation(
    xp: Arrays, x: Array, positions: Array, cos: Array, sin: Array, interleaved: int, heads: int, size: int
) -> Array:
    """x [batch, heads, time, size] or [batch, time, width], turned by the angles of `positions` [batch or 1, time]."""
    angles = (xp.take(table, positions, 0) for table in (cos, sin))
    return rotary_embedding(
        xp, x, *angles, interleaved=interleaved, num_heads=heads, rotary_embedding_dim=size or 2 * cos.shape[1]
    )
