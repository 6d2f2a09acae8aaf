"""Heads of attention: split behind rotary embeddings, split and repeated by the operator itself."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from bricolage.rewrite.engine.matching import Match
from bricolage.rewrite.pattern import AnyValue, Op, op
from bricolage.rewrite.predicates import (
    axes,
    normalised,
    permutation,
    rank,
    require,
    shape,
)
from bricolage.rewrite.rule import Example, MatchFailure, Operators, Result, Rule

_SPLIT = "r = Reshape(x, s) t = Transpose<perm=[0,2,1,3]>(r)"
_ROTARY = {"s": [2, 3, 5, 4], "c": (2, 3, 2), "d": (2, 3, 2)}


class SplitHeadsBehindRotary(Rule):
    """RotaryEmbedding(heads(x), c, s) = heads(RotaryEmbedding(x, c, s, number of heads))

    with heads(x) = Transpose(Reshape(x)), which splits the last axis of x of rank 3 into heads and their elements and moves the
    heads to the front; where an Attention reads the result, which can take heads side by side too.
    """

    family = "attention"
    since = 23
    enabling = True
    examples = (
        Example(
            "float[2,3,20] x",
            f"{_SPLIT} e = RotaryEmbedding(t, c, d) y = Attention(e, e, e)",
            _ROTARY,
            opset=23,
        ),
        Example(
            "float[N,3,20] x, float[N,3,2] c, float[N,3,2] d",
            f"{_SPLIT} e = RotaryEmbedding(t, c, d) y = Attention(e, e, e)",
            {"s": [0, 0, 5, 4]},
            opset=23,
        ),
    )
    counterexamples = (
        examples[0].but("no Attention", f"{_SPLIT} e = RotaryEmbedding(t, c, d) y = Relu(e)"),
        Example(
            "float[2,3,20] x",
            f"{_SPLIT.replace('[0,2,1,3]', '[0,2,3,1]')} e = RotaryEmbedding(t, c, d) y = Attention(e, e, e)",
            {"s": [2, 4, 5, 3], "c": (2, 5, 2), "d": (2, 5, 2)},
            opset=23,
            why="not moved to the front",
        ),
        examples[0].but("rank 3", inputs="float[2,60] x"),
    )

    def patterns(self) -> Sequence[Op]:
        tables = (AnyValue("cos"), AnyValue("sin"), AnyValue("positions", optional=True))
        return [op.RotaryEmbedding(AnyValue("heads"), *tables, name="rotary")]

    def check(self, match: Match) -> None:
        readers = [usage.node.op_type for usage in match.root.uses()]
        require(bool(readers) and set(readers) == {"Attention"}, "no Attention reads it alone")
        _source_of_heads(match["heads"], match.home)

    def rewrite(self, op: Operators, match: Match) -> Result:
        source, heads = _source_of_heads(match["heads"], match.home), match["heads"]
        tables = (match["cos"], match["sin"], match.get("positions"))
        turned = op.copy(match.node("rotary"), source, *tables, num_heads=_sizes_of_heads(heads)[0])
        reshape = _producer(_producer(heads).inputs[0])
        return op.Transpose(op.copy(reshape, turned, reshape.inputs[1]), perm=[0, 2, 1, 3])


def _producer(value: ir.Value | None) -> ir.Node:
    node = value.producer() if value is not None else None
    if node is None or node.domain:
        raise MatchFailure("the heads are not split from one axis")
    return node


def _sizes_of_heads(value: ir.Value) -> tuple[int, int]:
    """Number and size of the heads of a value (batch, heads, positions, size).

    Raises:
        MatchFailure: they are not fixed.
    """
    _, heads, _, size = shape(value)
    if not isinstance(heads, int) or not isinstance(size, int):
        raise MatchFailure("the heads have no fixed number and size")
    return heads, size


def _source_of_heads(value: ir.Value, home: object) -> ir.Value:
    """x of heads(x) = Transpose(Reshape(x)), (batch, positions, heads · size) to (batch, heads, positions, size).

    Raises:
        MatchFailure: the value is no such thing.
    """
    transpose = _producer(value)
    require(
        transpose.op_type == "Transpose" and transpose.graph is home,
        "the heads are not moved to the front by a transpose",
    )
    split = transpose.inputs[0]
    assert split is not None
    require(rank(split) == 4 and permutation(transpose, split) == (0, 2, 1, 3), "the heads are not moved to the front")
    reshape = _producer(split)
    source = reshape.inputs[0] if reshape.op_type == "Reshape" and reshape.graph is home else None
    require(source is not None and rank(source) == 3, "the heads are not split from one axis of a value of rank 3")
    assert source is not None
    heads, size = _sizes_of_heads(value)
    before, after = shape(source), shape(split)
    require(before == (*after[:2], heads * size) and "?" not in before, "the heads are not split from the last axis")
    return source


_FLAT = (
    "a = Reshape(q, s) b = Reshape(k, u) c = Reshape(v, u) d = Transpose<perm=[0,2,1,3]>(a) e = Transpose<perm=[0,2,1,3]>(b)"
    " f = Transpose<perm=[0,2,1,3]>(c) g = Attention<scale=0.5>(d, e, f, m) h = Transpose<perm=[0,2,1,3]>(g) y = Reshape(h, w)"
)
_FLAT_INPUTS = "float[2,3,20] q, float[2,4,20] k, float[2,4,20] v, float[2,1,3,4] m"
_FLAT_SHAPES = {"s": [2, 3, 5, 4], "u": [2, 4, 5, 4], "w": [2, 3, 20]}


class HeadsIntoAttention(Rule):
    """merged(Attention(heads(q), heads(k), heads(v), mask)) = Attention(q, k, v, mask, numbers of heads)

    with heads(q) = Transpose(Reshape(q)), (batch, positions, heads · size) to (batch, heads, positions, size), of fixed number
    and size, and merged the way back; without a past.
    """

    family = "attention"
    since = 23
    examples = (
        Example(_FLAT_INPUTS, _FLAT, _FLAT_SHAPES, opset=23),
        Example(
            _FLAT_INPUTS.replace("[2,4,20]", "[2,N,20]").replace(", float[2,1,3,4] m", ""),
            _FLAT.replace(", m)", ")"),
            {**_FLAT_SHAPES, "u": [2, 0, 5, 4]},
            opset=23,
        ),
        Example(_FLAT_INPUTS, _FLAT, {"s": [0, 0, 5, 4], "u": [0, 0, 5, 4], "w": [0, 0, 20]}, opset=23),
    )
    counterexamples = (
        Example(_FLAT_INPUTS, _FLAT, _FLAT_SHAPES, outputs="y, g", opset=23, why="profitable"),
        Example(
            _FLAT_INPUTS, _FLAT.replace("h = Transpose<perm=[0,2,1,3]>", "h = Transpose<perm=[0,2,3,1]>"), _FLAT_SHAPES, opset=23,
            why="not merged",
        ),
        Example(
            _FLAT_INPUTS, _FLAT, {**_FLAT_SHAPES, "w": [1, 6, 20]}, opset=23, why="not merged"
        ),
        Example(
            "float[2,5,3,4] q, float[2,5,4,4] k, float[2,5,4,4] v",
            "g = Attention(q, k, v) h = Transpose<perm=[0,2,1,3]>(g) y = Reshape(h, w)",
            {"w": [2, 3, 20]},
            opset=23,
            why="not split",
        ),
    )  # fmt: skip

    def patterns(self) -> Sequence[Op]:
        return [op.Reshape(op.Transpose(op.variadic("Attention", name="attention"), name="out"), AnyValue("shape"))]

    def check(self, match: Match) -> None:
        node = match.node("attention")
        require(not any(value is not None for value in node.inputs[4:]), "it has a past")
        result, merged = node.outputs[0], shape(match.root)
        require(
            rank(result) == 4 and permutation(match.node("out"), result) == (0, 2, 1, 3), "the heads are not merged"
        )
        heads, size = _sizes_of_heads(result)
        batch, _, length, _ = shape(result)
        require(merged == (batch, length, heads * size) and "?" not in merged, "the heads are not merged")
        self._sources(match)

    @staticmethod
    def _sources(match: Match) -> list[ir.Value]:
        return [
            _source_of_heads(value, match.home) for value in match.node("attention").inputs[:3] if value is not None
        ]

    def rewrite(self, op: Operators, match: Match) -> Result:
        node = match.node("attention")
        query, key = (_sizes_of_heads(value)[0] for value in node.inputs[:2] if value is not None)
        return op.copy(node, *self._sources(match), *node.inputs[3:4], q_num_heads=query, kv_num_heads=key)


_REPEATED = (
    "a = Unsqueeze(k, two) b = Expand(a, e) c = Reshape(b, s) d = Unsqueeze(v, two) f = Expand(d, e) g = Reshape(f, s)"
    " y = Attention(q, c, g)"
)
_REPEATED_INPUTS = "float[2,6,3,4] q, float[2,2,5,4] k, float[2,2,5,4] v"
_REPEATED_SHAPES = {"two": [2], "e": [2, 2, 3, 5, 4], "s": [2, 6, 5, 4]}


class RepeatedHeadsIntoAttention(Rule):
    """Attention(q, repeated(k), repeated(v), mask) = Attention(q, k, v, mask)

    with repeated(k) = Reshape(Expand(Unsqueeze(k, 2))), which repeats each head of k some times in a row: as often for k as for
    v, of rank 4 and fixed numbers of heads; without a past. Attention repeats them itself, where q has a multiple of them.
    """

    family = "attention"
    since = 23
    examples = (
        Example(_REPEATED_INPUTS, _REPEATED, _REPEATED_SHAPES, opset=23),
        Example(
            "float[2,4,N,4] q, float[2,2,N,4] k, float[2,2,N,4] v, float[2,1,N,N] m",
            "h = Shape<start=2, end=3>(k) w = Concat<axis=0>(i, h, j)"
            " a = Unsqueeze(k, two) b = Expand(a, w) c = Reshape(b, s) d = Unsqueeze(v, two) f = Expand(d, w) g = Reshape(f, s)"
            " y = Attention(q, c, g, m)",
            {"two": [2], "i": [2, 2, 2], "j": [4], "s": [2, 4, -1, 4]},
            opset=23,
        ),
        Example(
            "float[B,4,N,4] q, float[B,2,N,4] k, float[B,2,N,4] v",
            "g = Shape<start=0, end=1>(k) h = Shape<start=2, end=3>(k) w = Concat<axis=0>(g, i, h, j)"
            " a = Unsqueeze(k, two) b = Expand(a, w) c = Reshape(b, s) d = Unsqueeze(v, two) f = Expand(d, w) e = Reshape(f, s)"
            " y = Attention(q, c, e)",
            {"two": [2], "i": [2, 2], "j": [4], "s": [0, 4, -1, 4]},
            opset=23,
        ),
    )
    counterexamples = (
        Example(
            _REPEATED_INPUTS,
            _REPEATED.replace("d = Unsqueeze(v, two)", "d = Unsqueeze(v, one)"),
            {**_REPEATED_SHAPES, "one": [1], "e": [2, 2, 2, 5, 4], "s": [2, 4, 5, 4]},
            opset=23,
            why="in a row",
        ),
        Example(
            "float[2,6,3,4] q, float[2,6,5,4] k, float[2,6,5,4] v",
            "y = Attention(q, k, v)",
            opset=23,
            why="not repeated",
        ),
        Example(
            "float[2,6,3,4] q, float[2,2,5,4] k, float[2,3,5,4] v",
            _REPEATED.replace("Expand(d, e)", "Expand(d, w)"),
            {**_REPEATED_SHAPES, "w": [2, 3, 2, 5, 4]},
            opset=23,
            why="as often",
        ),
    )

    def patterns(self) -> Sequence[Op]:
        return [op.variadic("Attention", name="attention")]

    def check(self, match: Match) -> None:
        require(not any(value is not None for value in match.node("attention").inputs[4:]), "it has a past")
        key, value = self._sources(match)
        require(shape(key)[1] == shape(value)[1], "the heads of v are not repeated as often as those of k")

    @staticmethod
    def _sources(match: Match) -> list[ir.Value]:
        return [_source_of_repeated(v, match.home) for v in match.node("attention").inputs[1:3] if v is not None]

    def rewrite(self, op: Operators, match: Match) -> Result:
        node = match.node("attention")
        return op.copy(node, node.inputs[0], *self._sources(match), *node.inputs[3:4])


def _source_of_repeated(value: ir.Value, home: object) -> ir.Value:
    """k of repeated(k) = Reshape(Expand(Unsqueeze(k, 2))).

    Raises:
        MatchFailure: the value is no such thing.
    """
    reshape = _made_by(value, "Reshape", home)
    expand = _made_by(reshape.inputs[0], "Expand", home)
    unsqueeze = _made_by(expand.inputs[0], "Unsqueeze", home)
    source = unsqueeze.inputs[0]
    assert source is not None
    require(rank(value) == rank(source) == 4, "they are not of rank 4")
    (heads, size), (repeated, width) = _sizes_of_heads(source), _sizes_of_heads(value)
    wide = shape(expand.outputs[0])
    require(normalised(axes(unsqueeze), 5) == (2,), "the heads are not repeated in a row")
    require(
        wide[:3] == (shape(source)[0], heads, repeated // heads) and "?" not in wide[:3] and size == width,
        "the heads are not repeated in a row",
    )
    return source


def _made_by(value: ir.Value | None, op_type: str, home: object) -> ir.Node:
    node = value.producer() if value is not None else None
    if node is None or node.domain or node.op_type != op_type or node.graph is not home:
        raise MatchFailure("the heads are not repeated")
    return node
