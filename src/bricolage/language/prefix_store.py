"""States of sequences that are over, for prompts that begin with the same tokens: a chat's next turn, a common instruction."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bricolage.language.token_model import SequenceState

_BLOCK = 32
"""Tokens behind which a prefix has a hash. One more token than a hash covers costs a step of the model at most."""


@dataclass(frozen=True)
class _Kept:
    tokens: tuple[int, ...]
    state: SequenceState


class PrefixStore:
    """Keeps states within a limit of memory; the one that was used longest ago goes first. It belongs to one thread."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._kept: OrderedDict[int, _Kept] = OrderedDict()
        """By number, in the order of use."""
        self._by_hash: dict[bytes, int] = {}
        """Hash of the first blocks of tokens → the latest state that has them."""
        self._next = 0
        self.nbytes = 0
        """Bytes of the states."""

    def restore(self, tokens: Sequence[int], state: SequenceState) -> int:
        """Copies the longest prefix of `tokens` that is kept into an empty state.

        Returns:
            Its length: less than `tokens` has, since a model has to be run for logits behind the last one.
        """
        number = None
        for digest in _hashes(tokens):
            if digest not in self._by_hash:
                break
            number = self._by_hash[digest]
        if number is None:
            return 0
        kept = self._kept[number]
        length = _common(kept.tokens, tokens[:-1])
        if length > 0:
            self._kept.move_to_end(number)
            state.copy_prefix(kept.state, length)
        return length

    def put(self, tokens: Sequence[int], state: SequenceState) -> None:
        """Keeps a state with these tokens, or closes it where it has too few or too much memory. One that it continues goes."""
        if len(tokens) < _BLOCK or state.nbytes > self._limit:
            state.close()
            return
        digests = list(_hashes(tokens))
        for number in {self._by_hash[digest] for digest in digests if digest in self._by_hash}:
            if tuple(tokens[: len(self._kept[number].tokens)]) == self._kept[number].tokens:
                self._remove(number)
        self._kept[self._next] = _Kept(tuple(tokens), state)
        self._by_hash.update(dict.fromkeys(digests, self._next))
        self._next += 1
        self.nbytes += state.nbytes
        while self.nbytes > self._limit:
            self._remove(next(iter(self._kept)))

    def clear(self) -> None:
        """Closes all states."""
        for number in list(self._kept):
            self._remove(number)

    def _remove(self, number: int) -> None:
        kept = self._kept.pop(number)
        self.nbytes -= kept.state.nbytes
        kept.state.close()
        for digest in _hashes(kept.tokens):
            if self._by_hash.get(digest) == number:
                del self._by_hash[digest]


def _hashes(tokens: Sequence[int]) -> Iterator[bytes]:
    """Of the first block, of the first two, and so on."""
    hashed = hashlib.blake2b(digest_size=16)
    data = np.asarray(tokens, np.int32)
    for end in range(_BLOCK, len(tokens) + 1, _BLOCK):
        hashed.update(data[end - _BLOCK : end].tobytes())
        yield hashed.digest()


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    places = (place for place, (token, other) in enumerate(zip(left, right, strict=False)) if token != other)
    return next(places, min(len(left), len(right)))
