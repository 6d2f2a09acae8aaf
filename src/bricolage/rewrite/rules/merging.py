"""Products and convolutions that share an input, merged into one; kernels enlarged so that they can be. Whether that pays
depends on the machine: these rules are cost-based, a search decides."""

from __future__ import annotations

from bricolage.rewrite.analyses.linear import Window, geometry
from bricolage.rewrite.engine.matching import Match
from bricolage.rewrite.pattern import AnyValue, Op, Weight, op
from bricolage.rewrite.predicates import integer, rank, require, require_shape, sizes
from bricolage.rewrite.rule import Example, Operators, Result, Rule

x = AnyValue("x")


class MergeProducts(Rule):
    """MatMul(x, v), MatMul(x, w) = Split(MatMul(x, Concat(v, w)))

    for constant matrices v and w.
    """

    family = "merging"
    cost_based = True
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


class MergeElementwise(Rule):
    """Concat(f(a, b), f(c, d)) = f(Concat(a, c), Concat(b, d))

    for Add, Sub and Mul without broadcasting.
    """

    family = "merging"
    cost_based = True
    examples = (
        Example(
            "float[2,3] a, float[2,3] b, float[2,4] c, float[2,4] d",
            "s = Mul(a, b) t = Mul(c, d) y = Concat<axis=1>(s, t)",
        ),
        Example(
            "float[2,3] a, float[2,3] b, float[5,3] c, float[5,3] d",
            "s = Sub(a, b) t = Sub(c, d) y = Concat<axis=0>(s, t)",
        ),
        Example("float[2,3] a, float[2,3] b, float[2,3] c", "s = Add(a, b) t = Add(c, a) y = Concat<axis=-1>(s, t)"),
    )
    counterexamples = (
        examples[0].but("shape", inputs="float[2,3] a, float[1,3] b, float[2,4] c, float[2,4] d"),
        Example("float[2,3] a, float[2,3] b", "s = Mul(a, b) t = Add(a, b) y = Concat<axis=1>(s, t)"),
    )

    def patterns(self) -> list[Op]:
        a, b, c, d = (AnyValue(name) for name in "abcd")
        return [
            op.Concat(binary_op(a, b, name="first"), binary_op(c, d, name="second"), name="concat")
            for binary_op in (op.Add, op.Sub, op.Mul)
        ]

    def check(self, match: Match) -> None:
        for name, operands in (("first", "ab"), ("second", "cd")):
            for operand in operands:
                require_shape(match.node(name).outputs[0], match[operand])

    def rewrite(self, op: Operators, match: Match) -> Result:
        axis = integer(match.node("concat"), "axis", 0)
        left, right = op.Concat(match["a"], match["c"], axis=axis), op.Concat(match["b"], match["d"], axis=axis)
        functions = {"Add": op.Add, "Sub": op.Sub, "Mul": op.Mul}
        return functions[match.node("first").op_type](left, right)


class MergeConvolutions(Rule):
    """Conv(x, v, a), Conv(x, w, b) = Split(Conv(x, Concat(v, w), Concat(a, b)))

    for constant weights with kernels of one size, both with or both without a constant bias, one group, and equal strides,
    pads and dilations.
    """

    family = "merging"
    cost_based = True
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
    _plain = Example(
        "float[1,3,5] x", "a = Conv(x, v) b = Conv(x, w) y = Concat<axis=2>(b, a)", {"v": (4, 3, 3), "w": (4, 3, 1)}
    )
    counterexamples = (
        _plain.but("kernels"),
        _plain.but("strides", "a = Conv(x, v) b = Conv<strides=[2]>(x, w) y = Concat<axis=2>(b, a)", w=(4, 3, 3)),
        Example(
            "float[1,4,5] x",
            "a = Conv<group=2>(x, v) b = Conv<group=2>(x, w) y = Add(b, a)",
            {"v": (4, 2, 3), "w": (4, 2, 3)},
            why="group",
        ),
        _plain.but("bias", "a = Conv(x, v) b = Conv(x, w, q) y = Add(b, a)", w=(4, 3, 3), q=(4,)),
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
        require(geometry(first) == geometry(second), "strides, pads or dilations differ")
        require(integer(first, "group", 1) == 1, "there is more than one group")
        require((match.get("a") is None) == (match.get("b") is None), "only one has a bias")

    def rewrite(self, op: Operators, match: Match) -> Result:
        first, second, a, b = match["v"], match["w"], match.get("a"), match.get("b")
        bias = op.Concat(a, b, axis=0) if a is not None and b is not None else None
        merged = op.copy(match.node("first"), match["x"], op.Concat(first, second, axis=0), bias)
        return op.many("Split", 2, merged, op.integers([sizes(first)[0], sizes(second)[0]]), axis=1)


class EnlargeKernel(Rule):
    """Conv(x, w, b) = Conv(x, Pad(w), b, the pads of another convolution of x)

    where another convolution of x has a larger kernel and larger pads, and the same strides, dilations and groups: filled up
    with zeros, both can be merged (TASO's enlarge).
    """

    family = "merging"
    cost_based = True
    examples = (
        Example(
            "float[1,3,5,5] x",
            "a = Conv(x, w) b = Conv<pads=[1,1,1,1]>(x, v) y = Add(a, b)",
            {"w": (4, 3, 1, 1), "v": (4, 3, 3, 3)},
        ),
        Example(
            "float[1,4,9] x",
            "a = Conv<group=2, strides=[2], dilations=[2], pads=[2,2]>(x, w, c)"
            " b = Conv<group=2, strides=[2], dilations=[2], pads=[4,4]>(x, v) y = Add(a, b)",
            {"w": (4, 2, 3), "v": (4, 2, 5), "c": (4,)},
        ),
        Example(
            "float[N,3,5,6] x",
            "a = Conv<pads=[1,0,1,0]>(x, w) b = Conv<pads=[1,0,1,1]>(x, v) y = Add(a, b)",
            {"w": (4, 3, 3, 1), "v": (4, 3, 3, 2)},
        ),
    )
    _plain = Example(
        "float[1,3,5] x", "a = Conv(x, w) b = Conv(x, v) y = Concat<axis=2>(a, b)", {"w": (4, 3, 1), "v": (4, 3, 3)}
    )
    counterexamples = (
        Example("float[1,3,5,5] x", "y = Conv(x, w)", {"w": (4, 3, 1, 1)}),
        _plain.but("than the pads"),
        _plain.but("do not fit", "a = Conv<pads=[2,2]>(x, w) b = Conv<pads=[1,1]>(x, v) y = Concat<axis=2>(a, b)"),
        _plain.but("strides", "a = Conv(x, w) b = Conv<pads=[1,1], strides=[2]>(x, v) y = Concat<axis=2>(a, b)"),
        Example(
            "float[1,4,5] x",
            "a = Conv<group=2>(x, w) b = Conv<pads=[1,1]>(x, v) y = Add(a, b)",
            {"w": (4, 2, 1), "v": (4, 4, 3)},
            why="groups",
        ),
        Example(
            "float[1,3,9] x",
            "a = Conv<dilations=[2]>(x, w) b = Conv<pads=[1,1]>(x, v) y = Concat<axis=2>(a, b)",
            {"w": (4, 3, 3), "v": (4, 3, 5)},
            why="dilations",
        ),
        _plain.but("not larger", "a = Conv<pads=[1,1]>(x, w) b = Conv<pads=[1,1]>(x, v) y = Add(a, b)", w=(4, 3, 3)),
        _plain.but("explicit", 'a = Conv<auto_pad="SAME_UPPER">(x, w) b = Conv<pads=[1,1]>(x, v) y = Add(a, b)'),
        Example(
            "float[1,3,5] x, float[4,3,1] w",
            "a = Conv(x, w) b = Conv<pads=[1,1]>(x, v) y = Add(a, b)",
            {"v": (4, 3, 3)},
            why="not a constant",
        ),
    )

    def patterns(self) -> list[tuple[Op, ...]]:
        convolution = op.Conv(x, Weight("w"), AnyValue("b", optional=True), name="conv")
        return [(convolution, op.Conv(x, AnyValue("v"), AnyValue("c", optional=True), name="other"))]

    def check(self, match: Match) -> None:
        self._compare_windows(match)

    @staticmethod
    def _compare_windows(match: Match) -> tuple[Window, list[int]]:
        """The other convolution's window, and how many zeros go before the kernel in each spatial axis and after it."""
        (conv_window, groups), (other, others) = geometry(match.node("conv")), geometry(match.node("other"))
        require(conv_window.strides == other.strides, "the strides differ")
        require(conv_window.dilations == other.dilations, "the dilations differ")
        require(groups == others, "the numbers of groups differ")
        steps = conv_window.dilations * 2
        grown = [q - p for p, q in zip(conv_window.before + conv_window.after, other.before + other.after, strict=True)]
        require(all(by >= 0 and by % step == 0 for by, step in zip(grown, steps, strict=True)), "the pads do not fit")
        added = [by // step for by, step in zip(grown, steps, strict=True)]
        fronts, backs = added[: conv_window.spatial_rank], added[conv_window.spatial_rank :]
        kernel = tuple(map(sum, zip(conv_window.kernel, fronts, backs, strict=True)))
        require(kernel == other.kernel, "the kernels differ by something else than the pads")
        require(kernel != conv_window.kernel, "the other kernel is not larger")
        return other, added

    def rewrite(self, op: Operators, match: Match) -> Result:
        other, added = self._compare_windows(match)
        before, after = added[: other.spatial_rank], added[other.spatial_rank :]
        enlarged = op.Pad(match["w"], op.integers([0, 0, *before, 0, 0, *after]))
        larger = op.copy(
            match.node("conv"),
            match["x"],
            enlarged,
            match.get("b"),
            kernel_shape=other.kernel,
            pads=[*other.before, *other.after],
            auto_pad=None,
        )
        return larger, None
