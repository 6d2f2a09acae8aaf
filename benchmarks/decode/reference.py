"""The decoder in numpy, all tokens of a text at once: float32 products, softmax in float64. What contestants are judged against."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.decode.weights import Array, Decoder


def logits(decoder: Decoder, tokens: Sequence[int]) -> Array:
    """[tokens, words]: of the token behind each."""
    cosines, sines = angles(decoder, len(tokens))
    x = np.concatenate([decoder.embedding.numbers(slice(token, token + 1)) for token in tokens])
    hidden = np.triu(np.full((len(tokens), len(tokens)), -np.inf), 1)
    group = decoder.heads // decoder.key_heads

    def in_heads(array: Array, count: int) -> Array:
        return array.reshape(len(tokens), count, -1).swapaxes(0, 1)

    for layer in decoder.layers:
        h = _normalised(x, layer.attention_norm, decoder.epsilon)
        query = _turned(in_heads(h @ layer.query.numbers().T, decoder.heads), cosines, sines)
        key = _turned(in_heads(h @ layer.key.numbers().T, decoder.key_heads), cosines, sines)
        value = in_heads(h @ layer.value.numbers().T, decoder.key_heads)
        scores = query @ np.repeat(key, group, axis=0).swapaxes(1, 2) / np.sqrt(decoder.head_size)
        mixed = softmax(scores + hidden).astype(np.float32) @ np.repeat(value, group, axis=0)
        x = x + mixed.swapaxes(0, 1).reshape(x.shape) @ layer.output.numbers().T
        h = _normalised(x, layer.feed_forward_norm, decoder.epsilon)
        gate = h @ layer.gate.numbers().T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ layer.up.numbers().T)) @ layer.down.numbers().T
    found: Array = _normalised(x, decoder.norm, decoder.epsilon) @ decoder.embedding.numbers().T
    return found


def _normalised(x: Array, weight: Array, epsilon: float) -> Array:
    squares = np.mean(x.astype(np.float64) ** 2, axis=-1, keepdims=True)
    found: Array = (x / np.sqrt(squares + epsilon)).astype(np.float32) * weight
    return found


def angles(decoder: Decoder, positions: int) -> tuple[Array, Array]:
    """Cosines and sines [positions, head size] of the rotary embedding, whose pairs lie half a head apart."""
    half = decoder.head_size // 2
    rates = decoder.base ** (-np.arange(half) / half)
    turned = np.concatenate([np.outer(np.arange(positions), rates)] * 2, axis=1)
    return np.cos(turned).astype(np.float32), np.sin(turned).astype(np.float32)


def _turned(x: Array, cosines: Array, sines: Array) -> Array:
    first, second = np.split(x, 2, axis=-1)
    found: Array = x * cosines + np.concatenate([-second, first], axis=-1) * sines
    return found


def softmax(x: Array) -> Array:
    """Along the last dimension, in float64."""
    shifted = np.exp(x.astype(np.float64) - x.max(axis=-1, keepdims=True))
    found: Array = shifted / shifted.sum(axis=-1, keepdims=True)
    return found


def divergence(right: Array, found: Array) -> float:
    """KL of what is found from what is right, in nats: Σ p · log(p / q) over the next token, the mean over tokens."""
    p, q = softmax(right), softmax(found)
    return float(np.mean(np.sum(p * (np.log(p + 1e-300) - np.log(q + 1e-300)), axis=-1)))
