"""Transposes: removed, composed, and moved towards one another."""

from __future__ import annotations

import onnx_ir as ir

from bricolage.graph.constant_folding import is_known
from bricolage.rewrite.analyses.elementwise import BINARY, UNARY, copy_gate, gates, require_gate
from bricolage.rewrite.analyses.linear import CONVOLUTIONS
from bricolage.rewrite.analyses.transpose_propagation import Permutation, inverse
from bricolage.rewrite.engine.matching import Match
from bricolage.rewrite.pattern import AnyValue, Op, op
from bricolage.rewrite.predicates import integer, permutation, rank, require, require_constant, scalar, shape
from bricolage.rewrite.rule import Example, MatchFailure, Operators, Result, Rule

x, z = AnyValue("x"), AnyValue("z")


def permutation_of(match: Match, name: str) -> Permutation:
    """The permutation of the transpose that the pattern calls `name`."""
    node = match.node(name)
    source = node.inputs[0]
    assert source is not None
    return permutation(node, source)


def swaps_last_axes(perm: Permutation) -> bool:
    """Whether only the last two axes change places."""
    return perm[:-2] == tuple(range(len(perm) - 2)) and perm[-2:] == (len(perm) - 1, len(perm) - 2)


class RemoveTranspose(Rule):
    """Transpose(x, identity) = x"""

    family = "transpose"
    examples = (Example("float[2,3,4] x", "t = Transpose<perm=[0,1,2]>(x) y = Relu(t)"),)
    counterexamples = (Example("float[2,3,4] x", "t = Transpose<perm=[0,2,1]>(x) y = Relu(t)", why="axes move"),)

    def patterns(self) -> list[Op]:
        return [op.Transpose(x, name="transpose")]

    def check(self, match: Match) -> None:
        perm = permutation_of(match, "transpose")
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
        inner, outer = permutation_of(match, "inner"), permutation_of(match, "outer")
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
            reader.op_type in BINARY and all(is_known(o) or _is_transposed_by(o, perm) for o in others)
        )
        if reader.domain or not moves or reader.graph is not _home(value):
            break
        value = reader.outputs[0]
    raise MatchFailure("no other transpose follows")


def _home(value: ir.Value) -> object:
    node = value.producer()
    return None if node is None else node.graph


def _is_transposed_by(value: ir.Value, perm: Permutation) -> bool:
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
        _require_progress(match["x"], match.root, permutation_of(match, "transpose"))

    def rewrite(self, op: Operators, match: Match) -> Result:
        perm = permutation_of(match, "transpose")
        if "inner" in match.nodes:
            return op.Transpose(copy_gate(op, match, match["x"]), perm=perm)
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
        require(permutation_of(match, "left") == permutation_of(match, "right"), "the two are permuted differently")

    def rewrite(self, op: Operators, match: Match) -> Result:
        return op.Transpose(op.copy(match.node("function"), match["x"], match["z"]), perm=permutation_of(match, "left"))


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
        perm = permutation_of(match, "transpose")
        require(rank(match["c"]) <= len(perm), "the rank of the constant is higher")
        if not _behind_convolution(match["x"], match.root):
            _require_progress(match["x"], match.root, perm)

    def rewrite(self, op: Operators, match: Match) -> Result:
        perm, constant = permutation_of(match, "transpose"), match["c"]
        if not scalar(constant):
            constant_shape = shape(constant)
            sizes = [*([1] * (len(perm) - len(constant_shape))), *(int(size) for size in constant_shape)]
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
