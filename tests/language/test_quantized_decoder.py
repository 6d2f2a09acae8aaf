"""A language model's weights in blocks: a file that other readers read as well, rounded by the weights or by a text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import bricolage
from benchmarks.decode.contestants import LlamaCpp
from bricolage.errors import (
    BadOption,
    NotALanguageModel,
    NothingToQuantise,
    UnknownDecoderKind,
    UnknownOperatorName,
    UnusableText,
)
from bricolage.frontends.decoders.decoder_description import matrix_numbers
from bricolage.frontends.decoders.decoder_files import read_decoder
from bricolage.frontends.decoders.gguf_blocks import choose_format, decode_blocks, encode_blocks
from bricolage.frontends.decoders.gguf_contents import find_difference
from bricolage.frontends.decoders.gguf_file import FORMATS
from bricolage.language.tokenizer import read_tokenizer
from bricolage.quantization.gguf_grids import GgufFormat, choose_grid, round_matrix
from bricolage.verify.decoder_reference import compute_decoder_logits
from tests.frontends.decoders import tiny_decoders
from tests.needed import needs

for library_name in ("gguf", "tokenizers", "transformers"):
    needs(library_name)

WORDS = "the theme of these theses is that 12 of them don't hold; "


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_decoders.write_folder(tiny_decoders.torch_decoder("llama"), tmp_path_factory.mktemp("llama"))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(WORDS * 12, encoding="utf-8")
    return tmp_path / "text.txt"


@pytest.mark.parametrize("form", ["q4_0", "q4_1", "q8_0"])
def test_blocks_are_what_other_readers_read_and_nearer_than_theirs(form: GgufFormat) -> None:
    import gguf

    matrix = np.random.default_rng(0).standard_normal((40, 96)).astype(np.float32)
    matrix[3, 32:64], matrix[4, :32] = 0, 0.25
    kind = gguf.GGMLQuantizationType[form.upper()]
    blocks = round_matrix(matrix, form, choose_grid(form, searched=True))
    raw = np.frombuffer(encode_blocks(blocks), np.uint8).reshape(len(matrix), -1)
    assert choose_format(blocks) == form.upper()
    numbers = gguf.quants.dequantize(raw, kind)
    np.testing.assert_allclose(numbers, blocks.numbers(), rtol=1e-5, atol=1e-6)
    number = next(number for number, each in FORMATS.items() if each.name == form.upper())
    assert encode_blocks(decode_blocks(FORMATS[number], raw)) == raw.tobytes()
    theirs = gguf.quants.dequantize(gguf.quants.quantize(matrix, kind), kind)
    assert np.linalg.norm(numbers - matrix) < np.linalg.norm(theirs - matrix) * (1.001 if form == "q8_0" else 0.98)
    assert not numbers[3, 32:64].any()


def test_gptq_makes_up_for_what_it_rounds() -> None:
    draw = np.random.default_rng(0)
    rows = (draw.standard_normal((400, 96)) @ draw.standard_normal((96, 96))).astype(np.float32)
    matrix, grid = draw.standard_normal((24, 96)).astype(np.float32), choose_grid("q4_1", searched=True)
    plain, better = (round_matrix(matrix, "q4_1", grid, hessian) for hessian in (None, rows.T @ rows))
    errors = [np.linalg.norm(rows @ (blocks.numbers() - matrix).T) for blocks in (plain, better)]
    assert errors[1] < 0.8 * errors[0]


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "gemma3"])
def test_what_a_file_holds_is_what_was_rounded(architecture: str, tmp_path: Path) -> None:
    import torch

    network = tiny_decoders.torch_decoder(architecture)
    folder = tiny_decoders.write_folder(network, tmp_path / "folder")
    rounded = bricolage.quantize(folder, weights="int4", keep_float=("attn_v", "blk.1.ffn_up"))
    rounded.save(tmp_path / "rounded.gguf")
    decoder = read_decoder(tmp_path / "rounded.gguf")
    tokens = read_tokenizer(folder).encode(WORDS)[:40]
    assert read_tokenizer(tmp_path / "rounded.gguf").encode(WORDS)[:40] == tokens
    logits = compute_decoder_logits(decoder, tokens)
    assert np.allclose(logits, compute_decoder_logits(rounded.decoder, tokens), rtol=1e-4, atol=1e-5)
    tiny_decoders.load_dequantised(network, architecture, tmp_path / "rounded.gguf")
    with torch.no_grad():
        theirs = tiny_decoders.torch_logits(network, tokens)
    assert np.linalg.norm(logits - theirs) < 1e-4 * np.linalg.norm(theirs), "Transformers with its numbers agrees"
    report = rounded.report
    assert {outcome.op_type for outcome in report.operators} == {"Q4_1", "Q8_0", "attn_v", "ffn_up"}
    assert [outcome.name for outcome in report.kept_float if outcome.op_type == "ffn_up"] == ["blk.1.ffn_up.weight"]
    assert matrix_numbers(decoder.layers[0].value).dtype == np.float32 and report.bytes[1] < report.bytes[0] / 2


def test_a_gguf_file_keeps_what_else_it_says(folder: Path, tmp_path: Path, text: Path) -> None:
    import gguf

    source = tiny_decoders.write_gguf(tiny_decoders.torch_decoder("llama"), "llama", tmp_path / "source.gguf", "F16")
    rounded = bricolage.quantize(source, calibrate=text, weights="int8")
    rounded.save(tmp_path / "rounded.gguf")
    before, after = (gguf.GGUFReader(path) for path in (source, tmp_path / "rounded.gguf"))
    kept = [name for name in before.fields if not name.startswith("GGUF.") and name != "general.file_type"]
    assert all(before.fields[name].contents() == after.fields[name].contents() for name in kept)
    assert after.fields["general.file_type"].contents() == gguf.LlamaFileType.MOSTLY_Q8_0
    accuracy = rounded.report.text
    assert accuracy is not None and 0 < accuracy.kl < 1e-2 and accuracy.agreement > 0.9
    assert rounded.report.calibrated_on + rounded.report.held_back == accuracy.windows + rounded.report.calibrated_on
    with pytest.raises(NothingToQuantise, match="'token_embd.weight' is in blocks of 8 bits already"):
        bricolage.quantize(tmp_path / "rounded.gguf", weights="int4")


def test_what_a_file_would_lose_is_named(folder: Path, tmp_path: Path) -> None:
    decoder = read_decoder(folder)
    assert find_difference(decoder, decoder) is None
    for changed in (replace(decoder, epsilon=1e-3), replace(decoder, attention_softcap=3.0)):
        assert find_difference(changed, decoder) is not None
    rounded = bricolage.quantize(folder, weights="int4")
    with pytest.raises(UnknownDecoderKind, match="embedding_scale"):
        replace(rounded, decoder=replace(rounded.decoder, embedding_scale=2.0)).save(tmp_path / "lost.gguf")
    assert not list(tmp_path.iterdir())


def test_llama_cpp_reads_it(folder: Path, tmp_path: Path) -> None:
    needs("xllamacpp")
    bricolage.quantize(folder, weights="int4", block_format="q4_0").save(tmp_path / "rounded.gguf")
    decoder = read_decoder(tmp_path / "rounded.gguf")
    writer = LlamaCpp(tmp_path / "rounded.gguf", decoder, 64, 1)
    assert writer.written([5, 6, 7, 8], 8)[1] > 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "--weights"),
        ({"weights": "int4", "block_size": 64}, "--block-size"),
        ({"weights": "int4", "block_format": "blocks"}, "q4_1 or q4_0"),
        ({"weights": "int8", "block_format": "q4_0"}, "q8_0"),
        ({"weights": "int4", "block_method": "gptq"}, "--calibrate"),
        ({"weights": "int4", "block_method": "awq"}, "rtn, mse"),
        ({"weights": "int4", "accuracy": "top1=0.9"}, "--evaluate"),
    ],
    ids=str,
)
def test_options_that_are_for_other_models(folder: Path, options: dict[str, object], said: str) -> None:
    with pytest.raises(BadOption, match=said):
        bricolage.quantize(folder, **options)


def test_a_file_that_is_damaged_is_told_before_options(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF and no more")
    with pytest.raises(NotALanguageModel):
        bricolage.quantize(tmp_path / "model.gguf", block_method="awq")


def test_texts_and_names_that_cannot_be(folder: Path, tmp_path: Path, text: Path) -> None:
    with pytest.raises(UnknownOperatorName, match="attn_q"):
        bricolage.quantize(folder, weights="int4", keep_float=("nothing",))
    for content, reason in ((b" \n", "empty"), (b"short", "tokens, and a window"), (b"\xff" * 999, "UTF-8 at byte 0")):
        (tmp_path / "bad.txt").write_bytes(content)
        with pytest.raises(UnusableText, match=reason):
            bricolage.quantize(folder, weights="int4", evaluate=tmp_path / "bad.txt")
    (tmp_path / "bad.txt").write_text(WORDS * 2)
    with pytest.raises(UnusableText, match="one window"):
        bricolage.quantize(folder, weights="int4", calibrate=tmp_path / "bad.txt")
    with pytest.raises(BadOption, match="a file of text"):
        bricolage.quantize(folder, weights="int4", calibrate={"x": np.ones(3)})
