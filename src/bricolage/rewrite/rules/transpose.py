"""Transposes: composed, cancelled, moved towards one another, and absorbed by operators that transpose anyway."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from bricolage.graph.folding import is_known
from bricolage.rewrite.elementwise import BINARY, UNARY, gated, gates, require_gate
from bricolage.rewrite.linear import CONVOLUTIONS
from bricolage.rewrite.matching import Match
from bricolage.rewrite.pattern import AnyValue, Op, op
from bricolage.rewrite.predicates import (
    axes,
    floating,
    integer,
    normalised,
    permutation,
    rank,
    require,
    require_constant,
    same_elements,
    scalar,
    shape,
)
from bricolage.rewrite.rule import Example, MatchFailure, Operators, Result, Rule
from bricolage.rewrite.transpose_propagation import REDUCTIONS, Permutation, inverse

x, z = AnyValue("x"), AnyValue("z")


def _perm(match: Match, name: str) -> Permutation:
    node = match.node(name)
    source = node.inputs[0]
    assert source is not None
    return permutation(node, source)


def _swaps_last(perm: Permutation) -> bool:
    return perm[:-2] == tuple(range(len(perm) - 2)) and perm[-2:] == (len(perm) - 1, len(perm) - 2)


class RemoveTranspose(Rule):
    """Transpose(x, identity) = x"""

    family = "transpose"
    examples = (Example("float[2,3,4] x", "t = Transpose<perm=[0,1,2]>(x) y = Relu(t)"),)
    counterexamples = (Example("float[2,3,4] x", "t = Transpose<perm=[0,2,1]>(x) y = Relu(t)", why="axes move"),)

    def patterns(self) -> list[Op]:
        return [op.Transpose(x, name="transpose")]

    def check(self, match: Match) -> None:
        perm = _perm(match, "transpose")
        require(perm == tuple(range(len(perm))), "axes move")

    def rewrite(self, op: Operators, match: Match) -> Result:
        return match["x"]


class ComposeTransposes(Rule):
    """Transpose(Transpose(x, p), q) = Transpose(x, p∘q), which is x where p∘q is the identity"""

    family = "transpose"
    examples = (
        Example("float[2,3,4] x", "t = Transpose<perm=[1,2,0]>(x) y = Transpose<perm=[1,0,2]>(t)"),
        Example("float[2,3,4] x", "t = Transpose<perm=[1,2,0]>(x) u = Transpose<perm=[2,0,1]>(t) y = Relu(u)"),
        Example("float[N,3] x", "t = Transpose(x) u = Transpose(t) y = Relu(u)"),
    )
    counterexamples = (
        Example(
            "float[2,3,4] x",
            "t = Transpose<perm=[1,2,0]>(x) u = Transpose<perm=[1,0,2]>(t) y = Relu(u)",
            outputs="y, t",
            why="not profitable",
        ),
    )

    def patterns(self) -> list[Op]:
        return [op.Transpose(op.Transpose(x, name="inner"), name="outer")]

    def rewrite(self, op: Operators, match: Match) -> Result:
        inner, outer = _perm(match, "inner"), _perm(match, "outer")
        perm = [inner[axis] for axis in outer]
        return match["x"] if perm == sorted(perm) else op.Transpose(match["x"], perm=perm)


def _require_progress(source: ir.Value, value: ir.Value, perm: Permutation) -> None:
    """A transpose of `source` that is moved behind the operator of `value` meets another one further down, through operators
    that it can be moved behind too; and it is the last of its kind (two in a row compose, they do not overtake others).

    Raises:
        MatchFailure
    """
    before = source.producer()
    require(before is None or before.op_type != "Transpose", "another transpose is right before it")
    while not value.is_graph_output() and len(value.uses()) == 1:
        (reader,) = value.consumers()
        if reader.op_type == "Transpose" and not reader.domain:
            return
        others = [other for other in reader.inputs if other is not value and other is not None]
        moves = reader.op_type in UNARY or (
            reader.op_type in BINARY and all(is_known(o) or _transposed(o, perm) for o in others)
        )
        if reader.domain or not moves or reader.graph is not _home(value):
            break
        value = reader.outputs[0]
    raise MatchFailure("no other transpose follows")


def _home(value: ir.Value) -> object:
    node = value.producer()
    return None if node is None else node.graph


def _transposed(value: ir.Value, perm: Permutation) -> bool:
    node = value.producer()
    if node is None or node.op_type != "Transpose" or node.domain or node.inputs[0] is None:
        return False
    try:
        return permutation(node, node.inputs[0]) == perm
    except MatchFailure:
        return False


class MoveTransposeBehindFunction(Rule):
    """f(Transpose(x)) = Transpose(f(x))

    for element-wise f of one input (and Clip with its limits, and Softmax along the transposed axis), or of an input and what an
    element-wise function makes of it (x · Sigmoid(x)), where another transpose follows that this one comes nearer to.
    """

    family = "transpose"
    enabling = True
    examples = (
        Example("float[2,3,4] x", "t = Transpose<perm=[1,2,0]>(x) u = Relu(t) y = Transpose<perm=[2,0,1]>(u)"),
        Example("float[2,3,4] x", "t = Transpose<perm=[1,2,0]>(x) u = Relu(t) v = Tanh(u) y = Transpose(v)"),
        Example("float[2,3] x", "t = Transpose(x) u = Clip(t, a, b) y = Transpose(u)", {"a": 0.0, "b": 1.0}),
        Example("float[2,3,4] x", "t = Transpose<perm=[1,2,0]>(x) u = Softmax<axis=-1>(t) y = Transpose(u)"),
        Example("float[2,3] x", "t = Transpose(x) u = Sigmoid(t) v = Mul(t, u) y = Transpose(v)"),
        Example("float[N,3] x", "t = Transpose(x) u = Tanh(t) v = Sub(u, t) y = Transpose(v)"),
    )
    counterexamples = (
        Example("float[2,3,4] x", "t = Transpose<perm=[1,2,0]>(x) y = Relu(t)", why="no other transpose follows"),
        Example("float[2,3] x", "t = Transpose(x) u = Relu(t) y = Transpose(u)", outputs="y, u", why="follows"),
        Example(
            "float[2,3] x",
            "t = Transpose(x) u = Relu(t) y = Transpose(u) s = Tanh(t)",
            outputs="y, s",
            why="profitable",
        ),
        Example(
            "float[3,3,3] x",
            "t = Transpose<perm=[1,2,0]>(x) q = Transpose(x) u = Sigmoid(t) v = Mul(q, u) y = Transpose(v)",
            why="not of one value",
        ),
    )

    def patterns(self) -> list[Op]:
        source = op.Transpose(x, name="transpose")
        limits = (AnyValue("low", optional=True), AnyValue("high", optional=True))
        return [
            op.one_of(*UNARY, "Softmax", "LogSoftmax")(source, name="function"),
            op.Clip(source, *limits, name="function"),
            *gates(source, op.Transpose(x, name="again")),
        ]

    def check(self, match: Match) -> None:
        if "inner" in match.nodes:
            require_gate(match, "transpose", "again")
        _require_progress(match["x"], match.root, _perm(match, "transpose"))

    def rewrite(self, op: Operators, match: Match) -> Result:
        perm = _perm(match, "transpose")
        if "inner" in match.nodes:
            return op.Transpose(gated(op, match, match["x"]), perm=perm)
        node = match.node("function")
        changed = {}
        if node.op_type in ("Softmax", "LogSoftmax"):
            changed["axis"] = perm[integer(node, "axis", -1)]
        return op.Transpose(op.copy(node, match["x"], *node.inputs[1:], **changed), perm=perm)


class MoveTransposesBehindOperator(Rule):
    """f(Transpose(x), Transpose(z)) = Transpose(f(x, z))

    for element-wise f of two inputs, where both are permuted alike.
    """

    family = "transpose"
    examples = (
        Example(
            "float[2,3,4] x, float[2,3,1] z",
            "a = Transpose<perm=[1,2,0]>(x) b = Transpose<perm=[1,2,0]>(z) y = Sub(a, b)",
        ),
        Example("float[2,3] x, float[2,3] z", "a = Transpose(x) b = Transpose(z) c = Less(a, b) y = Cast<to=1>(c)"),
    )
    counterexamples = (
        Example(
            "float[3,3,3] x, float[3,3,3] z",
            "a = Transpose<perm=[1,2,0]>(x) b = Transpose<perm=[0,2,1]>(z) y = Sub(a, b)",
            why="permuted differently",
        ),
        Example(
            "float[3,3] x, float[3,3] z",
            "a = Transpose(x) b = Transpose(z) y = Sub(a, b)",
            outputs="y, a",
            why="profitable",
        ),
    )

    def patterns(self) -> list[Op]:
        return [op.one_of(*BINARY)(op.Transpose(x, name="left"), op.Transpose(z, name="right"), name="function")]

    def check(self, match: Match) -> None:
        require(_perm(match, "left") == _perm(match, "right"), "the two are permuted differently")

    def rewrite(self, op: Operators, match: Match) -> Result:
        return op.Transpose(op.copy(match.node("function"), match["x"], match["z"]), perm=_perm(match, "left"))


class MoveTransposeBehindConstant(Rule):
    """f(Transpose(x), c) = Transpose(f(x, Transpose⁻¹(c)))

    for element-wise f of two inputs, where c is a constant of no higher rank, and another transpose follows that this one
    comes nearer to; or x is computed by a convolution, into which a sum or product with c can be folded.
    """

    family = "transpose"
    enabling = True
    examples = (
        Example(
            "float[2,3,4] x", "t = Transpose<perm=[1,2,0]>(x) u = Add(t, c) y = Transpose<perm=[2,0,1]>(u)", {"c": (2,)}
        ),
        Example("float[2,3,4] x", "t = Transpose<perm=[1,2,0]>(x) u = Sub(c, t) y = Transpose(u)", {"c": (3, 1, 2)}),
        Example("float[N,3] x", "t = Transpose(x) u = Mul(t, c) y = Transpose(u)", {"c": 2.0}),
        Example(
            "float[1,3,4] x", "t = Conv(x, w) u = Transpose<perm=[0,2,1]>(t) y = Add(u, c)", {"w": (2, 3, 2), "c": (2,)}
        ),
    )
    counterexamples = (
        Example("float[2,3] x", "t = Transpose(x) y = Add(t, c)", {"c": (2,)}, why="no other transpose follows"),
        Example("float[2,3] x, float[2] c", "t = Transpose(x) u = Add(t, c) y = Transpose(u)", why="not a constant"),
        Example("float[2,3] x", "t = Transpose(x) u = Add(t, c) y = Transpose(u)", {"c": (1, 3, 2)}, why="rank"),
    )

    def patterns(self) -> list[Op]:
        source = op.Transpose(x, name="transpose")
        return [
            op.one_of(*BINARY)(source, AnyValue("c"), name="first"),
            op.one_of(*BINARY)(AnyValue("c"), source, name="second"),
        ]

    def check(self, match: Match) -> None:
        require_constant(match["c"])
        perm = _perm(match, "transpose")
        require(rank(match["c"]) <= len(perm), "the rank of the constant is higher")
        if not _behind_convolution(match["x"], match.root):
            _require_progress(match["x"], match.root, perm)

    def rewrite(self, op: Operators, match: Match) -> Result:
        perm, constant = _perm(match, "transpose"), match["c"]
        if not scalar(constant):
            own = shape(constant)
            sizes = [*([1] * (len(perm) - len(own))), *(int(size) for size in own)]
            constant = op.Transpose(op.Reshape(constant, op.integers(sizes)), perm=inverse(perm))
        swapped = "second" in match.nodes
        node = match.node("second" if swapped else "first")
        operands = (constant, match["x"]) if swapped else (match["x"], constant)
        return op.Transpose(op.copy(node, *operands), perm=perm)


def _behind_convolution(source: ir.Value, value: ir.Value) -> bool:
    """Whether a convolution with a constant weight could take in what computes `value`."""
    convolution, function = source.producer(), value.producer()
    if convolution is None or function is None or convolution.domain or convolution.op_type not in CONVOLUTIONS:
        return False
    weight = convolution.inputs[1]
    divided = function.op_type == "Div" and function.inputs[1] is not None and is_known(function.inputs[1])
    return weight is not None and is_known(weight) and (divided or function.op_type in ("Add", "Sub", "Mul"))


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
            perm = _perm(match, name)
            require(len(perm) > 1 and _swaps_last(perm), "other axes than the last two move")

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
        Example(
            "float[2,3,5,4] x",
            "v = Reshape(x, s) t = Transpose<perm=[0,2,1]>(v) y = Reshape(t, u)",
            {"s": [-1, 5, 4], "u": [3, 2, 4, 5]},
            why="split again",
        ),
        Example(
            "float[2,3,5,4] x",
            "v = Reshape(x, s) t = Transpose<perm=[1,0]>(v) y = Reshape(t, u)",
            {"s": [6, 20], "u": [5, 4, 2, 3]},
            why="one place",
        ),
        Example(
            "float[N,3,M,4] x",
            "v = Reshape(x, s) t = Transpose<perm=[0,2,1]>(v) y = Reshape(t, u)",
            {"s": [-1, 5, 4], "u": [-1, 3, 4, 5]},
            why="one place",
        ),
        Example(
            "float[2,3,5,4] x",
            "v = Reshape(x, s) t = Transpose<perm=[0,2,1]>(v) y = Reshape(t, u)",
            {"s": [-1, 5, 4], "u": [2, 3, 4, 5]},
            outputs="y, t",
            why="not profitable",
        ),
    )

    def patterns(self) -> list[Op]:
        view = op.Reshape(x, AnyValue("merged"), name="view")
        return [op.Reshape(op.Transpose(view, name="transpose"), AnyValue("split"), name="back")]

    def check(self, match: Match) -> None:
        order, own = self._order(match), shape(match["x"])
        require(same_elements(match.root, [own[axis] for axis in order]), "the axes are not split again as they were")

    @staticmethod
    def _order(match: Match) -> Permutation:
        """The permutation of the axes of x."""
        own, view = shape(match["x"]), shape(match.node("view").outputs[0])
        front = back = 0
        while back < len(view) - 1 and back < len(own) and own[-1 - back] == view[-1 - back] != "?":
            back += 1
        while front < len(view) - back - 1 and front < len(own) - back and own[front] == view[front] != "?":
            front += 1
        merged = len(own) - front - back
        require(len(view) == front + back + 1 and merged > 0, "the view does not merge axes at one place")
        groups: list[tuple[int, ...]] = [(i,) for i in range(front)]
        groups += [tuple(range(front, front + merged)), *((i,) for i in range(front + merged, len(own)))]
        return tuple(axis for group in _perm(match, "transpose") for axis in groups[group])

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
        node, perm = match.node("reduce"), _perm(match, "transpose")
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
