"""Layouts: which operators work on transposed data, decided for a whole part of a graph at once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial

import onnx_ir as ir

from bricolage.rewrite.analyses.elementwise import UNARY
from bricolage.rewrite.analyses.transpose_placement import Component, components, moved_operators
from bricolage.rewrite.analyses.transpose_propagation import (
    Permutation,
    TransposedOperator,
    compose,
    inverse,
    is_identity,
)
from bricolage.rewrite.engine.matching import Match
from bricolage.rewrite.pattern import AnyValue, Either, Op, Weight, op
from bricolage.rewrite.predicates import integer, permutation, rank, require, shape, sizes
from bricolage.rewrite.rule import Example, GraphRule, Operators, Replacement, Result, Rule


class _Rewriter:
    """Writes the operators of a component that work in the other layout."""

    def __init__(self, op: Operators, component: Component, written: Mapping[ir.Node, TransposedOperator]) -> None:
        self._op, self._component, self._written = op, component, written
        self._stored: dict[ir.Value, tuple[ir.Value, Permutation]] = {}
        self._turned: dict[tuple[ir.Value, Permutation], ir.Value] = {}

    def rewrite(self) -> dict[ir.Value, ir.Value]:
        """The values that others read, with what replaces them. Everything is written in the order of the graph, each operator
        where the old one stands."""
        pairs: dict[ir.Value, ir.Value] = {}
        for node in self._component.home:
            if node not in self._written and node not in self._component.turns:
                continue
            self._op.set_insertion_point(node)
            if node in self._written:
                self._write(node, self._written[node])
            else:
                self._keep(node)
            for value in node.outputs:
                if self._read_outside(value):
                    new = self._get(value, tuple(range(rank(value))))
                    if new is not value:
                        pairs[value] = new
        return pairs

    def _keep(self, node: ir.Node) -> None:
        """A transpose that may stay serves as a conversion from here on."""
        source, perm = self._component.source(node.outputs[0])
        if source.producer() not in self._written:
            self._turned.setdefault((source, perm), node.outputs[0])

    def _write(self, node: ir.Node, new: TransposedOperator) -> None:
        given = [
            value if value is None or perm is None else self._get(value, perm)
            for value, perm in zip(node.inputs, new.inputs, strict=True)
        ]
        results = new.build(self._op, given)
        for value, result, perm in zip(node.outputs, results, new.outputs, strict=True):
            self._stored[value] = (result, perm)

    def _get(self, value: ir.Value, perm: Permutation) -> ir.Value:
        """s with value = Transpose(s, perm)."""
        source, total = self._component.source(value)
        if source in self._stored:
            source, stored = self._stored[source]
            total = compose(stored, total)
        if len(perm) > len(total):
            added = len(perm) - len(total)
            base = source if is_identity(total) else self._turn(source, total)
            source = self._op.Unsqueeze(base, self._op.integers(range(added))) if total else base
            if not total:
                source = self._op.Reshape(base, self._op.integers([1] * added))
            return self._turn(source, inverse(perm))
        return self._turn(source, compose(total, inverse(perm)))

    def _turn(self, value: ir.Value, perm: Permutation) -> ir.Value:
        if is_identity(perm):
            return value
        key = (value, perm)
        if key not in self._turned:
            self._turned[key] = self._op.Transpose(value, perm=perm)
        return self._turned[key]

    def _read_outside(self, value: ir.Value) -> bool:
        inside = self._component.turns
        return value.is_graph_output() or any(
            usage.node not in self._written and usage.node not in inside for usage in value.uses()
        )


def _between(
    kind: str, body: str, weights: Mapping[str, object] | None = None, inputs: str = "", out: str = ""
) -> Example:
    """An operator from t to u on channels-last data between transposes to and from channels-first data."""
    given = ", ".join(filter(None, [kind, inputs]))
    last = out or "y = Transpose<perm=[0,3,1,2]>(u)"
    return Example(given, f"t = Transpose<perm=[0,2,3,1]>(x) {body} {last}", weights or {})


_X = "float[2,3,4,5] x"
_TWICE = "float[1,1,2,3] x"


class MoveLayoutBorder(GraphRule):
    """R(Transpose(x₁), …, Transpose(xₙ)) = Transpose(R'(x₁, …, xₙ)), with R' for other axes

    for a part R of a graph, of any size and with any number of results, in which every operator commutes with transposes:
    element-wise ones (constants and smaller operands are transposed instead), Concat, Split, Slice, Pad, Resize, Softmax,
    reductions, Squeeze, Unsqueeze, Gather, Tile, Expand, products and normalisations along axes that stay. Of all such parts
    the one that leaves the fewest bytes to transpose is taken, where that is profitable.
    """

    family = "layout"
    since = 18
    runs_last = True  # written-out attention and the like are recognised by where their transposes stand
    examples = (
        _between(_X, "u = Relu(t)"),
        _between(_X, "u = Add(t, c)", {"c": (3,)}),
        _between(_X, "s = Mul(t, z) u = Sub(s, c)", {"c": (5, 1)}, "float[2,1,1,3] z"),
        _between(
            _X,
            "u = Clip(t, l, h)",
            {"l": 0.0, "h": 1.0},
            out="v = Transpose<perm=[0,3,1,2]>(u) y = MaxPool<kernel_shape=[2,2]>(v)",
        ),
        _between(_X, "u = PRelu(t, c)", {"c": (1, 1, 3)}),
        _between(_X, "g = Greater(t, c) u = Where(g, t, c)", {"c": (3,)}),
        _between(_X, "u = Softmax<axis=-1>(t)"),
        _between(_X, "s = Transpose<perm=[0,2,3,1]>(z) u = Concat<axis=-1>(s, t)", None, "float[2,6,4,5] z"),
        _between(_X, "a, b = Split<axis=3>(t, n) u = Mul(a, b)", {"n": [1, 2]}),
        _between(_X, "u = Slice(t, a, b, c)", {"a": [1], "b": [3], "c": [1]}),
        _between(_X, "u = Slice(t, a, b)", {"a": [0, 1], "b": [2, 3]}),
        _between(_X, "u = Pad(t, p)", {"p": [0, 1, 1, 0, 0, 2, 0, 0]}),
        _between(_X, "u = Pad(t, p, , a)", {"p": [1, 0, 0, 2], "a": [1, 2]}),
        _between(_X, "m = ReduceMean(t, a) s = Sigmoid(m) u = Mul(t, s)", {"a": [1, 2]}),
        _between(_X, "m = ReduceMax<keepdims=0>(t, a) s = Unsqueeze(m, a) u = Sub(t, s)", {"a": [1]}),
        _between(
            _TWICE,
            'u = Resize<mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor">(t, , s)',
            {"s": [1.0, 2.0, 2.0, 1.0]},
        ),
        _between("float[2,3,1,5] x", "s = Squeeze(t, a) r = Relu(s) u = Unsqueeze(r, a)", {"a": [1]}),
        _between(_X, "u = Gather<axis=2>(t, i)", {"i": [3, 0]}),
        _between(_X, "u = Tile(t, r)", {"r": [1, 2, 1, 1]}),
        _between("float[2,3,1,5] x", "u = Expand(t, r)", {"r": [2, 4, 5, 3]}),
        Example(
            "float[2,3,4,5] x",
            "t = Transpose<perm=[0,2,1,3]>(x) u = MatMul(t, w) y = Transpose<perm=[0,2,1,3]>(u)",
            {"w": (5, 6)},
        ),
        Example(
            "float[2,3,4,5] x",
            "t = Transpose<perm=[0,2,1,3]>(x) u = LayerNormalization(t, s, b) y = Transpose<perm=[0,2,1,3]>(u)",
            {"s": (5,), "b": (5,)},
        ),
        Example(
            "float[2,3,4,5] x, float[2,3,4,5] z",
            "t = Transpose<perm=[0,2,3,1]>(x) s = Transpose<perm=[0,2,3,1]>(z) u = Add(t, s) r = Relu(u)"
            " p = Transpose<perm=[0,3,1,2]>(r) q = Conv(p, w) v = Transpose<perm=[0,2,3,1]>(q) a = Add(v, r)"
            " y = Transpose<perm=[0,3,1,2]>(a)",
            {"w": (3, 3, 1, 1)},
        ),
        Example(
            "float[N,3,4,5] x",
            "t = Transpose<perm=[0,2,3,1]>(x) u = Mul(t, c) r = Tanh(u) y = Transpose<perm=[0,3,1,2]>(r)",
            {"c": (3,)},
        ),
    )
    counterexamples = (
        Example("float[2,3,4,5] x", "t = Transpose<perm=[0,2,3,1]>(x) y = Relu(t)", why="no transpose less"),
        _between(_X, "r = Reshape(t, s) u = Relu(r)", {"s": [2, 5, 4, 3]}),
        _between(_X, "u = MatMul(t, w)", {"w": (3, 3)}),
        _between(_X, "u = Pad(t, p)", None, "int64[8] p"),
        examples[0].but("no transpose less", outputs="y, t, u"),
    )

    def find_sites(self, graph: ir.Graph) -> Iterator[tuple[ir.Node, Replacement]]:
        for first, component in components(graph):
            yield first, partial(self._rewrite, component)

    @staticmethod
    def _rewrite(component: Component, op: Operators) -> Mapping[ir.Value, ir.Value]:
        written = moved_operators(component)
        require(bool(written), "no transpose less would do")
        return _Rewriter(op, component, written).rewrite()


class TransposeIntoRows(Rule):
    """MatMul(view(Transpose(x)), w) = MatMul(view(x), w'), with the rows of w in the order of x; and Gemm

    for a constant matrix w, where the transpose leaves the first axis in its place and the view merges all others, of known
    sizes. An element-wise function of one input may stand between transpose and view.
    """

    family = "layout"
    examples = (
        Example(
            "float[2,3,4,5] x",
            "t = Transpose<perm=[0,2,3,1]>(x) r = Reshape(t, s) y = MatMul(r, w)",
            {"s": [2, -1], "w": (60, 4)},
        ),
        Example(
            "float[N,3,4] x",
            "t = Transpose<perm=[0,2,1]>(x) r = Flatten(t) y = Gemm(r, w, b)",
            {"w": (12, 4), "b": (4,)},
        ),
        Example(
            "float[2,3,4] x", "t = Transpose<perm=[0,2,1]>(x) r = Flatten(t) y = Gemm<transB=1>(r, w)", {"w": (4, 12)}
        ),
        Example(
            "float[2,3,4] x",
            "t = Transpose<perm=[0,2,1]>(x) f = Tanh(t) r = Flatten(f) y = MatMul(r, w)",
            {"w": (12, 4)},
        ),
    )
    _plain = Example("float[2,3,4] x", "t = Transpose<perm=[0,2,1]>(x) r = Flatten(t) y = MatMul(r, w)", {"w": (12, 4)})
    counterexamples = (
        _plain.but("first axis", "t = Transpose<perm=[1,0,2]>(x) r = Flatten(t) y = MatMul(r, w)", w=(8, 4)),
        Example(
            "float[2,3,4] x, float[12,4] w",
            "t = Transpose<perm=[0,2,1]>(x) r = Flatten(t) y = MatMul(r, w)",
            why="constant",
        ),
        Example(
            "float[2,3,4] x",
            "t = Transpose<perm=[0,2,1]>(x) r = Reshape(t, s) y = MatMul(r, w)",
            {"s": [4, 6], "w": (6, 4)},
            why="merge all other axes",
        ),
        _plain.but("known sizes", inputs="float[2,3,N] x"),
        _plain.but("transposed", "t = Transpose<perm=[0,2,1]>(x) r = Flatten(t) y = Gemm<transA=1>(r, w)", w=(2, 4)),
        _plain.but("not profitable", outputs="y, t"),
    )

    def patterns(self) -> list[Op]:
        turned = op.Transpose(AnyValue("x"), name="transpose")
        source = Either(turned, op.one_of(*UNARY)(turned, name="function"))
        merged = op.one_of("Reshape", "Flatten")(source, AnyValue("shape", optional=True), name="view")
        rest = AnyValue("b", optional=True)
        return [op.MatMul(merged, Weight("w"), name="product"), op.Gemm(merged, Weight("w"), rest, name="product")]

    def check(self, match: Match) -> None:
        data_shape, merged = shape(match["x"]), shape(match.node("view").outputs[0])
        perm = permutation(match.node("transpose"), match["x"])
        require(perm[0] == 0, "the first axis moves")
        require(all(isinstance(size, int) for size in data_shape[1:]), "the other axes have no known sizes")
        count = math.prod(int(size) for size in data_shape[1:])
        require(merged[1:] == (count,), "the view does not merge all other axes")
        require(rank(match["w"]) == 2, "w is no matrix")
        require(not integer(match.node("product"), "transA", 0), "the data are transposed")

    def rewrite(self, op: Operators, match: Match) -> Result:
        node, perm = match.node("product"), permutation(match.node("transpose"), match["x"])
        extent = [int(size) for size in shape(match["x"])[1:]]
        place = inverse(tuple(axis - 1 for axis in perm[1:]))
        turned = [extent[axis - 1] for axis in perm[1:]]
        if integer(node, "transB", 0):
            split = op.Reshape(match["w"], op.integers([-1, *turned]))
            order = [0, *(axis + 1 for axis in place)]
        else:
            split = op.Reshape(match["w"], op.integers([*turned, -1]))
            order = [*place, len(place)]
        weight = op.Reshape(op.Transpose(split, perm=order), op.integers(sizes(match["w"])))
        data = op.copy(match.node("function"), match["x"]) if "function" in match.nodes else match["x"]
        data = op.Reshape(data, op.integers([0, math.prod(extent)]))
        return op.copy(node, data, weight, match.get("b"))
