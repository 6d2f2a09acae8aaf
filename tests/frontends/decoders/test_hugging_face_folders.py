"""Folders of Hugging Face: files that lie or are missing are refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fuzz_loaders.language_files import sound_folder
from bricolage.errors import BricolageError, NotALanguageModel, UnknownDecoderKind
from bricolage.frontends.decoders.decoder_files import is_language_model, read_decoder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small sound model."""
    for name, data in sound_folder().items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


def change(folder: Path, name: str, **values: Any) -> None:
    """Sets keys of a JSON file; None takes one out."""
    path = folder / name
    whole = json.loads(path.read_bytes()) if path.exists() else {}
    whole |= values
    path.write_text(json.dumps({key: value for key, value in whole.items() if value is not None}))


def refused(folder: Path, kind: type[BricolageError], words: str) -> None:
    with pytest.raises(kind, match=words):
        read_decoder(folder)


def test_a_sound_folder_is_read(folder: Path) -> None:
    assert is_language_model(folder)
    decoder = read_decoder(folder)
    assert (
        decoder.head is None and decoder.tokenizer.ends == {258} and decoder.tokenizer.chat_template == "{{ messages }}"
    )
    (folder / "chat_template.jinja").write_text("another")
    assert read_decoder(folder).tokenizer.chat_template == "another"
    (folder / "chat_template.jinja").unlink()
    change(
        folder,
        "tokenizer_config.json",
        chat_template=[{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}],
    )
    assert read_decoder(folder).tokenizer.chat_template == "d"


@pytest.mark.parametrize(
    ("values", "kind", "words"),
    [
        ({"model_type": "mamba"}, UnknownDecoderKind, "model_type 'mamba'"),
        ({"hidden_act": "relu"}, UnknownDecoderKind, "activation 'relu'"),
        ({"tie_word_embeddings": False}, NotALanguageModel, "lacks the tensor 'lm_head.weight'"),
        ({"tie_word_embeddings": 1}, NotALanguageModel, "true or false"),
        ({"num_hidden_layers": 10**9}, NotALanguageModel, "1000000000 layers"),
        ({"num_attention_heads": 3}, NotALanguageModel, r"for query, not \(30, 32\)"),
        ({"head_dim": 10**15}, NotALanguageModel, "more than 65536"),
        ({"max_position_embeddings": None}, NotALanguageModel, "lacks the key 'max_position_embeddings'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, UnknownDecoderKind, "rotary scaling 'yarn'"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, NotALanguageModel, "divided by 0"),
        ({"partial_rotary_factor": 0.5}, UnknownDecoderKind, "partial_rotary_factor"),
        ({"layer_types": ["linear_attention"]}, NotALanguageModel, "types of them: linear_attention"),
        ({"rope_theta": "much"}, NotALanguageModel, "'rope_theta', a number"),
    ],
)
def test_configurations_that_do_not_fit(
    folder: Path, values: dict[str, Any], kind: type[BricolageError], words: str
) -> None:
    change(folder, "config.json", **values)
    refused(folder, kind, words)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_files_that_are_missing_or_none(folder: Path, name: str) -> None:
    (folder / name).write_bytes(b"\0nothing")
    refused(folder, NotALanguageModel, name)
    (folder / name).unlink()
    refused(folder, NotALanguageModel, name)


def header(folder: Path, **entries: Any) -> None:
    """Writes another header, in front of the same data."""
    path = folder / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    head = json.dumps(json.loads(data[8 : 8 + length]) | entries).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + data[8 + length :])


@pytest.mark.parametrize(
    ("entry", "kind", "words"),
    [
        ({"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}, NotALanguageModel, "goes beyond its end"),
        ({"dtype": "F32", "shape": [31], "data_offsets": [0, 128]}, NotALanguageModel, "has 128 bytes for the shape"),
        (
            {"dtype": "F32", "shape": [-1, -32], "data_offsets": [0, 128]},
            NotALanguageModel,
            r"has the shape \[-1, -32\]",
        ),
        ({"dtype": "F8_E4M3", "shape": [32], "data_offsets": [0, 32]}, UnknownDecoderKind, "tensor type 'F8_E4M3'"),
        ({"dtype": "F32"}, NotALanguageModel, "is not described"),
        ("", NotALanguageModel, "is not described"),
    ],
)
def test_headers_that_lie(folder: Path, entry: Any, kind: type[BricolageError], words: str) -> None:
    header(folder, **{"model.norm.weight": entry})
    refused(folder, kind, words)


def test_tensors_of_no_role_are_named(folder: Path) -> None:
    header(folder, **{"model.layers.0.mlp.experts.weight": {"dtype": "F32", "shape": [32], "data_offsets": [0, 128]}})
    refused(folder, UnknownDecoderKind, "experts")


def test_an_index_names_files_of_the_folder(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "part.safetensors")
    change(folder, "model.safetensors.index.json", weight_map={"model.norm.weight": "part.safetensors"})
    assert len(read_decoder(folder).layers) == 1
    change(folder, "model.safetensors.index.json", weight_map={"a": "../part.safetensors"})
    refused(folder, NotALanguageModel, "which is no file of the folder")
    change(folder, "model.safetensors.index.json", weight_map={"a": "other.safetensors"})
    refused(folder, NotALanguageModel, "lacks other.safetensors")


def test_a_tokenizer_with_other_ids_is_refused(folder: Path) -> None:
    added = json.loads((folder / "tokenizer.json").read_bytes())["added_tokens"]
    change(folder, "tokenizer.json", added_tokens=[{**added[0], "id": 259}])
    refused(folder, NotALanguageModel, "has 260 tokens, and the embedding 259 rows")
    change(folder, "tokenizer.json", added_tokens=[{**added[0], "id": 10**9}])
    refused(folder, NotALanguageModel, "its largest token is 1000000000")
    change(folder, "tokenizer.json", added_tokens=added, decoder={"type": "WordPiece"})
    refused(folder, UnknownDecoderKind, "decoder 'WordPiece'")
