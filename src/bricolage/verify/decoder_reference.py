"""A decoder in numpy, all tokens of a text at once: the answer that programs of a `DecoderDescription` are judged against.

Rotary positions: Su et al., "RoFormer", 2021; queries that share keys: Ainslie et al., "GQA", 2023; the feed-forward network:
Shazeer, "GLU Variants Improve Transformer", 2020.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from bricolage.frontends.decoders.decoder_description import (
    DecoderDescription,
    LayerDescription,
    Matrix,
    RotaryEmbedding,
    matrix_numbers,
    matrix_rows,
)

Factor = Literal["attention", "output", "feed_forward", "down"]
"""What a layer's matrices are multiplied with: of queries, keys and values; of the output; of gate and up; of down."""


def compute_decoder_logits(
    decoder: DecoderDescription, tokens: Sequence[int], dtype: type[np.floating] = np.float64
) -> np.ndarray:
    """dtype [tokens, vocabulary]: scores of the token behind each, computed in float64 or float32.

    Raises:
        IndexError: a token that the embedding has no row of.
    """
    hidden = embed_tokens(decoder, tokens, dtype)
    for layer in decoder.layers:
        hidden = compute_layer(decoder, layer, hidden)
    head = decoder.embedding if decoder.head is None else decoder.head
    return _cap(_multiply(_normalise(hidden, decoder.norm, decoder.epsilon), head), decoder.logit_softcap)


def embed_tokens(
    decoder: DecoderDescription, tokens: Sequence[int], dtype: type[np.floating] = np.float64
) -> np.ndarray:
    """dtype [tokens, width]: what the first layer gets.

    Raises:
        IndexError: a token that the embedding has no row of.
    """
    rows = matrix_rows(decoder.embedding, np.asarray(tokens, np.int64))
    return np.asarray(matrix_numbers(rows).astype(dtype) * dtype(decoder.embedding_scale))


def compute_layer(
    decoder: DecoderDescription,
    layer: LayerDescription,
    hidden: np.ndarray,
    observe: Callable[[Factor, np.ndarray], None] = lambda _, __: None,
) -> np.ndarray:
    """[tokens, width] behind a layer, of what it gets.

    Args:
        decoder: what is common to all layers.
        layer: its weights.
        hidden: [tokens, width], of one text.
        observe: is told each factor [tokens, k] that matrices are multiplied with.
    """
    inner = _normalise(hidden, layer.attention_norm, decoder.epsilon)
    observe("attention", inner)
    mixed = _attend(decoder, layer, inner)
    observe("output", mixed)
    mixed = _multiply(mixed, layer.output)
    if layer.attention_post_norm is not None:
        mixed = _normalise(mixed, layer.attention_post_norm, decoder.epsilon)
    hidden = hidden + mixed
    inner = _normalise(hidden, layer.feed_forward_norm, decoder.epsilon)
    observe("feed_forward", inner)
    gate = _activate(_multiply(inner, layer.gate), decoder.activation)
    inner = gate * _multiply(inner, layer.up)
    observe("down", inner)
    inner = _multiply(inner, layer.down)
    if layer.feed_forward_post_norm is not None:
        inner = _normalise(inner, layer.feed_forward_post_norm, decoder.epsilon)
    return np.asarray(hidden + inner)


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


def _attend(decoder: DecoderDescription, layer: LayerDescription, x: np.ndarray) -> np.ndarray:
    """[tokens, heads · head_size], of [tokens, width]."""
    count = len(x)

    def split_heads(rows: np.ndarray, bias: np.ndarray | None, heads: int) -> np.ndarray:
        return (rows if bias is None else rows + bias.astype(x.dtype)).reshape(count, heads, -1).swapaxes(0, 1)

    query = split_heads(_multiply(x, layer.query), layer.query_bias, decoder.heads)
    key = split_heads(_multiply(x, layer.key), layer.key_bias, decoder.key_heads)
    value = split_heads(_multiply(x, layer.value), layer.value_bias, decoder.key_heads)
    if layer.query_norm is not None:
        query = _normalise(query, layer.query_norm, decoder.epsilon)
    if layer.key_norm is not None:
        key = _normalise(key, layer.key_norm, decoder.epsilon)
    query, key = _rotate(query, layer.rope), _rotate(key, layer.rope)
    group = decoder.heads // decoder.key_heads
    scores = query @ np.repeat(key, group, axis=0).swapaxes(1, 2) * x.dtype.type(decoder.query_scale)
    scores = _cap(scores, decoder.attention_softcap)
    behind = np.arange(count)[:, None] - np.arange(count)
    window = count if layer.sliding_window is None else layer.sliding_window
    scores = np.where((behind >= 0) & (behind < window), scores, -np.inf)
    mixed = compute_softmax(scores).astype(x.dtype) @ np.repeat(value, group, axis=0)
    return np.asarray(mixed.swapaxes(0, 1).reshape(count, -1))


def _multiply(x: np.ndarray, matrix: Matrix) -> np.ndarray:
    return np.asarray(x @ matrix_numbers(matrix).astype(x.dtype, copy=False).T)


def _normalise(x: np.ndarray, weight: np.ndarray, epsilon: float) -> np.ndarray:
    squares = np.mean(x.astype(np.float64) ** 2, axis=-1, keepdims=True)
    return np.asarray((x / np.sqrt(squares + epsilon)).astype(x.dtype) * weight.astype(x.dtype))


def _rotate(x: np.ndarray, rope: RotaryEmbedding) -> np.ndarray:
    cosines, sines = (part.astype(x.dtype) for part in compute_rotary_angles(rope, x.shape[1]))
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cosines - second * sines, second * cosines + first * sines], axis=-1)


def _activate(x: np.ndarray, activation: str) -> np.ndarray:
    if activation == "silu":
        return np.asarray(x / (1 + np.exp(-x)))
    inner = np.sqrt(2 / np.pi).astype(x.dtype) * (x + x.dtype.type(0.044715) * x**3)
    return np.asarray(x * (1 + np.tanh(inner)) / 2)


def _cap(x: np.ndarray, cap: float | None) -> np.ndarray:
    return x if cap is None else np.asarray(np.tanh(x / x.dtype.type(cap)) * x.dtype.type(cap))
