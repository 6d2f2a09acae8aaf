"""What text generation asks of a model: tokens in, logits out, and a state for each sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]
"""[rows, vocabulary], before any normalisation."""


class SequenceState(Protocol):
    """What a model keeps of the tokens of one sequence."""

    length: int
    """Tokens in it."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it holds."""
        ...

    def truncate(self, length: int) -> None:
        """Forgets all tokens behind the first `length`."""
        ...

    def copy_prefix(self, source: SequenceState, length: int) -> None:
        """Takes over the first `length` tokens of another state, with the same bits. It must be empty."""
        ...

    def close(self) -> None:
        """Gives its memory back."""
        ...


class TokenModel(Protocol):
    """A model whose answer to a sequence depends neither on the sequences in the same call nor on how it is cut into calls."""

    vocabulary: int
    """Number of tokens that logits have a place for."""
    context_length: int
    """Most tokens of a sequence."""

    def open_sequence(self) -> SequenceState:
        """An empty sequence."""
        ...

    def extend(self, rows: Sequence[tuple[SequenceState, Sequence[int]]], every_row: bool = False) -> Sequence[Logits]:
        """Appends tokens, at least one each, to sequences.

        Args:
            rows: distinct sequences, each with its new tokens.
            every_row: whether there are logits behind each new token; else behind the last one alone.

        Returns:
            Of each sequence, logits of shape [number of its new tokens, or 1, vocabulary].

        Raises:
            ContextFull: a sequence would be longer than `context_length`.
        """
        ...


class TextTokens(Protocol):
    """The tokenizer of a model."""

    size: int
    """Its ids are 0 to size - 1."""
    ends: frozenset[int]
    """Tokens behind which a text is over."""
    template: str | None
    """Of chats, in Jinja's language."""

    @property
    def names(self) -> Mapping[str, str]:
        """Texts that templates refer to: `bos_token`, `eos_token`."""
        ...

    def encode(self, text: str, *, begin: bool = True, special: bool = False) -> list[int]:
        """Tokens of a text. `begin`: behind the token that begins a text, where the model wants one. `special`: names of special
        tokens in the text become these tokens."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token within a text, which may begin or end inside a character; none of special tokens."""
        ...


def token_data(tokenizer: TextTokens, token: int) -> bytes:
    """The bytes of any token that a model may draw: none of a row of its head that is there to make it a round number of rows."""
    return tokenizer.token_bytes(token) if token < tokenizer.size else b""
