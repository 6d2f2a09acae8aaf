"""Tokenizers built from GGUF's keys and from tokenizer.json: text there and back, special tokens, bytes of tokens."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import tokens as benchmark
from benchmarks.fuzz_loaders.language_files import sound_folder, sound_gguf
from bricolage.errors import MissingLibrary, NotALanguageModel
from bricolage.frontends.decoders.decoder_description import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    TokenizerDescription,
)
from bricolage.language.tokenizer import Tokenizer, read_tokenizer

pytest.importorskip("tokenizers")
FILE = Path("model.gguf")
TEXTS = ["", "the\x00\x7f\r\n", "thé 漢字 🙂", "  the the", "\ufeffa\u0301"]


def pairs(**changes: Any) -> TokenizerDescription:
    """Pairs of bytes with a token that begins texts."""
    from tokenizers import pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    listed = (*letters, "th", "the", "Ġthe", "<|user|>", "12", "<|begin|>", "<|end|>")
    types = np.array([NORMAL] * 259 + [USER_DEFINED, NORMAL, CONTROL, CONTROL], np.int32)
    merges = ("t h", "th e", "Ġ the", "1 2")
    given = TokenizerDescription(
        "gpt2", "gpt-2", listed, merges, None, types, 261, 262, ends=frozenset({262}), add_begin=True
    )
    return replace(given, **changes)


def pieces(**changes: Any) -> TokenizerDescription:
    """Pieces by scores: `the` of `t` and `he`, which scores best."""
    listed = (
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "\u2581",
        "t",
        "h",
        "e",
        "th",
        "he",
        "the",
        "\u2581the",
    )
    types = np.array([UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * 8], np.int32)
    scores = np.array([0.0] * 259 + [-9, -9, -9, -9, -3, -1, -4, -5], np.float32)
    given = TokenizerDescription(
        "llama", "default", listed, (), scores, types, 1, 2, 0, ends=frozenset({2}), add_begin=True
    )
    return replace(given, **changes)


@pytest.mark.parametrize(
    "description", [pairs(), pairs(pre="default"), pairs(pre="smollm"), pieces(), pieces(add_space_prefix=True)]
)
@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_back(description: TokenizerDescription, text: str) -> None:
    tokenizer = Tokenizer(description, FILE)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.size == len(description.tokens)


def test_merges_and_scores() -> None:
    assert [pairs().tokens[token] for token in Tokenizer(pairs(), FILE).encode("the the", begin=False)] == [
        "the",
        "Ġthe",
    ]
    assert [pieces().tokens[token] for token in Tokenizer(pieces(), FILE).encode("the th", begin=False)] == [
        "the",
        "\u2581",
        "th",
    ]
    only_he = replace(pieces(), tokens=(*pieces().tokens[:-2], "thx", "x"))
    assert [only_he.tokens[token] for token in Tokenizer(only_he, FILE).encode("the", begin=False)] == ["t", "he"]
    prefixed = Tokenizer(pieces(add_space_prefix=True), FILE)
    assert prefixed.encode("the", begin=False) == [266] and prefixed.decode([266]) == "the"


@pytest.mark.parametrize(("pre", "count"), [("gpt-2", 1), ("llama-bpe", 1), ("qwen2", 2), ("smollm", 2)])
def test_digits_are_cut_as_the_name_says(pre: str, count: int) -> None:
    assert len(Tokenizer(pairs(pre=pre), FILE).encode("12", begin=False)) == count


def test_special_tokens_are_text_unless_asked_for_and_the_first_never_stands_twice() -> None:
    tokenizer = Tokenizer(pairs(), FILE)
    as_text = tokenizer.encode("<|begin|>a")
    assert as_text[0] == tokenizer.begin == 261 and 261 not in as_text[1:] and tokenizer.decode(as_text) == "<|begin|>a"
    assert tokenizer.encode("<|begin|>a<|end|>", special=True) == [261, *tokenizer.encode("a", begin=False), 262]
    assert tokenizer.encode("a", begin=False) == tokenizer.encode("a")[1:]
    assert 259 in tokenizer.encode("<|user|>") and tokenizer.decode([259]) == "<|user|>", "user-defined ones always are"
    assert tokenizer.encode("") == [261] and Tokenizer(pairs(add_begin=False), FILE).encode("") == []
    assert Tokenizer(pairs(add_end=True), FILE).encode("a")[-1] == 262
    assert tokenizer.names == {"bos_token": "<|begin|>", "eos_token": "<|end|>"} and tokenizer.ends == {262}


def test_bytes_of_tokens_may_end_inside_a_character() -> None:
    for description in (pairs(), pieces()):
        tokenizer = Tokenizer(description, FILE)
        parts = [tokenizer.token_bytes(token) for token in tokenizer.encode("é🙂")]
        assert parts[0] == b"" and len(parts) == 7 and b"".join(parts).decode() == "é🙂"
        assert tokenizer.decode(tokenizer.encode("🙂")[:-1]) == "\ufffd"
        with pytest.raises(IndexError):
            tokenizer.token_bytes(tokenizer.size)
        with pytest.raises(IndexError):
            tokenizer.token_bytes(-1)


def test_half_a_surrogate_pair_becomes_a_replacement() -> None:
    tokenizer = Tokenizer(pairs(), FILE)
    assert tokenizer.decode(tokenizer.encode("a\ud83db")) == "a\ufffdb"
    assert tokenizer.decode(tokenizer.encode("\ud83d\ude42")) == "🙂", "two halves are one"


def test_qwen_composes_what_is_decomposed() -> None:
    tokenizer = Tokenizer(pairs(pre="qwen2"), FILE)
    assert tokenizer.encode("e\u0301") == tokenizer.encode("\u00e9")


def test_a_folder_s_tokenizer_frames_texts_as_it_says(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Backend
    from tokenizers import processors

    for name, data in sound_folder().items():
        (tmp_path / name).write_bytes(data)
    bare = read_tokenizer(tmp_path)
    assert bare.begin is None and bare.decode(bare.encode("the é")) == "the é" and bare.ends == {258}
    backend = Backend.from_file(str(tmp_path / "tokenizer.json"))
    backend.post_processor = processors.TemplateProcessing(single="<end> $A", special_tokens=[("<end>", 258)])
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "<end>"}')
    framed = read_tokenizer(tmp_path)
    assert framed.encode("the") == backend.encode("the").ids and framed.begin == 258
    assert framed.encode("<end>the", special=True) == framed.encode("the")


def test_what_does_not_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotALanguageModel, match="merges 'x yz', which are not tokens"):
        Tokenizer(pairs(merges=("x yz",)), FILE)
    with pytest.raises(NotALanguageModel, match="its tokenizer.json is none"):
        Tokenizer(pairs(json='{"model": 1}'), FILE)
    path = tmp_path / "model.gguf"
    path.write_bytes(sound_gguf("llama", 2, "gpt2").to_bytes())
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingLibrary, match="pip install 'tokenizers"):
        read_tokenizer(path)


def test_the_benchmark_compares_all_kinds_of_lines_and_sees_a_difference() -> None:
    lines = benchmark.lines(56)
    assert len({kind for kind, _ in lines}) == 28 and lines == benchmark.lines(56)
    tokenizer = Tokenizer(pairs(), FILE)

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, begin=False)

    assert benchmark.compare("tiny", lines, tokenizer, "itself", encode).different == 0
    other = benchmark.compare("tiny", lines, tokenizer, "another", lambda text: encode(text.replace("e", "o")))
    assert 0 < other.different < 56 and "english" in other.kinds
