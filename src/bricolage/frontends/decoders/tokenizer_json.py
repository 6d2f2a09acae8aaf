"""A tokenizer from the files of a folder of Hugging Face."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bricolage.errors import NotALanguageModel, UnknownDecoderKind
from bricolage.frontends.decoders.decoder_description import (
    BYTE,
    CONTROL,
    NORMAL,
    UNUSED,
    USER_DEFINED,
    TokenizerDescription,
    TokenizerModel,
)
from bricolage.frontends.decoders.named_values import NamedValues, read_json

_MOST_TOKENS = 1 << 22


def read_tokenizer_json(folder: Path, config: NamedValues) -> TokenizerDescription:
    """The tokenizer of tokenizer.json, with special tokens, the template and the ends of generation from the other files.

    Args:
        folder: where they are.
        config: what config.json says.

    Raises:
        NotALanguageModel: tokenizer.json is missing, or is none.
        UnknownDecoderKind: it writes bytes in a way that is not read.
    """
    whole = read_json(folder / "tokenizer.json")
    if not whole.values:
        raise NotALanguageModel(path=folder, reason="it has no tokenizer.json")
    settings, generation = read_json(folder / "tokenizer_config.json"), read_json(folder / "generation_config.json")
    tokens, types = _list_tokens(whole)
    letters = _how_bytes_are_written(whole)
    if letters == "llama":
        types[[number for number, token in enumerate(tokens) if _is_byte(token)]] = BYTE
    numbers = {token: number for number, token in enumerate(tokens)}

    def special(name: str, key: str) -> int | None:
        value = settings.values.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str) and text in numbers:
            return numbers[text]
        stated = generation.values.get(key, config.values.get(key))
        return stated if isinstance(stated, int) and not isinstance(stated, bool) else None

    end = special("eos_token", "eos_token_id")
    ends = set(_as_tokens(generation.values.get("eos_token_id", config.values.get("eos_token_id"))))
    return TokenizerDescription(
        model=letters,
        tokens=tokens,
        types=types,
        begin=special("bos_token", "bos_token_id"),
        end=end,
        unknown=special("unk_token", "unk_token_id"),
        padding=special("pad_token", "pad_token_id"),
        ends=frozenset(ends | ({end} if end is not None else set())),
        chat_template=_find_template(folder, settings),
        json=json.dumps(whole.values, ensure_ascii=False),
    )


def list_json_merges(text: str) -> tuple[str, ...]:
    """Merges of a tokenizer.json that was read, each as two tokens with a space between."""
    merges = json.loads(text).get("model", {}).get("merges", [])
    return tuple(merge if isinstance(merge, str) else " ".join(merge) for merge in merges)


def _list_tokens(whole: NamedValues) -> tuple[tuple[str, ...], np.ndarray]:
    """Texts and types of tokens by number."""
    entries: dict[int, tuple[str, int]] = {}
    for token, number in _pairs(whole):
        entries[number] = token, NORMAL
    added = whole.values.get("added_tokens") or []
    for entry in added if isinstance(added, list) else []:
        match entry:
            case {"id": int(number), "content": str(token)}:
                entries[number] = token, CONTROL if entry.get("special") is True else USER_DEFINED
            case _:
                raise NotALanguageModel(path=whole.path, reason="an added token has no number or no text")
    most = max(entries, default=-1)
    if not 0 <= most < _MOST_TOKENS or min(entries) < 0:
        raise NotALanguageModel(path=whole.path, reason=f"its largest token is {most}")
    listed = [entries.get(number, ("", UNUSED)) for number in range(most + 1)]
    return tuple(token for token, _ in listed), np.array([kind for _, kind in listed], np.int32)


def _pairs(whole: NamedValues) -> Iterator[tuple[str, int]]:
    """Tokens of the model with their numbers."""
    vocabulary = whole.within("model").values.get("vocab")
    if isinstance(vocabulary, dict):
        for token, number in vocabulary.items():
            if type(number) is not int:
                raise NotALanguageModel(path=whole.path, reason=f"token '{token}' has the number {number}")
            yield token, number
    elif isinstance(vocabulary, list):
        for number, entry in enumerate(vocabulary):
            if not isinstance(entry, list) or not entry or not isinstance(entry[0], str):
                raise NotALanguageModel(path=whole.path, reason=f"token {number} has no text")
            yield entry[0], number
    else:
        raise NotALanguageModel(path=whole.path, reason="it has no vocabulary")


def _how_bytes_are_written(whole: NamedValues) -> TokenizerModel:
    """GGUF's name of it, by the decoder.

    Raises:
        UnknownDecoderKind: neither of the two.
    """
    decoder = whole.within("decoder")
    parts = decoder.values.get("decoders") or [decoder.values]
    names = {str(part.get("type")) for part in parts if isinstance(part, dict)} if isinstance(parts, list) else set()
    if "ByteLevel" in names:
        return "gpt2"
    if names & {"ByteFallback", "Metaspace"}:
        return "llama"
    name = ", ".join(sorted(names)) or "none"
    raise UnknownDecoderKind(
        path=whole.path, kind="tokenizer's decoder", name=name, expected="ByteLevel, ByteFallback, Metaspace"
    )


def _is_byte(token: str) -> bool:
    return len(token) == 6 and token.startswith("<0x") and token.endswith(">")


def _as_tokens(value: object) -> list[int]:
    """Numbers of a number or of a list."""
    values = value if isinstance(value, list) else [value]
    return [number for number in values if type(number) is int]


def _find_template(folder: Path, settings: NamedValues) -> str | None:
    """chat_template.jinja, or what tokenizer_config.json has."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise NotALanguageModel(path=path, reason=f"it is no text: {error}") from error
    stated = settings.values.get("chat_template")
    if isinstance(stated, list):  # several, by name
        named = [entry for entry in stated if isinstance(entry, dict) and entry.get("name") == "default"]
        stated = named[0].get("template") if named else None
    return stated if isinstance(stated, str) else None
