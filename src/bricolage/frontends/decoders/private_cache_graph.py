"""A decoder's program for tools that keep the cache of each sequence apart: the forms in which they are at their best.

A program takes some tokens of one sequence. Inputs of a program of n rows:

| input | type | what |
|---|---|---|
| `x` | float32 [n, width] | embeddings, scaled |
| `before` | int64 [1] | tokens of the sequence in front of these |
| `last` | int64 [1] | the row whose logits are wanted, in a program for prompts |
| `keys_i`, `values_i` | float32 [1, key_heads, longest, head_size] | the cache of layer i |

Outputs: `logits` float32 [n or 1, vocabulary], then `present_keys_i`, `present_values_i`. Rows at the end that are no tokens do no
harm: no row in front of them sees them, and the next tokens take their places.

Two forms differ in what is present. `grouped` writes into the cache by `GroupQueryAttention`, whose past and present are one
memory: ONNX Runtime's own way. `divided` gives the new rows alone, float32 [1, key_heads, n, head_size]; scores of the cache and
of the new rows are joined, so that nothing copies the cache: for tools that cannot write in place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx_ir as ir

from bricolage.frontends.decoders.decoder_description import (
    DecoderDescription,
    LayerDescription,
    Matrix,
    RotaryEmbedding,
    matrix_numbers,
)
from bricolage.frontends.decoders.decoder_graph import DecoderGraphWriter
from bricolage.graph.quantised_blocks import QuantisedBlocks

CacheForm = Literal["grouped", "divided"]
_TURNED = 16
"""Heads that GroupQueryAttention turns have a multiple of this size."""
_UNSEEN = -1e30
"""A score that no softmax sees."""


@dataclass(frozen=True)
class PrivateCacheProgram:
    """Which program of a decoder."""

    rows: int
    """Tokens that it takes."""
    longest: int
    """Tokens that a cache has room for."""
    form: CacheForm
    last_row_alone: bool = False
    """Whether it computes the logits of one row only."""
    wide: bool = True
    """Whether products are of float32: a tool may be told to multiply bytes."""
    in_bytes: bool = False
    """Never: whether rows become bytes is told to the tool, not written into the model."""

    @property
    def positions(self) -> int:
        """That there are: new rows of the `divided` form stand behind a full cache."""
        return self.longest + self.rows


def build_private_cache_graph(decoder: DecoderDescription, program: PrivateCacheProgram) -> ir.Model:
    """The model of one program; see the head of this file."""
    kind = _GroupedWriter if program.form == "grouped" else _DividedWriter
    return kind(decoder, program).write()


class _PrivateWriter(DecoderGraphWriter):
    """What both forms have."""

    def __init__(self, decoder: DecoderDescription, program: PrivateCacheProgram) -> None:
        super().__init__(decoder, program)
        self._program = program

    def _declare_places(self) -> None:
        self._before = self._input("before", ir.DataType.INT64, [1])
        self._behind = self._add("Add", self._before, self._integers("rows", np.arange(self._program.rows)))

    def _position(self) -> ir.Value:
        return self._behind

    def _caches(self, number: int) -> list[ir.Value]:
        decoder = self._decoder
        shape = [1, decoder.key_heads, self._program.longest, decoder.head_size]
        return [self._input(f"{kind}_{number}", ir.DataType.FLOAT, shape) for kind in ("keys", "values")]

    def _present(self, value: ir.Value, name: str, number: int, rows: int) -> ir.Value:
        decoder = self._decoder
        value.name = f"present_{name}_{number}"
        return self._shaped(value, [1, decoder.key_heads, rows, decoder.head_size])

    def _integers(self, name: str, numbers: np.ndarray) -> ir.Value:
        return self._constant(name, np.asarray(numbers, np.int64))


class _GroupedWriter(_PrivateWriter):
    """The operator turns queries and keys, writes them, and attends. Blocks become floats where ONNX Runtime 1.31.1 has no packed
    kernel, and would unpack them at each call: zero points that are no integers, and 8 bits unless rows become bytes."""

    def _product(self, x: ir.Value, matrix: Matrix, name: str, rows: int | None = None) -> ir.Value:
        if isinstance(matrix, QuantisedBlocks) and (
            matrix.zeros is not None or (matrix.bits == 8 and self._program.wide)
        ):
            matrix = matrix_numbers(matrix)
        return super()._product(x, matrix, name, rows)

    def _declare_places(self) -> None:
        super()._declare_places()
        self._turns = self._decoder.head_size % _TURNED == 0
        rows, halves = self._program.rows, {}
        total = self._add("Add", self._before, self._integers("count", np.array([rows])))
        ends = self._add("Sub", total, self._integers("one_row", np.array([1])))
        scalar = self._add("Reshape", total, self._integers("scalar", np.zeros(0)))
        self._counts = [self._add("Cast", value, to=ir.DataType.INT32.value) for value in (ends, scalar)]
        for layer in self._decoder.layers:
            turns = np.outer(np.arange(self._program.positions, dtype=np.float64), layer.rope.frequencies)
            halves[layer.rope.frequencies.tobytes()] = turns
        self._halves = {
            key: [
                self._constant(f"{function.__name__}_half_{number}", function(turns).astype(np.float32))
                for function in (np.cos, np.sin)
            ]
            for number, (key, turns) in enumerate(halves.items())
        }

    def _turned(self, x: ir.Value, heads: int, rope: RotaryEmbedding, norm: np.ndarray | None, name: str) -> ir.Value:
        """Heads normalised where there are weights for it; the operator turns them, if it takes their size."""
        if not self._turns:
            return super()._turned(x, heads, rope, norm, name)
        if norm is None:
            return x
        rows, size = self._program.rows, self._decoder.head_size
        apart = self._norm(self._add("Reshape", x, self._shape([rows, heads, size])), norm, name)
        return self._add("Reshape", apart, self._shape([rows, heads * size]))

    def _attend(
        self,
        query: ir.Value,
        key: ir.Value,
        value: ir.Value,
        layer: LayerDescription,
        number: int,
        presents: list[ir.Value],
    ) -> ir.Value:
        decoder, rows = self._decoder, self._program.rows
        sizes = (decoder.heads, decoder.key_heads, decoder.key_heads)
        given = [
            self._add("Reshape", x, self._shape([1, rows, heads * decoder.head_size]))
            for x, heads in zip((query, key, value), sizes, strict=True)
        ]
        words: dict[str, int | float | str] = {"num_heads": decoder.heads, "kv_num_heads": decoder.key_heads}
        words |= {"scale": float(decoder.query_scale), "do_rotary": int(self._turns)}
        if layer.sliding_window is not None:
            words["local_window_size"] = layer.sliding_window
        if decoder.attention_softcap is not None:
            words["softcap"] = float(decoder.attention_softcap)
        angles = self._halves[layer.rope.frequencies.tobytes()] if self._turns else ()
        inputs = [*given, *self._caches(number), *self._counts, *angles]
        node = ir.node(
            "GroupQueryAttention", inputs, words, domain="com.microsoft", num_outputs=3, name=f"attend_{number}"
        )
        node.outputs[0].name = f"attended_{number}"
        self._nodes.append(node)
        presents += [
            self._present(output, kind, number, self._program.longest)
            for output, kind in zip(node.outputs[1:], ("keys", "values"), strict=True)
        ]
        return self._add("Reshape", node.outputs[0], self._shape([rows, decoder.heads * decoder.head_size]))


class _DividedWriter(_PrivateWriter):
    """Standard operators: attention to the cache and to the new rows, in one softmax."""

    def _declare_places(self) -> None:
        super()._declare_places()
        self._masks: dict[int | None, ir.Value] = {}

    def _attend(
        self,
        query: ir.Value,
        key: ir.Value,
        value: ir.Value,
        layer: LayerDescription,
        number: int,
        presents: list[ir.Value],
    ) -> ir.Value:
        decoder, rows, longest = self._decoder, self._program.rows, self._program.longest
        groups, size = decoder.key_heads, decoder.head_size
        group = decoder.heads // groups
        split = self._add("Reshape", query, self._shape([rows, groups, group, size]))
        split = self._add_with("Transpose", [split], {"perm": [1, 2, 0, 3]})
        split = self._add("Reshape", split, self._shape([1, groups, group * rows, size]))
        split = self._add("Mul", split, self._constant("scale", np.array(decoder.query_scale, np.float32)))
        new = []
        for kind, x in (("keys", key), ("values", value)):
            apart = self._add("Reshape", x, self._shape([1, rows, groups, size]))
            new.append(self._present(self._add_with("Transpose", [apart], {"perm": [0, 2, 1, 3]}), kind, number, rows))
        presents += new
        old_keys, old_values = self._caches(number)
        scores = [
            self._add("MatMul", split, self._add_with("Transpose", [keys], {"perm": [0, 1, 3, 2]}))
            for keys in (old_keys, new[0])
        ]
        joined = self._add("Concat", *scores, axis=3)
        if decoder.attention_softcap is not None:
            joined = self._capped(joined, decoder.attention_softcap)
        weights = self._add("Softmax", self._add("Add", joined, self._mask(layer.sliding_window)), axis=-1)
        parts = [self._part(weights, 0, longest), self._part(weights, longest, longest + rows)]
        mixed = self._add("Add", self._add("MatMul", parts[0], old_values), self._add("MatMul", parts[1], new[1]))
        mixed = self._add("Reshape", mixed, self._shape([groups, group, rows, size]))
        mixed = self._add_with("Transpose", [mixed], {"perm": [2, 0, 1, 3]})
        return self._add("Reshape", mixed, self._shape([rows, decoder.heads * size]))

    def _part(self, weights: ir.Value, first: int, end: int) -> ir.Value:
        bounds = [self._integers(f"place_{number}", np.array([number])) for number in (first, end, 3)]
        return self._add("Slice", weights, *bounds)

    def _mask(self, window: int | None) -> ir.Value:
        """What is added to scores [heads of a key head · rows, longest + rows]: 0 where a row sees a token."""
        if window not in self._masks:
            rows, longest = self._program.rows, self._program.longest
            old = np.arange(longest, dtype=np.int64)
            written = self._add("Less", self._integers("old", old), self._before)
            seen = self._add("Expand", written, self._shape([rows, longest]))
            if window is not None:
                column = self._add("Reshape", self._behind, self._shape([rows, 1]))
                distance = self._add("Sub", column, self._integers("old", old))
                near = self._add("Less", distance, self._integers(f"window_{window}", np.array([window])))
                seen = self._add("And", seen, near)
            behind = np.arange(rows)[:, None] - np.arange(rows)
            inside = (behind >= 0) & (behind < (window or rows))
            seen = self._add("Concat", seen, self._constant(f"inside_{window}", inside), axis=1)
            zero, unseen = (self._constant(f"add_{i}", np.array(x, np.float32)) for i, x in enumerate((0.0, _UNSEEN)))
            mask, group = self._add("Where", seen, zero, unseen), self._decoder.heads // self._decoder.key_heads
            self._masks[window] = self._add("Concat", *[mask] * group, axis=0)
        return self._masks[window]


def choose_cache_form(backend: str) -> CacheForm:
    """The form for a backend, by its name."""
    return "grouped" if backend == "onnxruntime" else "divided"


def round_cache_up(tokens: int) -> int:
    """Room of a cache in the `divided` form: the size is a shape, so there are few of them. 128, doubled as often as needed."""
    longest = 128
    while longest < tokens:
        longest *= 2
    return longest
