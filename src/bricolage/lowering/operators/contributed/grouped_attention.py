# ruff: noqa: ARG001 -- the signature is the operator's schema: attributes that change nothing are named all the same
"""Attention whose heads share keys and values, with a cache (ContribOperators.md of microsoft/onnxruntime)."""

from __future__ import annotations

import math

import onnx_ir as ir

from bricolage.lowering.arrays import Arrays
from bricolage.lowering.common import Array, Results, contributed
from bricolage.lowering.operators.attention import merge_heads, repeat_heads, split_heads
from bricolage.lowering.operators.contributed.attention import apply_rotation


def _not_handled(node: ir.Node) -> str | None:
    attributes = node.attributes
    if attributes.get_int("sliding_window_cache", 0):
        return "a cache of the window alone is not handled"
    if attributes.get_int("qk_output", 0) or len([v for v in node.outputs if v.name]) > 3:
        return "scores as an output are not handled"
    if any(attributes.get_string(name, "NONE") != "NONE" for name in ("k_quant_type", "v_quant_type")):
        return "a quantised cache is not handled"
    return None


@contributed(
    "GroupQueryAttention",
    unless=_not_handled,
    data_dependent="how long the cache is in the end is the value of an input",
)
def group_query_attention(
    xp: Arrays,
    query: Array,
    key: Array = None,
    value: Array = None,
    past_key: Array = None,
    past_value: Array = None,
    seqlens_k: Array = None,
    total_sequence_length: Array = None,
    cos_cache: Array = None,
    sin_cache: Array = None,
    position_ids: Array = None,
    attention_bias: Array = None,
    head_sink: Array = None,
    k_scale: Array = None,
    v_scale: Array = None,
    q_norm_weight: Array = None,
    k_norm_weight: Array = None,
    *,
    num_heads: int,
    kv_num_heads: int,
    causal: int = 1,
    do_rotary: int = 0,
    k_quant_type: str = "NONE",
    kv_cache_bit_width: int = 0,
    local_window_size: int = -1,
    qk_norm_epsilon: float = 1e-6,
    qk_output: int = 0,
    rotary_interleaved: int = 0,
    scale: float = 0.0,
    sliding_window_cache: int = 0,
    smooth_softmax: int = 0,
    softcap: float = 0.0,
    v_quant_type: str = "NONE",
    _outputs: int = 1,
) -> Results:
    """ContribOperators.md#com.microsoft.GroupQueryAttention. Rows of the cache that no word has filled are zero."""
    q, k, v = _heads(xp, query, key, value, num_heads, kv_num_heads)
    if q_norm_weight is not None:
        q, k = (_normalize_heads(xp, x, w, qk_norm_epsilon) for x, w in ((q, q_norm_weight), (k, k_norm_weight)))
    batch, _, length, _ = q.shape
    total = int(total_sequence_length)
    ends = seqlens_k.reshape((batch, 1)) + 1
    before = ends * 0 if total == length else ends - length  # words in the cache, by row
    at = before + xp.arange(0, length, 1, before.dtype).reshape((1, length))
    if do_rotary == 1:  # as ONNX Runtime reads it: other numbers turn nothing
        turned = at
        if position_ids is not None:  # of a first prompt the first alone counts
            turned = at + position_ids.reshape((-1,))[0] if total == length else position_ids
        q, k = (
            apply_rotation(xp, x, turned, cos_cache, sin_cache, rotary_interleaved, heads=0, size=0) for x in (q, k)
        )
    k, v = (_update_cache(xp, past, new, before, total) for past, new in ((past_key, k), (past_value, v)))
    keys, values = (repeat_heads(xp, x, num_heads // kv_num_heads) for x in (k, v))
    scores = _scores(xp, q, keys, attention_bias, scale, softcap)
    seen = _build_key_mask(xp, at, ends, k.shape[2], causal, local_window_size)
    scores = xp.where(seen, scores, -math.inf)
    weights = _softmax(xp, scores, head_sink, smooth_softmax)
    y = merge_heads(xp, xp.matmul(weights, values))
    return y if _outputs == 1 else (y, k, v)[:_outputs]


def _scores(xp: Arrays, q: Array, keys: Array, bias: Array, scale: float, softcap: float) -> Array:
    """Of each word with each of the cache, [batch, heads, time, capacity], before those that it must not see are left out."""
    scores = xp.matmul(q, xp.transpose(keys, (0, 1, 3, 2))) * (scale or 1 / math.sqrt(q.shape[3]))
    if softcap > 0:
        scores = xp.lib.tanh(scores / softcap) * softcap
    if bias is None:
        return scores
    missing = keys.shape[2] - bias.shape[3]
    return scores + xp.pad(bias, [(0, 0)] * 3 + [(0, missing)], 0)


def _heads(xp: Arrays, query: Array, key: Array, value: Array, heads: int, groups: int) -> tuple[Array, Array, Array]:
    """Each as [batch, heads, time, size]; all three may lie in one tensor."""
    if key is not None:
        return split_heads(xp, query, heads), split_heads(xp, key, groups), split_heads(xp, value, groups)
    every = split_heads(xp, query, heads + 2 * groups)
    return every[:, :heads], every[:, heads : heads + groups], every[:, heads + groups :]


def _normalize_heads(xp: Arrays, x: Array, weight: Array, epsilon: float) -> Array:
    """Each head by its root mean square."""
    return x / xp.lib.sqrt(xp.mean(x * x, (3,), True) + epsilon) * weight


def _update_cache(xp: Arrays, past: Array, new: Array, before: Array, total: int) -> Array:
    """New rows behind those that a cache holds, `before` of them [batch, 1]; it grows where it is too short."""
    batch, heads, length, size = new.shape
    capacity = total if past is None else max(total, past.shape[2])
    rows = xp.arange(0, capacity, 1, before.dtype).reshape((1, capacity)) - before
    fresh = ((rows >= 0) & (rows < length)).reshape((batch, 1, capacity, 1))
    at = xp.minimum(xp.maximum(rows, 0), length - 1).reshape((batch, 1, capacity, 1))
    written = xp.take_along(new, xp.broadcast_to(at, (batch, heads, capacity, size)), 2)
    zero = xp.full((), 0, new.dtype, new)
    if past is None:
        return xp.where(fresh, written, zero)
    held = xp.pad(past, [(0, 0), (0, 0), (0, capacity - past.shape[2]), (0, 0)], 0)
    kept = (rows < 0).reshape((batch, 1, capacity, 1))
    return xp.where(fresh, written, xp.where(kept, held, zero))


def _build_key_mask(xp: Arrays, at: Array, ends: Array, capacity: int, causal: int, window: int) -> Array:
    """Which keys a query sees: [batch, 1, queries, capacity]."""
    keys = xp.arange(0, capacity, 1, at.dtype).reshape((1, 1, 1, capacity))
    where = at.reshape((at.shape[0], 1, at.shape[1], 1))
    if not causal:
        return keys + where * 0 < ends.reshape((-1, 1, 1, 1))
    seen = keys <= where
    return seen & (keys > where - window) if window > 0 else seen


def _softmax(xp: Arrays, scores: Array, sink: Array, smooth: int) -> Array:
    """With an additional term in the denominator, where there is one: e to the power of each head's sink, or of 0."""
    if sink is None and not smooth:
        return xp.softmax(scores, 3)
    batch, heads, queries, keys = scores.shape
    term = xp.full((heads,), 0, scores.dtype, scores) if sink is None else sink
    column = xp.broadcast_to(term.reshape((1, heads, 1, 1)), (batch, heads, queries, 1))
    return xp.slice_axis(xp.softmax(xp.concat((scores, column), 3), 3), 3, 0, keys, 1)
