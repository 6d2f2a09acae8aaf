"""Text as tokens and back, by the package `tokenizers`, built from what a model's file says.

Merging by scores is SentencePiece's (Kudo and Richardson, 2018); pairs of bytes are GPT-2's (Radford et al., 2019).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from bricolage.errors import MissingLibrary, NotALanguageModel
from bricolage.frontends.decoders.decoder_description import (
    BYTE,
    CONTROL,
    UNKNOWN,
    USER_DEFINED,
    TokenizerDescription,
)
from bricolage.frontends.decoders.decoder_files import read_tokenizer_description
from bricolage.language.model_notes import read_note, write_note

if TYPE_CHECKING:
    import tokenizers

_MANY = 20_000
"""Tokens."""
_SPACE = "\u2581"
"""What a space is in pieces of the `llama` model."""
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_CUTS: Mapping[str, Sequence[str]] = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    "gpt-2": (rf"{_GPT2}|\s+",),
    "smollm": (r"\p{N}", rf"{_GPT2}|\s+"),
    "llama-bpe": (
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    "qwen2": (
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
}
"""Expressions by GGUF's names, each applied to what those before it left whole. They are those of the models' own tokenizers;
`default` is llama.cpp's, for files that name none."""


def read_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a GGUF file or of a folder of Hugging Face.

    Raises:
        MissingFile, NotALanguageModel, UnknownDecoderKind: as `read_decoder`, and where merges do not fit the tokens.
        MissingLibrary: the package `tokenizers` is not installed.
    """
    return Tokenizer(read_tokenizer_description(path), Path(path))


class Tokenizer:
    """A model's tokenizer. Any number of threads may use it at the same time."""

    def __init__(self, description: TokenizerDescription, path: Path) -> None:
        """See `read_tokenizer`; errors name `path`."""
        self.ends: frozenset[int] = description.ends
        """Tokens behind which a text is over."""
        self.template: str | None = description.chat_template
        """Of chats, in Jinja's language."""
        self._description = description
        self._lock = Lock()
        self._backend = _build_backend(description, path)
        self.size: int = len(description.tokens)
        """Its ids are 0 to size - 1."""
        self.begin: int | None = description.begin if description.add_begin else None
        """Token in front of each text; None where there is none."""
        self._end = description.end if description.add_end else None
        if description.json is not None:
            self.begin, self._end = self._framing()
        self._controls = _list_of_type(description, (CONTROL, UNKNOWN))

    @property
    def names(self) -> Mapping[str, str]:
        """Texts that chat templates refer to: `bos_token`, `eos_token`, `unk_token`, `pad_token`, those that the model has."""
        kind = self._description
        roles = {"bos_token": kind.begin, "eos_token": kind.end, "unk_token": kind.unknown, "pad_token": kind.padding}
        tokens = kind.tokens
        return {role: tokens[token] for role, token in roles.items() if token is not None and token < len(tokens)}

    def encode(self, text: str, *, begin: bool = True, special: bool = False) -> list[int]:
        """Tokens of a text. What is no character (half a surrogate pair) is encoded as U+FFFD.

        Args:
            text: may be empty.
            begin: whether the token that begins a text goes in front, where the model wants one and the text has none.
            special: whether texts of special tokens in it become these tokens; else they are text like any other.
        """
        whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        with self._lock:
            self._backend.encode_special_tokens = not special
            tokens: list[int] = self._backend.encode(whole, add_special_tokens=False).ids
        if begin and self.begin is not None and tokens[:1] != [self.begin]:
            tokens = [self.begin, *tokens]
        if begin and self._end is not None and tokens[-1:] != [self._end]:
            tokens = [*tokens, self._end]
        return tokens

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token within a text, which may begin or end inside a character; none of special tokens.

        Raises:
            IndexError: there is no such token.
        """
        if not 0 <= token < self.size:
            raise IndexError(token)
        if token in self._controls:
            return b""
        text, types = self._description.tokens[token], self._description.types
        if types is not None and types[token] == USER_DEFINED:
            return text.encode("utf-8")
        if self._description.model == "gpt2":
            try:
                return bytes(BYTE_LETTERS[letter] for letter in text)
            except KeyError:  # a token beyond what bytes are written as
                return text.encode("utf-8")
        match = _BYTE_PIECE.fullmatch(text) if types is None or types[token] == BYTE else None
        return bytes([int(match[1], 16)]) if match is not None else text.replace(_SPACE, " ").encode("utf-8")

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens, without special ones. Bytes that are no UTF-8 become U+FFFD."""
        text = b"".join(map(self.token_bytes, tokens)).decode("utf-8", "replace")
        return text.removeprefix(" ") if self._description.add_space_prefix else text

    def _framing(self) -> tuple[int | None, int | None]:
        """What the tokenizer's own rule puts in front of a text and behind it."""
        bare: list[int] = self._backend.encode("a", add_special_tokens=False).ids
        framed: list[int] = self._backend.encode("a", add_special_tokens=True).ids
        added = len(framed) - len(bare)
        first = added > 0 and framed[0] == self._description.begin
        last = added > first and framed[-1] == self._description.end
        return (framed[0] if first else None), (framed[-1] if last else None)


def _write_bytes() -> Mapping[str, int]:
    """GPT-2's letter of each byte: printable ones are themselves, the others follow behind U+0100."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in set(shown)]
    return {chr(byte): byte for byte in shown} | {chr(256 + place): byte for place, byte in enumerate(hidden)}


BYTE_LETTERS = _write_bytes()
"""The byte that each letter is written for."""


def _list_of_type(description: TokenizerDescription, types: tuple[int, ...]) -> frozenset[int]:
    if description.types is None:
        return frozenset()
    return frozenset(token for token, kind in enumerate(description.types.tolist()) if kind in types)


def _build_backend(description: TokenizerDescription, path: Path) -> tokenizers.Tokenizer:
    try:
        import tokenizers
    except ImportError as error:
        raise MissingLibrary(name="tokenizers", purpose="to read text", reason=error, extra="language") from error
    if description.json is not None:
        return _parse_json(description.json, path)
    backend = _build_pairs(description, path) if description.model == "gpt2" else _build_pieces(description)
    added = _list_of_type(description, (CONTROL, UNKNOWN, USER_DEFINED))
    types = description.types
    backend.add_tokens(
        [
            tokenizers.AddedToken(
                description.tokens[token],
                special=types is not None and int(types[token]) != USER_DEFINED,
                normalized=False,
            )
            for token in sorted(added)
            if description.tokens[token]
        ]
    )
    return backend


def _parse_json(text: str, path: Path) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_str(text)
    except Exception as error:  # the package raises no class of its own
        raise NotALanguageModel(path=path, reason=f"its tokenizer.json is none: {error}") from error


def _build_pairs(description: TokenizerDescription, path: Path) -> tokenizers.Tokenizer:
    """Pairs of bytes.

    Raises:
        NotALanguageModel: a merge is not of two tokens, or makes none.
    """
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

    vocabulary = {token: number for number, token in enumerate(description.tokens)}
    merges: list[tuple[str, str]] = []
    for merge in description.merges:
        left, _, right = merge.partition(" ")
        if left not in vocabulary or right not in vocabulary or left + right not in vocabulary:
            raise NotALanguageModel(path=path, reason=f"its tokenizer merges '{merge}', which are not tokens")
        merges.append((left, right))
    ignored = description.pre == "llama-bpe"
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=ignored))
    if description.pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    cuts = [pre_tokenizers.Split(Regex(cut), behavior="isolated") for cut in _CUTS[description.pre]]
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*cuts, bytes_])
    return backend


def _find_merges(description: TokenizerDescription, vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    """`_list_merges`. Those of many tokens take a second, so the cache keeps them as numbers of tokens."""
    tokens = description.tokens
    if len(tokens) < _MANY:
        return _list_merges(description, vocabulary)
    name = _name_merges(description)
    noted = read_note("merges", name)
    if noted is not None:
        pairs = np.frombuffer(noted, np.int32).tolist()
        return list(zip(map(tokens.__getitem__, pairs[::2]), map(tokens.__getitem__, pairs[1::2]), strict=True))
    merges = _list_merges(description, vocabulary)
    numbers = [vocabulary[part] for merge in merges for part in merge]
    write_note("merges", name, np.array(numbers, np.int32).tobytes())
    return merges


def _name_merges(description: TokenizerDescription) -> str:
    """A digest of all that merges depend on."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    digest.update(np.array([len(token) for token in description.tokens], np.int64).tobytes())
    digest.update("".join(description.tokens).encode("utf-8", "surrogatepass"))
    for array in (description.scores, description.types):
        digest.update(b"none" if array is None else array.tobytes())
    return digest.hexdigest()


def _list_merges(description: TokenizerDescription, vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    """Two tokens that make one, for all ways to cut one: those of the best score first, of one score the longest first one."""
    skipped = _list_of_type(description, (CONTROL, UNKNOWN, BYTE))
    mergeable = {token for token, number in vocabulary.items() if number not in skipped}
    scores = np.zeros(len(description.tokens)) if description.scores is None else description.scores
    order = np.argsort(-scores, kind="stable")
    merges: list[tuple[str, str]] = []
    for _, numbers in groupby(order.tolist(), key=scores.tolist().__getitem__):
        texts = [description.tokens[number] for number in numbers]
        cuts = [
            (text[:at], text[at:])
            for text in texts
            if text in mergeable
            for at in range(len(text) - 1, 0, -1)
            if text[:at] in mergeable and text[at:] in mergeable
        ]
        if len(texts) > 1:
            cuts = sorted(dict.fromkeys(cuts), key=lambda cut: (len(cut[0]), len(cut[1])), reverse=True)
        merges += cuts
    return merges


def _build_pieces(description: TokenizerDescription) -> tokenizers.Tokenizer:
    """Pieces of characters: of two neighbours that make a token, those of the best score are merged first."""
    from tokenizers import Tokenizer, models, normalizers

    tokens = description.tokens
    vocabulary = {token: number for number, token in enumerate(tokens)}
    merges = _find_merges(description, vocabulary)
    unknown = None if description.unknown is None or description.unknown >= len(tokens) else tokens[description.unknown]
    backend = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    steps = [normalizers.Prepend(_SPACE)] if description.add_space_prefix else []
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
    return backend
