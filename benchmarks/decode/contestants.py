"""What writes tokens: our engine, ONNX Runtime and OpenVINO on the same step, and llama.cpp on the same file."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from benchmarks.decode.graphs import Array
from benchmarks.real.packages import Unavailable
from bricolage.backends.interface import RegionModel, Resources
from bricolage.backends.native.engine import FORCED_ISA_VARIABLE, Native
from bricolage.device.buffers import allocate_aligned
from bricolage.frontends.decoders.decoder_description import DecoderDescription, matrix_numbers, matrix_rows
from bricolage.graph.extract import write_model
from bricolage.graph.store import Store
from bricolage.work.implementation import KernelConfig

Run = Callable[[], None]


class Bound:
    """A model's inputs and outputs by name, and what computes one from the other."""

    def __init__(self, given: Mapping[str, Array], made: Mapping[str, Array], run: Run) -> None:
        self.given, self.made, self.run = given, made, run


def native(model: onnx.ModelProto, config: str, threads: int, folder: Path, isa: str | None = None) -> Bound:
    """In our engine; `isa` keeps it to an instruction set.

    Raises:
        Refused: the instruction set does not run here.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shared = ir.from_proto(model)
    Store(folder).share([shared])
    write_model(shared, folder / "region.onnx")
    region = RegionModel(folder / "region.onnx")
    with _forced(isa):
        kernel = Native().compile(region, KernelConfig(config), Resources(threads=threads))
    given = {info.name: allocate_aligned(info.sizes, info.numpy) for info in region.inputs}
    made = {info.name: allocate_aligned(info.sizes, info.numpy) for info in region.outputs}
    for array in given.values():
        array[...] = 0
    return Bound(given, made, kernel.bind(list(given.values()), list(made.values())))


@contextmanager
def _forced(isa: str | None) -> Any:
    before = os.environ.get(FORCED_ISA_VARIABLE)
    if isa is not None:
        os.environ[FORCED_ISA_VARIABLE] = isa
    try:
        yield
    finally:
        os.environ.pop(FORCED_ISA_VARIABLE, None)
        if before is not None:
            os.environ[FORCED_ISA_VARIABLE] = before


def onnxruntime(model: onnx.ModelProto, threads: int) -> Bound:
    """In ONNX Runtime, with buffers bound once."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    types = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
    binding = session.io_binding()
    sides: list[dict[str, Array]] = []
    for infos, bind in ((session.get_inputs(), binding.bind_input), (session.get_outputs(), binding.bind_output)):
        side: dict[str, Array] = {}
        for info in infos:
            array = side[info.name] = np.zeros(info.shape, types[info.type])
            bind(info.name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        sides.append(side)
    return Bound(sides[0], sides[1], lambda: session.run_with_iobinding(binding))


def openvino(model: onnx.ModelProto, threads: int, group: int) -> Bound:
    """In OpenVINO, which keeps weights in 4 and 8 bits; `group` numbers of a row become bytes with one scale, 0 for none.

    Raises:
        RuntimeError: it does not read the model.
    """
    import openvino as ov

    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": group,
    }
    compiled = ov.compile_model(ov.Core().read_model(model.SerializeToString()), "CPU", settings)
    request = compiled.create_infer_request()
    sides: list[dict[str, Array]] = []
    for ports, bind in ((compiled.inputs, request.set_tensor), (compiled.outputs, request.set_tensor)):
        side: dict[str, Array] = {}
        for port in ports:
            array = side[port.any_name] = allocate_aligned(tuple(port.shape), port.element_type.to_dtype())
            array[...] = 0
            bind(port, ov.Tensor(array, shared_memory=True))
        sides.append(side)
    return Bound(sides[0], sides[1], request.infer)


class Contestant(ABC):
    """Writes tokens behind others."""

    @abstractmethod
    def written(self, prompt: Sequence[int], count: int) -> tuple[list[int], float]:
        """The likeliest token again and again, `count` times, and the seconds that all but the prompt took."""

    @abstractmethod
    def logits(self, tokens: Sequence[int]) -> Array:
        """[tokens, words]: of the token behind each; what it does not tell is -inf."""


class Step(Contestant):
    """A step of ours, ONNX Runtime's or OpenVINO's; the cache is the caller's."""

    def __init__(self, decoder: DecoderDescription, bound: Bound) -> None:
        self._bound = bound
        self._embedding = decoder.embedding
        self._layers = range(len(decoder.layers))

    def _next(self, token: int, position: int) -> Array:
        given, made = self._bound.given, self._bound.made
        given["x"][...] = matrix_numbers(matrix_rows(self._embedding, np.array([token])))
        given["position"][0] = position
        self._bound.run()
        for i in self._layers:
            given[f"keys_{i}"][:, :, position] = made[f"key_{i}"][:, :, 0]
            given[f"values_{i}"][:, position] = made[f"value_{i}"][:, 0]
        found: Array = made["logits"][0]
        return found

    def written(self, prompt: Sequence[int], count: int) -> tuple[list[int], float]:
        """See `Contestant.written`."""
        tokens, start = list(prompt), 0.0
        for position in range(len(prompt) + count - 1):
            if position == len(prompt):
                start = time.perf_counter()
            found = self._next(tokens[position], position)
            if position >= len(prompt) - 1:
                tokens.append(int(found.argmax()))
        return tokens, time.perf_counter() - start

    def logits(self, tokens: Sequence[int]) -> Array:
        """See `Contestant.logits`."""
        return np.stack([self._next(token, position).copy() for position, token in enumerate(tokens)])


class LlamaCpp(Contestant):
    """llama.cpp in this process, by the package `xllamacpp`."""

    def __init__(self, path: Path, decoder: DecoderDescription, context: int, threads: int) -> None:
        try:
            import xllamacpp
        except ImportError as error:
            raise Unavailable(f"llama.cpp: {error}") from error
        parameters = xllamacpp.CommonParams()
        parameters.model.path = str(path)
        parameters.n_ctx, parameters.n_parallel, parameters.n_gpu_layers = context, 1, 0
        parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
        parameters.verbosity = -1
        self._server = xllamacpp.Server(parameters)
        self._words = decoder.vocabulary
        self.instructions = str(xllamacpp.get_system_info())

    def _asked(self, prompt: Sequence[int], count: int, told: int) -> Mapping[str, Any]:
        wanted = {"prompt": list(prompt), "n_predict": count, "temperature": 0, "top_k": 1, "ignore_eos": True}
        found: Mapping[str, Any] = self._server.handle_completions(
            {**wanted, "return_tokens": True, "cache_prompt": False, "stream": False, "n_probs": told}
        )
        return found

    def written(self, prompt: Sequence[int], count: int) -> tuple[list[int], float]:
        """See `Contestant.written`; by its own clock."""
        found = self._asked(prompt, count, 0)
        timings = found["timings"]
        own = (timings["predicted_n"] - 1) / timings["predicted_n"]  # the first comes with the prompt
        return [*prompt, *found.get("tokens", [])], timings["predicted_ms"] / 1e3 * own

    def logits(self, tokens: Sequence[int]) -> Array:
        """See `Contestant.logits`: of as many words as it tells."""
        rows = []
        for stop in range(1, len(tokens) + 1):
            found = self._asked(tokens[:stop], 1, self._words)["choices"][0]["logprobs"]["content"][0]
            row = np.full(self._words, -np.inf, np.float32)
            for word in found["top_logprobs"]:
                row[word["id"]] = word["logprob"]
            rows.append(row)
        return np.stack(rows)
