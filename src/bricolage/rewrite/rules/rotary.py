"""Rotary position embedding of halves that an export wrote out in elementary operators: Su et al., "RoFormer", 2021."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from bricolage.device.tensor_form import Dimension
from bricolage.graph.constant_folding import constant_elements
from bricolage.graph.graph import describe
from bricolage.rewrite.analyses.elementwise import UNARY
from bricolage.rewrite.analyses.slices import any_slice, kept_ranges
from bricolage.rewrite.engine.matching import Match
from bricolage.rewrite.pattern import AnyValue, Op, op
from bricolage.rewrite.predicates import (
    integer,
    normalised,
    rank,
    require,
    scalar,
    shape,
    single_precision,
)
from bricolage.rewrite.rule import Example, MatchFailure, Operators, Result, Rule

x = AnyValue("x")

COS = np.random.default_rng(0).uniform(0.5, 1.5, (1, 1, 3, 2)).astype(np.float32)
TABLES = {"cos": np.concatenate([COS, COS], -1), "sin": np.concatenate([COS / 2, COS / 2], -1)}
_BEHIND = {name: table.reshape(3, 1, 4) for name, table in TABLES.items()}  # positions before heads
_HALVES = {"l": [0], "h": [2], "e": [2**31 - 1], "last": [3]}
_CUT = "first = Slice(x, l, h, last) second = Slice(x, h, e, last)"
_TURN = "n = Neg(second) r = Concat<axis=-1>(n, first) a = Mul(x, cos) b = Mul(r, sin) y = Add(a, b)"
_PAIRS = (
    "p = Mul(first, cos) q = Mul(second, sin) r = Mul(second, cos) s = Mul(first, sin) t = Sub(p, q) u = Add(r, s)"
    " y = Concat<axis=-1>(t, u)"
)
NARROW = {"cos": COS, "sin": COS / 2}
_ANGLES = "w = Concat<axis=-1>(f, f) g = Unsqueeze(w, one) cos = Cos(g) sin = Sin(g)"


def parts_of_x() -> list[tuple[Op, Op]]:
    """Two parts of x: by a Slice each, or by one Split."""
    sizes = AnyValue("parts", optional=True)
    split = (op.Split(x, sizes, name="split"), op.Split(x, sizes, name="split", output=1))
    return [(any_slice(x, "first"), any_slice(x, "second")), split]


def spans_of_halves(match: Match, size: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Ranges of the last axis, of that size, that the two parts have.

    Raises:
        MatchFailure: they are cut along another axis, or into more parts.
    """
    if "split" in match.nodes:
        split = match.node("split")
        require(len(split.outputs) == 2, "x is split into more than two parts")
        require(normalised([integer(split, "axis", 0)], 4) == (3,), "x is not cut along its last axis")
        middle = shape(split.outputs[0])[3]
        if not isinstance(middle, int):
            raise MatchFailure("the parts have no fixed size")
        return (0, middle), (middle, size)
    first, second = (kept_ranges(match.node(name)) for name in ("first", "second"))
    require(set(first) == set(second) == {3}, "x is not cut along its last axis")
    return first[3], second[3]


class RecogniseRotaryEmbedding(Rule):
    """x · cos + (-x₂, x₁) · sin = (x₁ · c - x₂ · s, x₂ · c + x₁ · s) = RotaryEmbedding(x, c, s)

    for x = (x₁, x₂) of rank 4, halved along its last axis, which has an even fixed size; cos = (c, c) and sin = (s, s), with one
    row for each position (and batch) that all heads share; heads before positions, or a fixed number of them behind; x of at most
    single precision; from opset 23.
    """

    family = "rotary"
    since = 23
    examples = (
        Example("float[2,5,3,4] x", f"{_CUT} {_TURN}", {**_HALVES, **TABLES}, opset=23),
        Example(
            "float[1,N,3,4] x",
            f"first, second = Split<axis=3, num_outputs=2>(x) {_TURN.replace('Mul(x, cos)', 'Mul(cos, x)')}",
            TABLES,
            opset=23,
        ),
        Example(
            "float[2,5,3,4] x, float[2,3,2] f",
            f"{_ANGLES} {_CUT} {_TURN}",
            {**_HALVES, "one": [1]},
            opset=23,
        ),
        Example("float[2,5,3,4] x", f"{_CUT} {_PAIRS}", {**_HALVES, **NARROW}, opset=23),
        Example(
            "float[1,5,3,4] x", f"first, second = Split<axis=-1>(x, k) {_PAIRS}", {**NARROW, "k": [2, 2]}, opset=23
        ),
        Example("float[2,3,5,4] x", f"{_CUT} {_TURN}", {**_HALVES, **_BEHIND}, opset=23),
    )
    counterexamples = (
        examples[0].but("are not equal", cos=(1, 1, 3, 4)),
        Example("float[2,3,H,4] x", f"{_CUT} {_TURN}", {**_HALVES, **_BEHIND}, opset=23, why="fixed number"),
        Example(
            "float[2,5,3,4] x, float[2,1,3,4] cos",
            f"{_CUT} {_TURN}",
            {**_HALVES, "sin": TABLES["sin"]},
            opset=23,
            why="not known to be equal",
        ),
        Example("float[2,5,3,4] x", f"{_CUT} {_TURN}", {**_HALVES, **TABLES, "l": [1]}, opset=23, why="not the halves"),
        examples[0].but("not cut along", h=[1], last=[2]),
        examples[0].but("rank 4", inputs="float[3,3,4] x", last=[2], cos=TABLES["cos"][0], sin=TABLES["sin"][0]),
        Example(
            "float[2,5,3,4] x",
            f"{_CUT} {_TURN}",
            {**_HALVES, **{name: np.broadcast_to(t, (1, 5, 3, 4)).copy() for name, t in TABLES.items()}},
            opset=23,
            why="one row for each position",
        ),
        Example("float[N,5,3,4] x", f"{_CUT} {_TURN}", {**_HALVES, **TABLES}, opset=23, why="batch"),
        Example("float[2,5,3,4] x", f"{_CUT} {_TURN}", {**_HALVES, **TABLES}, opset=22),
    )

    def patterns(self) -> Sequence[Op]:
        roots: list[Op] = []
        for first, second in parts_of_x():
            cos, sin = AnyValue("cos"), AnyValue("sin")
            turned = op.Concat(op.Neg(second), first, name="concat")
            roots.append(op.Add(op.Mul(x, cos), op.Mul(turned, sin), name="whole"))
            real = op.Sub(op.Mul(first, cos), op.Mul(second, sin))
            imaginary = op.Add(op.Mul(second, cos), op.Mul(first, sin))
            roots.append(op.Concat(real, imaginary, name="concat"))
        return roots

    def check(self, match: Match) -> None:
        value = match["x"]
        single_precision(value)
        data_shape = shape(value)
        require(len(data_shape) == 4, "x is not of rank 4")
        size = data_shape[3]
        if not isinstance(size, int) or size % 2:
            raise MatchFailure("the last axis has no even fixed size")
        require(
            normalised([integer(match.node("concat"), "axis", 0)], 4) == (3,),
            "the halves are not joined along the last axis",
        )
        require(
            spans_of_halves(match, size) == ((0, size // 2), (size // 2, size)),
            "they are not the halves of the last axis",
        )
        width = size if "whole" in match.nodes else size // 2
        heads_first(match, width)
        if "whole" in match.nodes:
            for name in ("cos", "sin"):
                _require_equal_halves(match[name])

    def rewrite(self, op: Operators, match: Match) -> Result:
        half = int(shape(match["x"])[3]) // 2
        cos, sin = (
            op.Slice(match[name], op.integers([0]), op.integers([half]), op.integers([-1]))
            if "whole" in match.nodes
            else match[name]
            for name in ("cos", "sin")
        )
        return turned_by(op, match, cos, sin)


def heads_first(match: Match, width: int) -> bool:
    """Whether x is (batch, heads, positions, size), by what the tables, of that width, broadcast over; otherwise it is
    (batch, positions, heads, size).

    Raises:
        MatchFailure: the tables are of neither form, or have another type or batch.
    """
    value, data_shape = match["x"], shape(match["x"])
    for first in (True, False):
        form = (1, data_shape[2], width) if first else (data_shape[1], 1, width)
        if all(_align_shape(match[name])[1:] == form for name in ("cos", "sin")) and "?" not in form:
            break
    else:
        raise MatchFailure("the tables have not one row for each position")
    for name in ("cos", "sin"):
        batch = _align_shape(match[name])[0]
        require(
            batch == data_shape[0] or (batch == 1 and isinstance(data_shape[0], int)), "the tables have another batch"
        )
        require(describe(match[name]).dtype == describe(value).dtype, f"'{match[name].name}' has another type")
    require(first or isinstance(data_shape[2], int), "the heads have no fixed number")
    return first


def _align_shape(table: ir.Value) -> tuple[Dimension, ...]:
    """The shape of a table as it broadcasts with a value of rank 4; empty where it has more axes."""
    table_shape = shape(table)
    return (1,) * (4 - len(table_shape)) + table_shape if len(table_shape) <= 4 else ()


def turned_by(op: Operators, match: Match, cos: ir.Value, sin: ir.Value, *, interleaved: bool = False) -> ir.Value:
    """RotaryEmbedding of x, by tables that still broadcast with it, with one number for each pair."""
    value, data_shape = match["x"], shape(match["x"])
    size = int(data_shape[3])
    first = heads_first(match, int(shape(match["cos"])[-1]))
    tables = []
    for table in (cos, sin):
        missing = 4 - rank(table)
        if missing:
            table = op.Unsqueeze(table, op.integers(list(range(missing))))
        table = op.Squeeze(table, op.integers([1 if first else 2]))
        if shape(table)[0] != data_shape[0]:
            table = op.Expand(table, op.integers([int(data_shape[0]), 1, 1]))
        tables.append(table)
    pairs = 1 if interleaved else None
    if first:
        return op.RotaryEmbedding(value, *tables, interleaved=pairs)
    heads = int(data_shape[2])
    flat = op.Reshape(value, op.integers([0, 0, heads * size]))
    turned = op.RotaryEmbedding(flat, *tables, interleaved=pairs, num_heads=heads)
    return op.Reshape(turned, op.integers([0, 0, heads, size]))


def _require_equal_halves(value: ir.Value) -> None:
    """The two halves of the last axis are equal: those of a constant, or of what functions of single elements and views of
    other axes make of Concat(f, f).

    Raises:
        MatchFailure
    """
    array = constant_elements(value)
    if array is not None:
        half = array.shape[-1] // 2
        require(np.array_equal(array[..., :half], array[..., half:]), f"the halves of '{value.name}' are not equal")
        return None
    node = value.producer()
    if node is not None and not node.domain and node.inputs and node.inputs[0] is not None:
        source = node.inputs[0]
        if node.op_type == "Concat" and len(node.inputs) == 2 and node.inputs[1] is source:
            require(
                normalised([integer(node, "axis", 0)], rank(value)) == (rank(value) - 1,),
                "they are joined elsewhere",
            )
            return None
        views = node.op_type in ("Unsqueeze", "Squeeze") and shape(source)[-1] == shape(value)[-1] != 1
        scales = node.op_type in ("Mul", "Div") and node.inputs[1] is not None and scalar(node.inputs[1])
        if node.op_type in UNARY or views or scales:
            return _require_equal_halves(source)
    raise MatchFailure(f"the halves of '{value.name}' are not known to be equal")
