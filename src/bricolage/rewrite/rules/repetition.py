"""Operators that repeat or undo another one, and common subexpressions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import onnx_ir as ir

from bricolage.graph.constant_folding import is_known
from bricolage.graph.graph import bodies
from bricolage.graph.identity import contents
from bricolage.graph.operator_kinds import RANDOM
from bricolage.rewrite.engine.matching import Match
from bricolage.rewrite.pattern import Op, Weight, op
from bricolage.rewrite.predicates import require
from bricolage.rewrite.rule import Example, GraphRule, Operators, Replacement, Result, Rule
from bricolage.rewrite.rules.identity import NeutralRule, x

_SMALL = 1024  # bytes of a constant that is compared by value


class ApplyTwice(Rule):
    """f(f(x)) = f(x)

    for f one of Relu, Abs, Ceil, Floor, Round, Sign.
    """

    family = "identity"
    examples = tuple(
        Example("float[2,3] x", f"t = {f}(x) y = {f}(t)") for f in ("Relu", "Abs", "Ceil", "Floor", "Round", "Sign")
    )
    counterexamples = (
        Example("float[2,3] x", "t = Relu(x) y = Abs(t)", why="differ"),
        Example("float[2,3] x", "t = Tanh(x) y = Tanh(t)"),
    )

    def patterns(self) -> list[Op]:
        kinds = op.one_of("Relu", "Abs", "Ceil", "Floor", "Round", "Sign")
        return [kinds(kinds(x, name="inner"), name="outer")]

    def check(self, match: Match) -> None:
        require(match.node("inner").op_type == match.node("outer").op_type, "the two functions differ")

    def rewrite(self, op: Operators, match: Match) -> Result:
        return match.node("inner").outputs[0]


class Undo(NeutralRule):
    """f(f(x)) = x

    for f one of Neg, Not.
    """

    examples = (
        Example("float[2,3] x", "t = Neg(x) u = Neg(t) y = Relu(u)"),
        Example("bool[2,3] x", "t = Not(x) u = Not(t) y = Cast<to=1>(u)"),
    )
    counterexamples = (Example("float[2,3] x", "t = Relu(x) u = Neg(t) y = Relu(u)", why="not computed by Neg"),)

    def patterns(self) -> list[Op]:
        return [op.Neg(op.Neg(x)), op.Not(op.Not(x))]


class MergeClips(Rule):
    """Clip(Relu(x), a, b) = Clip(x, max(a, 0), b), Relu(Clip(x, a, b)) = Clip(x, max(a, 0), max(b, 0))

    for constant limits a, which may be absent, and b.
    """

    family = "identity"
    examples = (
        Example("float[2,3] x", "t = Relu(x) y = Clip(t, a, b)", {"a": -1.0, "b": 6.0}),
        Example("float[2,3] x", "t = Relu(x) y = Clip(t, , b)", {"b": 6.0}),
        Example("float[2] x", "t = Clip(x, a, b) y = Relu(t)", {"a": -1.0, "b": -0.5}),
    )
    counterexamples = (
        Example("float[2,3] x, float a", "t = Relu(x) y = Clip(t, a, b)", {"b": 6.0}, why="not a constant"),
        Example("float[2,3] x, float b", "t = Relu(x) y = Clip(t, a, b)", {"a": 0.5}, why="not a constant"),
    )

    def patterns(self) -> list[Op]:
        limits = (Weight("a", optional=True), Weight("b"))
        return [op.Clip(op.Relu(x), *limits), op.Relu(op.Clip(x, *limits), name="last")]

    def rewrite(self, op: Operators, match: Match) -> Result:
        zero = op.number(0, match["x"])
        low, high = match.get("a"), match["b"]
        low = zero if low is None else op.Max(low, zero)
        return op.Clip(match["x"], low, op.Max(high, zero) if "last" in match.nodes else high)


class CommonSubexpression(GraphRule):
    """f(x…) computed twice = f(x…) computed once

    for any operator without sub-graphs and randomness, with equal attributes, in one graph.
    """

    family = "identity"
    examples = (
        Example("float[2,3] x", "a = Tanh(x) b = Tanh(x) y = Add(a, b)"),
        Example("float[2,3] x", "a = Unsqueeze(x, p) b = Unsqueeze(x, q) y = Add(a, b)", {"p": [0], "q": [0]}),
        Example(
            "float[2,4] x",
            "a, b = Split<axis=1, num_outputs=2>(x) c, d = Split<axis=1, num_outputs=2>(x) y = Add(a, d)",
        ),
    )
    counterexamples = (
        Example("float[2,3] x", "a = Softmax<axis=0>(x) b = Softmax<axis=1>(x) y = Add(a, b)"),
        Example("float[2,3] x", "a = RandomNormalLike(x) b = RandomNormalLike(x) y = Add(a, b)"),
    )

    def find_sites(self, graph: ir.Graph) -> Iterator[tuple[ir.Node, Replacement]]:
        first: dict[object, ir.Node] = {}
        for node in graph:
            key = _key(node)
            if key is None:
                continue
            earlier = first.setdefault(key, node)
            if earlier is not node:
                yield node, partial(_instead, node, earlier)


def _instead(node: ir.Node, earlier: ir.Node, _: Operators) -> dict[ir.Value, ir.Value]:
    return dict(zip(node.outputs, earlier.outputs, strict=True))


def _key(node: ir.Node) -> object | None:
    """Equal for nodes that compute the same; None for those that cannot be compared."""
    if node.op_type in RANDOM or not node.inputs or not node.outputs or bodies(node):
        return None
    attributes: list[object] = []
    for name, attribute in sorted(node.attributes.items()):
        value = attribute.value
        if attribute.type == ir.AttributeType.TENSOR:
            value = (value.dtype, tuple(value.shape.numpy()), contents(value))
        elif isinstance(value, list | tuple):
            value = tuple(map(str, value))
        attributes.append((name, attribute.type, value))
    present = tuple(bool(value.name) for value in node.outputs)
    return (node.domain, node.op_type, node.overload, tuple(map(_operand, node.inputs)), present, *attributes)


def _operand(value: ir.Value | None) -> object:
    """A small constant by its value, since rules make their shapes and axes anew; everything else by what it is."""
    if value is None or not is_known(value) or value.const_value is None or value.const_value.nbytes > _SMALL:
        return id(value)
    tensor = value.const_value
    return tensor.dtype, tuple(tensor.shape.numpy()), contents(tensor)
