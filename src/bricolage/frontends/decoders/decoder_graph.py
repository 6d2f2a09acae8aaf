"""A decoder as an ONNX model of standard operators, over a cache that outlives a run.

A program takes some rows, each a token of any sequence: one form serves prompts, steps of several sequences and drafts to be
checked. The cache of a layer is a pool of rows [rows, key_heads · head_size] of keys, and one of values, in which the tokens of a
sequence lie one behind another. Inputs of a program of n rows:

| input | type | what |
|---|---|---|
| `x` | float32 [n, width] | embeddings, scaled |
| `places` | int64 [n, 1] | row of the pool that each token's key and value go to |
| `starts` | int64 [n, 1] | first row of its sequence |
| `lengths` | int64 [n] | tokens of its sequence up to itself: its position + 1; 0 for a row that is not used |
| `window_starts`, `window_lengths` | as the last two | the same within a sliding window, where layers have one |
| `last` | int64 [1] | the row whose logits are wanted, in a program for prompts |
| `keys_i`, `values_i` | float16, float32 or int8 [rows, ...] | pools of layer i |
| `keys_scales_i`, `values_scales_i` | float16 [rows, ... / 32] | of int8: the pools are then each followed by these |

Outputs: `logits` float32 [n or 1, vocabulary], then `present_keys_i`, `present_values_i` (each followed by its scales, as the
inputs are): the pools with the new rows. A caller binds both to one memory, and a token then writes its row alone.

Keys lie in the pool with their positions turned into them, so attention need not know positions: a sliding window is a later start.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import onnx_ir as ir

from bricolage.frontends.decoders.decoder_description import (
    DecoderDescription,
    LayerDescription,
    Matrix,
    RotaryEmbedding,
    matrix_numbers,
)
from bricolage.frontends.decoders.decoder_program import SCALED, DecoderProgram
from bricolage.graph.quantised_blocks import QuantisedBlocks

__all__ = ["DecoderProgram", "build_decoder_graph", "cache_names"]

_LEAST_SCALE = 2.0**-14
"""The smallest normal number of float16: what is smaller than a 256th of it is kept as zero."""
_OPSET, _MICROSOFT = 24, "com.microsoft"
_SWAP = {"first": 1, "behind": -3, "axis": 2, "step": -1}
"""Slice that puts the second of two halves before the first."""
Words = Mapping[str, int | float | str | Sequence[int]]
"""Attributes of an operator."""
_IN_BYTES = 4
"""`accuracy_level` of MatMulNBits that lets rows become bytes."""


def build_decoder_graph(decoder: DecoderDescription, program: DecoderProgram) -> ir.Model:
    """The model of one program; see the head of this file."""
    return PooledGraphWriter(decoder, program).write()


def cache_names(decoder: DecoderDescription) -> list[tuple[str, str]]:
    """Names of the pools as inputs and as outputs, layer by layer, keys first."""
    kinds = ("keys", "values")
    return [(f"{kind}_{i}", f"present_{kind}_{i}") for i in range(len(decoder.layers)) for kind in kinds]


class ProgramForm(Protocol):
    """What all forms of a program have; see `DecoderProgram`."""

    @property
    def rows(self) -> int:
        """Tokens that it takes."""
        ...

    @property
    def positions(self) -> int:
        """That there are."""
        ...

    @property
    def last_row_alone(self) -> bool:
        """Whether it computes the logits of one row only."""
        ...

    @property
    def in_bytes(self) -> bool:
        """Whether rows may be rounded to bytes where weights are integers."""
        ...


class DecoderGraphWriter(ABC):
    """Nodes and constants in the making: a decoder but for its cache, which is a matter of the form."""

    def __init__(self, decoder: DecoderDescription, program: ProgramForm) -> None:
        self._decoder, self._form = decoder, program
        self._nodes: list[ir.Node] = []
        self._constants: dict[str, ir.Value] = {}
        self._inputs: list[ir.Value] = []
        self._angles: dict[bytes, tuple[ir.Value, ir.Value]] = {}

    @abstractmethod
    def _declare_places(self) -> None:
        """Inputs that say where the rows stand."""

    @abstractmethod
    def _position(self) -> ir.Value:
        """Of each token, int64 [rows]."""

    @abstractmethod
    def _attend(
        self,
        query: ir.Value,
        key: ir.Value,
        value: ir.Value,
        layer: LayerDescription,
        number: int,
        presents: list[ir.Value],
    ) -> ir.Value:
        """[rows, heads · head_size], from [rows, heads · head_size] of each; adds what the cache becomes to `presents`."""

    def write(self) -> ir.Model:
        """The model of the program."""
        decoder, program = self._decoder, self._form
        rows = program.rows
        x = self._input("x", ir.DataType.FLOAT, [rows, decoder.width])
        self._declare_places()
        last = self._input("last", ir.DataType.INT64, [1]) if program.last_row_alone else None
        presents: list[ir.Value] = []
        for number, layer in enumerate(decoder.layers):
            x = self._add("Add", x, self._attention(x, layer, number, presents))
            x = self._add("Add", x, self._feed_forward(x, layer, number))
        if last is not None:
            x = self._add("Gather", x, last, axis=0)
        head = decoder.embedding if decoder.head is None else decoder.head
        count = rows if last is None else 1
        logits = self._product(self._norm(x, decoder.norm, "norm"), head, "head", count)
        if decoder.logit_softcap is not None:
            logits = self._capped(logits, decoder.logit_softcap)
        logits.name = "logits"
        outputs = [self._shaped(logits, [count, decoder.vocabulary]), *presents]
        graph = ir.Graph(
            self._inputs,
            outputs,
            nodes=self._nodes,
            initializers=list(self._constants.values()),
            opset_imports={"": _OPSET, _MICROSOFT: 1},
            name="decoder",
        )
        return ir.Model(graph, ir_version=11)

    def _attention(self, x: ir.Value, layer: LayerDescription, number: int, presents: list[ir.Value]) -> ir.Value:
        decoder = self._decoder
        h = self._norm(x, layer.attention_norm, f"attention_norm_{number}")
        query, key, value = (
            self._biased(self._product(h, matrix, f"{role}_{number}"), bias, f"{role}_bias_{number}")
            for role, matrix, bias in (
                ("query", layer.query, layer.query_bias),
                ("key", layer.key, layer.key_bias),
                ("value", layer.value, layer.value_bias),
            )
        )
        query = self._turned(query, decoder.heads, layer.rope, layer.query_norm, f"query_norm_{number}")
        key = self._turned(key, decoder.key_heads, layer.rope, layer.key_norm, f"key_norm_{number}")
        flat = self._attend(query, key, value, layer, number, presents)
        result = self._product(flat, layer.output, f"output_{number}")
        if layer.attention_post_norm is None:
            return result
        return self._norm(result, layer.attention_post_norm, f"attention_post_norm_{number}")

    def _feed_forward(self, x: ir.Value, layer: LayerDescription, number: int) -> ir.Value:
        h = self._norm(x, layer.feed_forward_norm, f"feed_forward_norm_{number}")
        gate = self._product(h, layer.gate, f"gate_{number}")
        up = self._product(h, layer.up, f"up_{number}")
        if self._decoder.activation == "silu":
            active = self._add("Mul", gate, self._add("Sigmoid", gate))
        else:
            active = self._add("Gelu", gate, approximate="tanh")
        result = self._product(self._add("Mul", active, up), layer.down, f"down_{number}")
        if layer.feed_forward_post_norm is None:
            return result
        return self._norm(result, layer.feed_forward_post_norm, f"feed_forward_post_norm_{number}")

    def _turned(self, x: ir.Value, heads: int, rope: RotaryEmbedding, norm: np.ndarray | None, name: str) -> ir.Value:
        """Heads [rows, heads · size], each normalised where there are weights for it, turned by their positions."""
        rows, size = self._form.rows, self._decoder.head_size
        x = self._add("Reshape", x, self._shape([rows, heads, size]))
        if norm is not None:
            x = self._norm(x, norm, name)
        cosine, sine = self._angles_of(rope)
        halves = self._add("Reshape", x, self._shape([rows, heads, 2, size // 2]))
        backwards = (self._constant(f"swap_{key}", np.array([n], np.int64)) for key, n in _SWAP.items())
        other = self._add("Reshape", self._add("Slice", halves, *backwards), self._shape([rows, heads, size]))
        turned = self._add("Add", self._add("Mul", x, cosine), self._add("Mul", other, sine))
        return self._add("Reshape", turned, self._shape([rows, heads * size]))

    def _angles_of(self, rope: RotaryEmbedding) -> tuple[ir.Value, ir.Value]:
        """Cosines and sines [rows, 1, size] of the tokens' positions; the sine of a pair's first number is negative."""
        key = rope.frequencies.tobytes()
        if key not in self._angles:
            number = len(self._angles)
            turns = np.outer(np.arange(self._form.positions, dtype=np.float64), rope.frequencies)
            cosines = np.concatenate([np.cos(turns)] * 2, axis=1).astype(np.float32)[:, None]
            sines = np.concatenate([-np.sin(turns), np.sin(turns)], axis=1).astype(np.float32)[:, None]
            position = self._position()
            self._angles[key] = (
                self._add("Gather", self._constant(f"cosines_{number}", cosines), position, axis=0),
                self._add("Gather", self._constant(f"sines_{number}", sines), position, axis=0),
            )
        return self._angles[key]

    def _norm(self, x: ir.Value, weight: np.ndarray, name: str) -> ir.Value:
        scale = self._constant(name, np.asarray(weight, np.float32))
        return self._add("RMSNormalization", x, scale, axis=-1, epsilon=float(self._decoder.epsilon))

    def _biased(self, x: ir.Value, bias: np.ndarray | None, name: str) -> ir.Value:
        return x if bias is None else self._add("Add", x, self._constant(name, np.asarray(bias, np.float32)))

    def _capped(self, x: ir.Value, cap: float) -> ir.Value:
        bound = self._constant("cap", np.array(cap, np.float32))
        return self._add("Mul", self._add("Tanh", self._add("Div", x, bound)), bound)

    def _product(self, x: ir.Value, matrix: Matrix, name: str, rows: int | None = None) -> ir.Value:
        """x · matrixᵀ; x has as many rows as the program unless told otherwise. Its shape is stated: onnx knows nothing of products
        of blocks, and would be asked again behind each."""
        if not isinstance(matrix, QuantisedBlocks):
            numbers = np.ascontiguousarray(matrix_numbers(matrix).T)
            return self._add("MatMul", x, self._constant(name, numbers))
        given = [x, self._constant(f"{name}.integers", matrix.packed.reshape(matrix.n, matrix.scales.shape[1], -1))]
        given.append(self._constant(f"{name}.scales", matrix.scales.reshape(-1)))
        if matrix.zeros is not None:
            given.append(self._constant(f"{name}.zeros", matrix.zeros.reshape(-1)))
        words = {"K": matrix.k, "N": matrix.n, "bits": matrix.bits, "block_size": matrix.block}
        level = _IN_BYTES if self._form.in_bytes else 0
        result = self._add("MatMulNBits", *given, domain=_MICROSOFT, accuracy_level=level, **words)
        return self._shaped(result, [self._form.rows if rows is None else rows, matrix.n])

    def _shape(self, sizes: Sequence[int]) -> ir.Value:
        return self._constant(f"as_{'_'.join(map(str, sizes))}", np.array(sizes, np.int64))

    def _constant(self, name: str, array: np.ndarray) -> ir.Value:
        if name not in self._constants:
            tensor = ir.tensor(np.ascontiguousarray(array).reshape(array.shape), name=name)
            self._constants[name] = ir.Value(
                name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor
            )
        return self._constants[name]

    def _input(self, name: str, kind: ir.DataType, shape: Sequence[int]) -> ir.Value:
        value = ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(kind))
        self._inputs.append(value)
        return value

    def _shaped(self, value: ir.Value, shape: Sequence[int], kind: ir.DataType = ir.DataType.FLOAT) -> ir.Value:
        value.shape, value.type = ir.Shape(shape), ir.TensorType(kind)
        return value

    def _add(self, kind: str, *inputs: ir.Value | None, domain: str = "", **words: int | float | str) -> ir.Value:
        return self._add_with(kind, inputs, words, domain)

    def _add_with(self, kind: str, inputs: Sequence[ir.Value | None], words: Words, domain: str = "") -> ir.Value:
        name = f"{kind}_{len(self._nodes)}"
        node = ir.node(kind, list(inputs), dict(words), domain=domain, name=name)
        node.outputs[0].name = name
        self._nodes.append(node)
        return node.outputs[0]


class PooledGraphWriter(DecoderGraphWriter):
    """The form at the head of this file."""

    def __init__(self, decoder: DecoderDescription, program: DecoderProgram) -> None:
        super().__init__(decoder, program)
        self._program = program
        self._rows: dict[bool, tuple[ir.Value, ir.Value]] = {}

    def _declare_places(self) -> None:
        self._places = self._input("places", ir.DataType.INT64, [self._program.rows, 1])
        self._rows[False] = self._extent("starts", "lengths")
        if any(layer.sliding_window is not None for layer in self._decoder.layers):
            self._rows[True] = self._extent("window_starts", "window_lengths")

    def _extent(self, starts: str, lengths: str) -> tuple[ir.Value, ir.Value]:
        """Which rows of a pool each token sees: their numbers [rows, longest], and how many count."""
        rows = self._program.rows
        begin = self._input(starts, ir.DataType.INT64, [rows, 1])
        count = self._input(lengths, ir.DataType.INT64, [rows])
        behind = self._constant("behind", np.arange(self._program.longest, dtype=np.int64))
        return self._add("Add", begin, behind), count

    def _position(self) -> ir.Value:
        """Of each token; -1, which names the last one, of a row that is not used."""
        _, lengths = self._rows[False]
        if not hasattr(self, "_positions"):
            self._positions = self._add("Sub", lengths, self._constant("one", np.array(1, np.int64)))
        return self._positions

    def _attend(
        self,
        query: ir.Value,
        key: ir.Value,
        value: ir.Value,
        layer: LayerDescription,
        number: int,
        presents: list[ir.Value],
    ) -> ir.Value:
        decoder = self._decoder
        gathered, count = self._rows[layer.sliding_window is not None]
        seen = list[ir.Value]()
        for kind, updates in (("keys", key), ("values", value)):
            if self._program.cache == "q8_0":
                written = self._written_bytes(kind, number, updates)
                integers, scales = (self._add("Gather", present, gathered, axis=0) for present in written)
                wide = self._add("Cast", scales, to=ir.DataType.FLOAT.value)
                seen.append(self._add("DequantizeLinear", integers, wide, axis=2, block_size=SCALED))
            else:
                written = [self._written(f"{kind}_{number}", updates)]
                seen.append(self._cast(self._add("Gather", written[0], gathered, axis=0), ir.DataType.FLOAT))
            presents += written
        apart = self._shape([self._program.rows, 1, decoder.heads * decoder.head_size])
        given = [self._add("Reshape", query, apart), *seen, None, None, None, count]
        words: dict[str, int | float | str] = {"q_num_heads": decoder.heads, "kv_num_heads": decoder.key_heads}
        words["scale"] = float(decoder.query_scale)
        if decoder.attention_softcap is not None:
            words["softcap"] = float(decoder.attention_softcap)
        mixed = self._add_with("Attention", given, words)
        return self._add("Reshape", mixed, self._shape([self._program.rows, decoder.heads * decoder.head_size]))

    def _written(self, name: str, updates: ir.Value) -> ir.Value:
        """A pool with new rows in their places."""
        kind = ir.DataType[self._program.cache.upper().replace("FLOAT32", "FLOAT")]
        return self._scattered(name, self._cast(updates, kind), kind, self._decoder.key_heads * self._decoder.head_size)

    def _written_bytes(self, kind: str, number: int, updates: ir.Value) -> list[ir.Value]:
        """A pool of bytes with new rows in their places, and that of their scales: the largest of a block becomes 127."""
        rows, width = self._program.rows, self._decoder.key_heads * self._decoder.head_size
        blocks = self._add("Reshape", updates, self._shape([rows, width // SCALED, SCALED]))
        axes = self._constant("of_a_block", np.array([2], np.int64))
        largest = self._add("ReduceMax", self._add("Abs", blocks), axes, keepdims=1)
        scale = self._add("Mul", largest, self._constant("to_bytes", np.array(1 / 127, np.float32)))
        scale = self._add("Max", scale, self._constant("least_scale", np.array(_LEAST_SCALE, np.float32)))
        half = self._add("Cast", scale, to=ir.DataType.FLOAT16.value)
        steps = self._add("Div", blocks, self._add("Cast", half, to=ir.DataType.FLOAT.value))
        integers = self._add("Cast", self._add("Round", steps), to=ir.DataType.INT8.value)
        flat = self._add("Reshape", integers, self._shape([rows, width]))
        scales = self._add("Reshape", half, self._shape([rows, width // SCALED]))
        return [
            self._scattered(f"{kind}_{number}", flat, ir.DataType.INT8, width),
            self._scattered(f"{kind}_scales_{number}", scales, ir.DataType.FLOAT16, width // SCALED),
        ]

    def _scattered(self, name: str, updates: ir.Value, kind: ir.DataType, width: int) -> ir.Value:
        shape = [self._program.pool, width]
        present = self._add("ScatterND", self._input(name, kind, shape), self._places, updates)
        present.name = f"present_{name}"
        return self._shaped(present, shape, kind)

    def _cast(self, x: ir.Value, kind: ir.DataType) -> ir.Value:
        return x if self._program.cache == "float32" else self._add("Cast", x, to=kind.value)
