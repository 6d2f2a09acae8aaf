# ruff: noqa: ARG001 -- the signature is the operator's schema: attributes that change nothing are named all the same
"""Attention and what belongs to it."""

from __future__ import annotations

import math

from bricolage.lowering.arrays import Arrays
from bricolage.lowering.common import Array, Results, operator


def split_heads(xp: Arrays, x: Array, heads: int) -> Array:
    """[batch, time, heads * size] -> [batch, heads, time, size]."""
    b, t, width = x.shape
    return xp.transpose(x.reshape((b, t, heads, width // heads)), (0, 2, 1, 3))


def merge_heads(xp: Arrays, x: Array) -> Array:
    b, h, t, size = x.shape
    return xp.transpose(x, (0, 2, 1, 3)).reshape((b, t, h * size))


def repeat_heads(xp: Arrays, x: Array, times: int) -> Array:
    """Each head `times` times in a row, as grouped-query attention reads it."""
    if times == 1:
        return x
    b, h, t, size = x.shape
    return xp.broadcast_to(x.reshape((b, h, 1, t, size)), (b, h, times, t, size)).reshape((b, h * times, t, size))


def _additive_mask(xp: Arrays, mask: Array, like: Array, length: int) -> Array:
    """A boolean mask as 0 / -inf; shorter masks are extended: what they do not name is not attended to."""
    if xp.kind(mask) == "b":
        mask = xp.where(mask, xp.full((), 0, like.dtype, like), -math.inf)
    missing = length - mask.shape[-1]
    return xp.pad(mask, [(0, 0)] * (mask.ndim - 1) + [(0, missing)], -math.inf) if missing > 0 else mask


def _window(xp: Arrays, like: Array, q_len: int, k_len: int, offset: Array, left: int, right: int) -> Array:
    """0 where query i may see key j: -right <= i + offset - j <= left (a bound of -1 is open), else -inf.

    `offset` is how many keys precede the queries: a number, or one for each batch entry.
    """
    kind = like.dtype
    distance = xp.arange(0, q_len, 1, kind).reshape((q_len, 1)) - xp.arange(0, k_len, 1, kind).reshape((1, k_len))
    if not isinstance(offset, int):
        offset = xp.astype(offset, kind).reshape((-1, 1, 1, 1))
    distance = distance + offset
    blocked = distance < -right if right >= 0 else distance != distance
    if left >= 0:
        blocked = blocked | (distance > left)
    return xp.where(blocked, -math.inf, xp.full((), 0, kind, like))


@operator("Attention", since=23)
def attention(
    xp: Arrays,
    q: Array,
    k: Array,
    v: Array,
    mask: Array = None,
    past_key: Array = None,
    past_value: Array = None,
    nonpad_kv_seqlen: Array = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
    _outputs: int = 1,
) -> Results:
    """Scaled dot-product attention; a row whose keys are all masked gives 0."""
    flat = q.ndim == 3
    if flat:
        q, k, v = (split_heads(xp, t, h or 1) for t, h in ((q, q_num_heads), (k, kv_num_heads), (v, kv_num_heads)))
    if past_key is not None:
        k, v = xp.concat((past_key, k), 2), xp.concat((past_value, v), 2)
    present = (k, v)
    groups = q.shape[1] // k.shape[1]
    k, v = repeat_heads(xp, k, groups), repeat_heads(xp, v, groups)
    root = math.sqrt(1 / math.sqrt(q.shape[3]) if scale is None else scale)
    scores = xp.matmul(q * root, xp.transpose(k, (0, 1, 3, 2)) * root)
    raw = scores
    if softcap > 0:
        scores = xp.lib.tanh(scores / softcap) * softcap
        raw = scores if qk_matmul_output_mode == 1 else raw
    bias = _bias(
        xp,
        scores,
        mask=mask,
        past_key=past_key,
        lengths=nonpad_kv_seqlen,
        is_causal=is_causal,
        left=left_window_size,
        right=right_window_size,
    )
    if bias is not None:
        scores = scores + bias
    raw = scores if qk_matmul_output_mode == 2 else raw
    wide = scores if softmax_precision is None else xp.astype(scores, xp.dtype(softmax_precision))
    weights = xp.softmax(wide, 3)
    if bias is not None:
        weights = xp.where(xp.max(bias, (bias.ndim - 1,), True) == -math.inf, 0, weights)
    weights = xp.astype(weights, q.dtype)
    raw = weights if qk_matmul_output_mode == 3 else raw
    y = xp.matmul(weights, v)
    y = merge_heads(xp, y) if flat else y
    return y if _outputs == 1 else (y, *present, raw)[:_outputs]


def _bias(
    xp: Arrays, scores: Array, mask: Array, past_key: Array, lengths: Array, is_causal: int, left: int, right: int
) -> Array:
    """The sum of everything added to the scores, None when there is nothing."""
    q_len, k_len = scores.shape[2:]
    terms = [] if mask is None else [_additive_mask(xp, mask, scores, k_len)]
    if past_key is not None:
        offset: Array = past_key.shape[2]
    else:
        offset = 0 if lengths is None else lengths - q_len
    if is_causal:
        right = 0
    if left >= 0 or right >= 0:
        terms.append(_window(xp, scores, q_len, k_len, offset, left, right))
    if lengths is not None:
        keys = xp.arange(0, k_len, 1, lengths.dtype).reshape((1, 1, 1, k_len))
        seen = keys < lengths.reshape((-1, 1, 1, 1))
        terms.append(xp.where(seen, xp.full((), 0, scores.dtype, scores), -math.inf))
    total = None
    for term in terms:
        total = term if total is None else total + term
    return total


@operator("RotaryEmbedding", since=23)
def rotary_embedding(
    xp: Arrays,
    x: Array,
    cos: Array,
    sin: Array,
    positions: Array = None,
    *,
    interleaved: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> Array:
    flat = x.ndim == 3
    heads = split_heads(xp, x, num_heads) if flat else x
    size = rotary_embedding_dim or heads.shape[3]
    if positions is not None:
        cos, sin = xp.take(cos, positions, 0), xp.take(sin, positions, 0)
    cos, sin = (t.reshape((t.shape[0], 1, *t.shape[1:])) for t in (cos, sin))
    turned = heads[..., :size]
    if interleaved:
        first, second = turned[..., 0::2], turned[..., 1::2]
    else:
        first, second = turned[..., : size // 2], turned[..., size // 2 :]
    real, imaginary = cos * first - sin * second, sin * first + cos * second
    if interleaved:
        rotated = xp.stack((real, imaginary), 4).reshape(tuple(turned.shape))
    else:
        rotated = xp.concat((real, imaginary), 3)
    y = rotated if size == heads.shape[3] else xp.concat((rotated, heads[..., size:]), 3)
    return merge_heads(xp, y) if flat else y


@operator("LinearAttention", since=27)
def linear_attention(
    xp: Arrays,
    q: Array,
    k: Array,
    v: Array,
    past_state: Array = None,
    decay: Array = None,
    beta: Array = None,
    *,
    kv_num_heads: int,
    q_num_heads: int,
    chunk_size: int = 64,
    scale: float = 0.0,
    update_rule: str = "gated_delta",
) -> Results:
    """The recurrence S <- exp(g) S + k (beta (v - S^T k))^T, read by y = scale q^T S; `chunk_size` is only a hint."""
    b, length, _ = q.shape
    kind = q.dtype
    size = q.shape[2] // q_num_heads
    qs, ks, vs = (
        xp.transpose(xp.widen(split_heads(xp, t, h)), (2, 0, 1, 3))
        for t, h in ((q, q_num_heads), (k, kv_num_heads), (v, kv_num_heads))
    )
    parts: list[Array] = [qs, ks, vs]
    if decay is not None:
        gates = xp.lib.exp(xp.widen(split_heads(xp, decay, kv_num_heads)))
        parts.append(xp.transpose(gates, (2, 0, 1, 3)))
    if beta is not None:
        parts.append(xp.transpose(xp.widen(beta), (1, 0, 2)).reshape((length, b, beta.shape[2], 1)))
    if past_state is None:
        state = xp.full((b, kv_num_heads, size, vs.shape[3]), 0, qs.dtype, q)
    else:
        state = xp.widen(past_state)
    factor = scale or 1 / math.sqrt(size)

    def step(carry: Array, inputs: Array) -> tuple[Array, Array]:
        rest = list(inputs[3:])
        if decay is not None:
            gate = rest.pop(0)
            carry = carry * gate.reshape((*gate.shape, 1))
        query, key, value = inputs[:3]
        if beta is not None:
            value = rest.pop(0) * (value - xp.einsum("bhdm,bhd->bhm", carry, key))
        carry = carry + xp.einsum("bhd,bhm->bhdm", key, value)
        read = repeat_heads(xp, carry, q_num_heads // kv_num_heads)
        return carry, xp.einsum("bhd,bhdm->bhm", query, read) * factor

    state, ys = xp.scan(step, state, tuple(parts), length)
    y = xp.astype(xp.transpose(ys, (1, 0, 2, 3)), kind).reshape((b, length, -1))
    return y, xp.astype(state, kind if past_state is None else past_state.dtype)
