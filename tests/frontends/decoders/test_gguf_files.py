"""GGUF files: blocks mean what their format says, and files that lie are refused by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.fuzz_loaders.language_files import Gguf, sound_gguf
from bricolage.errors import BricolageError, MissingFile, ModelBeyondMemory, NotALanguageModel, UnknownDecoderKind
from bricolage.frontends.decoders.decoder_description import matrix_numbers
from bricolage.frontends.decoders.decoder_files import is_language_model, read_decoder, read_tokenizer_description
from bricolage.frontends.decoders.gguf_blocks import decode_blocks
from bricolage.frontends.decoders.gguf_file import FORMATS
from bricolage.graph.quantised_blocks import QuantisedBlocks

ARRAY, STRING = 9, 8
HALVES = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
}
"""Where a block has float16."""


@pytest.mark.parametrize("number", FORMATS)
def test_blocks_stand_for_what_their_format_says(number: int) -> None:
    gguf = pytest.importorskip("gguf")
    form, draw = FORMATS[number], np.random.default_rng(number)
    if form.name not in HALVES:
        numbers = draw.standard_normal((3, 64)).astype(np.float32)
        raw = (
            numbers.view(np.uint8)
            if form.name == "F32"
            else gguf.quants.quantize(numbers, gguf.GGMLQuantizationType(number))
        )
        raw = np.ascontiguousarray(raw).view(np.uint8)
        expected = {"F32": numbers, "F16": numbers.astype(np.float16)}.get(form.name)
        if expected is None:
            expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(number))
        np.testing.assert_array_equal(matrix_numbers(decode_blocks(form, raw)), expected)
        return
    blocks = draw.integers(0, 256, (3, 4, form.size), np.uint8)
    for at in HALVES[form.name]:
        blocks[..., at : at + 2] = draw.standard_normal((3, 4, 1)).astype(np.float16).view(np.uint8)
    blocks[1, 1, HALVES[form.name][0] : HALVES[form.name][0] + 2] = 0  # a scale of zero: a minimum alone
    raw = blocks.reshape(3, -1)
    matrix = decode_blocks(form, raw)
    assert isinstance(matrix, QuantisedBlocks) and matrix.bits == (4 if "4" in form.name else 8)
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(number))
    if len(HALVES[form.name]) == 1:
        np.testing.assert_array_equal(matrix.numbers(), expected)
    else:  # the zero point is rounded, and multiplied by the scale again
        np.testing.assert_allclose(matrix.numbers(), expected, rtol=1e-6, atol=1e-6 * float(np.abs(expected).max()))


def write(model: Gguf, path: Path) -> Path:
    path.write_bytes(model.to_bytes())
    return path


def with_key(key: str, value: Any, kind: int | None = None) -> Callable[[Gguf], None]:
    """Sets a key, or leaves it out where the value is None."""

    def change(model: Gguf) -> None:
        kinds = {name: old for name, old, _ in model.metadata}
        model.metadata = [entry for entry in model.metadata if entry[0] != key]
        if value is not None:
            model.metadata.append((key, kinds.get(key, 4) if kind is None else kind, value))

    return change


def with_tensor(name: str, /, **changes: Any) -> Callable[[Gguf], None]:
    """Changes a tensor's shape, kind, offset or name."""

    def change(model: Gguf) -> None:
        place = next(i for i, tensor in enumerate(model.tensors) if tensor[0] == name)
        parts = dict(zip(("name", "shape", "kind", "offset", "data"), model.tensors[place], strict=True)) | changes
        model.tensors[place] = tuple(parts.values())  # type: ignore[assignment]

    return change


def with_count(tensors: int | None = None, keys: int | None = None) -> Callable[[Gguf], None]:
    def change(model: Gguf) -> None:
        model.counts = [tensors, keys]

    return change


def twice(model: Gguf) -> None:
    model.metadata.append(model.metadata[0])


def without_query(model: Gguf) -> None:
    model.tensors = [tensor for tensor in model.tensors if "attn_q" not in tensor[0]]


def with_version(number: int) -> Callable[[Gguf], None]:
    def change(model: Gguf) -> None:
        model.version = number

    return change


def with_more(model: Gguf) -> None:
    model.tensors.append(("blk.0.ffn_gate_inp.weight", [32, 4], 0, None, bytes(512)))


LIES: dict[str, tuple[Callable[[Gguf], None], type[BricolageError], str]] = {
    "tensors": (with_count(tensors=1 << 60), NotALanguageModel, "(dimensions|beyond its end)"),
    "keys": (with_count(keys=1 << 62), NotALanguageModel, "(unknown type|beyond its end|a name of)"),
    "version": (with_version(1), NotALanguageModel, "version is 1; 2 and 3"),
    "big-endian": (with_version(3 << 24), NotALanguageModel, "version is 3, in big-endian order"),
    "key twice": (twice, NotALanguageModel, "'general.architecture' stands twice"),
    "layers": (with_key("llama.block_count", 4_000_000_000), NotALanguageModel, "4000000000 layers"),
    "another layer": (with_key("llama.block_count", 2), NotALanguageModel, r"lacks the tensor 'blk\.1"),
    "no tensor": (without_query, NotALanguageModel, r"lacks the tensor 'blk\.0\.attn_q\.weight'"),
    "no key": (with_key("llama.context_length", None), NotALanguageModel, "lacks the key 'llama.context_length'"),
    "type of key": (with_key("llama.context_length", "x", STRING), NotALanguageModel, "something else at the key"),
    "no head": (with_key("llama.attention.head_count", 0), NotALanguageModel, "heads"),
    "heads": (with_key("llama.attention.head_count_kv", 3), NotALanguageModel, "heads"),
    "large head": (with_key("llama.attention.key_length", 4_000_000_000), NotALanguageModel, "more than 65536"),
    "alignment": (with_key("general.alignment", 0), NotALanguageModel, "alignment is 0"),
    "size": (with_tensor("output_norm.weight", shape=[1 << 40]), NotALanguageModel, "goes beyond its end"),
    "shape": (with_tensor("output_norm.weight", shape=[16]), NotALanguageModel, r"the last norm has \(16,\)"),
    "dimensions": (with_tensor("output_norm.weight", shape=[]), NotALanguageModel, "has 0 dimensions"),
    "half a block": (with_tensor("token_embd.weight", shape=[31, 259]), NotALanguageModel, r"has the shape \[259, 31\]"),
    "overlap": (with_tensor("output_norm.weight", offset=0), NotALanguageModel, "overlap"),
    "beyond": (with_tensor("output_norm.weight", offset=1 << 63), NotALanguageModel, "goes beyond its end"),
    "tensor twice": (with_tensor("output_norm.weight", name="token_embd.weight"), NotALanguageModel, "stands twice"),
    "end": (with_key("tokenizer.ggml.eos_token_id", 259), NotALanguageModel, "token 259 is named, and there are 259"),
    "ids": (with_key("tokenizer.ggml.tokens", (STRING, ("a",) * 300)), NotALanguageModel, "has 300 tokens"),
    "types": (with_key("tokenizer.ggml.token_type", (5, (1,) * 3)), NotALanguageModel, "3 types for 259 tokens"),
    "no tokens": (with_key("tokenizer.ggml.tokens", None), NotALanguageModel, "no tokens"),
    "letters": (with_key("tokenizer.ggml.tokens", (STRING, ("a" * 5000,))), NotALanguageModel, "has 5000 letters"),
    "epsilon": (with_key("llama.attention.layer_norm_rms_epsilon", -1.0), NotALanguageModel, "norms add -1.0"),
    "base": (with_key("llama.rope.freq_base", 0.0), NotALanguageModel, "frequencies is 0.0"),
    "architecture": (with_key("general.architecture", "mamba"), UnknownDecoderKind, "the architecture 'mamba'.*qwen3"),
    "pre": (with_key("tokenizer.ggml.pre", "tekken"), UnknownDecoderKind, "tokenizer's 'pre' 'tekken'.*smollm"),
    "tokenizer": (with_key("tokenizer.ggml.model", "rwkv"), UnknownDecoderKind, "the tokenizer 'rwkv'"),
    "tensor type": (with_tensor("token_embd.weight", kind=23), UnknownDecoderKind, "tensor type 'IQ4_XS'.*Q4_K"),
    "no tensor type": (with_tensor("token_embd.weight", kind=99), UnknownDecoderKind, "tensor type '99'"),
    "scaling": (with_key("llama.rope.scaling.type", "yarn", STRING), UnknownDecoderKind, "rotary scaling 'yarn'"),
    "turning": (with_key("llama.rope.dimension_count", 8), UnknownDecoderKind, "8 that turn"),
    "experts": (with_key("llama.expert_count", 8), UnknownDecoderKind, "llama with experts.*dense.*gemma3"),
    "more": (with_more, UnknownDecoderKind, r"tensor 'blk\.0\.ffn_gate_inp\.weight'"),
}  # fmt: skip


@pytest.mark.parametrize("name", LIES)
def test_files_that_lie_are_refused_by_name(name: str, tmp_path: Path) -> None:
    change, kind, words = LIES[name]
    model = sound_gguf("llama", 2, "gpt2")
    read_decoder(write(model, tmp_path / "sound.gguf"))
    change(model)
    with pytest.raises(kind, match=words):
        read_decoder(write(model, tmp_path / "model.gguf"))


@pytest.mark.parametrize("name", ["rwkv7", "gemma", "qwen3moe", "phi3"])
def test_an_unknown_name_is_said_with_those_that_are_read(name: str, tmp_path: Path) -> None:
    model = sound_gguf("llama", 2, "gpt2")
    with_key("general.architecture", name)(model)
    with pytest.raises(
        UnknownDecoderKind, match=f"architecture '{name}'.*It reads: llama, qwen2, qwen3, gemma2, gemma3"
    ):
        read_decoder(write(model, tmp_path / "model.gguf"))


def test_every_cut_is_an_error(tmp_path: Path) -> None:
    whole = sound_gguf("gemma3", 1, "llama").to_bytes()
    for size in [*range(0, 4000, 37), len(whole) // 2, len(whole) - 40]:
        path = tmp_path / "model.gguf"
        path.write_bytes(whole[:size])
        with pytest.raises(NotALanguageModel):
            read_decoder(path)


def test_memory_that_does_not_suffice_is_said_before_loading(tmp_path: Path) -> None:
    path, model = tmp_path / "model.gguf", sound_gguf("llama", 2, "gpt2")
    name = model.tensors[-1][0]
    size = 1 << 40  # a sparse file: nothing of it lies on the disk
    model.tensors[-1] = (name, [32, size // 18], 2, None, b"")
    write(model, path)
    try:
        os.truncate(path, 2 * size)
    except OSError as error:
        pytest.skip(f"no file of 2 TB here: {error}")
    with pytest.raises(ModelBeyondMemory, match=r"take 1.1e\+03 GB"):
        read_decoder(path)


def test_what_is_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(MissingFile):
        read_decoder(tmp_path / "none.gguf")
    with pytest.raises(MissingFile):
        read_tokenizer_description(tmp_path / "none.gguf")
    (tmp_path / "text").write_text("GUUF and more than that")
    with pytest.raises(NotALanguageModel, match="does not begin with GGUF"):
        read_decoder(tmp_path / "text")
    assert not is_language_model(tmp_path / "text") and not is_language_model(tmp_path / "none")
    assert not is_language_model(tmp_path)
    assert is_language_model(write(sound_gguf("llama", 0, "gpt2"), tmp_path / "model.gguf"))


def test_a_tokenizer_alone_is_the_decoder_s(tmp_path: Path) -> None:
    path = write(sound_gguf("qwen2", 3, "gpt2"), tmp_path / "model.gguf")
    alone, whole = read_tokenizer_description(path), read_decoder(path).tokenizer
    assert alone.tokens == whole.tokens and alone.ends == whole.ends == {258} and alone.pre == "qwen2"
