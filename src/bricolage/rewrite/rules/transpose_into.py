"""Transposes that the operator before or behind them takes over: products, views, reductions, concatenations."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from bricolage.rewrite.analyses.transpose_propagation import REDUCTIONS, Permutation
from bricolage.rewrite.engine.matching import Match
from bricolage.rewrite.pattern import AnyValue, Op, op
from bricolage.rewrite.predicates import (
    axes,
    floating,
    integer,
    normalised,
    permutation,
    rank,
    require,
    same_elements,
    shape,
)
from bricolage.rewrite.rule import Example, MatchFailure, Operators, Result, Rule
from bricolage.rewrite.rules.transpose import permutation_of, swaps_last_axes, x, z


class TransposeProduct(Rule):
    """MatMul(xᵀ, zᵀ) = MatMul(z, x)ᵀ

    where both swap just their last two axes.
    """

    family = "transpose"
    examples = (
        Example("float[3,4] x, float[5,3] z", "a = Transpose(x) b = Transpose(z) y = MatMul(a, b)"),
        Example("float[2,6,4] x, float[5,6] z", "a = Transpose<perm=[0,2,1]>(x) b = Transpose(z) y = MatMul(a, b)"),
    )
    counterexamples = (
        Example(
            "float[3,4,2] x, float[5,3] z",
            "a = Transpose<perm=[2,1,0]>(x) b = Transpose(z) y = MatMul(a, b)",
            why="other axes",
        ),
    )

    def patterns(self) -> list[Op]:
        return [op.MatMul(op.Transpose(x, name="left"), op.Transpose(z, name="right"))]

    def check(self, match: Match) -> None:
        for name in ("left", "right"):
            perm = permutation_of(match, name)
            require(len(perm) > 1 and swaps_last_axes(perm), "other axes than the last two move")

    def rewrite(self, op: Operators, match: Match) -> Result:
        product = op.MatMul(match["z"], match["x"])
        order = list(range(rank(product)))
        return op.Transpose(product, perm=[*order[:-2], order[-1], order[-2]])


class TransposeIntoGemm(Rule):
    """Gemm(xᵀ, z, c) = Gemm(x, z, c, transA ← not transA), and for the second operand"""

    family = "transpose"
    examples = (
        Example("float[3,2] x, float[3,4] z", "t = Transpose(x) y = Gemm<alpha=0.5>(t, z)"),
        Example("float[2,3] x, float[3,4] z, float[4] c", "t = Transpose(x) y = Gemm<transA=1>(t, z, c)"),
        Example("float[2,3] x, float[4,3] z, float[4] c", "t = Transpose(z) y = Gemm<beta=0.5>(x, t, c)"),
    )
    counterexamples = (
        Example("float[2,3] x, float[4,3] z", "t = Transpose(z) y = Gemm(x, t)", outputs="y, t", why="not profitable"),
    )

    def patterns(self) -> list[Op]:
        rest = AnyValue("c", optional=True)
        return [
            op.Gemm(op.Transpose(x), z, rest, name="gemm"),
            op.Gemm(x, op.Transpose(z, name="second"), rest, name="gemm"),
        ]

    def check(self, match: Match) -> None:
        moved = match["z"] if "second" in match.nodes else match["x"]
        require(rank(moved) == 2, "the operand is no matrix")

    def rewrite(self, op: Operators, match: Match) -> Result:
        gemm = match.node("gemm")
        which = "transB" if "second" in match.nodes else "transA"
        changed = {which: 1 - integer(gemm, which, 0)}
        return op.copy(gemm, match["x"], match["z"], match.get("c"), **changed)


class TransposeIntoMatrixProduct(Rule):
    """MatMul(xᵀ, z) = Gemm(x, z, transA), MatMul(x, zᵀ) = Gemm(x, z, transB)

    where both are matrices of floating-point numbers.
    """

    family = "transpose"
    examples = (
        Example("float[3,2] x, float[3,4] z", "t = Transpose(x) y = MatMul(t, z)"),
        Example("float[2,3] x, float[4,3] z", "t = Transpose<perm=[1,0]>(z) y = MatMul(x, t)"),
    )
    counterexamples = (
        Example("int32[3,2] x, int32[3,4] z", "t = Transpose(x) y = MatMul(t, z)", why="floating-point"),
        Example(
            "float[2,3,4] x, float[3,5] z", "t = Transpose<perm=[0,2,1]>(x) y = MatMul(t, z)", why="not both matrices"
        ),
        Example("float[2,3] x, float[2,3,5] z", "t = Transpose(z) u = Transpose(t) y = MatMul(x, u)", why="matrices"),
    )

    def patterns(self) -> list[Op]:
        return [op.MatMul(op.Transpose(x, name="left"), z), op.MatMul(x, op.Transpose(z, name="right"))]

    def check(self, match: Match) -> None:
        floating(match.root)
        require(rank(match["x"]) == rank(match["z"]) == 2, "they are not both matrices")

    def rewrite(self, op: Operators, match: Match) -> Result:
        if "left" in match.nodes:
            return op.Gemm(match["x"], match["z"], transA=1)
        return op.Gemm(match["x"], match["z"], transB=1)


class TransposeBetweenReshapes(Rule):
    """Reshape(Transpose(Reshape(x))) = Transpose(x)

    where the first view merges neighbouring axes of x into one, at one place at most, and the last splits them again; of the
    result at most one dimension is not known.
    """

    family = "transpose"
    examples = (
        Example(
            "float[2,3,5,4] x",
            "v = Reshape(x, s) t = Transpose<perm=[0,2,1]>(v) y = Reshape(t, u)",
            {"s": [-1, 5, 4], "u": [2, 3, 4, 5]},
        ),
        Example(
            "float[N,5,3,4] x",
            "v = Reshape(x, s) t = Transpose<perm=[2,1,0]>(v) r = Reshape(t, u) y = Relu(r)",
            {"s": [0, 0, 12], "u": [3, 4, 5, -1]},
        ),
    )
    counterexamples = (
        examples[0].but("split again", u=[3, 2, 4, 5]),
        Example(
            "float[2,3,5,4] x",
            "v = Reshape(x, s) t = Transpose<perm=[1,0]>(v) y = Reshape(t, u)",
            {"s": [6, 20], "u": [5, 4, 2, 3]},
            why="one place",
        ),
        examples[0].but("one place", inputs="float[N,3,M,4] x", u=[-1, 3, 4, 5]),
        examples[0].but("not profitable", outputs="y, t"),
    )

    def patterns(self) -> list[Op]:
        view = op.Reshape(x, AnyValue("merged"), name="view")
        return [op.Reshape(op.Transpose(view, name="transpose"), AnyValue("split"), name="back")]

    def check(self, match: Match) -> None:
        order, data_shape = self._order(match), shape(match["x"])
        require(
            same_elements(match.root, [data_shape[axis] for axis in order]), "the axes are not split again as they were"
        )

    @staticmethod
    def _order(match: Match) -> Permutation:
        """The permutation of the axes of x."""
        data_shape, view = shape(match["x"]), shape(match.node("view").outputs[0])
        front = back = 0
        while back < len(view) - 1 and back < len(data_shape) and data_shape[-1 - back] == view[-1 - back] != "?":
            back += 1
        while (
            front < len(view) - back - 1 and front < len(data_shape) - back and data_shape[front] == view[front] != "?"
        ):
            front += 1
        merged = len(data_shape) - front - back
        require(len(view) == front + back + 1 and merged > 0, "the view does not merge axes at one place")
        groups: list[tuple[int, ...]] = [(i,) for i in range(front)]
        groups += [tuple(range(front, front + merged)), *((i,) for i in range(front + merged, len(data_shape)))]
        return tuple(axis for group in permutation_of(match, "transpose") for axis in groups[group])

    def rewrite(self, op: Operators, match: Match) -> Result:
        return op.Transpose(match["x"], perm=self._order(match))


class ReduceBeforeTranspose(Rule):
    """Reduce(Transpose(x, p), axes) = Transpose(Reduce(x, p(axes)), rest of p)

    where the axes are a constant. The second transpose falls away where the remaining axes keep their order.
    """

    family = "transpose"
    since = 18
    examples = (
        Example("float[2,3,4] x", "t = Transpose<perm=[0,2,1]>(x) y = ReduceMean<keepdims=0>(t, a)", {"a": [1]}),
        Example("float[2,3,4] x", "t = Transpose<perm=[2,1,0]>(x) y = ReduceMax<keepdims=1>(t, a)", {"a": [-1]}),
        Example("float[2,3,4] x", "t = Transpose<perm=[2,1,0]>(x) y = ReduceSum<keepdims=0>(t, a)", {"a": [0]}),
        Example("float[2,3,4] x", "t = Transpose<perm=[2,1,0]>(x) y = ReduceSum<keepdims=0>(t)"),
    )
    counterexamples = (
        Example("float[2,3] x, int64[1] a", "t = Transpose(x) y = ReduceSum<keepdims=0>(t, a)", why="not a constant"),
        Example("float[2,3] x", "t = Transpose(x) y = ReduceSum<noop_with_empty_axes=1>(t)", why="reduces nothing"),
    )

    def patterns(self) -> list[Op]:
        source = op.Transpose(x, name="transpose")
        return [op.one_of(*REDUCTIONS)(source, AnyValue("axes", optional=True), name="reduce")]

    def check(self, match: Match) -> None:
        node = match.node("reduce")
        require(bool(axes(node)) or not integer(node, "noop_with_empty_axes", 0), "it reduces nothing")

    def rewrite(self, op: Operators, match: Match) -> Result:
        node, perm = match.node("reduce"), permutation_of(match, "transpose")
        over = normalised(axes(node), len(perm)) or tuple(range(len(perm)))
        reduced = op.copy(node, match["x"], op.integers([perm[axis] for axis in over]))
        if integer(node, "keepdims", 1):
            order = list(perm)
        else:
            kept = [perm[axis] for axis in range(len(perm)) if axis not in over]
            order = [sorted(kept).index(axis) for axis in kept]
        return reduced if order == sorted(order) else op.Transpose(reduced, perm=order)


class ConcatBeforeTranspose(Rule):
    """Concat(Transpose(x₁, p), …, Transpose(xₙ, p), axis) = Transpose(Concat(x₁, …, xₙ, p(axis)), p)"""

    family = "transpose"
    examples = (
        Example(
            "float[2,3,4] x, float[2,3,5] z",
            "a = Transpose<perm=[2,0,1]>(x) b = Transpose<perm=[2,0,1]>(z) y = Concat<axis=0>(a, b)",
        ),
    )
    counterexamples = (
        Example(
            "float[3,3] x, float[3,3] z",
            "a = Transpose(x) b = Tanh(z) y = Concat<axis=0>(a, b)",
            why="not transposed alike",
        ),
        Example(
            "float[3,3,3] x, float[3,3,3] z",
            "a = Transpose<perm=[2,0,1]>(x) b = Transpose<perm=[0,2,1]>(z) y = Concat<axis=0>(a, b)",
            why="not transposed alike",
        ),
    )

    def patterns(self) -> Sequence[Op]:
        return [op.variadic("Concat", name="concat")]

    def check(self, match: Match) -> None:
        self._parts(match)

    @staticmethod
    def _parts(match: Match) -> tuple[list[ir.Value], Permutation]:
        parts: list[ir.Value] = []
        perms: set[Permutation] = set()
        for value in match.node("concat").inputs:
            node = value.producer() if value is not None else None
            if node is None or node.op_type != "Transpose" or node.domain or node.graph is not match.home:
                raise MatchFailure("the parts are not transposed alike")
            source = node.inputs[0]
            assert source is not None
            parts.append(source)
            perms.add(permutation(node, source))
        require(len(perms) == 1 and len(parts) > 1, "the parts are not transposed alike")
        return parts, perms.pop()

    def rewrite(self, op: Operators, match: Match) -> Result:
        parts, perm = self._parts(match)
        return op.Transpose(op.Concat(*parts, axis=perm[integer(match.node("concat"), "axis", 0)]), perm=perm)
