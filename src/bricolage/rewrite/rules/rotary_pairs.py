"""Rotary embeddings of interleaved pairs, and of a part of each head."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bricolage.graph.constant_folding import constant_elements
from bricolage.rewrite.analyses.slices import any_slice, kept_positions, kept_ranges
from bricolage.rewrite.engine.matching import Match
from bricolage.rewrite.pattern import AnyValue, Op, op
from bricolage.rewrite.predicates import (
    axes,
    integer,
    integers,
    normalised,
    rank,
    require,
    same_elements,
    shape,
    single_precision,
)
from bricolage.rewrite.rule import Example, MatchFailure, Operators, Result, Rule
from bricolage.rewrite.rules.rotary import COS, NARROW, TABLES, heads_first, parts_of_x, spans_of_halves, turned_by, x

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
_DOUBLED = {"cos": np.repeat(COS, 2, -1), "sin": np.repeat(COS / 2, 2, -1)}


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
        Example("float[1,N,3,4] x", f"{_OTHERS} {_PAIRS_WOVEN}", {**_FOUR, **NARROW, "s": [1, -1, 3, 4]}, opset=23),
        Example(
            "float[1,N,3,4] x",
            f"{_VIEW} {_PAIRS_WOVEN}",
            {**_FOUR, **NARROW, "s": [1, -1, 3, 4], "pairs": [1, -1, 3, 2, 2]},
            opset=23,
        ),
        Example("float[2,5,3,4] x", f"{_VIEW} {_PAIRS_WOVEN}", {**_FOUR, **NARROW}, opset=23),
        Example("float[2,5,3,4] x", f"{_CUT_VIEW} {_PAIRS_WOVEN}", {**_FOUR, **NARROW}, opset=23),
        Example(
            "float[2,3,5,4] x, float[2,3,1,2] cos, float[2,3,1,2] sin",
            f"{_VIEW} {_PAIRS_WOVEN}",
            {**_FOUR, "s": [2, 3, 5, 4], "pairs": [2, 3, 5, 2, 2]},
            opset=23,
        ),
    )
    counterexamples = (
        Example("float[2,5,3,4] x", f"{_OTHERS} {_TURN_PAIRS}", {**_FOUR, **TABLES}, opset=23, why="are not equal"),
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
        Example("float[2,5,3,4] x", f"{_VIEW} {_PAIRS_WOVEN}", {**_FOUR, **NARROW, "j": 0}, opset=23, why="by turns"),
        Example(
            "float[2,5,3,4] x",
            f"{_VIEW.replace('=4', '=3').replace('-1', '3')} {_PAIRS_WOVEN}",
            {**_FOUR, **NARROW},
            opset=23,
            why="by turns",
        ),
        Example(
            "float[2,5,3,4] x", f"{_OTHERS} {_PAIRS_WOVEN}", {**_FOUR, **NARROW, "s": [2, 5, 4, 3]}, opset=23, why="shape of x"
        ),
        Example(
            "float[2,5,3,4] x",
            f"{_OTHERS} {_PAIRS_WOVEN.replace('=-1', '=3')}",
            {**_FOUR, **NARROW, "end": [3]},
            opset=23,
            why="woven",
        ),
        Example("float[N,5,3,4] x", f"{_OTHERS} {_TURN_PAIRS}", {**_FOUR, **_DOUBLED, "s": [-1, 5, 3, 4]}, opset=23, why="batch"),
        Example("float[2,5,3,4] x", f"{_OTHERS} {_PAIRS_WOVEN}", {**_FOUR, **NARROW}, opset=22),
    )  # fmt: skip

    def patterns(self) -> Sequence[Op]:
        roots: list[Op] = []
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
            roots.append(op.Add(op.Mul(x, cos), op.Mul(_woven(op.Neg(second), first), sin), name="whole"))
            real = op.Sub(op.Mul(first, cos), op.Mul(second, sin))
            imaginary = op.Add(op.Mul(second, cos), op.Mul(first, sin))
            roots.append(_woven(real, imaginary))
        return roots

    def check(self, match: Match) -> None:
        value = match["x"]
        single_precision(value)
        data_shape = shape(value)
        require(len(data_shape) == 4, "x is not of rank 4")
        size = data_shape[3]
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
        require(same_elements(match.node("joined").outputs[0], data_shape), "the joined parts have not the shape of x")
        heads_first(match, size if "whole" in match.nodes else size // 2)
        for name in ("cos", "sin") if "whole" in match.nodes else ():
            array = constant_elements(match[name])
            require(array is not None, f"the pairs of '{match[name].name}' are not known to be equal")
            assert array is not None
            require(
                np.array_equal(array[..., ::2], array[..., 1::2]), f"the pairs of '{match[name].name}' are not equal"
            )

    def rewrite(self, op: Operators, match: Match) -> Result:
        lists = [op.integers([number]) for number in (0, int(shape(match["x"])[3]), -1, 2)]
        cos, sin = (op.Slice(match[name], *lists) if "whole" in match.nodes else match[name] for name in ("cos", "sin"))
        return turned_by(op, match, cos, sin, interleaved=True)


def _woven(first: Op, second: Op) -> Op:
    """Two values of which the last axis of the result has the elements by turns."""
    evens, other = (
        op.Unsqueeze(first, AnyValue("one end"), name="one"),
        op.Unsqueeze(second, AnyValue("other end"), name="other"),
    )
    return op.Reshape(op.Concat(evens, other, name="woven"), AnyValue("whole shape"), name="joined")


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
        examples[0].but("cut", l=[2], h=[4], cos=(2, 3, 2), sin=(2, 3, 2)),
        examples[0].but("joined", _REST.replace("axis=-1", "axis=2").replace("h, e", "l, h")),
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
        roots = []
        for first, second in parts_of_x():
            turned = op.RotaryEmbedding(first, *tables, name="rotary")
            roots.append(op.Concat(turned, second, name="concat"))
            flat = op.Reshape(first, AnyValue("flat"), name="flat")
            turned = op.Reshape(op.RotaryEmbedding(flat, *tables, name="rotary"), AnyValue("split"), name="turned")
            roots.append(op.Concat(turned, second, name="concat"))
        return roots

    def check(self, match: Match) -> None:
        data_shape = shape(match["x"])
        require(len(data_shape) == 4, "x is not of rank 4")
        require(
            normalised([integer(match.node("concat"), "axis", 0)], 4) == (3,),
            "they are not joined along the last axis",
        )
        size = data_shape[3]
        if not isinstance(size, int):
            raise MatchFailure("the last axis has no fixed size")
        (start, middle), (behind, end) = spans_of_halves(match, size)
        require(start == 0 and middle == behind and end == size, "x is not cut into two parts")
        rotary = match.node("rotary")
        require(not integer(rotary, "rotary_embedding_dim", 0), "it is a part of x₁ that is turned")
        if "flat" in match.nodes:
            heads = data_shape[2]
            require(
                isinstance(heads, int)
                and integer(rotary, "num_heads", 0) == heads
                and shape(match.node("flat").outputs[0]) == (*data_shape[:2], heads * middle)
                and shape(match.node("turned").outputs[0]) == (*data_shape[:3], middle)
                and "?" not in data_shape,
                "x₁ has not its heads, a fixed number, side by side",
            )

    def rewrite(self, op: Operators, match: Match) -> Result:
        (_, size), _ = spans_of_halves(match, int(shape(match["x"])[3]))
        tables = (match["cos"], match["sin"], match.get("positions"))
        if "flat" not in match.nodes:
            return op.copy(match.node("rotary"), match["x"], *tables, rotary_embedding_dim=size)
        heads, whole = (int(each) for each in shape(match["x"])[2:])
        flat = op.Reshape(match["x"], op.integers([0, 0, heads * whole]))
        turned = op.copy(match.node("rotary"), flat, *tables, rotary_embedding_dim=size)
        return op.Reshape(turned, op.integers([0, 0, heads, whole]))
