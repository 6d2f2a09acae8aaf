"""Rotary position embedding that an export wrote out in elementary operators: Su et al., "RoFormer", 2021."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from bricolage.graph.folding import known
from bricolage.graph.graph import Dimension, describe
from bricolage.rewrite.elementwise import UNARY
from bricolage.rewrite.matching import Match
from bricolage.rewrite.pattern import AnyValue, Op, op
from bricolage.rewrite.predicates import (
    axes,
    integer,
    integers,
    normalised,
    rank,
    require,
    same_elements,
    scalar,
    shape,
    single_precision,
)
from bricolage.rewrite.rule import Example, MatchFailure, Operators, Result, Rule
from bricolage.rewrite.slices import any_slice, kept_positions, kept_ranges

x = AnyValue("x")

_COS = np.random.default_rng(0).uniform(0.5, 1.5, (1, 1, 3, 2)).astype(np.float32)
_TABLES = {"cos": np.concatenate([_COS, _COS], -1), "sin": np.concatenate([_COS / 2, _COS / 2], -1)}
_BEHIND = {name: table.reshape(3, 1, 4) for name, table in _TABLES.items()}  # positions before heads
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
    sizes = AnyValue("parts", optional=True)
    split = (op.Split(x, sizes, name="split"), op.Split(x, sizes, name="split", output=1))
    return [(any_slice(x, "first"), any_slice(x, "second")), split]


def _spans(match: Match, size: int) -> tuple[tuple[int, int], tuple[int, int]]:
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
        Example("float[2,3,5,4] x", f"{_CUT} {_TURN}", {**_HALVES, **_BEHIND}, opset=23),
    )
    counterexamples = (
        Example(
            "float[2,5,3,4] x",
            f"{_CUT} {_TURN}",
            {**_HALVES, "cos": (1, 1, 3, 4), "sin": _TABLES["sin"]},
            opset=23,
            why="are not equal",
        ),
        Example("float[2,3,H,4] x", f"{_CUT} {_TURN}", {**_HALVES, **_BEHIND}, opset=23, why="fixed number"),
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
            cos, sin = AnyValue("cos"), AnyValue("sin")
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
            raise MatchFailure("the last axis has no even fixed size")
        require(
            normalised([integer(match.node("concat"), "axis", 0)], 4) == (3,),
            "the halves are not joined along the last axis",
        )
        require(_spans(match, size) == ((0, size // 2), (size // 2, size)), "they are not the halves of the last axis")
        width = size if "whole" in match.nodes else size // 2
        _heads_first(match, width)
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
        return _turned(op, match, cos, sin)


def _heads_first(match: Match, width: int) -> bool:
    """Whether x is (batch, heads, positions, size), by what the tables, of that width, broadcast over; otherwise it is
    (batch, positions, heads, size).

    Raises:
        MatchFailure: the tables are of neither form, or have another type or batch.
    """
    value, own = match["x"], shape(match["x"])
    for first in (True, False):
        form = (1, own[2], width) if first else (own[1], 1, width)
        if all(_aligned(match[name])[1:] == form for name in ("cos", "sin")) and "?" not in form:
            break
    else:
        raise MatchFailure("the tables have not one row for each position")
    for name in ("cos", "sin"):
        batch = _aligned(match[name])[0]
        require(batch == own[0] or (batch == 1 and isinstance(own[0], int)), "the tables have another batch")
        require(describe(match[name]).dtype == describe(value).dtype, f"'{match[name].name}' has another type")
    require(first or isinstance(own[2], int), "the heads have no fixed number")
    return first


def _aligned(table: ir.Value) -> tuple[Dimension, ...]:
    """The shape of a table as it broadcasts with a value of rank 4; empty where it has more axes."""
    own = shape(table)
    return (1,) * (4 - len(own)) + own if len(own) <= 4 else ()


def _turned(op: Operators, match: Match, cos: ir.Value, sin: ir.Value, *, interleaved: bool = False) -> ir.Value:
    """RotaryEmbedding of x, by tables that still broadcast with it, with one number for each pair."""
    value, own = match["x"], shape(match["x"])
    size = int(own[3])
    first = _heads_first(match, int(shape(match["cos"])[-1]))
    tables = []
    for table in (cos, sin):
        missing = 4 - rank(table)
        if missing:
            table = op.Unsqueeze(table, op.integers(list(range(missing))))
        table = op.Squeeze(table, op.integers([1 if first else 2]))
        if shape(table)[0] != own[0]:
            table = op.Expand(table, op.integers([int(own[0]), 1, 1]))
        tables.append(table)
    pairs = 1 if interleaved else None
    if first:
        return op.RotaryEmbedding(value, *tables, interleaved=pairs)
    heads = int(own[2])
    flat = op.Reshape(value, op.integers([0, 0, heads * size]))
    turned = op.RotaryEmbedding(flat, *tables, interleaved=pairs, num_heads=heads)
    return op.Reshape(turned, op.integers([0, 0, heads, size]))


def _require_equal_halves(value: ir.Value) -> None:
    """The two halves of the last axis are equal: those of a constant, or of what functions of single elements and views of
    other axes make of Concat(f, f).

    Raises:
        MatchFailure
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
    raise MatchFailure(f"the halves of '{value.name}' are not known to be equal")


_OTHERS = "first = Slice(x, l, e, last, by) second = Slice(x, h, e, last, by)"
_VIEW = "v = Reshape(x, pairs) first = Gather<axis=4>(v, i) second = Gather<axis=-1>(v, j)"
_CUT_VIEW = (
    "v = Reshape(x, pairs) f = Slice(v, l, h, end) first = Squeeze(f, end) g = Slice(v, h, e, end)"
    " second = Squeeze(g, end)"
)
_WOVEN = "a = Unsqueeze({}, end) b = Unsqueeze({}, end) w = Concat<axis=-1>(a, b) {} = Reshape(w, s)"
_TURN_PAIRS = f"n = Neg(second) {_WOVEN.format('n', 'first', 'r')} p = Mul(x, cos) q = Mul(r, sin) y = Add(p, q)"
_PAIRS_WOVEN = (
    "p = Mul(first, cos) q = Mul(second, sin) r = Mul(second, cos) z = Mul(first, sin) t = Sub(p, q) u = Add(z, r) "
    + _WOVEN.format("t", "u", "y")
)
_STEPS = {"l": [0], "h": [1], "e": [2**31 - 1], "last": [3], "by": [2], "end": [-1]}
_FOUR = {**_STEPS, "s": [2, 5, 3, 4], "pairs": [2, 5, 3, 2, 2], "i": 0, "j": 1}
_DOUBLED = {"cos": np.repeat(_COS, 2, -1), "sin": np.repeat(_COS / 2, 2, -1)}


class RecogniseInterleavedRotaryEmbedding(Rule):
    """x · cos + woven(-x₂, x₁) · sin = woven(x₁ · c - x₂ · s, x₂ · c + x₁ · s) = RotaryEmbedding(x, c, s, interleaved)

    for x = woven(x₁, x₂) of rank 4, whose last axis, of an even fixed size, has the elements of x₁ and x₂ by turns: taken out by
    slices with step 2 or of a view, joined again behind a new axis; cos = woven(c, c) and sin = woven(s, s) constants, and
    otherwise as for halves; from opset 23.
    """

    family = "rotary"
    since = 23
    examples = (
        Example("float[2,5,3,4] x", f"{_OTHERS} {_TURN_PAIRS}", {**_FOUR, **_DOUBLED}, opset=23),
        Example("float[1,N,3,4] x", f"{_OTHERS} {_PAIRS_WOVEN}", {**_FOUR, **_NARROW, "s": [1, -1, 3, 4]}, opset=23),
        Example(
            "float[1,N,3,4] x",
            f"{_VIEW} {_PAIRS_WOVEN}",
            {**_FOUR, **_NARROW, "s": [1, -1, 3, 4], "pairs": [1, -1, 3, 2, 2]},
            opset=23,
        ),
        Example("float[2,5,3,4] x", f"{_VIEW} {_PAIRS_WOVEN}", {**_FOUR, **_NARROW}, opset=23),
        Example("float[2,5,3,4] x", f"{_CUT_VIEW} {_PAIRS_WOVEN}", {**_FOUR, **_NARROW}, opset=23),
        Example(
            "float[2,3,5,4] x, float[2,3,1,2] cos, float[2,3,1,2] sin",
            f"{_VIEW} {_PAIRS_WOVEN}",
            {**_FOUR, "s": [2, 3, 5, 4], "pairs": [2, 3, 5, 2, 2]},
            opset=23,
        ),
    )
    counterexamples = (
        Example("float[2,5,3,4] x", f"{_OTHERS} {_TURN_PAIRS}", {**_FOUR, **_TABLES}, opset=23, why="are not equal"),
        Example(
            "float[2,5,3,4] x, float[1,1,3,4] cos",
            f"{_OTHERS} {_TURN_PAIRS}",
            {**_FOUR, "sin": _DOUBLED["sin"]},
            opset=23,
            why="not known to be equal",
        ),
        Example(
            "float[2,5,3,4] x", f"{_OTHERS} {_TURN_PAIRS}", {**_FOUR, **_DOUBLED, "h": [0]}, opset=23, why="by turns"
        ),
        Example("float[2,5,3,4] x", f"{_VIEW} {_PAIRS_WOVEN}", {**_FOUR, **_NARROW, "j": 0}, opset=23, why="by turns"),
        Example(
            "float[2,5,3,4] x",
            f"{_VIEW.replace('=4', '=3').replace('-1', '3')} {_PAIRS_WOVEN}",
            {**_FOUR, **_NARROW},
            opset=23,
            why="by turns",
        ),
        Example(
            "float[2,5,3,4] x", f"{_OTHERS} {_PAIRS_WOVEN}", {**_FOUR, **_NARROW, "s": [2, 5, 4, 3]}, opset=23, why="shape of x"
        ),
        Example(
            "float[2,5,3,4] x",
            f"{_OTHERS} {_PAIRS_WOVEN.replace('=-1', '=3')}",
            {**_FOUR, **_NARROW, "end": [3]},
            opset=23,
            why="woven",
        ),
        Example("float[N,5,3,4] x", f"{_OTHERS} {_TURN_PAIRS}", {**_FOUR, **_DOUBLED, "s": [-1, 5, 3, 4]}, opset=23, why="batch"),
        Example("float[2,5,3,4] x", f"{_OTHERS} {_PAIRS_WOVEN}", {**_FOUR, **_NARROW}, opset=22),
    )  # fmt: skip

    def patterns(self) -> Sequence[Op]:
        found: list[Op] = []
        cos, sin = AnyValue("cos"), AnyValue("sin")
        view = op.Reshape(x, AnyValue("pairs"), name="view")
        for first, second in (
            (any_slice(x, "first"), any_slice(x, "second")),
            (op.Gather(view, AnyValue("i"), name="first"), op.Gather(view, AnyValue("j"), name="second")),
            (
                op.Squeeze(any_slice(view, "first"), AnyValue("one axis", optional=True)),
                op.Squeeze(any_slice(view, "second"), AnyValue("other axis", optional=True)),
            ),
        ):
            found.append(op.Add(op.Mul(x, cos), op.Mul(_woven(op.Neg(second), first), sin), name="whole"))
            real = op.Sub(op.Mul(first, cos), op.Mul(second, sin))
            imaginary = op.Add(op.Mul(second, cos), op.Mul(first, sin))
            found.append(_woven(real, imaginary))
        return found

    def check(self, match: Match) -> None:
        value = match["x"]
        single_precision(value)
        own = shape(value)
        require(len(own) == 4, "x is not of rank 4")
        size = own[3]
        if not isinstance(size, int) or size % 2:
            raise MatchFailure("the last axis has no even fixed size")
        require(_by_turns(match, size), "they are not the elements of the last axis by turns")
        woven = match.node("woven").outputs[0]
        require(
            rank(woven) == 5
            and normalised([integer(match.node("woven"), "axis", 0)], 5) == (4,)
            and all(normalised(axes(match.node(name)), 5) == (4,) for name in ("one", "other")),
            "they are not woven along a new last axis",
        )
        require(same_elements(match.node("joined").outputs[0], own), "the joined parts have not the shape of x")
        _heads_first(match, size if "whole" in match.nodes else size // 2)
        for name in ("cos", "sin") if "whole" in match.nodes else ():
            array = known(match[name])
            require(array is not None, f"the pairs of '{match[name].name}' are not known to be equal")
            assert array is not None
            require(
                np.array_equal(array[..., ::2], array[..., 1::2]), f"the pairs of '{match[name].name}' are not equal"
            )

    def rewrite(self, op: Operators, match: Match) -> Result:
        lists = [op.integers([number]) for number in (0, int(shape(match["x"])[3]), -1, 2)]
        cos, sin = (op.Slice(match[name], *lists) if "whole" in match.nodes else match[name] for name in ("cos", "sin"))
        return _turned(op, match, cos, sin, interleaved=True)


def _woven(first: Op, second: Op) -> Op:
    """Two values of which the last axis of the result has the elements by turns."""
    one, other = (
        op.Unsqueeze(first, AnyValue("one end"), name="one"),
        op.Unsqueeze(second, AnyValue("other end"), name="other"),
    )
    return op.Reshape(op.Concat(one, other, name="woven"), AnyValue("whole shape"), name="joined")


def _by_turns(match: Match, size: int) -> bool:
    """Whether the parts of x are the elements with even and with odd positions of its last axis."""
    nodes = [match.node("first"), match.node("second")]
    if "view" not in match.nodes:
        return [kept_positions(node) for node in nodes] == [{3: range(0, size, 2)}, {3: range(1, size, 2)}]
    if not same_elements(match.node("view").outputs[0], (*shape(match["x"])[:3], size // 2, 2)):
        return False
    if nodes[0].op_type == "Slice":
        return [kept_ranges(node) for node in nodes] == [{4: (0, 1)}, {4: (1, 2)}]
    chosen = [integers(node.inputs[1], "the position") for node in nodes]
    columns = [normalised([integer(node, "axis", 0)], 5) for node in nodes]
    return columns == [(4,), (4,)] and [normalised(position, 2) for position in chosen] == [(0,), (1,)]


_PART = {"l": [0], "h": [2], "e": [2**31 - 1], "last": [3], "cos": (2, 3, 1), "sin": (2, 3, 1)}
_REST = (
    "first = Slice(x, l, h, last) second = Slice(x, h, e, last) r = RotaryEmbedding(first, cos, sin)"
    " y = Concat<axis=-1>(r, second)"
)
_BESIDE = (
    "first = Slice(x, l, h, last) second = Slice(x, h, e, last) f = Reshape(first, s)"
    " r = RotaryEmbedding<num_heads=5>(f, cos, sin) b = Reshape(r, t) y = Concat<axis=-1>(b, second)"
)
_PART_BESIDE = {**_PART, "s": [0, 0, 10], "t": [0, 0, 5, 2]}


class PartialRotaryEmbedding(Rule):
    """(RotaryEmbedding(x₁), x₂) = RotaryEmbedding(x, size of x₁)

    for x = (x₁, x₂) of rank 4, cut along its last axis, of fixed size; or where x₁, with a fixed number of heads behind the
    positions, is turned with its heads side by side; from opset 23.
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
        Example("float[2,3,5,6] x", _BESIDE, _PART_BESIDE, opset=23),
        Example(
            "float[2,3,5,6] x", _BESIDE.replace("num_heads=5", "num_heads=5, interleaved=1"), _PART_BESIDE, opset=23
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
        Example(
            "float[2,3,5,6] x",
            _BESIDE.replace("num_heads=5", "num_heads=2").replace("cos, sin", "c, d"),
            {**_PART_BESIDE, "c": (2, 3, 2), "d": (2, 3, 2)},
            opset=23,
            why="side by side",
        ),
        Example("float[2,3,H,6] x", _BESIDE, {**_PART_BESIDE, "t": [2, 3, -1, 2]}, opset=23, why="side by side"),
    )

    def patterns(self) -> Sequence[Op]:
        tables = (AnyValue("cos"), AnyValue("sin"), AnyValue("positions", optional=True))
        found = []
        for first, second in _parts_of_x():
            turned = op.RotaryEmbedding(first, *tables, name="rotary")
            found.append(op.Concat(turned, second, name="concat"))
            flat = op.Reshape(first, AnyValue("flat"), name="flat")
            beside = op.Reshape(op.RotaryEmbedding(flat, *tables, name="rotary"), AnyValue("split"), name="beside")
            found.append(op.Concat(beside, second, name="concat"))
        return found

    def check(self, match: Match) -> None:
        own = shape(match["x"])
        require(len(own) == 4, "x is not of rank 4")
        require(
            normalised([integer(match.node("concat"), "axis", 0)], 4) == (3,), "they are not joined along the last axis"
        )
        size = own[3]
        if not isinstance(size, int):
            raise MatchFailure("the last axis has no fixed size")
        (start, middle), (behind, end) = _spans(match, size)
        require(start == 0 and middle == behind and end == size, "x is not cut into two parts")
        rotary = match.node("rotary")
        require(not integer(rotary, "rotary_embedding_dim", 0), "it is a part of x₁ that is turned")
        if "flat" in match.nodes:
            heads = own[2]
            require(
                isinstance(heads, int)
                and integer(rotary, "num_heads", 0) == heads
                and shape(match.node("flat").outputs[0]) == (*own[:2], heads * middle)
                and shape(match.node("beside").outputs[0]) == (*own[:3], middle)
                and "?" not in own,
                "x₁ has not its heads, a fixed number, side by side",
            )

    def rewrite(self, op: Operators, match: Match) -> Result:
        (_, size), _ = _spans(match, int(shape(match["x"])[3]))
        tables = (match["cos"], match["sin"], match.get("positions"))
        if "flat" not in match.nodes:
            return op.copy(match.node("rotary"), match["x"], *tables, rotary_embedding_dim=size)
        heads, whole = (int(each) for each in shape(match["x"])[2:])
        flat = op.Reshape(match["x"], op.integers([0, 0, heads * whole]))
        turned = op.copy(match.node("rotary"), flat, *tables, rotary_embedding_dim=size)
        return op.Reshape(turned, op.integers([0, 0, heads, whole]))
