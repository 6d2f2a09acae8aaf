"""A decoder on a backend that keeps the cache of each sequence apart: ONNX Runtime, or one that cannot write in place.

It is a `TokenModel`. Sequences of a call run one after another. Chunks of prompts and single tokens are two programs, whose sums
have other orders: a sequence's bits depend on how its tokens come, and not on other sequences.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from bricolage.backends import registry
from bricolage.backends.interface import RegionModel, Resources
from bricolage.backends.kernel import Call, Kernel
from bricolage.base.progress import Progress
from bricolage.device.buffers import allocate_aligned
from bricolage.device.memory import available_bytes
from bricolage.errors import ContextFull, NotEnoughMemory
from bricolage.frontends.decoders.decoder_description import DecoderDescription
from bricolage.frontends.decoders.decoder_memory import count_private_bytes, require_memory
from bricolage.frontends.decoders.decoder_program import PROMPT_ROWS
from bricolage.frontends.decoders.private_cache_graph import (
    PrivateCacheProgram,
    build_private_cache_graph,
    choose_cache_form,
    round_cache_up,
)
from bricolage.graph.extract import write_model
from bricolage.graph.store import Store
from bricolage.language.decoder_model import STEP_ROWS, embedded_rows
from bricolage.language.token_model import Logits, SequenceState
from bricolage.runtime.cache_rows import put_cache_rows, take_cache_rows
from bricolage.work.implementation import Implementation

_PROGRAMS = 2
"""That every text needs: steps, and the smallest chunks of a prompt."""


class PrivateSequence:
    """A sequence with a cache of its own: float32 [1, key_heads, room, head_size] for the keys and the values of each layer."""

    def __init__(self, model: PrivateCacheModel) -> None:
        self._model = model
        self.length = 0
        """Tokens in it."""
        self.caches: list[np.ndarray] = []
        """Keys and values, layer by layer."""
        self.calls: dict[PrivateCacheProgram, Call] = {}
        """Programs that are bound to these caches."""

    @property
    def room(self) -> int:
        """Tokens that the caches hold."""
        return self.caches[0].shape[2] if self.caches else 0

    @property
    def nbytes(self) -> int:
        """Bytes of memory that its tokens fill."""
        return self.length * self._model.token_bytes

    def truncate(self, length: int) -> None:
        """Forgets all tokens behind the first `length`."""
        if not 0 <= length <= self.length:
            raise ValueError(f"{length} of {self.length} tokens")
        self.length = length

    def copy_prefix(self, source: SequenceState, length: int) -> None:
        """Takes over the first `length` tokens of another state of the same model, with the same bits. It must be empty."""
        assert isinstance(source, PrivateSequence)
        assert not self.length
        if not 0 <= length <= source.length:
            raise ValueError(f"{length} of {source.length} tokens")
        self._model.reserve(self, length)
        for cache, given in zip(self.caches, source.caches, strict=False):
            cache[:, :, :length] = given[:, :, :length]
        self.length = length

    def take_rows(self, first: int, end: int) -> list[np.ndarray]:
        """Keys and values of some tokens, [tokens, key_heads · head_size], layer by layer."""
        return [take_cache_rows(cache, first, end) for cache in self.caches]

    def put_rows(self, rows: Sequence[np.ndarray]) -> None:
        """Appends tokens whose keys and values are known."""
        self._model.reserve(self, self.length + len(rows[0]))
        for cache, given in zip(self.caches, rows, strict=True):
            put_cache_rows(cache, self.length, given)
        self.length += len(rows[0])

    def close(self) -> None:
        """Gives its memory back."""
        self.caches, self.calls, self.length = [], {}, 0


class _CompiledProgram:
    """A program with its inputs and outputs but for caches."""

    def __init__(self, kernel: Kernel, region: RegionModel, program: PrivateCacheProgram) -> None:
        self.program = program
        self._kernel, self._region = kernel, region
        self.inputs = {
            info.name: np.zeros(info.sizes, info.numpy) for info in region.inputs if not _is_cache(info.name)
        }
        self._new = {
            info.name: allocate_aligned(info.sizes, info.numpy) for info in region.outputs if not _is_cache(info.name)
        }
        self.logits = self._new["logits"]
        self.new_rows: list[np.ndarray] = []
        """[1, key_heads, rows, head_size] of each layer, where the program does not write them into the caches."""
        if program.form == "divided":
            self.new_rows = [
                allocate_aligned(info.sizes, info.numpy) for info in region.outputs if _is_cache(info.name)
            ]

    def bind(self, caches: Sequence[np.ndarray]) -> Call:
        """What runs it on the caches of a sequence."""
        held, presents = iter(caches), iter(self.new_rows or caches)
        given = [next(held) if _is_cache(info.name) else self.inputs[info.name] for info in self._region.inputs]
        results = [next(presents) if _is_cache(info.name) else self._new[info.name] for info in self._region.outputs]
        return self._kernel.bind(given, results)


class PrivateCacheModel:
    """A `TokenModel` of a decoder on one of these backends. It is used by one thread at a time."""

    def __init__(
        self,
        decoder: DecoderDescription,
        implementation: Implementation,
        threads: int,
        context_length: int | None = None,
    ) -> None:
        """Nothing is compiled yet. `context_length` may be shorter than the model's.

        Raises:
            ModelBeyondMemory: there is none for the weights.
        """
        self.vocabulary = decoder.vocabulary
        self.context_length = min(context_length or decoder.context_length, decoder.context_length)
        wanted = count_private_bytes(decoder, implementation.backend, _PROGRAMS)
        require_memory(wanted, f" in {implementation.backend}")
        self._decoder, self._implementation, self._threads = decoder, implementation, threads
        self._form = choose_cache_form(implementation.backend)
        self._programs: dict[PrivateCacheProgram, _CompiledProgram] = {}
        self._longest = 0
        self.token_bytes = 2 * len(decoder.layers) * decoder.key_heads * decoder.head_size * 4
        """Of a cache."""

    def open_sequence(self) -> PrivateSequence:
        """An empty sequence."""
        return PrivateSequence(self)

    def prepare(self, progress: Progress, *, every: bool) -> None:
        """Compiles the programs that a short text needs; `every` one that it may need."""
        wanted = (1, *PROMPT_ROWS) if every else (1, PROMPT_ROWS[0])
        progress.start(f"compile programs by {self._implementation}", total=len(wanted))
        for rows in wanted:
            self._program(rows, self._room(1))
            progress.advance()

    def close(self) -> None:
        """Frees the programs."""
        self._programs.clear()

    def reserve(self, state: PrivateSequence, tokens: int) -> None:
        """Room for a number of tokens.

        Raises:
            NotEnoughMemory: there is none.
        """
        room = self._room(tokens)
        if room <= state.room:
            return
        needed, present = (tokens - state.length) * self.token_bytes, available_bytes()
        if needed > present:
            raise NotEnoughMemory(wanted=f"{needed / 1e9:.3g} GB", present=f"{present / 1e9:.3g} GB")
        decoder = self._decoder
        shape = (1, decoder.key_heads, room, decoder.head_size)
        larger = [_zeros(shape) for _ in range(2 * len(decoder.layers))]
        for cache, before in zip(larger, state.caches, strict=False):
            cache[:, :, : state.length] = before[:, :, : state.length]
        state.caches, state.calls = larger, {}

    def extend(self, rows: Sequence[tuple[SequenceState, Sequence[int]]], every_row: bool = False) -> list[Logits]:
        """See `TokenModel.extend`.

        Raises:
            ContextFull: a sequence would be longer than `context_length`; no sequence has changed.
            NotEnoughMemory: there is none for longer sequences.
        """
        given = [(self._taken(state, tokens), tokens) for state, tokens in rows]
        self._room(max(state.length + len(tokens) for state, tokens in given))
        for state, tokens in given:
            self.reserve(state, state.length + len(tokens))
        return [self._extend(state, tokens, every_row) for state, tokens in given]

    def _taken(self, state: SequenceState, tokens: Sequence[int]) -> PrivateSequence:
        assert isinstance(state, PrivateSequence)
        if not len(tokens) or min(tokens) < 0 or max(tokens) >= self.vocabulary:
            raise ValueError(f"{len(tokens)} tokens, of which some are none of {self.vocabulary}")
        if state.length + len(tokens) > self.context_length:
            raise ContextFull(tokens=state.length + len(tokens), limit=self.context_length)
        return state

    def _extend(self, state: PrivateSequence, tokens: Sequence[int], every_row: bool) -> Logits:
        results, done = [], 0
        while done < len(tokens):
            left = len(tokens) - done
            count = 1 if every_row or left <= STEP_ROWS[-1] else min(left, PROMPT_ROWS[-1])
            logits = self._run(state, tokens[done : done + count])
            done += count
            if every_row or done == len(tokens):
                results.append(logits.copy())
        return np.concatenate(results)

    def _run(self, state: PrivateSequence, tokens: Sequence[int]) -> np.ndarray:
        """A step or a chunk: logits [1, vocabulary] behind its last token."""
        count = len(tokens)
        rows = 1 if count == 1 else next(rows for rows in PROMPT_ROWS if rows >= count)
        ready = self._program(rows, state.room)
        x = ready.inputs["x"]
        x[:count] = embedded_rows(self._decoder.embedding, np.asarray(tokens, np.int64))
        x[:count] *= np.float32(self._decoder.embedding_scale)
        x[count:] = 0
        ready.inputs["before"][0] = state.length
        if rows > 1:
            ready.inputs["last"][0] = count - 1
        if ready.program not in state.calls:
            state.calls[ready.program] = ready.bind(state.caches)
        state.calls[ready.program]()
        for cache, new in zip(state.caches, ready.new_rows, strict=False):
            cache[:, :, state.length : state.length + count] = new[:, :, :count]
        state.length += count
        return ready.logits

    def _room(self, tokens: int) -> int:
        """Of a cache for a number of tokens. In place it can be that of the longest text at once: memory that is not written takes
        none; the last chunk of a prompt may be padded. Where it is a shape, all sequences have that of the longest so far: two of
        them do not compile in turns."""
        if self._form == "grouped":
            return self.context_length + PROMPT_ROWS[-1]
        self._longest = max(self._longest, round_cache_up(tokens))
        return self._longest

    def _program(self, rows: int, longest: int) -> _CompiledProgram:
        """Compiled if it has not been yet.

        Raises:
            Refused, MissingBackend: the backend does not compile it.
        """
        wide = not self._implementation.config.in_bytes
        program = PrivateCacheProgram(rows, longest, self._form, rows > 1, wide)
        if program not in self._programs:
            for old in [key for key in self._programs if key.rows == rows]:
                del self._programs[old]  # each has a copy of the weights
            self._programs[program] = self._compile(program)
        return self._programs[program]

    def _compile(self, program: PrivateCacheProgram) -> _CompiledProgram:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            model = build_private_cache_graph(self._decoder, program)
            Store(folder).share([model])
            write_model(model, folder / "region.onnx")
            region = RegionModel(folder / "region.onnx")
            chosen, resources = self._implementation, Resources(threads=self._threads, alone=True)
            kernel = registry.get(chosen.backend).compile(region, chosen.config, resources)
            return _CompiledProgram(kernel, region, program)


def _is_cache(name: str) -> bool:
    return name.removeprefix("present_").startswith(("keys_", "values_"))


def _zeros(shape: tuple[int, ...]) -> np.ndarray:
    """float32, aligned; pages that are not written are not there."""
    count = int(np.prod(shape))
    raw = np.zeros(count + 16, np.float32)
    start = -raw.ctypes.data % 64 // 4
    return raw[start : start + count].reshape(shape)
