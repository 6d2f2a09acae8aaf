"""Every rule is proved on its examples, or agrees in float64; a planted false one of each family is found out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from bricolage.equations.term import read_equation
from bricolage.errors import FalseRule
from bricolage.rewrite.catalogue import FAMILIES, written_rules
from bricolage.rewrite.engine.matching import Match
from bricolage.rewrite.pattern import AnyValue, Roots, Weight, op
from bricolage.rewrite.rule import Example, Operators, Result, Rule
from bricolage.rewrite.rule_from_equation import EquationRule
from bricolage.rulemaking.proof import Proved
from bricolage.rulemaking.verification import verify

x, y, z, w = (AnyValue(name) for name in "xyzw")
LONG = "recognise-attention"
"""Its many examples take longer than those of all other rules together."""
UNPROVED = {"recognise-hard-sigmoid", "shift-out-of-sum", "log-sum-exp-into-log-softmax"}
"""Rules that rest on laws that the prover does not model (docs/design/proofs.md), or on limits."""


@pytest.mark.parametrize(
    "rule",
    [pytest.param(rule, marks=pytest.mark.slow if rule.name == LONG else (), id=rule.name) for rule in written_rules()],
)
def test_every_rule_holds(rule: Rule) -> None:
    found = verify(rule)
    assert len(found.verdicts) == len(rule.examples)
    assert (found.status == "not proved") == (rule.name in UNPROVED), found
    assert all(verdict.error_bound < 1e-9 for verdict in found.verdicts if isinstance(verdict, Proved))


class Planted(Rule):
    """A rule from its parts."""

    family = "planted"

    def __init__(
        self, left: Roots, right: Callable[[Operators, Match], Result], *examples: Example, name: str = "planted"
    ) -> None:
        self._left, self._right, self._name = left, right, name
        self.examples: Sequence[Example] = examples  # type: ignore[misc]

    @property
    def name(self) -> str:
        return self._name

    def patterns(self) -> Sequence[Roots]:
        return [self._left]

    def rewrite(self, op: Operators, match: Match) -> Result:
        return self._right(op, match)


def sample(inputs: str, body: str, opset: int = 18, **weights: object) -> Example:
    return Example(inputs, body, weights, opset=opset)


FALSE: dict[str, Rule] = {
    "identity": Planted(
        op.Add(x, Weight("c")), lambda op, m: op.Identity(m["x"]), sample("float[2,3] x", "y = Add(x, c)", c=1.0)
    ),
    "transpose": Planted(
        op.Transpose(op.Transpose(x)),
        lambda op, m: op.Transpose(m["x"], perm=[1, 2, 0]),
        sample("float[2,2,2] x", "t = Transpose<perm=[1,2,0]>(x) y = Transpose<perm=[1,2,0]>(t)"),
    ),
    "layout": Planted(
        op.Transpose(op.Softmax(op.Transpose(x)), name="outer"),
        lambda op, m: op.Softmax(m["x"], axis=-1),
        sample("float[2,3] x", "t = Transpose(x) u = Softmax<axis=-1>(t) y = Transpose(u)"),
    ),
    "reshape": Planted(
        op.Reshape(op.Transpose(x), AnyValue("s")),
        lambda op, m: op.Reshape(m["x"], m["s"]),
        sample("float[2,3] x", "t = Transpose(x) y = Reshape(t, s)", s=[6]),
    ),
    "shapes": Planted(
        op.Shape(x),
        lambda op, m: op.Shape(op.Transpose(m["x"])),
        sample("float[2,3] x", "s = Shape(x) f = Cast<to=1>(s) t = ReduceSum(x) y = Mul(f, t)"),
    ),
    "concat": Planted(
        op.Concat(x, z, name="concat"),
        lambda op, m: op.Concat(m["z"], m["x"], axis=0),
        sample("float[2,3] x, float[2,3] z", "y = Concat<axis=0>(x, z)"),
    ),
    "folding": Planted(
        op.Mul(op.Conv(x, Weight("w"), Weight("b")), Weight("c")),
        lambda op, m: op.Conv(m["x"], op.Mul(m["w"], m["c"]), m["b"]),
        sample("float[1,2,4] x", "t = Conv(x, w, b) y = Mul(t, c)", w=(3, 2, 2), b=(3,), c=2.0),
    ),
    "strides": Planted(
        op.Conv(op.AveragePool(x, name="pool"), Weight("w")),
        lambda op, m: op.Conv(m["x"], m["w"], strides=m.node("pool").attributes.get_ints("strides")),
        sample("float[1,1,4] x", "t = AveragePool<kernel_shape=[2], strides=[2]>(x) y = Conv(t, w)", w=(1, 1, 1)),
    ),
    "scaling": Planted(
        op.MatMul(op.Mul(x, Weight("c")), z),
        lambda op, m: op.Mul(op.Mul(op.MatMul(m["x"], m["z"]), m["c"]), m["c"]),
        sample("float[2,3] x, float[3,2] z", "t = Mul(x, c) y = MatMul(t, z)", c=2.0),
    ),
    "einsum": Planted(
        op.Einsum(op.Transpose(x), z, name="einsum"),
        lambda op, m: op.copy(m.node("einsum"), m["x"], m["z"]),
        sample("float[2,2] x, float[2,2] z", 't = Transpose(x) y = Einsum<equation="ij,jk->ik">(t, z)'),
    ),
    "product": Planted(
        op.Transpose(op.MatMul(x, z)),
        lambda op, m: op.MatMul(op.Transpose(m["x"]), op.Transpose(m["z"])),
        sample("float[2,2] x, float[2,2] z", "t = MatMul(x, z) y = Transpose(t)"),
    ),
    "activation": Planted(
        op.Neg(op.Relu(x)), lambda op, m: op.Relu(op.Neg(m["x"])), sample("float[4] x", "t = Relu(x) y = Neg(t)")
    ),
    "normalization": Planted(
        op.Softmax(x, name="softmax"),
        lambda op, m: op.Softmax(m["x"], axis=0),
        sample("float[2,3] x", "y = Softmax<axis=1>(x)"),
    ),
    "rotary": Planted(
        op.RotaryEmbedding(x, y, z),
        lambda op, m: op.RotaryEmbedding(m["x"], m["z"], m["y"]),
        sample("float[1,2,1,2] x", "y = RotaryEmbedding(x, c, s)", opset=23, c=(1, 1, 1), s=(1, 1, 1)),
    ),
    "attention": Planted(
        op.MatMul(op.Softmax(op.MatMul(x, y)), z),
        lambda op, m: op.Attention(m["x"], op.Transpose(m["y"], perm=[0, 1, 3, 2]), m["z"], scale=0.5),
        sample(
            "float[1,1,2,2] q, float[1,1,2,2] k, float[1,1,2,2] v",
            "s = MatMul(q, k) p = Softmax(s) y = MatMul(p, v)",
            opset=23,
        ),
    ),
    "algebra": Planted(
        op.Add(op.Mul(x, y), op.Mul(x, z)),
        lambda op, m: op.Mul(m["x"], op.Mul(m["y"], m["z"])),
        sample("float[3] x, float[3] a, float[3] b", "t = Mul(x, a) u = Mul(x, b) y = Add(t, u)"),
    ),
    "functions": Planted(
        op.Max(op.Neg(x), op.Neg(z)),
        lambda op, m: op.Neg(op.Max(m["x"], m["z"])),
        sample("float[2] x, float[2] z", "s = Neg(x) t = Neg(z) y = Max(s, t)"),
    ),
    "reduction": Planted(
        op.ReduceMean(op.Mul(x, z), AnyValue("a"), name="mean"),
        lambda op, m: op.Mul(*(op.copy(m.node("mean"), m[name], m["a"]) for name in "xz")),
        sample("float[2,3] x, float[2,3] z", "t = Mul(x, z) y = ReduceMean(t, a)", a=[1]),
    ),
    "merging": Planted(
        (op.MatMul(x, Weight("v")), op.MatMul(x, Weight("w"))),
        lambda op, m: tuple(
            reversed(op.many("Split", 2, op.MatMul(m["x"], op.Concat(m["v"], m["w"], axis=1)), axis=1, num_outputs=2))
        ),
        Example("float[2,3] x", "y = MatMul(x, v) z = MatMul(x, w)", {"v": (3, 2), "w": (3, 2)}, outputs="y, z"),
    ),
    "grouping": Planted(
        (op.Conv(x, w), op.Conv(z, w)),
        lambda op, m: op.many(
            "Split",
            2,
            op.Conv(op.Concat(m["z"], m["x"], axis=1), op.Concat(m["w"], m["w"], axis=0), group=2),
            op.integers([1, 1]),
            axis=1,
        ),
        Example("float[1,1,3] x, float[1,1,3] z, float[1,1,2] w", "a = Conv(x, w) b = Conv(z, w)", outputs="a, b"),
    ),
    "row_major": Planted(
        op.MatMul(x, Weight("w")),
        lambda op, m: op.Reshape(
            op.MatMul(op.Reshape(op.Transpose(m["x"], perm=[1, 0, 2]), op.integers([6, 4])), m["w"]),
            op.integers([2, 3, 5]),
        ),
        sample("float[2,3,4] x", "y = MatMul(x, w)", w=(4, 5)),
    ),
    "splitting": Planted(
        op.Conv(x, Weight("w"), name="conv"),
        lambda op, m: op.Conv(m["x"], op.Concat(m["w"], m["w"], axis=1)),
        sample("float[1,2,3] x", "y = Conv<group=2>(x, w)", w=(2, 1, 2)),
    ),
    "convolution": Planted(
        op.Conv(x, Weight("w"), name="conv"),
        lambda op, m: op.Conv(op.Slice(m["x"], *(op.integers([n]) for n in (1, 9, 2, 2))), m["w"]),
        sample("float[1,1,4] x", "y = Conv<strides=[2]>(x, w)", w=(1, 1, 1)),
    ),
    "correction": Planted(
        op.Conv(x, Weight("w"), name="conv"),
        lambda op, m: op.Reshape(  # the rows at the seam stay as they are
            op.copy(m.node("conv"), op.Reshape(m["x"], op.integers([2, 1, 2, 1])), m["w"]), op.integers([1, 1, 4, 1])
        ),
        sample("float[1,1,4,1] x", "y = Conv<pads=[1,0,1,0]>(x, w)", w=(1, 1, 3, 1)),
    ),
    "depth_to_channels": Planted(
        op.Conv(x, Weight("w"), name="conv"),
        lambda op, m: op.Reshape(
            op.Conv(
                op.Reshape(m["x"], op.integers([1, 4, 1, 1])),
                op.Reshape(op.Concat(m["w"], m["w"], axis=0), op.integers([2, 2, 1, 1])),
                group=2,
            ),
            op.integers([1, 1, 2, 1, 1]),
        ),
        sample("float[1,2,2,1,1] x", "y = Conv(x, w)", w=(1, 2, 1, 1, 1)),
    ),
    "kernel_trimming": Planted(
        op.Conv(x, Weight("w"), name="conv"),
        lambda op, m: op.Conv(
            m["x"], op.Slice(m["w"], *(op.integers([n]) for n in (1, 3, 2))), pads=[0, 1], kernel_shape=[2]
        ),
        sample("float[1,1,2] x", "y = Conv<pads=[1,1]>(x, w)", w=(1, 1, 3)),
    ),
    "channel_padding": Planted(
        op.Conv(x, Weight("w"), name="conv"),
        lambda op, m: op.Conv(m["x"], op.Pad(m["w"], op.integers([0, 0, 0, 0, 1, 0]))),
        sample("float[1,2,3] x", "y = Conv<group=2>(x, w)", w=(2, 1, 2)),
    ),
    "generated": EquationRule("planted", read_equation("transpose(matmul(x, z)) = matmul(transpose(x), transpose(z))")),
}


def test_there_is_one_of_each_family() -> None:
    assert list(FALSE) == list(FAMILIES)


@pytest.mark.parametrize("family", FALSE)
def test_a_false_rule_is_found_out(family: str) -> None:
    with pytest.raises(FalseRule, match="becomes") as found:
        verify(FALSE[family])
    assert " at " in str(found.value)  # the numbers that show it


def test_an_example_on_which_the_rule_does_not_apply() -> None:
    rule = Planted(op.Relu(x), lambda op, m: op.Identity(m["x"]), sample("float[2] x", "y = Neg(x)"))
    with pytest.raises(FalseRule, match="does not apply"):
        verify(rule)
