"""A decoder whose prompts one backend reads, and whose steps another takes (`TokenModel`).

Each has a cache of its own. Before a side runs, it takes over the tokens that only the other one has: their keys and values, by
rows. Our engine rounds them to float16, as it does its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bricolage.base.progress import Progress
from bricolage.errors import ContextFull
from bricolage.language.decoder_model import STEP_ROWS, DecoderModel, DecoderSequence
from bricolage.language.private_cache_model import PrivateCacheModel, PrivateSequence
from bricolage.language.token_model import Logits, SequenceState

SideModel = DecoderModel | PrivateCacheModel
SideState = DecoderSequence | PrivateSequence


class HandoverSequence:
    """A sequence on both sides; at least one of them has all of its tokens."""

    def __init__(self, model: HandoverModel) -> None:
        self._model = model
        self.prompt: SideState = model.prompt.open_sequence()
        self.step: SideState = model.step.open_sequence()
        self.length = 0
        """Tokens in it."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it holds, on both sides."""
        return self.prompt.nbytes + self.step.nbytes

    def truncate(self, length: int) -> None:
        """Forgets all tokens behind the first `length`."""
        if not 0 <= length <= self.length:
            raise ValueError(f"{length} of {self.length} tokens")
        for side in (self.prompt, self.step):
            side.truncate(min(length, side.length))
        self.length = length

    def copy_prefix(self, source: SequenceState, length: int) -> None:
        """Takes over the first `length` tokens of another state of the same model, with the same bits. It must be empty."""
        assert isinstance(source, HandoverSequence)
        if not 0 <= length <= source.length:
            raise ValueError(f"{length} of {source.length} tokens")
        for side, given in ((self.prompt, source.prompt), (self.step, source.step)):
            if kept := min(length, given.length):
                side.copy_prefix(given, kept)
        self.length = length

    def close(self) -> None:
        """Gives its memory back."""
        self.prompt.close()
        self.step.close()
        self.length = 0


class HandoverModel:
    """A `TokenModel` of two. It is used by one thread at a time."""

    def __init__(self, prompt: SideModel, step: SideModel) -> None:
        self.prompt, self.step = prompt, step
        self.vocabulary = step.vocabulary
        self.context_length = min(prompt.context_length, step.context_length)

    def open_sequence(self) -> HandoverSequence:
        """An empty sequence."""
        return HandoverSequence(self)

    def prepare(self, progress: Progress, *, every: bool) -> None:
        """Compiles what a short text needs, or `every` program of both."""
        self.prompt.prepare(progress, every=every)
        self.step.prepare(progress, every=every)

    def close(self) -> None:
        """Frees what both have."""
        self.prompt.close()
        self.step.close()

    def extend(self, rows: Sequence[tuple[SequenceState, Sequence[int]]], every_row: bool = False) -> list[Logits]:
        """See `TokenModel.extend`. More tokens of a sequence than a step has are a prompt, unless logits are wanted behind each.

        Raises:
            ContextFull, NotEnoughMemory: as of either side.
        """
        given = [(self._taken(state, tokens), tokens) for state, tokens in rows]
        results: list[Logits] = [np.empty(0, np.float32)] * len(given)
        reading = [not every_row and len(tokens) > STEP_ROWS[-1] for _, tokens in given]
        for model, wanted in ((self.prompt, True), (self.step, False)):
            chosen = [i for i, reads in enumerate(reading) if reads is wanted]
            if not chosen:
                continue
            sides = []
            for i in chosen:
                state, tokens = given[i]
                side, other = (state.prompt, state.step) if wanted else (state.step, state.prompt)
                _catch_up(side, other)
                sides.append((side, tokens))
            for i, logits in zip(chosen, model.extend(sides, every_row), strict=True):
                results[i] = logits
        for state, tokens in given:
            state.length += len(tokens)
        return results

    def _taken(self, state: SequenceState, tokens: Sequence[int]) -> HandoverSequence:
        assert isinstance(state, HandoverSequence)
        if state.length + len(tokens) > self.context_length:
            raise ContextFull(tokens=state.length + len(tokens), limit=self.context_length)
        return state


def _catch_up(side: SideState, other: SideState) -> None:
    """Gives a side the tokens that only the other one has."""
    if side.length < other.length:
        side.put_rows(other.take_rows(side.length, other.length))
