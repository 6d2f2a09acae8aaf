"""The decoding benchmark's step against the reference of decoders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.decode import graphs
from benchmarks.decode.contestants import Step, native, onnxruntime, openvino
from bricolage.frontends.decoders.decoder_description import (
    DecoderDescription,
    LayerDescription,
    RotaryEmbedding,
    TokenizerDescription,
    default_frequencies,
)
from bricolage.graph.quantised_blocks import QuantisedBlocks, blocks_of
from bricolage.verify.decoder_reference import compute_decoder_logits, compute_divergence


def small(zeros: bool) -> DecoderDescription:
    """Two layers of random blocks."""
    draw = np.random.default_rng(0)

    def blocks(n: int, k: int, bits: int = 4) -> QuantisedBlocks:
        scales = ((draw.random((n, k // 32)) + 0.5) / (2**bits * k**0.5)).astype(np.float16).astype(np.float32)
        around = (draw.random(scales.shape) * 15).astype(np.float32) if zeros and bits == 4 else None
        return blocks_of(draw.integers(0, 1 << bits, (n, k), np.uint8), 4 * scales, around, bits, 32)

    rope = RotaryEmbedding(1e4, default_frequencies(1e4, 16))

    def layer() -> LayerDescription:
        matrices = [blocks(n, k) for n, k in [(64, 64), (32, 64), (32, 64), (64, 64), (96, 64), (96, 64), (64, 96)]]
        norms = (np.ones(64, np.float32) + draw.random(64, np.float32) for _ in range(2))
        return LayerDescription(*matrices, *norms, rope)

    layers, tokenizer = (layer(), layer()), TokenizerDescription("gpt2")
    return DecoderDescription(
        "llama", layers, blocks(70, 64, 8), np.ones(64, np.float32), 4, 2, 16, 64, 1e-5, tokenizer
    )


@pytest.mark.parametrize("zeros", [False, True], ids=["q4_0", "q4_1"])
def test_a_step_writes_what_the_reference_writes(zeros: bool, tmp_path: Path) -> None:
    decoder = small(zeros)
    model = graphs.step(decoder, 8, 0)
    contestants = [Step(decoder, native(model, "f32", 1, tmp_path / "f32"))]
    if not zeros:
        contestants.append(Step(decoder, onnxruntime(model, 1)))
        contestants.append(Step(decoder, openvino(model, 1, 0)))
    tokens, seconds = contestants[0].written([3, 1, 4], 5)
    right = compute_decoder_logits(decoder, tokens)
    assert seconds > 0 and tokens[3:] == right[2:-1].argmax(axis=1).tolist()
    for contestant in contestants:
        found = contestant.logits(tokens)
        assert np.linalg.norm(found - right) <= 1e-5 * np.linalg.norm(right)
        assert compute_divergence(right, found) < 1e-9
