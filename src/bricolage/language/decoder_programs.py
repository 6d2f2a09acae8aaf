"""Programs of a decoder: found in the cache by what the decoder is, else compiled, and bound to its memory.

A record in the cache says in which folder a program's code lies, and its inputs and outputs. Its name is a digest of the decoder's
contents, the program, the engine and the processor; so a program that was compiled before is opened without reading weights and
without a graph.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from bricolage.backends import registry
from bricolage.backends.interface import Resources
from bricolage.backends.kernel import Call, Kernel
from bricolage.base import scratch, sealed
from bricolage.base.cache import compiled_directory
from bricolage.base.codec import DecodeError, Length, Matching, Within, decode, encode, parse
from bricolage.device.buffers import allocate_aligned
from bricolage.device.tensor_form import SizedTensor
from bricolage.errors import NotWritable, Refused
from bricolage.frontends.decoders.decoder_description import DecoderDescription
from bricolage.frontends.decoders.decoder_program import DecoderProgram
from bricolage.graph.region_model import KeptEnds, RegionModel
from bricolage.language.cache_pool import CachePool
from bricolage.language.decoder_identity import identify_decoder
from bricolage.language.program_compiler import ProgramCompiler
from bricolage.native.library_files import TITLE
from bricolage.work.implementation import KernelConfig

Arithmetic = Literal["f32", "int8"]
"""In which products are computed: `int8` rounds rows to bytes, each block of them with a scale of its own."""
_BACKEND = "native"
"""Only our own engine leaves the length of a cache out of its code."""
_LOG = logging.getLogger(__name__)
_FORMAT = 1
_FILE = "program.json"
_MOST = 10_000
"""Inputs and outputs."""


@dataclass(frozen=True)
class ProgramSettings:
    """How all programs of a model are compiled."""

    threads: int
    config: Arithmetic


@dataclass(frozen=True)
class _KeptProgram:
    """What opens a program again."""

    code: Annotated[str, Matching(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}", "folder's name")]
    """Its folder, beside the record."""
    inputs: Annotated[tuple[SizedTensor, ...], Length(0, _MOST)]
    outputs: Annotated[tuple[SizedTensor, ...], Length(0, _MOST)]
    format: Annotated[int, Within(_FORMAT, _FORMAT)] = _FORMAT


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
        """Nothing is opened yet.

        Raises:
            Refused: attention to a cache does not know what the model does with scores.
        """
        if decoder.attention_softcap is not None:
            raise Refused(backend=TITLE, reason="the model caps scores of attention")
        self._decoder, self._settings = decoder, settings
        self._ready: dict[DecoderProgram, ReadyProgram] = {}
        self._compiler: ProgramCompiler | None = None

    def list_missing(self, programs: Sequence[DecoderProgram]) -> list[DecoderProgram]:
        """Those that are not compiled yet. The others are ready."""
        return [program for program in programs if self._find_kept(program) is None]

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
        """
        ready = self._ready.get(program)
        if ready is None and self._is_awaited(program):
            assert self._compiler is not None
            self._compiler.wait(program)
        ready = ready or self._find_kept(program)
        if ready is None:
            compiled = compile_program(self._decoder, self._identity, program, self._settings)
            ready = self._ready[program] = ReadyProgram(*compiled, program)
        return ready

    def _is_awaited(self, program: DecoderProgram) -> bool:
        return program not in self._ready and self._compiler is not None and self._compiler.is_compiling(program)

    def _find_kept(self, program: DecoderProgram) -> ReadyProgram | None:
        if program in self._ready:
            return self._ready[program]
        opened = _reopen_program(self._identity, program, self._settings)
        if opened is None:
            return None
        self._ready[program] = ReadyProgram(*opened, program)
        return self._ready[program]

    @cached_property
    def _identity(self) -> str:
        return identify_decoder(self._decoder)


def compile_program(
    decoder: DecoderDescription, identity: str, program: DecoderProgram, settings: ProgramSettings
) -> tuple[Kernel, KeptEnds]:
    """Compiles a program, keeps its code and a record of it, and opens it.

    Raises:
        Refused, MissingBackend: the engine does not compile it.
        NotWritable: the disk is full or the cache cannot be written.
    """
    from bricolage.frontends.decoders.decoder_graph import build_decoder_graph
    from bricolage.graph.extract import write_model
    from bricolage.graph.store import Store

    resources = _resources(settings)
    with ExitStack() as stack:
        folder = stack.enter_context(scratch.using(scratch.temporary()))
        model = build_decoder_graph(decoder, program)
        Store(folder).share([model])
        write_model(model, folder / "region.onnx")
        region = RegionModel(folder / "region.onnx")
        ends = KeptEnds(*(tuple(map(SizedTensor.of, side)) for side in (region.inputs, region.outputs)))
        try:
            kernel = registry.get(_BACKEND).compile(region, KernelConfig(f"{settings.config}-alike"), resources)
            with sealed.making(_name_record(identity, program, settings)) as record:
                text = json.dumps(encode(_KeptProgram(kernel.kept, ends.inputs, ends.outputs)))
                (record / _FILE).write_text(text, encoding="utf-8")
        except OSError as error:
            raise NotWritable(path=error.filename or resources.cache, reason=error.strerror or error) from error
        return kernel, ends


def _reopen_program(
    identity: str, program: DecoderProgram, settings: ProgramSettings
) -> tuple[Kernel, KeptEnds] | None:
    """What was compiled before; None where it was not, or is not as it was left."""
    record = _name_record(identity, program, settings)
    try:
        if not sealed.intact(record):
            return None
        kept = decode(_KeptProgram, parse((record / _FILE).read_bytes()))
        ends = KeptEnds(kept.inputs, kept.outputs)
        kernel = registry.get(_BACKEND).reopen(ends, kept.code, _resources(settings))
    except (OSError, DecodeError) as error:
        _LOG.debug("%s is not used: %s", record, error)
        return None
    return None if kernel is None else (kernel, ends)


def _resources(settings: ProgramSettings) -> Resources:
    resources = Resources(threads=settings.threads, shares_weights=True)
    cache = compiled_directory(resources.device.fingerprint(), _BACKEND, registry.version(_BACKEND))
    return replace(resources, cache=cache)


def _name_record(identity: str, program: DecoderProgram, settings: ProgramSettings) -> Path:
    resources = _resources(settings)
    device = resources.device
    facts = [
        *(_FORMAT, identity, encode(program), encode(settings)),
        *(sorted(device.instructions), asdict(device.caches)),
    ]
    assert resources.cache is not None
    return resources.cache / f"decoder-{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]}"


def _cleared(array: np.ndarray) -> np.ndarray:
    array[...] = 0
    return array
