"""Attention that an export wrote out in elementary operators, and the heads around it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from bricolage.graph.folding import known
from bricolage.graph.graph import describe
from bricolage.rewrite.matching import Match
from bricolage.rewrite.pattern import AnyValue, Either, Op, Weight, op
from bricolage.rewrite.predicates import (
    axes,
    integer,
    normalised,
    permutation,
    rank,
    require,
    shape,
    single_precision,
    sizes,
)
from bricolage.rewrite.rule import Example, MatchFailure, Operators, Result, Rule

x = AnyValue("x")

_QKV = "float[2,3,5,4] q, float[2,3,4,6] k, float[2,3,6,7] v"
_PLAIN = "s = MatMul(q, k) p = Softmax(s) y = MatMul(p, v)"
_SCALED = "s = MatMul(q, k) c = Mul(s, f) b = Add(c, m) p = Softmax<axis=-1>(b) y = MatMul(p, v)"
_DIVIDED = "s = MatMul(q, k) c = Div(s, f) p = Softmax<axis=3>(c) y = MatMul(p, v)"
_KEPT = "s = MatMul(q, k) c = Mul(s, f) b = Where(m, c, l) p = Softmax(b) y = MatMul(p, v)"
_FILLED = "s = MatMul(q, k) b = Where(m, l, s) p = Softmax(b) y = MatMul(p, v)"
_KEPT_AND_ADDED = "s = MatMul(q, k) w = Where(n, s, l) b = Add(w, m) p = Softmax(b) y = MatMul(p, v)"
_LEAST = float(np.finfo(np.float32).min)
_CAUSAL = np.tril(np.ones((5, 6), bool))

_ABSORBING = -1e30
"""A number that swallows any score added to it, so that a row in which nothing is kept stays the same too."""
_VANISHING = -1e4
"""A score that weighs nothing beside one that is kept."""


class RecogniseAttention(Rule):
    """MatMul(Softmax(MatMul(q, k) · c + mask), v) = Attention(q, kᵀ, v, mask, scale=c)

    for q, k, v of rank 4 with equal batches and heads, the softmax along the last axis, c a positive constant of one
    element (1 where there is none, or its reciprocal after /), and a mask (or none) that broadcasts to the scores, whose
    last two sizes are fixed, or equal and the mask's last, where the mask has others; q of at most single precision; from opset 23.
    A choice Where(m, scores, l) is the mask Where(m, 0, l), and so with the two exchanged, for a constant l of one element, at most
    -10³⁰ or, where m is a constant that keeps an element of each row, at most -10⁴.
    """

    family = "attention"
    since = 23
    examples = (
        Example(_QKV, _PLAIN, opset=23),
        Example(f"{_QKV}, float[2,1,1,6] m", _SCALED, {"f": 0.5}, opset=23),
        Example(f"{_QKV}, float[5,6] m", _SCALED, {"f": 0.5}, opset=23),
        Example(_QKV, _DIVIDED, {"f": 2.0}, opset=23),
        Example(f"{_QKV}, bool[2,1,5,6] m", _KEPT, {"f": 0.5, "l": _LEAST}, opset=23),
        Example(f"{_QKV}, bool[1,1,1,6] m", _FILLED, {"l": _LEAST}, opset=23),
        Example(_QKV, _KEPT, {"f": 0.5, "m": _CAUSAL, "l": -np.inf}, opset=23),
        Example(_QKV, _FILLED, {"m": ~_CAUSAL, "l": [-1e9]}, opset=23),
        Example(
            "float[B,3,N,4] q, float[B,3,4,N] k, float[B,3,N,7] v, float[B,1,1,N] m", _SCALED, {"f": 0.5}, opset=23
        ),
        Example(f"{_QKV}, float[2,1,1,6] m", _KEPT_AND_ADDED, {"n": _CAUSAL, "l": -1e4}, opset=23),
    )
    counterexamples = (
        Example(_QKV, _PLAIN.replace("Softmax", "Softmax<axis=2>"), opset=23, why="last axis"),
        Example(_QKV, _DIVIDED, {"f": -2.0}, opset=23, why="positive"),
        Example(_QKV, _DIVIDED, {"f": (6,)}, opset=23, why="one element"),
        Example("float[3,5,4] q, float[3,4,6] k, float[3,6,7] v", _PLAIN, opset=23, why="rank 4"),
        Example("float[2,3,5,4] q, float[2,1,4,6] k, float[2,3,6,7] v", _PLAIN, opset=23, why="batches and heads"),
        Example(f"{_QKV}, float[4,1,2,3,1,6] m", _SCALED, {"f": 0.5}, opset=23, why="rank"),
        Example(
            "float[2,3,N,4] q, float[2,3,4,6] k, float[2,3,6,7] v, float[2,1,1,6] m",
            _SCALED,
            {"f": 0.5},
            opset=23,
            why="not known",
        ),
        Example(f"{_QKV}, bool[1,1,5,6] m", _FILLED, {"l": -1e9}, opset=23, why="may still count"),
        Example(_QKV, _FILLED, {"m": np.ones((5, 6), bool), "l": -1e9}, opset=23, why="may still count"),
        Example(_QKV, _KEPT, {"f": 0.5, "m": _CAUSAL, "l": -100.0}, opset=23, why="may still count"),
        Example(_QKV, _FILLED, {"m": ~_CAUSAL, "l": (1, 6)}, opset=23, why="one element"),
        Example(
            "float[1,3,5,4] q, float[1,3,4,6] k, float[1,3,6,7] v, float[2,1,1,6] m",
            _SCALED,
            {"f": 0.5},
            opset=23,
            why="larger",
        ),
        Example(f"{_QKV}, bool[4,2,3,5,6] m", _KEPT, {"f": 0.5, "l": _LEAST}, opset=23, why="rank"),
        Example(_QKV, _PLAIN, opset=22),
    )

    def patterns(self) -> list[Op]:
        product = op.MatMul(AnyValue("q"), AnyValue("k"), name="product")
        scores = Either(op.Mul(product, Weight("c"), name="mul"), op.Div(product, Weight("c"), name="div"), product)
        kept = op.Where(AnyValue("condition"), scores, Weight("low"), name="kept")
        filled = op.Where(AnyValue("condition"), Weight("low"), scores, name="filled")
        chosen = Either(kept, filled, scores)
        masked = Either(op.Add(chosen, AnyValue("mask"), name="masked"), chosen)
        return [op.MatMul(op.Softmax(masked, name="softmax"), AnyValue("v"))]

    def check(self, match: Match) -> None:
        single_precision(match["q"])
        ranks = [rank(match[name]) for name in "qkv"]
        require(ranks == [4, 4, 4], "q, k and v are not all of rank 4")
        batches = {shape(match[name])[:2] for name in "qkv"}
        require(len(batches) == 1 and "?" not in batches.pop(), "q, k and v have different batches and heads")
        require(integer(match.node("softmax"), "axis", -1) in (-1, 3), "the softmax is not along the last axis")
        if "mul" in match.nodes or "div" in match.nodes:
            self._scale(match)
        if "kept" in match.nodes or "filled" in match.nodes:
            self._low(match)
        if "masked" in match.nodes:
            mask = match["mask"]
            require(describe(mask).dtype == describe(match["q"]).dtype, "the mask has another type")
            require(rank(mask) <= 4, "the mask has a higher rank than the scores")
        weighed, whole = shape(match.node("product").outputs[0]), shape(match.node("softmax").outputs[0])
        require(weighed == whole and "?" not in whole, "the mask is larger than the scores")

    @staticmethod
    def _scale(match: Match) -> float:
        if "mul" not in match.nodes and "div" not in match.nodes:
            return 1.0
        array = known(match["c"])
        require(array is not None and array.size == 1 and len(sizes(match["c"])) <= 4, "the scale has not one element")
        assert array is not None
        scale = float(array.reshape(()).astype(float))
        require(math.isfinite(scale) and scale > 0, "the scale is not positive")
        return 1 / scale if "div" in match.nodes else scale

    @staticmethod
    def _low(match: Match) -> float:
        """What the scores that are masked are set to."""
        condition, array = match["condition"], known(match["low"])
        require(array is not None and array.size == 1, "what masked scores are set to has not one element")
        assert array is not None
        require(max(rank(condition), array.ndim) <= 4, "the mask has a higher rank than the scores")
        low, kept = float(array.reshape(()).astype(float)), known(condition)
        if "filled" in match.nodes and kept is not None:
            kept = ~kept
        rows = kept is not None and kept.ndim > 0 and bool(kept.any(axis=-1).all())
        require(low <= (_VANISHING if rows else _ABSORBING), "scores that are masked may still count")
        return low

    def _mask(self, op: Operators, match: Match) -> ir.Value | None:
        """What is added to the scores, of rank 4."""
        found = [match["mask"]] if "masked" in match.nodes else []
        if "kept" in match.nodes or "filled" in match.nodes:
            zero, low = op.number(0, match["q"]), op.number(self._low(match), match["q"])
            found.append(op.Where(match["condition"], *((zero, low) if "kept" in match.nodes else (low, zero))))
        if not found:
            return None
        mask = found[0] if len(found) == 1 else op.Add(*found)
        return mask if rank(mask) == 4 else op.Unsqueeze(mask, op.integers(list(range(4 - rank(mask)))))

    def rewrite(self, op: Operators, match: Match) -> Result:
        mask = self._mask(op, match)
        scores = match.node("softmax").outputs[0]
        if mask is not None and shape(mask)[2:] != shape(scores)[2:]:
            mask = op.Expand(
                mask, self._whole(op, mask, scores)
            )  # runtimes broadcast a mask over batches and heads only
        key = op.Transpose(match["k"], perm=[0, 1, 3, 2])
        return op.Attention(match["q"], key, match["v"], mask, scale=self._scale(match))

    @staticmethod
    def _whole(op: Operators, mask: ir.Value, scores: ir.Value) -> ir.Value:
        """The sizes to which a mask expands. Equal unknown ones are asked of the mask, which is the same for all layers."""
        rows, columns = shape(scores)[2:]
        if isinstance(rows, int) and isinstance(columns, int):
            return op.integers([1, 1, rows, columns])
        require(rows == columns == shape(mask)[3] and rows != "?", f"a dimension of '{scores.name}' is not known")
        return op.Concat(op.integers([1, 1]), op.Shape(mask, start=3), op.integers([1]), axis=0)


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
        Example(
            "float[2,3,20] x",
            f"{_SPLIT} e = RotaryEmbedding(t, c, d) y = Relu(e)",
            _ROTARY,
            opset=23,
            why="no Attention",
        ),
        Example(
            "float[2,3,20] x",
            f"{_SPLIT.replace('[0,2,1,3]', '[0,2,3,1]')} e = RotaryEmbedding(t, c, d) y = Attention(e, e, e)",
            {"s": [2, 4, 5, 3], "c": (2, 5, 2), "d": (2, 5, 2)},
            opset=23,
            why="not moved to the front",
        ),
        Example(
            "float[2,60] x",
            f"{_SPLIT} e = RotaryEmbedding(t, c, d) y = Attention(e, e, e)",
            _ROTARY,
            opset=23,
            why="rank 3",
        ),
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
