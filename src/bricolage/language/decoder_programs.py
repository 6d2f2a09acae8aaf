"""Programs of a decoder, compiled when they are first needed and bound to its memory."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from bricolage.backends import registry
from bricolage.backends.interface import RegionModel, Resources
from bricolage.backends.kernel import Call, Kernel
from bricolage.base.cache import compiled_directory
from bricolage.device.buffers import allocate_aligned
from bricolage.errors import Refused
from bricolage.frontends.decoders.decoder_description import DecoderDescription
from bricolage.frontends.decoders.decoder_graph import DecoderProgram, build_decoder_graph
from bricolage.graph.extract import write_model
from bricolage.graph.store import Store
from bricolage.language.cache_pool import CachePool
from bricolage.native.library_files import TITLE
from bricolage.work.implementation import KernelConfig

Arithmetic = Literal["f32", "int8"]
"""In which products are computed: `int8` rounds rows to bytes, each block of them with a scale of its own."""
_BACKEND = "native"
"""Only our own engine leaves the length of a cache out of its code."""


@dataclass(frozen=True)
class ProgramSettings:
    """How all programs of a model are compiled."""

    threads: int
    config: Arithmetic


class ReadyProgram:
    """A compiled program with its inputs and outputs; pools are bound anew when they have moved."""

    def __init__(self, kernel: Kernel, region: RegionModel, program: DecoderProgram) -> None:
        self.program = program
        self._kernel = kernel
        pools = {info.name for info in region.inputs if info.name.startswith(("keys_", "values_"))}
        self.inputs: Mapping[str, np.ndarray] = {
            info.name: _cleared(allocate_aligned(info.sizes, info.numpy))
            for info in region.inputs
            if info.name not in pools
        }
        """By name, but for the pools."""
        logits = next(info for info in region.outputs if info.name == "logits")
        self.logits = allocate_aligned(logits.sizes, logits.numpy)
        self._order = [info.name for info in region.inputs]
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
    """Programs of one decoder over one packing of its weights: libraries of a process share weights that have the same bytes."""

    def __init__(self, decoder: DecoderDescription, settings: ProgramSettings) -> None:
        """Nothing is compiled yet.

        Raises:
            Refused: attention to a cache does not know what the model does with scores.
        """
        if decoder.attention_softcap is not None:
            raise Refused(backend=TITLE, reason="the model caps scores of attention")
        self._decoder, self._settings = decoder, settings
        self._ready: dict[DecoderProgram, ReadyProgram] = {}

    def find(self, program: DecoderProgram) -> ReadyProgram:
        """A program, compiled if it has not been yet.

        Raises:
            Refused, MissingBackend: the engine does not compile it.
        """
        if program not in self._ready:
            self._ready[program] = self._compile(program)
        return self._ready[program]

    def _compile(self, program: DecoderProgram) -> ReadyProgram:
        resources = Resources(threads=self._settings.threads)
        cache = compiled_directory(resources.device.fingerprint(), _BACKEND, registry.version(_BACKEND))
        cache.mkdir(parents=True, exist_ok=True)
        resources = replace(resources, cache=cache)
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            model = build_decoder_graph(self._decoder, program)
            Store(folder).share([model])
            write_model(model, folder / "region.onnx")
            region = RegionModel(folder / "region.onnx")
            kernel = registry.get(_BACKEND).compile(region, KernelConfig(f"{self._settings.config}-alike"), resources)
            return ReadyProgram(kernel, region, program)


def _cleared(array: np.ndarray) -> np.ndarray:
    array[...] = 0
    return array
