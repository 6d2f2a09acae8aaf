"""The programs of a language model that race: what each backend would run, with inputs and the answer in float64.

Every contestant gets the form in which it is at its best: our engine pools of rows in float16, ONNX Runtime
GroupQueryAttention with a cache that it writes in place, others attention to the cache and to the new rows in one softmax. The
cache holds what the model itself makes of a text of random tokens; all contestants find the same numbers in it, rounded to float16.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from bricolage.backends.interface import Backend
from bricolage.base.options import Options
from bricolage.device.device import Device
from bricolage.driver.decoders.decoder_file import DecoderFile, FileCall
from bricolage.frontends.decoders.decoder_description import DecoderDescription, matrix_numbers, matrix_rows
from bricolage.frontends.decoders.decoder_graph import build_decoder_graph, cache_names
from bricolage.frontends.decoders.decoder_program import PROMPT_ROWS, DecoderProgram
from bricolage.frontends.decoders.private_cache_graph import (
    PrivateCacheProgram,
    build_private_cache_graph,
    choose_cache_form,
    round_cache_up,
)
from bricolage.graph.extract import write_model
from bricolage.graph.store import Store
from bricolage.measure.specs import CandidateSpec
from bricolage.plan.decoder_plan import DecoderPart
from bricolage.plan.program_step import Step
from bricolage.verify.compare import relative_error
from bricolage.verify.decoder_reference import DecoderCache, extend_decoder_cache
from bricolage.verify.named_arrays import save_expected, save_tensors
from bricolage.work.implementation import OWN_ENGINE, Implementation, KernelConfig, named

_CHUNK = 512
"""Tokens of a context that are computed at a time."""
_ALLOWED = 4.0
"""Times what rounding in float32, and keys and values in float16, do."""
_IN_BYTES = "int8-blocks"
_ENGINES = ("onnxruntime", "openvino")
"""Other backends than our engine that keep blocks of 4 bits as they are."""


@dataclass(frozen=True)
class DecoderTask:
    """A call that is timed."""

    part: DecoderPart
    context: int
    """Tokens of the prompt, or in front of the step."""

    @property
    def tokens(self) -> int:
        """That the call takes: one, or the last chunk of the prompt."""
        return 1 if self.part == "step" else min(self.context, PROMPT_ROWS[-1])

    @property
    def rows(self) -> int:
        """Of the program."""
        return 1 if self.part == "step" else next(rows for rows in PROMPT_ROWS if rows >= self.tokens)

    @property
    def before(self) -> int:
        """Tokens in front of those of the call."""
        return self.context if self.part == "step" else self.context - self.tokens

    def __str__(self) -> str:
        return f"{self.part} at {self.context}"


def list_decoder_tasks(contexts: Sequence[int]) -> list[DecoderTask]:
    """Prompts and steps at each length."""
    parts: tuple[DecoderPart, ...] = ("prompt", "step")
    return [DecoderTask(part, context) for part in parts for context in contexts]


def list_decoder_backends(backends: Sequence[Backend], options: Options, device: Device) -> list[Implementation]:
    """Who takes part. Other backends than these unpack blocks of 4 bits to floats, and none of them runs a decoder here."""
    implementations = []
    for backend in backends:
        if backend.name == OWN_ENGINE:
            configs = named("f32-alike", *(["int8-alike"] if options.precision == "low" else []))
        elif backend.name in _ENGINES:
            offered = {config.name for config in backend.configs(options.precision, device)}
            configs = tuple(KernelConfig(name) for name in ("f32", _IN_BYTES) if name in offered)
        else:
            continue
        implementations += [Implementation(backend.name, config) for config in configs]
    return implementations


def list_file_loops(backends: Sequence[Backend]) -> list[Implementation]:
    """Who runs an untouched ONNX file with a cache, and how the cache is handed over."""
    return [Implementation(backend.name, config) for backend in backends for config in backend.file_loop_configs()]


class RacedPrograms:
    """Programs and their inputs, in a folder of the decision."""

    def __init__(
        self, decoder: DecoderDescription, folder: Path, seed: int, original: DecoderFile | None = None
    ) -> None:
        self._decoder, self._store, self._original = decoder, Store(folder), original
        self._calls: dict[DecoderTask, FileCall] = {}
        self._folder = folder
        self._draw = np.random.default_rng(abs(seed))
        self._tokens = np.empty(0, np.int64)
        self._caches: dict[type[np.floating] | None, DecoderCache] = {}

    def answer(self, task: DecoderTask) -> Path:
        """The file of the right answer, with what rounding may do to it."""
        return self._answer(task, f"expected-{task.part}-{task.context}", (1, self._decoder.vocabulary), np.float16)

    def _answer(self, task: DecoderTask, name: str, shape: tuple[int, ...], stored: type[np.floating] | None) -> Path:
        """`shape`: of the logits, behind the last tokens. `stored`: what the contestants' caches in front are rounded to."""
        before, judged = self._before(task, stored), math.prod(shape[:-1])
        new = self._text(task.context + 1)[task.before : task.before + task.tokens]
        expected, _ = extend_decoder_cache(self._decoder, new, before, np.float64, judged)
        rounded, _ = extend_decoder_cache(self._decoder, new, before, np.float32, judged, np.float16)
        path = self._folder / f"{name}.npz"
        allowed = {"logits": _ALLOWED * relative_error([rounded], [expected])}
        save_expected(path, {"logits": expected.reshape(shape)}, allowed)
        return path

    def file_contestant(
        self, task: DecoderTask, implementation: Implementation, threads: int, device: Device
    ) -> tuple[CandidateSpec, Path, Path]:
        """The untouched file: what is loaded, the file of its inputs, and that of the right answer. Its cache is what it makes of
        the tokens in front itself, in its own type.

        Raises:
            BackendFailed: it does not run.
        """
        assert self._original is not None
        name = f"{task.part}-{task.context}-file"
        given, right = self._folder / f"inputs-{name}.npz", self._folder / f"expected-{name}.npz"
        if task not in self._calls:
            tokens = self._text(task.context + 1)[: task.before + task.tokens].tolist()
            calls = [tokens[first : min(first + _CHUNK, task.before)] for first in range(0, task.before, _CHUNK)]
            self._calls = {task: self._original.record([*calls, tokens[task.before :]])}
            save_tensors(given, self._calls[task].inputs)
            self._answer(task, right.stem, self._calls[task].shape, None)
        call = self._calls[task]
        results = tuple(("logits" if name == call.logits else name, shape) for name, shape in call.outputs)
        ends = (tuple((name, array.shape) for name, array in call.inputs.items()), results)
        step = Step(implementation, self._original.path, ends)
        key = f"decoder {name} {implementation.config.name}"
        return CandidateSpec(key, (step,), ("logits",), threads, True, device), given, right

    def contestant(
        self, task: DecoderTask, implementation: Implementation, threads: int, device: Device
    ) -> tuple[CandidateSpec, Path]:
        """What is compiled, and the file of its inputs."""
        model, inputs = self._form(task, implementation)
        name = f"{task.part}-{task.context}-{implementation.backend}-{implementation.config.name}"
        self._store.share([model], f"{name}.data")
        path, given = self._folder / f"region-{name}.onnx", self._folder / f"inputs-{name}.npz"
        write_model(model, path)
        save_tensors(given, inputs)
        apart = implementation.backend != OWN_ENGINE and choose_cache_form(implementation.backend) == "divided"
        pairs = () if apart else tuple((present, cache) for cache, present in cache_names(self._decoder))
        step = Step(implementation, path)
        key = f"decoder {name}"
        spec = CandidateSpec(key, (step,), ("logits",), threads, True, device, kept=True, in_place=pairs)
        return spec, given

    def _form(self, task: DecoderTask, implementation: Implementation) -> tuple[ir.Model, Mapping[str, np.ndarray]]:
        if implementation.backend == OWN_ENGINE:
            return self._pooled(task)
        form = choose_cache_form(implementation.backend)
        longest = task.before + task.rows if form == "grouped" else round_cache_up(task.before)
        wide = implementation.config.name != _IN_BYTES
        program = PrivateCacheProgram(task.rows, longest, form, task.part == "prompt", wide)
        inputs = self._rows(task) | {"before": np.array([task.before])}
        size = (1, self._decoder.key_heads, longest, self._decoder.head_size)
        for number, pair in enumerate(self._before(task, np.float16) or []):
            for kind, cache in zip(("keys", "values"), pair, strict=True):
                inputs[f"{kind}_{number}"] = array = np.zeros(size, np.float32)
                array[0, :, : task.before] = cache
        return build_private_cache_graph(self._decoder, program), inputs | self._empty(inputs, size, np.float32)

    def _pooled(self, task: DecoderTask) -> tuple[ir.Model, Mapping[str, np.ndarray]]:
        decoder, used = self._decoder, task.tokens
        longest = task.before + task.rows
        pool = 2 * longest + 2  # every number that is gathered is a row, as it is in a pool of many sequences
        program = DecoderProgram(task.rows, longest, pool, task.part == "prompt")
        inputs = self._rows(task)
        numbers = np.zeros((task.rows, 5), np.int64)
        positions = task.before + np.arange(used)
        window = next((layer.sliding_window for layer in decoder.layers if layer.sliding_window), None)
        seen = np.minimum(positions + 1, window or longest)
        numbers[:used] = np.stack([1 + positions, np.ones_like(seen), positions + 1, 2 + positions - seen, seen], 1)
        inputs |= {"places": numbers[:, :1], "starts": numbers[:, 1:2], "lengths": numbers[:, 2]}
        if window is not None:
            inputs |= {"window_starts": numbers[:, 3:4], "window_lengths": numbers[:, 4]}
        width = decoder.key_heads * decoder.head_size
        for number, pair in enumerate(self._before(task, np.float16) or []):
            for kind, cache in zip(("keys", "values"), pair, strict=True):
                inputs[f"{kind}_{number}"] = array = np.zeros((pool, width), np.float16)
                array[1 : 1 + task.before] = cache.swapaxes(0, 1).reshape(task.before, width)
        return build_decoder_graph(decoder, program), inputs | self._empty(inputs, (pool, width), np.float16)

    def _rows(self, task: DecoderTask) -> dict[str, np.ndarray]:
        """Embeddings, and the row that is asked for."""
        decoder = self._decoder
        new = self._text(task.context + 1)[task.before : task.before + task.tokens]
        x = np.zeros((task.rows, decoder.width), np.float32)
        x[: task.tokens] = matrix_numbers(matrix_rows(decoder.embedding, new)) * np.float32(decoder.embedding_scale)
        return {"x": x} | ({"last": np.array([task.tokens - 1])} if task.part == "prompt" else {})

    def _empty(
        self, inputs: Mapping[str, np.ndarray], shape: tuple[int, ...], dtype: type[np.floating]
    ) -> dict[str, np.ndarray]:
        """Caches of a sequence that begins."""
        return {name: np.zeros(shape, dtype) for name, _ in cache_names(self._decoder) if name not in inputs}

    def _text(self, count: int) -> np.ndarray:
        """The first tokens of the text."""
        missing = count - len(self._tokens)
        if missing > 0:
            self._tokens = np.concatenate([self._tokens, self._draw.integers(0, self._decoder.vocabulary, missing)])
        return self._tokens[:count]

    def _before(self, task: DecoderTask, stored: type[np.floating] | None) -> DecoderCache | None:
        """The cache of the tokens in front, in float16 as all programs of ours find it, or in float32 (None)."""
        if not task.before:
            return None
        cache = self._caches.get(stored)
        present = 0 if cache is None else cache[0][0].shape[1]
        tokens = self._text(task.before)
        for first in range(present, task.before, _CHUNK):
            new = tokens[first : first + _CHUNK]
            _, cache = extend_decoder_cache(self._decoder, new, cache, np.float32, 1, stored)
        assert cache is not None
        self._caches[stored] = cache
        return [(keys[:, : task.before], values[:, : task.before]) for keys, values in cache]
