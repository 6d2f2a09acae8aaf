"""A decoder in numpy, all tokens of a text at once: the answer that programs of a `DecoderDescription` are judged against.

Rotary positions: Su et al., "RoFormer", 2021; queries that share keys: Ainslie et al., "GQA", 2023; the feed-forward network:
Shazeer, "GLU Variants Improve Transformer", 2020.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bricolage.frontends.decoders.decoder_description import (
    DecoderDescription,
    LayerDescription,
    Matrix,
    RotaryEmbedding,
    matrix_numbers,
    matrix_rows,
)

DecoderCache = list[tuple[np.ndarray, np.ndarray]]
"""Of each layer, keys with their positions turned into them, and values: [key_heads, tokens, head_size]."""


def compute_decoder_logits(
    decoder: DecoderDescription, tokens: Sequence[int], dtype: type[np.floating] = np.float64
) -> np.ndarray:
    """dtype [tokens, vocabulary]: scores of the token behind each, computed in float64 or float32.

    Raises:
        IndexError: a token that the embedding has no row of.
    """
    return extend_decoder_cache(decoder, tokens, None, dtype)[0]


def extend_decoder_cache(
    decoder: DecoderDescription,
    tokens: Sequence[int] | np.ndarray,
    cache: DecoderCache | None,
    dtype: type[np.floating] = np.float64,
    judged: int | None = None,
    stored: type[np.floating] | None = None,
) -> tuple[np.ndarray, DecoderCache]:
    """Scores behind new tokens, and what their sequence then is.

    Args:
        decoder: the model.
        tokens: the new ones.
        cache: of the tokens in front of them; None where there are none.
        dtype: in which it is computed: float64 or float32.
        judged: of how many tokens, the last ones, there are scores; None for all.
        stored: the type that new keys and values are rounded to before they are seen; None for none.

    Returns:
        dtype [judged, vocabulary], and the cache of all tokens.

    Raises:
        IndexError: a token that the embedding has no row of.
    """
    ids = np.asarray(tokens, np.int64)
    hidden = matrix_numbers(matrix_rows(decoder.embedding, ids)).astype(dtype) * dtype(decoder.embedding_scale)
    extended: DecoderCache = []
    for number, layer in enumerate(decoder.layers):
        before = None if cache is None else cache[number]
        inner = _normalise(hidden, layer.attention_norm, decoder.epsilon)
        mixed, seen = _attend(decoder, layer, inner, before, stored)
        extended.append(seen)
        mixed = _multiply(mixed, layer.output)
        if layer.attention_post_norm is not None:
            mixed = _normalise(mixed, layer.attention_post_norm, decoder.epsilon)
        hidden = hidden + mixed
        inner = _normalise(hidden, layer.feed_forward_norm, decoder.epsilon)
        gate = _activate(_multiply(inner, layer.gate), decoder.activation)
        inner = _multiply(gate * _multiply(inner, layer.up), layer.down)
        if layer.feed_forward_post_norm is not None:
            inner = _normalise(inner, layer.feed_forward_post_norm, decoder.epsilon)
        hidden = hidden + inner
    hidden = hidden[len(hidden) - (len(hidden) if judged is None else judged) :]
    head = decoder.embedding if decoder.head is None else decoder.head
    logits = _cap(_multiply(_normalise(hidden, decoder.norm, decoder.epsilon), head), decoder.logit_softcap)
    return logits, extended


def compute_rotary_angles(rope: RotaryEmbedding, positions: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines, float64 [positions, head_size / 2]."""
    angles = np.outer(np.arange(positions), rope.frequencies)
    return np.cos(angles), np.sin(angles)


def compute_softmax(scores: np.ndarray) -> np.ndarray:
    """Along the last dimension, in float64."""
    shifted = np.exp(scores.astype(np.float64) - scores.max(axis=-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=-1, keepdims=True))


def compute_divergence(reference: np.ndarray, logits: np.ndarray) -> float:
    """KL of logits from a reference [tokens, vocabulary], in nats: the sum of p · log(p / q), the mean over
    tokens."""
    p, q = compute_softmax(reference), compute_softmax(logits)
    return float(np.mean(np.sum(p * (np.log(p + 1e-300) - np.log(q + 1e-300)), axis=-1)))


def _attend(
    decoder: DecoderDescription,
    layer: LayerDescription,
    x: np.ndarray,
    before: tuple[np.ndarray, np.ndarray] | None,
    stored: type[np.floating] | None,
) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """[tokens, heads · head_size], of [tokens, width]; and keys and values of all tokens."""
    count, past = len(x), 0 if before is None else before[0].shape[1]

    def split_heads(rows: np.ndarray, bias: np.ndarray | None, heads: int) -> np.ndarray:
        return (rows if bias is None else rows + bias.astype(x.dtype)).reshape(count, heads, -1).swapaxes(0, 1)

    query = split_heads(_multiply(x, layer.query), layer.query_bias, decoder.heads)
    key = split_heads(_multiply(x, layer.key), layer.key_bias, decoder.key_heads)
    value = split_heads(_multiply(x, layer.value), layer.value_bias, decoder.key_heads)
    if layer.query_norm is not None:
        query = _normalise(query, layer.query_norm, decoder.epsilon)
    if layer.key_norm is not None:
        key = _normalise(key, layer.key_norm, decoder.epsilon)
    query, key = _rotate(query, layer.rope, past), _rotate(key, layer.rope, past)
    if stored is not None:
        key, value = (rows.astype(stored).astype(x.dtype) for rows in (key, value))
    if before is not None:
        key, value = (
            np.concatenate([old.astype(x.dtype), new], axis=1) for old, new in zip(before, (key, value), strict=True)
        )
    group = decoder.heads // decoder.key_heads
    scores = query @ np.repeat(key, group, axis=0).swapaxes(1, 2) * x.dtype.type(decoder.query_scale)
    scores = _cap(scores, decoder.attention_softcap)
    behind = past + np.arange(count)[:, None] - np.arange(past + count)
    window = past + count if layer.sliding_window is None else layer.sliding_window
    scores = np.where((behind >= 0) & (behind < window), scores, -np.inf)
    mixed = compute_softmax(scores).astype(x.dtype) @ np.repeat(value, group, axis=0)
    return np.asarray(mixed.swapaxes(0, 1).reshape(count, -1)), (key, value)


def _multiply(x: np.ndarray, matrix: Matrix) -> np.ndarray:
    return np.asarray(x @ matrix_numbers(matrix).astype(x.dtype, copy=False).T)


def _normalise(x: np.ndarray, weight: np.ndarray, epsilon: float) -> np.ndarray:
    squares = np.mean(x.astype(np.float64) ** 2, axis=-1, keepdims=True)
    return np.asarray((x / np.sqrt(squares + epsilon)).astype(x.dtype) * weight.astype(x.dtype))


def _rotate(x: np.ndarray, rope: RotaryEmbedding, past: int) -> np.ndarray:
    angles = compute_rotary_angles(rope, past + x.shape[1])
    cosines, sines = (part[past:].astype(x.dtype) for part in angles)
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cosines - second * sines, second * cosines + first * sines], axis=-1)


def _activate(x: np.ndarray, activation: str) -> np.ndarray:
    if activation == "silu":
        return np.asarray(x / (1 + np.exp(-x)))
    inner = np.sqrt(2 / np.pi).astype(x.dtype) * (x + x.dtype.type(0.044715) * x**3)
    return np.asarray(x * (1 + np.tanh(inner)) / 2)


def _cap(x: np.ndarray, cap: float | None) -> np.ndarray:
    return x if cap is None else np.asarray(np.tanh(x / x.dtype.type(cap)) * x.dtype.type(cap))
