"""Models of each architecture with random weights, read from both kinds of files, against Transformers in float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bricolage.frontends.decoders.decoder_description import DecoderDescription
from bricolage.frontends.decoders.decoder_files import read_decoder
from bricolage.verify.decoder_reference import compute_decoder_logits, compute_divergence
from tests.frontends.decoders import tiny_decoders as tiny

TOKENS = [5, 200, 17, 42, 99, 5, 7, 130, 250, 64, 3, 180]
"""More than a window."""


def agrees(decoder: DecoderDescription, expected: np.ndarray) -> None:
    logits = compute_decoder_logits(decoder, TOKENS)
    assert np.linalg.norm(logits - expected) <= 2e-5 * np.linalg.norm(expected)
    assert compute_divergence(expected, logits) < 1e-7


@pytest.mark.parametrize("architecture", tiny.LAYERS)
def test_random_models_agree_with_transformers(architecture: str, tmp_path: Path) -> None:
    model = tiny.torch_decoder(architecture)
    expected = tiny.torch_logits(model, TOKENS)
    assert np.ptp(expected) > 1, "else anything agrees"
    folder = read_decoder(tiny.write_folder(model, tmp_path / "folder"))
    agrees(folder, expected)
    assert folder.architecture == architecture and folder.feed_forward == tiny.FEED_FORWARD
    assert folder.tokenizer.ends == {tiny.LETTERS + 1, tiny.LETTERS + 2}
    decoder = read_decoder(tiny.write_gguf(model, architecture, tmp_path / "model.gguf"))
    agrees(decoder, expected)
    windows = [layer.sliding_window for layer in decoder.layers]
    assert windows == [layer.sliding_window for layer in folder.layers]
    assert windows == {"gemma2": [5, None, 5], "gemma3": [5, 5, 5, 5, 5, None, 5]}.get(architecture, [None, None])
    for each in (folder, decoder):
        caps = (each.attention_softcap, each.logit_softcap)
        assert caps == pytest.approx((0.7, 2.0)) if architecture == "gemma2" else caps == (None, None)
    quantised = tiny.write_gguf(model, architecture, tmp_path / "q.gguf", "Q8_0" if architecture == "qwen2" else "Q4_0")
    tiny.load_dequantised(model, architecture, quantised)
    agrees(read_decoder(quantised), tiny.torch_logits(model, TOKENS))


@pytest.mark.parametrize("name", ["linear", "llama3"])
def test_scaled_rotary_frequencies(name: str, tmp_path: Path) -> None:
    scaling = {"rope_type": name, "rope_theta": 500.0, "factor": 4.0}
    if name == "llama3":
        scaling |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
    model = tiny.torch_decoder("llama", rope_parameters=scaling)
    expected = tiny.torch_logits(model, TOKENS)
    agrees(read_decoder(tiny.write_folder(model, tmp_path)), expected)
    bare = tiny.torch_logits(
        tiny.torch_decoder("llama", rope_parameters={"rope_type": "default", "rope_theta": 500.0}), TOKENS
    )
    assert np.linalg.norm(bare - expected) > 1e-3 * np.linalg.norm(expected), "else no scaling agrees as well"
