"""Rotary position embedding that an export wrote out in elementary operators: Su et al., "RoFormer", 2021."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from bricolage.graph.folding import known
from bricolage.graph.graph import describe
from bricolage.rewrite.elementwise import UNARY
from bricolage.rewrite.facts import integer, normalised, rank, require, scalar, shape, single_precision
from bricolage.rewrite.matching import Match
from bricolage.rewrite.pattern import Any, Op, op
from bricolage.rewrite.rule import Example, Mismatch, Operators, Result, Rule
from bricolage.rewrite.slices import any_slice, kept_ranges

x = Any("x")

_COS = np.random.default_rng(0).uniform(0.5, 1.5, (1, 1, 3, 2)).astype(np.float32)
_TABLES = {"cos": np.concatenate([_COS, _COS], -1), "sin": np.concatenate([_COS / 2, _COS / 2], -1)}
_HALVES = {"l": [0], "h": [2], "e": [2**31 - 1], "last": [3]}
_CUT = "first = Slice(x, l, h, last) second = Slice(x, h, e, last)"
_TURN = "n = Neg(second) r = Concat<axis=-1>(n, first) a = Mul(x, cos) b = Mul(r, sin) y = Add(a, b)"
_PAIRS = (
    "p = Mul(first, cos) q = Mul(second, sin) r = Mul(second, cos) s = Mul(first, sin) t = Sub(p, q) u = Add(r, s)"
    " y = Concat<axis=-1>(t, u)"
)
_NARROW = {"cos": _COS, "sin": _COS / 2}
_ANGLES = "w = Concat<axis=-1>(f, f) g = Unsqueeze(w, one) cos = Cos(g) sin = Sin(g)"


def _parts_of_x() -> list[tuple[Op, Op]]:
    """Two parts of x: by a Slice each, or by one Split."""
    sizes = Any("parts", optional=True)
    split = (op.Split(x, sizes, name="split"), op.Split(x, sizes, name="split", output=1))
    return [(any_slice(x, "first"), any_slice(x, "second")), split]


def _spans(match: Match, size: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Ranges of the last axis, of that size, that the two parts have.

    Raises:
        Mismatch: they are cut along another axis, or into more parts.
    """
    if "split" in match.nodes:
        split = match.node("split")
        require(len(split.outputs) == 2, "x is split into more than two parts")
        require(normalised([integer(split, "axis", 0)], 4) == (3,), "x is not cut along its last axis")
        middle = shape(split.outputs[0])[3]
        if not isinstance(middle, int):
            raise Mismatch("the parts have no fixed size")
        return (0, middle), (middle, size)
    first, second = (kept_ranges(match.node(name)) for name in ("first", "second"))
    require(set(first) == set(second) == {3}, "x is not cut along its last axis")
    return first[3], second[3]


class RecogniseRotaryEmbedding(Rule):
    """x · cos + (-x₂, x₁) · sin = (x₁ · c - x₂ · s, x₂ · c + x₁ · s) = RotaryEmbedding(x, c, s)

    for x = (x₁, x₂) of rank 4, halved along its last axis, which has an even fixed size; cos = (c, c) and sin = (s, s), with one
    row for each position (and batch) that all heads share; x of at most single precision; from opset 23.
    """

    family = "rotary"
    since = 23
    examples = (
        Example("float[2,5,3,4] x", f"{_CUT} {_TURN}", {**_HALVES, **_TABLES}, opset=23),
        Example(
            "float[1,N,3,4] x",
            f"first, second = Split<axis=3, num_outputs=2>(x) {_TURN.replace('Mul(x, cos)', 'Mul(cos, x)')}",
            _TABLES,
            opset=23,
        ),
        Example(
            "float[2,5,3,4] x, float[2,3,2] f",
            f"{_ANGLES} {_CUT} {_TURN}",
            {**_HALVES, "one": [1]},
            opset=23,
        ),
        Example("float[2,5,3,4] x", f"{_CUT} {_PAIRS}", {**_HALVES, **_NARROW}, opset=23),
        Example(
            "float[1,5,3,4] x", f"first, second = Split<axis=-1>(x, k) {_PAIRS}", {**_NARROW, "k": [2, 2]}, opset=23
        ),
    )
    counterexamples = (
        Example(
            "float[2,5,3,4] x",
            f"{_CUT} {_TURN}",
            {**_HALVES, "cos": (1, 1, 3, 4), "sin": _TABLES["sin"]},
            opset=23,
            why="are not equal",
        ),
        Example(
            "float[2,5,3,4] x, float[2,1,3,4] cos",
            f"{_CUT} {_TURN}",
            {**_HALVES, "sin": _TABLES["sin"]},
            opset=23,
            why="not known to be equal",
        ),
        Example(
            "float[2,5,3,4] x", f"{_CUT} {_TURN}", {**_HALVES, **_TABLES, "l": [1]}, opset=23, why="not the halves"
        ),
        Example(
            "float[2,5,3,4] x",
            f"{_CUT} {_TURN}",
            {**_HALVES, **_TABLES, "last": [2], "h": [1]},
            opset=23,
            why="not cut along",
        ),
        Example(
            "float[3,3,4] x",
            f"{_CUT} {_TURN}",
            {**_HALVES, **_TABLES, "last": [2], "cos": _TABLES["cos"][0], "sin": _TABLES["sin"][0]},
            opset=23,
            why="rank 4",
        ),
        Example(
            "float[2,5,3,4] x",
            f"{_CUT} {_TURN}",
            {**_HALVES, **{name: np.broadcast_to(t, (1, 5, 3, 4)).copy() for name, t in _TABLES.items()}},
            opset=23,
            why="one row for each position",
        ),
        Example("float[N,5,3,4] x", f"{_CUT} {_TURN}", {**_HALVES, **_TABLES}, opset=23, why="batch"),
        Example("float[2,5,3,4] x", f"{_CUT} {_TURN}", {**_HALVES, **_TABLES}, opset=22),
    )

    def patterns(self) -> Sequence[Op]:
        found: list[Op] = []
        for first, second in _parts_of_x():
            cos, sin = Any("cos"), Any("sin")
            turned = op.Concat(op.Neg(second), first, name="concat")
            found.append(op.Add(op.Mul(x, cos), op.Mul(turned, sin), name="whole"))
            real = op.Sub(op.Mul(first, cos), op.Mul(second, sin))
            imaginary = op.Add(op.Mul(second, cos), op.Mul(first, sin))
            found.append(op.Concat(real, imaginary, name="concat"))
        return found

    def check(self, match: Match) -> None:
        value = match["x"]
        single_precision(value)
        own = shape(value)
        require(len(own) == 4, "x is not of rank 4")
        size = own[3]
        if not isinstance(size, int) or size % 2:
            raise Mismatch("the last axis has no even fixed size")
        require(
            normalised([integer(match.node("concat"), "axis", 0)], 4) == (3,),
            "the halves are not joined along the last axis",
        )
        require(_spans(match, size) == ((0, size // 2), (size // 2, size)), "they are not the halves of the last axis")
        width = size if "whole" in match.nodes else size // 2
        for name in ("cos", "sin"):
            table = match[name]
            aligned = (1,) * (4 - rank(table)) + shape(table)
            require(
                len(aligned) == 4 and aligned[1:] == (1, own[2], width) and own[2] != "?",
                f"'{table.name}' has not one row for each position",
            )
            require(
                aligned[0] == own[0] or (aligned[0] == 1 and isinstance(own[0], int)), "the tables have another batch"
            )
            require(describe(table).dtype == describe(value).dtype, f"'{table.name}' has another type")
            if "whole" in match.nodes:
                _require_equal_halves(table)

    def rewrite(self, op: Operators, match: Match) -> Result:
        cos, sin = (self._table(op, match, match[name]) for name in ("cos", "sin"))
        return op.RotaryEmbedding(match["x"], cos, sin)

    @staticmethod
    def _table(op: Operators, match: Match, table: ir.Value) -> ir.Value:
        """(batch, positions, size / 2)"""
        batch, _, _, size = shape(match["x"])
        if "whole" in match.nodes:
            table = op.Slice(table, op.integers([0]), op.integers([int(size) // 2]), op.integers([-1]))
        if rank(table) > 2:
            table = op.Squeeze(table, op.integers([-3]))
        if rank(table) == 2:
            table = op.Unsqueeze(table, op.integers([0]))
        if shape(table)[0] != batch:
            table = op.Expand(table, op.integers([int(batch), 1, 1]))
        return table


def _require_equal_halves(value: ir.Value) -> None:
    """The two halves of the last axis are equal: those of a constant, or of what functions of single elements and views of
    other axes make of Concat(f, f).

    Raises:
        Mismatch
    """
    array = known(value)
    if array is not None:
        half = array.shape[-1] // 2
        require(np.array_equal(array[..., :half], array[..., half:]), f"the halves of '{value.name}' are not equal")
        return None
    node = value.producer()
    if node is not None and not node.domain and node.inputs and node.inputs[0] is not None:
        source = node.inputs[0]
        if node.op_type == "Concat" and len(node.inputs) == 2 and node.inputs[1] is source:
            require(
                normalised([integer(node, "axis", 0)], rank(value)) == (rank(value) - 1,), "they are joined elsewhere"
            )
            return None
        views = node.op_type in ("Unsqueeze", "Squeeze") and shape(source)[-1] == shape(value)[-1] != 1
        scales = node.op_type in ("Mul", "Div") and node.inputs[1] is not None and scalar(node.inputs[1])
        if node.op_type in UNARY or views or scales:
            return _require_equal_halves(source)
    raise Mismatch(f"the halves of '{value.name}' are not known to be equal")


_PART = {"l": [0], "h": [2], "e": [2**31 - 1], "last": [3], "cos": (2, 3, 1), "sin": (2, 3, 1)}
_REST = (
    "first = Slice(x, l, h, last) second = Slice(x, h, e, last) r = RotaryEmbedding(first, cos, sin)"
    " y = Concat<axis=-1>(r, second)"
)


class PartialRotaryEmbedding(Rule):
    """(RotaryEmbedding(x₁), x₂) = RotaryEmbedding(x, size of x₁)

    for x = (x₁, x₂) of rank 4, cut along its last axis, of fixed size; from opset 23.
    """

    family = "rotary"
    since = 23
    examples = (
        Example("float[2,5,3,6] x", _REST, _PART, opset=23),
        Example(
            "float[2,N,3,6] x",
            "first, second = Split<axis=3>(x, k) r = RotaryEmbedding(first, cos, sin) y = Concat<axis=3>(r, second)",
            {**_PART, "k": [2, 4]},
            opset=23,
        ),
    )
    counterexamples = (
        Example(
            "float[2,5,3,6] x",
            _REST,
            {**_PART, "h": [4], "cos": (2, 3, 2), "sin": (2, 3, 2), "l": [2]},
            opset=23,
            why="cut",
        ),
        Example(
            "float[2,5,3,6] x",
            _REST.replace("axis=-1", "axis=2").replace("h, e", "l, h"),
            _PART,
            opset=23,
            why="joined",
        ),
        Example(
            "float[2,3,10] x",
            _REST.replace("RotaryEmbedding(", "RotaryEmbedding<num_heads=1>("),
            {**_PART, "last": [2]},
            opset=23,
            why="rank 4",
        ),
    )

    def patterns(self) -> Sequence[Op]:
        tables = (Any("cos"), Any("sin"), Any("positions", optional=True))
        found = []
        for first, second in _parts_of_x():
            turned = op.RotaryEmbedding(first, *tables, name="rotary")
            found.append(op.Concat(turned, second, name="concat"))
        return found

    def check(self, match: Match) -> None:
        own = shape(match["x"])
        require(len(own) == 4, "x is not of rank 4")
        require(
            normalised([integer(match.node("concat"), "axis", 0)], 4) == (3,), "they are not joined along the last axis"
        )
        size = own[3]
        if not isinstance(size, int):
            raise Mismatch("the last axis has no fixed size")
        (start, middle), (behind, end) = _spans(match, size)
        require(start == 0 and middle == behind and end == size, "x is not cut into two parts")
        require(not integer(match.node("rotary"), "rotary_embedding_dim", 0), "it is a part of x₁ that is turned")

    def rewrite(self, op: Operators, match: Match) -> Result:
        (_, size), _ = _spans(match, int(shape(match["x"])[3]))
        tables = (match["cos"], match["sin"], match.get("positions"))
        return op.copy(match.node("rotary"), match["x"], *tables, rotary_embedding_dim=size)
