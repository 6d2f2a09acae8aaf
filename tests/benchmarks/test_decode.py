"""The decoding benchmark's own parts: its step against its reference, and its reader of blocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.decode import graphs, reference, weights
from benchmarks.decode.contestants import Step, native, onnxruntime, openvino
from benchmarks.real.packages import Unavailable


def small(zeros: bool) -> weights.Decoder:
    """Two layers of random blocks."""
    draw = np.random.default_rng(0)

    def blocks(n: int, k: int, bits: int = 4) -> weights.Blocks:
        scales = ((draw.random((n, k // 32)) + 0.5) / (2**bits * k**0.5)).astype(np.float16).astype(np.float32)
        around = (draw.random(scales.shape) * 15).astype(np.float32) if zeros and bits == 4 else None
        return weights.Blocks(draw.integers(0, 1 << bits, (n, k), np.uint8), 4 * scales, around, bits)

    def layer() -> weights.Layer:
        norms = (np.ones(64, np.float32) + draw.random(64, np.float32) for _ in range(2))
        return weights.Layer(
            blocks(64, 64), blocks(32, 64), blocks(32, 64), blocks(64, 64), blocks(96, 64), blocks(96, 64),
            blocks(64, 96), *norms,
        )  # fmt: skip

    return weights.Decoder((layer(), layer()), blocks(70, 64, 8), np.ones(64, np.float32), 4, 2, 1e4, 1e-5)


@pytest.mark.parametrize("zeros", [False, True], ids=["q4_0", "q4_1"])
def test_a_step_writes_what_the_reference_writes(zeros: bool, tmp_path: Path) -> None:
    decoder = small(zeros)
    model = graphs.step(decoder, 8, 0)
    contestants = [Step(decoder, native(model, "f32", 1, tmp_path / "f32"))]
    if not zeros:
        contestants.append(Step(decoder, onnxruntime(model, 1)))
        contestants.append(Step(decoder, openvino(model, 1, 0)))
    tokens, seconds = contestants[0].written([3, 1, 4], 5)
    right = reference.logits(decoder, tokens)
    assert seconds > 0 and tokens[3:] == right[2:-1].argmax(axis=1).tolist()
    for contestant in contestants:
        found = contestant.logits(tokens)
        assert np.linalg.norm(found - right) <= 1e-5 * np.linalg.norm(right)
        assert reference.divergence(right, found) < 1e-9


def test_blocks_of_a_file_stand_for_what_its_format_says() -> None:
    draw = np.random.default_rng(1)
    d, m = (draw.standard_normal((3, 2, 1)).astype(np.float16) for _ in range(2))
    low, high = (draw.integers(0, 16, (3, 2, 16), np.uint8) for _ in range(2))
    q = np.concatenate([low, high], axis=-1).astype(np.float32)
    half = low | high << 4
    raw = np.concatenate([d.view(np.uint8), m.view(np.uint8), half], axis=-1).reshape(3, -1)
    wide_d, wide_m = d.astype(np.float32), m.astype(np.float32)
    np.testing.assert_allclose(weights._blocks("Q4_1", raw).numbers(), (wide_d * q + wide_m).reshape(3, -1), atol=1e-5)
    raw = np.concatenate([d.view(np.uint8), half], axis=-1).reshape(3, -1)
    np.testing.assert_array_equal(weights._blocks("Q4_0", raw).numbers(), (wide_d * (q - 8)).reshape(3, -1))
    bytes_ = draw.integers(-128, 128, (3, 2, 32)).astype(np.int8)
    raw = np.concatenate([d.view(np.uint8), bytes_.view(np.uint8)], axis=-1).reshape(3, -1)
    right = (wide_d * bytes_).reshape(3, -1)
    np.testing.assert_array_equal(weights._blocks("Q8_0", raw).numbers(), right)
    with pytest.raises(Unavailable, match="Q6_K"):
        weights._blocks("Q6_K", raw)


@pytest.mark.parametrize("damage", ["empty", "cut", "lies", "other"])
def test_a_hostile_file_is_one_clear_error(damage: str, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama" if damage != "other" else "gemma3")
    writer.add_block_count(1)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_tensor("token_embd.weight", np.zeros((64, 64), np.float32))
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    raw = bytearray(path.read_bytes())
    if damage == "empty":
        raw = bytearray()
    elif damage == "cut":
        del raw[len(raw) // 2 :]
    elif damage == "lies":
        raw[8:16] = (1 << 40).to_bytes(8, "little")  # so many tensors
    path.write_bytes(raw)
    with pytest.raises(Unavailable, match="gemma3" if damage == "other" else "model.gguf is no readable GGUF file"):
        weights.read(path)
