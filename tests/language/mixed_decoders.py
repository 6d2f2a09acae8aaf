"""A small decoder whose matrices are of every kind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from bricolage.frontends.decoders.decoder_description import (
    DecoderDescription,
    LayerDescription,
    Matrix,
    RotaryEmbedding,
    TokenizerDescription,
    default_frequencies,
)
from bricolage.graph.quantised_blocks import blocks_of

VOCABULARY, WIDTH, FEED_FORWARD, HEADS, KEY_HEADS, SIZE, CONTEXT = 80, 64, 96, 6, 2, 24, 512


def random_matrix(kind: str, n: int, k: int, seed: int) -> Matrix:
    """[n, k] of `f32`, `f16`, or blocks as of GGUF's `q4_0`, `q4_1`, `q8_0`; products keep the size of their rows."""
    draw = np.random.default_rng(seed)
    if kind in ("f32", "f16"):
        values: np.ndarray = draw.standard_normal((n, k)) / np.sqrt(k)
        return values.astype(np.float16 if kind == "f16" else np.float32)
    bits = 8 if kind == "q8_0" else 4
    integers = draw.integers(0, 1 << bits, (n, k), dtype=np.uint8)
    spread = (1 << bits) / 3.4 * np.sqrt(k)
    scales = ((0.5 + draw.random((n, -(-k // 32)))) / spread).astype(np.float16).astype(np.float32)
    zeros = (draw.random(scales.shape) * 15).astype(np.float32) if kind == "q4_1" else None
    return blocks_of(integers, scales, zeros, bits, 32)


def mixed_decoder(size: int = SIZE, **changes: object) -> DecoderDescription:
    """Two layers with heads of a size; the first sees a window of 100 tokens, and has biases and norms of heads."""
    inner, groups = HEADS * size, KEY_HEADS * size
    shapes = {
        "query": ("q4_0", inner, WIDTH),
        "key": ("q4_1", groups, WIDTH),
        "value": ("f16", groups, WIDTH),
        "output": ("q8_0", WIDTH, inner),
        "gate": ("f32", FEED_FORWARD, WIDTH),
        "up": ("q4_0", FEED_FORWARD, WIDTH),
        "down": ("q4_1", WIDTH, FEED_FORWARD),
    }

    def vector(count: int, seed: int) -> np.ndarray:
        return (1 + 0.2 * np.random.default_rng(seed).standard_normal(count)).astype(np.float32)

    def matrices(number: int) -> dict[str, Any]:
        return {role: random_matrix(*shape, seed=10 * number + i) for i, (role, shape) in enumerate(shapes.items())}

    layers = [
        LayerDescription(
            **matrices(number),
            attention_norm=vector(WIDTH, 40 + number),
            feed_forward_norm=vector(WIDTH, 50 + number),
            rope=RotaryEmbedding(1e4, default_frequencies(1e4, size)),
        )
        for number in range(2)
    ]
    layers[0] = replace(
        layers[0],
        sliding_window=100,
        query_bias=vector(inner, 60),
        key_bias=vector(groups, 61),
        value_bias=vector(groups, 62),
        query_norm=vector(size, 63),
        key_norm=vector(size, 64),
    )
    decoder = DecoderDescription(
        "llama",
        tuple(layers),
        random_matrix("q8_0", VOCABULARY, WIDTH, 70),
        vector(WIDTH, 71),
        HEADS,
        KEY_HEADS,
        size,
        CONTEXT,
        1e-5,
        TokenizerDescription("gpt2", tokens=tuple(map(str, range(VOCABULARY)))),
    )
    return replace(decoder, **changes)  # type: ignore[arg-type]
