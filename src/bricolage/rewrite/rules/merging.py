"""Products and convolutions that share an input, merged into one; kernels enlarged so that they can be. Whether that pays
depends on the machine: these rules explore, a search decides."""

from __future__ import annotations

import onnx_ir as ir

from bricolage.rewrite.facts import integer, listed, rank, require, sizes, text
from bricolage.rewrite.matching import Match
from bricolage.rewrite.pattern import Any, Op, Weight, op
from bricolage.rewrite.rule import Example, Operators, Result, Rule

x = Any("x")


class MergeProducts(Rule):
    """MatMul(x, v), MatMul(x, w) = Split(MatMul(x, Concat(v, w)))

    for constant matrices v and w.
    """

    family = "merging"
    exploring = True
    examples = (
        Example(
            "float[2,3] x",
            "a = MatMul(x, v) b = MatMul(x, w) c = Tanh(b) y = Concat<axis=1>(a, c)",
            {"v": (3, 4), "w": (3, 5)},
        ),
        Example("float[2,N,3] x", "a = MatMul(x, v) b = MatMul(x, w)", {"v": (3, 4), "w": (3, 4)}, outputs="b, a"),
    )
    counterexamples = (
        Example("float[2,3] x", "a = MatMul(x, v) y = MatMul(a, w)", {"v": (3, 4), "w": (4, 5)}),
        Example(
            "float[2,3] x, float[3,4] v",
            "a = MatMul(x, v) b = MatMul(x, w) y = Add(a, b)",
            {"w": (3, 4)},
            why="constant",
        ),
        Example(
            "float[5,2,3] x",
            "a = MatMul(x, v) b = MatMul(x, w) y = Add(a, b)",
            {"v": (5, 3, 4), "w": (3, 4)},
            why="matrices",
        ),
    )

    def patterns(self) -> list[tuple[Op, ...]]:
        return [(op.MatMul(x, Weight("v")), op.MatMul(x, Weight("w")))]

    def check(self, match: Match) -> None:
        require(rank(match["v"]) == rank(match["w"]) == 2, "the weights are no matrices")

    def rewrite(self, op: Operators, match: Match) -> Result:
        first, second = match["v"], match["w"]
        product = op.MatMul(match["x"], op.Concat(first, second, axis=1))
        return op.many("Split", 2, product, op.integers([sizes(first)[1], sizes(second)[1]]), axis=-1)


def _alike(first: ir.Node, second: ir.Node) -> bool:
    """Whether two convolutions have the same geometry."""
    names = {*first.attributes, *second.attributes} - {"kernel_shape"}
    values = [
        [node.attributes[n].value if n in node.attributes else None for n in sorted(names)] for node in (first, second)
    ]
    return values[0] == values[1]


class MergeConvolutions(Rule):
    """Conv(x, v, a), Conv(x, w, b) = Split(Conv(x, Concat(v, w), Concat(a, b)))

    for constant weights with kernels of one size, both with or both without a constant bias, one group, and equal strides,
    pads and dilations.
    """

    family = "merging"
    exploring = True
    examples = (
        Example(
            "float[1,3,5,5] x",
            "a = Conv<pads=[1,1,1,1]>(x, v) b = Conv<pads=[1,1,1,1]>(x, w) y = Concat<axis=1>(b, a)",
            {"v": (4, 3, 3, 3), "w": (2, 3, 3, 3)},
        ),
        Example(
            "float[1,3,5] x",
            "a = Conv(x, v, p) b = Conv(x, w, q) y = Add(b, a)",
            {"v": (4, 3, 3), "w": (4, 3, 3), "p": (4,), "q": (4,)},
        ),
    )
    counterexamples = (
        Example(
            "float[1,3,5] x",
            "a = Conv(x, v) b = Conv(x, w) y = Concat<axis=2>(b, a)",
            {"v": (4, 3, 3), "w": (4, 3, 1)},
            why="kernels",
        ),
        Example(
            "float[1,3,5] x",
            "a = Conv(x, v) b = Conv<strides=[2]>(x, w) y = Concat<axis=2>(b, a)",
            {"v": (4, 3, 3), "w": (4, 3, 3)},
            why="strides",
        ),
        Example(
            "float[1,4,5] x",
            "a = Conv<group=2>(x, v) b = Conv<group=2>(x, w) y = Add(b, a)",
            {"v": (4, 2, 3), "w": (4, 2, 3)},
            why="group",
        ),
        Example(
            "float[1,3,5] x",
            "a = Conv(x, v) b = Conv(x, w, q) y = Add(b, a)",
            {"v": (4, 3, 3), "w": (4, 3, 3), "q": (4,)},
            why="bias",
        ),
    )

    def patterns(self) -> list[tuple[Op, ...]]:
        return [
            (
                op.Conv(x, Weight("v"), Weight("a", optional=True), name="first"),
                op.Conv(x, Weight("w"), Weight("b", optional=True), name="second"),
            )
        ]

    def check(self, match: Match) -> None:
        first, second = match.node("first"), match.node("second")
        require(sizes(match["v"])[1:] == sizes(match["w"])[1:], "the kernels have different sizes")
        require(_alike(first, second), "strides, pads or dilations differ")
        require(integer(first, "group", 1) == 1, "there is more than one group")
        require((match.get("a") is None) == (match.get("b") is None), "only one has a bias")

    def rewrite(self, op: Operators, match: Match) -> Result:
        first, second, a, b = match["v"], match["w"], match.get("a"), match.get("b")
        bias = op.Concat(a, b, axis=0) if a is not None and b is not None else None
        merged = op.copy(match.node("first"), match["x"], op.Concat(first, second, axis=0), bias)
        return op.many("Split", 2, merged, op.integers([sizes(first)[0], sizes(second)[0]]), axis=1)


class EnlargeKernel(Rule):
    """Conv(x, w, 1×1) = Conv(x, Pad(w), 3×3, pads + 1)

    for a kernel of size 1 in every direction, with explicit pads (TASO's enlarge: merging convolutions of different sizes).
    """

    family = "merging"
    exploring = True
    examples = (
        Example("float[1,3,5,5] x", "y = Conv(x, w)", {"w": (4, 3, 1, 1)}),
        Example("float[1,4,6] x", "y = Conv<group=2, strides=[2], pads=[1,0]>(x, w, b)", {"w": (4, 2, 1), "b": (4,)}),
    )
    counterexamples = (
        Example("float[1,3,5,5] x", "y = Conv(x, w)", {"w": (4, 3, 3, 1)}, why="size 1"),
        Example("float[1,3,5] x", 'y = Conv<auto_pad="SAME_UPPER">(x, w)', {"w": (4, 3, 1)}, why="explicit"),
    )

    def patterns(self) -> list[Op]:
        return [op.Conv(x, Weight("w"), Any("b", optional=True), name="conv")]

    def check(self, match: Match) -> None:
        require(set(sizes(match["w"])[2:]) == {1}, "the kernel is not of size 1")
        require(text(match.node("conv"), "auto_pad", "NOTSET") in ("NOTSET", "VALID"), "the pads are not explicit")

    def rewrite(self, op: Operators, match: Match) -> Result:
        node, weight = match.node("conv"), match["w"]
        directions = rank(weight) - 2
        around = [0, 0, *[1] * directions]
        enlarged = op.Pad(weight, op.integers([*around, *around]))
        dilations = listed(node, "dilations", [1] * directions)
        own = listed(node, "pads", [0] * (2 * directions))
        pads = [pad + dilation for pad, dilation in zip(own, [*dilations, *dilations], strict=True)]
        kernel = [3] * directions
        return op.copy(node, match["x"], enlarged, match.get("b"), pads=pads, kernel_shape=kernel, auto_pad=None)
