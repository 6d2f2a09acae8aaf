"""ONNX decoders that lie, or that compute something else: small decoders in three spellings, changed node by node.

What is accepted answers as ONNX Runtime does on the changed file, for texts that the reader did not try itself. Operators are what
an input costs, not their sizes: so most decoders have one layer, and one session of ONNX Runtime serves the reader and the texts.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.fuzz_loaders import mutate
from benchmarks.fuzz_loaders.choices import Choices
from bricolage.base.cache import cache_directory
from bricolage.frontends.decoders.decoder_description import DecoderDescription
from bricolage.language.onnx_decoders import onnx_decoder
from bricolage.language.onnx_decoders.cache_interface import CacheInterface
from bricolage.language.onnx_decoders.original_answers import CachedSession
from bricolage.language.onnx_decoders.reading_failure import NotUnderstood
from bricolage.verify.decoder_reference import compute_decoder_logits
from tests.language.cached_graphs import CachedGraph, Spelling, write_beside
from tests.language.mixed_decoders import mixed_decoder

_CONTEXT, _WINDOW, _SIZE = 96, 20, 16
_TEXTS = ((1, 2, 1), (30, 1, 9), (3, 60, 1))
"""New tokens of the calls of each text: within the window, and beyond it."""
_BOUND = 1e-3
_LAYERS = ((0,), (1,), (0,), (1,), (0, 1))
"""Layers of the decoders: with a window, biases and norms of heads, without, and both."""
_WEIGHTS = "weights.data"
_SIBLINGS = (
    ("Add", "Sub", "Mul", "Div"), ("Sigmoid", "Tanh", "Relu", "Erf"), ("Sin", "Cos"), ("Less", "LessOrEqual", "Greater"),
    ("ReduceMean", "ReduceSum", "ReduceMax"), ("Sqrt", "Reciprocal", "Abs"), ("And", "Or", "Xor"), ("Softmax", "LogSoftmax"),
    ("Neg", "Identity"), ("RMSNormalization", "LayerNormalization"),
)  # fmt: skip
_INSERTED = ("Relu", "Tanh", "Abs", "Neg", "Identity", "Ceil", "LeakyRelu", "HardSigmoid")


class WrongAnswer(Exception):
    """A changed file was accepted, and answers otherwise."""


class OnnxDecoders:
    """What reads them, with sound files, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        """`folder` is empty."""
        folder.mkdir()
        self._folder = folder
        decoders = [
            *map(_small_decoder, _LAYERS),
            replace(_small_decoder((1,)), attention_softcap=0.8, logit_softcap=3.0),
        ]
        self._sound = [_write_sound(decoder, spelling) for decoder in decoders for spelling in get_args(Spelling)]
        write_beside(folder, _small_decoder((0, 1)))
        # A process for each input would take most of the time.
        setattr(onnx_decoder, "answer_by_onnxruntime", self._open_and_answer)  # noqa: B010
        self._session: CachedSession | None = None
        self.accepted = 0

    def onnx_decoder(self, choose: Choices) -> None:
        """A file with one to three changes, read and compared.

        Raises:
            WrongAnswer: it was accepted, and ONNX Runtime answers otherwise.
        """
        proto = onnx.ModelProto.FromString(choose.of(self._sound))
        for _ in range(1 + choose.number(3)):
            # The change does not fit the field, or there is nothing left to choose from.
            with contextlib.suppress(ValueError, TypeError, OverflowError, ZeroDivisionError):
                choose.of(_CHANGES)(proto, choose)
        self.read(proto, choose)

    def load_sound(self) -> None:
        """Reads files that nothing was changed in."""
        for data in self._sound:
            self.read(onnx.ModelProto.FromString(data), Choices(b""))

    def read(self, proto: onnx.ModelProto, choose: Choices) -> None:
        """Writes, reads and compares."""
        file = self._folder / "model.onnx"
        if choose.once_in(8):
            self._lay_outside(proto, choose)
        data = proto.SerializeToString()
        file.write_bytes(mutate.raw(data, choose) if choose.once_in(12) else data)
        try:
            decoder = onnx_decoder.read_onnx_decoder(file)
            self.accepted += 1
            self._compare(decoder)
        finally:
            self._session = None
            shutil.rmtree(cache_directory(), ignore_errors=True)

    def _lay_outside(self, proto: onnx.ModelProto, choose: Choices) -> None:
        """Weights into a file beside the model, with lies about where they are."""
        place = bytearray()
        for tensor in proto.graph.initializer:
            if not tensor.raw_data or len(tensor.raw_data) < 512:
                continue
            facts = {"location": _WEIGHTS, "offset": len(place), "length": len(tensor.raw_data)}
            place += tensor.raw_data
            if choose.once_in(6):
                key = choose.of(sorted(facts))
                facts[key] = choose.of(mutate.TEXTS) if key == "location" else choose.of(mutate.NUMBERS)
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in facts.items():
                tensor.external_data.add(key=key, value=str(value).encode("utf-8", "replace").decode("utf-8"))
        (self._folder / _WEIGHTS).write_bytes(bytes(place))

    def _open_and_answer(self, file: Path, interface: CacheInterface, calls: Sequence[Sequence[int]]) -> np.ndarray:
        """As `answer_by_onnxruntime`, in this process; the session stays for the other texts."""
        try:
            self._session = CachedSession(str(file), interface)
            return self._session.answer(calls)
        except Exception as error:  # a dozen kinds without a common one
            raise NotUnderstood(f"ONNX Runtime does not run the file ({str(error)[:200]})") from error

    def _compare(self, decoder: DecoderDescription) -> None:
        assert self._session is not None, "what is accepted was compared"
        for counts in _TEXTS:
            if sum(counts) > decoder.context_length:
                continue
            tokens = np.random.default_rng(len(counts)).integers(0, decoder.vocabulary, sum(counts)).tolist()
            ends = np.cumsum(counts)
            calls = [tokens[end - count : end] for end, count in zip(ends, counts, strict=True)]
            try:
                original = self._session.answer(calls)
            except Exception as error:
                raise WrongAnswer(f"ONNX Runtime fails in calls of {counts}: {str(error)[:200]}") from error
            logits = compute_decoder_logits(decoder, tokens, np.float32)[ends - 1]
            difference = np.linalg.norm(logits - original) / np.linalg.norm(original)
            if not difference <= _BOUND:
                raise WrongAnswer(f"{difference:.1e} for calls of {counts}")


def _small_decoder(layers: Sequence[int]) -> DecoderDescription:
    first, second = mixed_decoder(size=_SIZE).layers
    both = (replace(first, sliding_window=_WINDOW), second)
    return mixed_decoder(size=_SIZE, layers=tuple(both[number] for number in layers), context_length=_CONTEXT)


def _write_sound(decoder: DecoderDescription, spelling: Spelling) -> bytes:
    return bytes(CachedGraph(decoder, spelling).model().SerializeToString())


def _change_message(proto: onnx.ModelProto, choose: Choices) -> None:
    mutate.message(proto, choose)


def _change_attribute(proto: onnx.ModelProto, choose: Choices) -> None:
    nodes = [node for node in proto.graph.node if node.attribute]
    attribute = choose.of(choose.of(nodes).attribute)
    match attribute.type:
        case onnx.AttributeProto.INT:
            attribute.i = choose.of((attribute.i + 1, attribute.i - 1, *mutate.NUMBERS[:12]))
        case onnx.AttributeProto.FLOAT:
            attribute.f = choose.of((attribute.f * 1.01, attribute.f * 2, -attribute.f, 0.0, float("nan"), 50.0))
        case onnx.AttributeProto.INTS:
            values = list(attribute.ints)
            first, second = choose.number(len(values)), choose.number(len(values))
            values[first], values[second] = values[second], values[first]
            attribute.ints[:] = values[: choose.number(len(values) + 1)] if choose.once_in(4) else values


def _change_constant(proto: onnx.ModelProto, choose: Choices) -> None:
    """A number in a small constant, or in any."""
    small = [tensor for tensor in proto.graph.initializer if np.prod(tensor.dims) <= 16]
    tensor = choose.of(small if small and not choose.once_in(3) else list(proto.graph.initializer))
    array = numpy_helper.to_array(tensor).copy()
    flat = array.reshape(-1)
    place = choose.number(len(flat))
    if array.dtype.kind == "f":
        flat[place] = choose.of((flat[place] * 1.1, flat[place] + 0.5, -flat[place], 0.0, np.inf, np.nan, 30.0))
    else:
        flat[place] = flat[place] + choose.of((1, -1, 2, 7))
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _change_sizes(proto: onnx.ModelProto, choose: Choices) -> None:
    tensor = choose.of(proto.graph.initializer)
    if tensor.dims:
        tensor.dims[choose.number(len(tensor.dims))] = choose.of(mutate.NUMBERS)


def _change_kind(proto: onnx.ModelProto, choose: Choices) -> None:
    """An operator for another one of its kind."""
    pairs = [(node, kinds) for node in proto.graph.node for kinds in _SIBLINGS if node.op_type in kinds]
    node, kinds = choose.of(pairs)
    node.op_type = choose.of(kinds)


def _change_wiring(proto: onnx.ModelProto, choose: Choices) -> None:
    node = choose.of(proto.graph.node)
    place = choose.number(len(node.input))
    if choose.once_in(3):
        other = choose.number(len(node.input))
        node.input[place], node.input[other] = node.input[other], node.input[place]
    else:
        node.input[place] = choose.of(list(choose.of(proto.graph.node).output))


def _insert_node(proto: onnx.ModelProto, choose: Choices) -> None:
    """An operator between two others, or a clip so wide that few texts reach it."""
    place = choose.number(len(proto.graph.node))
    node = proto.graph.node[place]
    output = choose.number(len(node.output))
    name = node.output[output]
    node.output[output] = f"{name}.before"
    new = helper.make_node(choose.of(_INSERTED), [f"{name}.before"], [name])
    if choose.once_in(3):
        limits = [numpy_helper.from_array(np.float32(sign * 6), f"{name}.{sign}") for sign in (-1, 1)]
        proto.graph.initializer.extend(limits)
        new = helper.make_node("Clip", [f"{name}.before", *(limit.name for limit in limits)], [name])
    nodes = [*proto.graph.node[: place + 1], new, *proto.graph.node[place + 1 :]]
    copies = [onnx.NodeProto.FromString(each.SerializeToString()) for each in nodes]
    del proto.graph.node[:]
    proto.graph.node.extend(copies)


def _change_interface(proto: onnx.ModelProto, choose: Choices) -> None:
    """Names, sizes, order and number of what goes in and out."""
    values = choose.of((proto.graph.input, proto.graph.output))
    value = choose.of(values)
    match choose.number(4):
        case 0:
            values.remove(value)
        case 1:
            name, other = value.name, choose.of(values).name
            value.name = choose.of((other, name.replace("0", "1"), name.replace("key", "value"), f"{name}x"))
            if choose.once_in(2):
                for node in proto.graph.node:
                    for names in (node.input, node.output):
                        names[:] = [value.name if each == name else each for each in names]
        case 2:
            shape = value.type.tensor_type.shape.dim
            shape[choose.number(len(shape))].dim_value = choose.of((1, 2, 3, 16, 80, 0, -1))
        case _:
            value.type.tensor_type.elem_type = choose.of((1, 6, 7, 9, 10, 11, 16))


def _exchange_outputs(proto: onnx.ModelProto, choose: Choices) -> None:
    """Two values of the graph's end for each other: keys for values, one layer for another."""
    makers = [node for node in proto.graph.node if node.output[0] in {value.name for value in proto.graph.output}]
    first, second = choose.of(makers), choose.of(makers)
    first.output[0], second.output[0] = second.output[0], first.output[0]


_CHANGES: tuple[Callable[[onnx.ModelProto, Choices], None], ...] = (
    *(_change_message, _change_attribute, _change_attribute, _change_constant, _change_constant, _change_sizes),
    *(_change_kind, _change_kind, _change_wiring, _insert_node, _insert_node, _change_interface, _exchange_outputs),
)
