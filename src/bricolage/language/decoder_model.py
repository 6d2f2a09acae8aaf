"""A decoder that runs: sequences of tokens that grow, each with its rows of the cache (`TokenModel`).

Tokens of all sequences of a call become rows of a program. Up to `STEP_ROWS` rows go through a program for steps, with logits for
each; more tokens of one sequence go in chunks through programs for prompts, with logits for the last. A row's bits depend on its
sequence alone: neither on other rows, nor on the program, nor on where its cache lies.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import numpy as np

from bricolage.base.progress import Progress
from bricolage.errors import BadOption, ContextFull
from bricolage.frontends.decoders.decoder_description import DecoderDescription, Matrix
from bricolage.frontends.decoders.decoder_memory import count_packed_bytes, require_memory
from bricolage.frontends.decoders.decoder_program import (
    PROMPT_ROWS,
    SCALED,
    CacheType,
    DecoderProgram,
    list_pools,
)
from bricolage.graph.quantised_blocks import QuantisedBlocks
from bricolage.language.cache_pool import CachePool, RowSpan, span_rows
from bricolage.language.decoder_programs import Arithmetic, DecoderPrograms, ProgramSettings, ReadyProgram
from bricolage.language.token_model import Logits, SequenceState

STEP_ROWS = (1, 2, 4, 8)
"""Rows of programs for steps."""
_USED = 0.75
"""Share of a prompt's program that is used at least, but for the smallest: what is left goes through smaller ones."""
_SEQUENCES = 64
"""Sequences of the full length that programs can number the rows of."""


class DecoderSequence:
    """Rows of the cache that one sequence has."""

    def __init__(self, model: DecoderModel) -> None:
        self._model = model
        self.length = 0
        """Tokens in it."""
        self.span = RowSpan(0, 0)

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
        """Rows for a number of tokens.

        Raises:
            NotEnoughMemory: there is none for them.
        """
        if tokens > self.span.rows:
            rows = span_rows(tokens, self._model.context_length)
            pool = self._model.pool
            self.span = pool.enlarge(self.span, rows, self.length) if self.span.rows else pool.take(rows)

    def take_rows(self, first: int, end: int) -> list[np.ndarray]:
        """Keys and values of some tokens, [tokens, key_heads · head_size], layer by layer."""
        start = self.span.start
        return [array[start + first : start + end] for array in self._model.pool.arrays]

    def put_rows(self, rows: Sequence[np.ndarray]) -> None:
        """Appends tokens whose keys and values are known; they are rounded to the cache's type.

        Raises:
            NotEnoughMemory: there is none for them.
        """
        end = self.length + len(rows[0])
        self.reserve(end)
        first, last = self.span.start + self.length, self.span.start + end
        for array, given in zip(self._model.pool.arrays, rows, strict=True):
            array[first:last] = given
        self.length = end

    def close(self) -> None:
        """Gives its memory back."""
        if self.span.rows:
            self._model.pool.give_back(self.span)
        self.span, self.length = RowSpan(0, 0), 0


_Row = tuple[int, int, int]
"""A token in a program, the first row of its sequence in the pools, and its position."""


class _LogitsMemory:
    """Arrays for logits over memory that is used again once no caller has them any more: new memory of that size comes page by page
    from the system, which takes a tenth of a small model's step."""

    def __init__(self) -> None:
        self._lent: list[tuple[bytearray, weakref.ref[np.ndarray]]] = []

    def take(self, rows: int, width: int) -> np.ndarray:
        """float32 [rows, width], not initialised where it was used before."""
        size = 4 * rows * width
        place, buffer = next(
            ((i, buffer) for i, (buffer, user) in enumerate(self._lent) if len(buffer) == size and user() is None),
            (_KEPT - 1, None),
        )
        if buffer is None:
            buffer = bytearray(size)
        # Views of an array over memory that is no array's keep that array: it is there for as long as any of them.
        array = np.ndarray((rows, width), np.float32, buffer)
        self._lent = [(buffer, weakref.ref(array)), *self._lent[:place], *self._lent[place + 1 :]]
        return array


_KEPT = 16


class DecoderModel:
    """A `TokenModel` of a decoder, on our own engine. It is used by one thread at a time."""

    def __init__(
        self,
        decoder: DecoderDescription,
        *,
        threads: int,
        config: Arithmetic = "f32",
        cache: CacheType = "float16",
        context_length: int | None = None,
    ) -> None:
        """`context_length` may be shorter than the model's.

        Raises:
            ModelBeyondMemory: there is none for the weights, which programs have packed in their own order.
            NotEnoughMemory: there is none for a cache.
            Refused: the engine does not know what the model does with scores of attention.
            BadOption: a cache of bytes, and heads that are no whole number of its blocks.
        """
        self.vocabulary = decoder.vocabulary
        self.context_length = min(context_length or decoder.context_length, decoder.context_length)
        require_memory(count_packed_bytes(decoder))
        if cache == "q8_0" and decoder.head_size % SCALED:
            advice = f"Heads of this model have {decoder.head_size} numbers, and scales are for {SCALED}: take float16"
            raise BadOption(option="--cache", value=cache, advice=advice)
        self._decoder, self._cache = decoder, cache
        self._embedding = _EmbeddingRows(decoder.embedding, decoder.embedding_scale)
        self._programs = DecoderPrograms(decoder, ProgramSettings(threads, config))
        self.pool = CachePool(list_pools(decoder, cache), _SEQUENCES * self.context_length)
        """Memory of all sequences."""
        self._memory = _LogitsMemory()
        self._described: dict[tuple[int, bool], DecoderProgram] = {}
        self._window = next((layer.sliding_window for layer in decoder.layers if layer.sliding_window), None)

    def open_sequence(self) -> DecoderSequence:
        """An empty sequence."""
        return DecoderSequence(self)

    def prepare(self, progress: Progress, *, every: bool) -> None:
        """Waits until the programs that write a first text are there, or `every` one. The others are compiled meanwhile by other
        processes; until they are ready, those that are do their work, with the same bits."""
        first = [self._describe_program(STEP_ROWS[0], last=False), self._describe_program(PROMPT_ROWS[0], last=True)]
        more = [self._describe_program(rows, last=True) for rows in PROMPT_ROWS[1:]]
        more += [self._describe_program(rows, last=False) for rows in reversed(STEP_ROWS[1:])]
        absent = [program for program in first if not self._programs.open_kept(program)]
        missing = [*absent, *self._programs.list_missing(more)]
        self._programs.compile_behind(missing)
        wanted = [program for program in missing if every or program in first]
        if wanted:
            progress.start("compile programs, once for this processor", total=len(wanted))
        for program in wanted:
            self._programs.find(program)
            progress.advance()

    def close(self) -> None:
        """Compiles no further programs behind."""
        self._programs.close()

    def extend(self, rows: Sequence[tuple[SequenceState, Sequence[int]]], every_row: bool = False) -> list[Logits]:
        """See `TokenModel.extend`.

        Raises:
            ContextFull: a sequence would be longer than `context_length`; no sequence has changed.
            NotEnoughMemory: there is none for longer sequences.
        """
        given = [(self._taken(state, tokens), tokens) for state, tokens in rows]
        for state, tokens in given:
            state.reserve(state.length + len(tokens))
        results = [self._memory.take(len(tokens) if every_row else 1, self.vocabulary) for _, tokens in given]
        step: list[_Row] = []
        wanted: list[tuple[int, np.ndarray]] = []
        """Rows of the step, and where their logits go."""
        for (state, tokens), logits in zip(given, results, strict=True):
            first = 0 if every_row else self._prompt(state, tokens, logits[0])
            start, length, last = state.span.start, state.length, len(tokens) - 1
            for i in range(first, len(tokens)):
                if every_row or i == last:
                    wanted.append((len(step), logits[i if every_row else 0]))
                step.append((tokens[i], start, length + i))
        self._steps(step, wanted)
        for state, tokens in given:
            state.length += len(tokens)
        return results

    def _taken(self, state: SequenceState, tokens: Sequence[int]) -> DecoderSequence:
        """A sequence that can be extended."""
        assert isinstance(state, DecoderSequence)
        if not len(tokens) or min(tokens) < 0 or max(tokens) >= self.vocabulary:
            raise ValueError(f"{len(tokens)} tokens, of which some are none of {self.vocabulary}")
        if state.length + len(tokens) > self.context_length:
            raise ContextFull(tokens=state.length + len(tokens), limit=self.context_length)
        return state

    def _steps(self, rows: Sequence[_Row], wanted: Sequence[tuple[int, np.ndarray]]) -> None:
        """Rows through programs for steps, as many at a time as the largest has."""
        first = 0
        while first < len(rows):
            program = self._choose_program(STEP_ROWS, len(rows) - first, last=False)
            chunk = rows[first : first + program.program.rows]
            self._fill(program, chunk)
            program.run(self.pool)
            for row, logits in wanted:
                if first <= row < first + len(chunk):
                    logits[...] = program.logits[row - first]
            first += len(chunk)

    def _prompt(self, state: DecoderSequence, tokens: Sequence[int], logits: np.ndarray) -> int:
        """As many tokens of a sequence as go in chunks, and the logits behind the last one of all, if that is among them; how many
        tokens these are."""
        done = 0
        while len(tokens) - done > STEP_ROWS[-1]:
            program = self._choose_program(PROMPT_ROWS, len(tokens) - done, last=True)
            chunk = tokens[done : done + program.program.rows]
            rows = [(token, state.span.start, state.length + done + i) for i, token in enumerate(chunk)]
            self._fill(program, rows)
            program.inputs["last"][0] = len(rows) - 1
            program.run(self.pool)
            done += len(chunk)
            if done == len(tokens):
                logits[...] = program.logits[0]
        return done

    def _choose_program(self, sizes: Sequence[int], count: int, *, last: bool) -> ReadyProgram:
        """The smallest program that takes `count` rows, or the largest; of those for prompts one whose rows are mostly used, since
        each costs as much as the others. While it is compiled, another one: one that takes more, or else the largest that takes
        less."""
        rows = next((rows for rows in sizes if rows >= count), sizes[-1])
        if last:
            rows = next((rows for rows in reversed(sizes) if count >= _USED * rows), sizes[0])
        fitting = [each for each in sizes if each >= rows]
        smaller = [each for each in reversed(sizes) if each < rows]
        return self._programs.find_first([self._describe_program(each, last=last) for each in (*fitting, *smaller)])

    def _describe_program(self, rows: int, *, last: bool) -> DecoderProgram:
        """`last`: logits of one row alone, as for prompts."""
        program = self._described.get((rows, last))
        if program is None:
            program = DecoderProgram(rows, self.context_length, _SEQUENCES * self.context_length, last, self._cache)
            self._described[rows, last] = program
        return program

    def _fill(self, program: ReadyProgram, rows: Sequence[_Row]) -> None:
        """Writes a program's inputs; rows that are not used see nothing, and write to row 0 of the cache."""
        count, inputs = len(rows), program.inputs
        tokens, starts, positions = np.array(rows, np.int64).T
        x = inputs["x"]
        self._embedding.write(tokens, x)
        lengths = positions + 1
        values = {"places": starts + positions, "starts": starts, "lengths": lengths}
        if self._window is not None:
            seen = np.minimum(lengths, self._window)
            values |= {"window_starts": starts + lengths - seen, "window_lengths": seen}
        for name, numbers in values.items():
            program.flat[name][:count] = numbers
        if count < len(x):
            for name in ("x", *values):
                inputs[name][count:] = 0


class _EmbeddingRows:
    """Rows of an embedding. Those of steps are kept: a text repeats most of its tokens, and decoding a row of a file's blocks takes
    a third of what Python does in a step."""

    _MOST_BYTES = 8 << 20

    def __init__(self, matrix: Matrix, scale: float) -> None:
        self._matrix, self._scale = matrix, np.float32(scale)
        self._kept: dict[int, np.ndarray] = {}

    def write(self, tokens: np.ndarray, to: np.ndarray) -> None:
        """Into the first rows of `to`, float32 [rows, width]."""
        if len(tokens) > STEP_ROWS[-1]:
            to[: len(tokens)] = self._make(tokens)
            return
        for place, token in enumerate(tokens.tolist()):
            row = self._kept.get(token)
            if row is None:
                (row,) = self._make(tokens[place : place + 1])
                if len(self._kept) * row.nbytes >= self._MOST_BYTES:
                    self._kept.clear()
                self._kept[token] = row
            to[place] = row

    def _make(self, tokens: np.ndarray) -> np.ndarray:
        rows = embedded_rows(self._matrix, tokens)
        return rows if self._scale == 1.0 else rows * self._scale


def embedded_rows(matrix: Matrix, tokens: np.ndarray) -> np.ndarray:
    """float32 [tokens, width]: rows of an embedding, those of blocks made without the others."""
    if not isinstance(matrix, QuantisedBlocks):
        return np.asarray(matrix[tokens], np.float32)
    return matrix.take_rows(tokens).numbers()
