"""A decoder that runs: sequences of tokens that grow, each with its rows of the cache (`TokenModel`).

Tokens of all sequences of a call become rows of a program. Up to `STEP_ROWS` rows go through a program for steps, with logits for
each; more tokens of one sequence go in chunks through programs for prompts, with logits for the last. A row's bits depend on its
sequence alone: neither on the rows beside it, nor on the program, nor on where its cache lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bricolage.errors import ContextFull
from bricolage.frontends.decoders.decoder_description import DecoderDescription, Matrix
from bricolage.frontends.decoders.decoder_graph import CacheType, DecoderProgram
from bricolage.graph.quantised_blocks import QuantisedBlocks
from bricolage.language.cache_pool import CachePool, Span, span_rows
from bricolage.language.decoder_programs import DecoderPrograms, ProgramSettings, ReadyProgram
from bricolage.language.token_model import Logits, SequenceState

STEP_ROWS = (1, 2, 4, 8)
"""Rows of programs for steps."""
PROMPT_ROWS = (32, 128)
"""Rows of programs for prompts."""
_SEQUENCES = 64
"""Sequences of the full length that programs can number the rows of."""


class DecoderSequence:
    """Rows of the cache that one sequence has."""

    def __init__(self, model: DecoderModel) -> None:
        self._model = model
        self.length = 0
        """Tokens in it."""
        self.span = Span(0, 0)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it holds."""
        return self.span.rows * self._model.pool.row_bytes

    def truncate(self, length: int) -> None:
        """Forgets all tokens behind the first `length`."""
        if not 0 <= length <= self.length:
            raise ValueError(f"{length} of {self.length} tokens")
        self.length = length

    def copy_prefix(self, source: SequenceState, length: int) -> None:
        """Takes over the first `length` tokens of another state of the same model, with the same bits. It must be empty."""
        assert isinstance(source, DecoderSequence)
        assert not self.length
        if not 0 <= length <= source.length:
            raise ValueError(f"{length} of {source.length} tokens")
        self.reserve(length)
        self._model.pool.copy(source.span.start, self.span.start, length)
        self.length = length

    def reserve(self, tokens: int) -> None:
        """Rows for so many tokens.

        Raises:
            NotEnoughMemory: there is none for them.
        """
        if tokens > self.span.rows:
            rows = span_rows(tokens, self._model.context_length)
            pool = self._model.pool
            self.span = pool.enlarge(self.span, rows, self.length) if self.span.rows else pool.take(rows)

    def close(self) -> None:
        """Gives its memory back."""
        if self.span.rows:
            self._model.pool.give_back(self.span)
        self.span, self.length = Span(0, 0), 0


@dataclass(frozen=True)
class _Row:
    """A token in a program."""

    token: int
    start: int
    position: int


class DecoderModel:
    """A `TokenModel` of a decoder, on our own engine. It is used by one thread at a time."""

    def __init__(
        self,
        decoder: DecoderDescription,
        *,
        threads: int,
        config: str = "f32",
        cache: CacheType = "float16",
        context_length: int | None = None,
    ) -> None:
        """`config` is the engine's: `f32`, or `int8`, which rounds rows to bytes. `context_length` may be shorter than the model's.

        Raises:
            NotEnoughMemory: there is none for a cache.
        """
        self.vocabulary = decoder.vocabulary
        self.context_length = min(context_length or decoder.context_length, decoder.context_length)
        self._decoder, self._cache = decoder, cache
        self._programs = DecoderPrograms(decoder, ProgramSettings(threads, config))
        width, most = decoder.key_heads * decoder.head_size, _SEQUENCES * self.context_length
        self.pool = CachePool(2 * len(decoder.layers), width, np.dtype(cache), most)
        """Memory of all sequences."""
        self._window = next((layer.sliding_window for layer in decoder.layers if layer.sliding_window), None)

    def open_sequence(self) -> DecoderSequence:
        """An empty sequence."""
        return DecoderSequence(self)

    def prepare(self) -> None:
        """Compiles all programs, which otherwise waits until they are needed."""
        for rows in STEP_ROWS:
            self._program(rows, last_row_alone=False)
        for rows in PROMPT_ROWS:
            self._program(rows, last_row_alone=True)

    def extend(self, rows: Sequence[tuple[SequenceState, Sequence[int]]], every_row: bool = False) -> list[Logits]:
        """See `TokenModel.extend`.

        Raises:
            ContextFull: a sequence would be longer than `context_length`; no sequence has changed.
            NotEnoughMemory: there is none for longer sequences.
        """
        given = [(self._taken(state, tokens), np.asarray(tokens, np.int64)) for state, tokens in rows]
        for state, tokens in given:
            state.reserve(state.length + len(tokens))
        results: list[list[np.ndarray]] = [[] for _ in given]
        step: list[_Row] = []
        wanted: list[tuple[int, int]] = []
        for number, (state, tokens) in enumerate(given):
            position, left = state.length, len(tokens)
            while left and not every_row and left > STEP_ROWS[-1]:
                count = min(left, PROMPT_ROWS[-1])
                logits = self._prompt(state, tokens[-left:][:count], position)
                position, left = position + count, left - count
                if not left:
                    results[number].append(logits)
            for offset in range(left):
                if every_row or offset == left - 1:
                    wanted.append((number, len(step)))
                step.append(_Row(int(tokens[len(tokens) - left + offset]), state.span.start, position + offset))
        self._steps(step, wanted, results)
        for state, tokens in given:
            state.length += len(tokens)
        return [np.stack(found) for found in results]

    def _taken(self, state: SequenceState, tokens: Sequence[int]) -> DecoderSequence:
        """A sequence that can be extended."""
        assert isinstance(state, DecoderSequence)
        if not len(tokens) or min(tokens) < 0 or max(tokens) >= self.vocabulary:
            raise ValueError(f"{len(tokens)} tokens, of which some are none of {self.vocabulary}")
        if state.length + len(tokens) > self.context_length:
            raise ContextFull(tokens=state.length + len(tokens), limit=self.context_length)
        return state

    def _steps(
        self, rows: Sequence[_Row], wanted: Sequence[tuple[int, int]], results: Sequence[list[np.ndarray]]
    ) -> None:
        """Rows through programs for steps, as many at a time as the largest has."""
        for first in range(0, len(rows), STEP_ROWS[-1]):
            some = rows[first : first + STEP_ROWS[-1]]
            program = self._program(next(n for n in STEP_ROWS if n >= len(some)), last_row_alone=False)
            self._fill(program, some)
            program.run(self.pool)
            for number, row in wanted:
                if first <= row < first + len(some):
                    results[number].append(program.logits[row - first].copy())

    def _prompt(self, state: DecoderSequence, tokens: np.ndarray, position: int) -> np.ndarray:
        """A chunk of a sequence; logits behind its last token."""
        program = self._program(next(n for n in PROMPT_ROWS if n >= len(tokens)), last_row_alone=True)
        rows = [_Row(int(token), state.span.start, position + i) for i, token in enumerate(tokens)]
        self._fill(program, rows)
        program.inputs["last"][0] = len(rows) - 1
        program.run(self.pool)
        return program.logits[0].copy()

    def _program(self, rows: int, *, last_row_alone: bool) -> ReadyProgram:
        most = _SEQUENCES * self.context_length
        return self._programs.find(DecoderProgram(rows, self.context_length, most, last_row_alone, self._cache))

    def _fill(self, program: ReadyProgram, rows: Sequence[_Row]) -> None:
        """Writes a program's inputs; rows that are not used see nothing, and write to row 0 of the cache."""
        count, inputs = len(rows), program.inputs
        numbers = embedded_rows(self._decoder.embedding, np.array([row.token for row in rows]))
        if self._decoder.embedding_scale != 1.0:
            numbers = numbers * np.float32(self._decoder.embedding_scale)
        inputs["x"][:count] = numbers
        inputs["x"][count:] = 0
        starts = np.array([row.start for row in rows], np.int64)
        lengths = np.array([row.position + 1 for row in rows], np.int64)
        self._place(inputs["places"][:, 0], starts + lengths - 1)
        self._place(inputs["starts"][:, 0], starts)
        self._place(inputs["lengths"], lengths)
        if self._window is not None:
            seen = np.minimum(lengths, self._window)
            self._place(inputs["window_starts"][:, 0], starts + lengths - seen)
            self._place(inputs["window_lengths"], seen)

    @staticmethod
    def _place(target: np.ndarray, values: np.ndarray) -> None:
        target[: len(values)] = values
        target[len(values) :] = 0


def embedded_rows(matrix: Matrix, tokens: np.ndarray) -> np.ndarray:
    """float32 [tokens, width]: rows of an embedding, those of blocks made without the others."""
    if not isinstance(matrix, QuantisedBlocks):
        return np.asarray(matrix[tokens], np.float32)
    scales = matrix.scales[tokens]
    zeros = np.float32(matrix.middle) if matrix.zeros is None else matrix.zeros[tokens][:, :, None]
    packed = matrix.packed[tokens]
    if matrix.bits == 4:
        packed = np.stack([packed & 15, packed >> 4], axis=2).reshape(len(tokens), -1)
    blocks = packed[:, : scales.shape[1] * matrix.block].reshape(*scales.shape, matrix.block)
    numbers = (blocks.astype(np.float32) - zeros) * scales[:, :, None]
    return numbers.reshape(len(tokens), -1)[:, : matrix.k]
