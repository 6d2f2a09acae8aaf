"""Programs of a decoder: found in the cache, else compiled, and bound to its memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from bricolage.backends.kernel import Call, Kernel
from bricolage.device.buffers import allocate_aligned
from bricolage.frontends.decoders.decoder_description import DecoderDescription
from bricolage.frontends.decoders.decoder_memory import count_compiling_bytes, require_memory
from bricolage.frontends.decoders.decoder_program import DecoderProgram
from bricolage.graph.region_model import KeptEnds
from bricolage.language.cache_pool import CachePool
from bricolage.language.decoder_code import (
    Arithmetic,
    ProgramSettings,
    compile_decoder_program,
    is_program_kept,
    reopen_decoder_program,
)
from bricolage.language.decoder_identity import identify_decoder
from bricolage.language.program_compiler import ProgramCompiler

__all__ = ["Arithmetic", "DecoderPrograms", "ProgramSettings", "ReadyProgram"]


class ReadyProgram:
    """A compiled program with its inputs and outputs; pools are bound anew when they have moved."""

    def __init__(self, kernel: Kernel, ends: KeptEnds, program: DecoderProgram) -> None:
        self.program = program
        self._kernel = kernel
        pools = {info.name for info in ends.inputs if info.name.startswith(("keys_", "values_"))}
        self.inputs: Mapping[str, np.ndarray] = {
            info.name: _cleared(allocate_aligned(info.sizes, info.numpy))
            for info in ends.inputs
            if info.name not in pools
        }
        """By name, but for the pools."""
        self.flat = {name: array.reshape(-1) for name, array in self.inputs.items()}
        """The same memory without dimensions."""
        logits = next(info for info in ends.outputs if info.name == "logits")
        self.logits = allocate_aligned(logits.sizes, logits.numpy)
        self._order = [info.name for info in ends.inputs]
        self._call: Call | None = None
        self._generation = -1

    def run(self, pool: CachePool) -> None:
        """From `inputs` to `logits`, with new rows in the pools."""
        if self._generation != pool.generation or self._call is None:
            rest = iter(pool.arrays)
            given = [self.inputs[name] if name in self.inputs else next(rest) for name in self._order]
            self._call = self._kernel.bind(given, [self.logits, *pool.arrays])
            self._generation = pool.generation
        self._call()


class DecoderPrograms:
    """Programs of one decoder over one packing of its weights, which lies in the cache once and is mapped."""

    def __init__(self, decoder: DecoderDescription, settings: ProgramSettings) -> None:
        """Nothing is opened yet."""
        self._decoder, self._settings = decoder, settings
        self._ready: dict[DecoderProgram, ReadyProgram] = {}
        self._compiler: ProgramCompiler | None = None

    def list_missing(self, programs: Sequence[DecoderProgram]) -> list[DecoderProgram]:
        """Those that are not compiled yet."""
        return [
            program
            for program in programs
            if program not in self._ready and not is_program_kept(self._identity, program, self._settings)
        ]

    def open_kept(self, program: DecoderProgram) -> bool:
        """Whether a program is ready, which it becomes if it was compiled before and is not damaged."""
        return self._find_kept(program) is not None

    def compile_behind(self, programs: Sequence[DecoderProgram]) -> None:
        """Has processes compile programs in this order, while this one goes on; nothing where the decoder is of no file that they
        could read."""
        if self._decoder.sources and self._compiler is None and programs:
            self._compiler = ProgramCompiler(self._decoder, self._settings, programs)

    def close(self) -> None:
        """Ends what is compiled behind. What is not compiled then, is when it is needed."""
        if self._compiler is not None:
            self._compiler.close()

    def find_first(self, programs: Sequence[DecoderProgram]) -> ReadyProgram:
        """The first program; while it is compiled behind, the first of the others that is ready.

        Raises:
            Refused, MissingBackend, NotWritable: the engine does not compile it.
            ModelBeyondMemory: it is not there yet, and there is no memory to compile it.
        """
        if self._is_awaited(programs[0]):
            for program in programs:
                ready = self._ready.get(program) or (None if self._is_awaited(program) else self._find_kept(program))
                if ready is not None:
                    return ready
        return self.find(programs[0])

    def find(self, program: DecoderProgram) -> ReadyProgram:
        """A program, compiled if it has not been yet.

        Raises:
            Refused, MissingBackend, NotWritable: the engine does not compile it.
            ModelBeyondMemory: it is not there yet, and there is no memory to compile it.
        """
        ready = self._ready.get(program)
        if ready is None and self._is_awaited(program):
            assert self._compiler is not None
            self._compiler.wait(program)
        ready = ready or self._find_kept(program)
        if ready is None:
            require_memory(count_compiling_bytes(self._decoder), " where programs are compiled, the first time")
            compiled = compile_decoder_program(self._decoder, self._identity, program, self._settings)
            ready = self._ready[program] = ReadyProgram(*compiled, program)
        return ready

    def _is_awaited(self, program: DecoderProgram) -> bool:
        return program not in self._ready and self._compiler is not None and self._compiler.is_compiling(program)

    def _find_kept(self, program: DecoderProgram) -> ReadyProgram | None:
        if program in self._ready:
            return self._ready[program]
        opened = reopen_decoder_program(self._identity, program, self._settings)
        if opened is None:
            return None
        self._ready[program] = ReadyProgram(*opened, program)
        return self._ready[program]

    @cached_property
    def _identity(self) -> str:
        return identify_decoder(self._decoder)


def _cleared(array: np.ndarray) -> np.ndarray:
    array[...] = 0
    return array
