"""Which positions windows read: strides moved between windows and slices, so that nothing is computed that is not read."""

from __future__ import annotations

from bricolage.rewrite.analyses.linear import Window, window
from bricolage.rewrite.analyses.slices import any_slice, keep, kept_positions, split_at
from bricolage.rewrite.engine.matching import Match
from bricolage.rewrite.pattern import AnyValue, Op, op
from bricolage.rewrite.predicates import floating, integer, listed, require, shape, text
from bricolage.rewrite.rule import Example, Operators, Result, Rule

x, w, b = AnyValue("x"), AnyValue("w"), AnyValue("b", optional=True)
CUT = {"a": [1, 1], "e": [2**31 - 1, 2**31 - 1], "c": [2, 3]}


def _require_pointwise(window: Window) -> None:
    require(set(window.kernel) == {1}, "the kernel is not of size 1")


class PoolIntoPointwise(Rule):
    """Conv(Pool(x, strides s), w, b, strides t) = Conv(x, w, b, strides s · t)

    for windows of one position without pads, and Pool an AveragePool or MaxPool that does not round up.
    """

    family = "strides"
    examples = (
        Example(
            "float[1,3,5,6] x",
            "t = AveragePool<kernel_shape=[1,1], strides=[2,2], pads=[0,0,0,0]>(x) y = Conv(t, w)",
            {"w": (4, 3, 1, 1)},
        ),
        Example(
            "float[N,4,M] x, float[4,2,1] w",
            "t = MaxPool<kernel_shape=[1], strides=[2]>(x) y = Conv<strides=[3], group=2>(t, w, b)",
            {"b": (4,)},
        ),
    )
    _plain = Example("float[1,3,6] x", "t = MaxPool<kernel_shape=[1], strides=[2]>(x) y = Conv(t, w)", {"w": (4, 3, 1)})
    counterexamples = (
        _plain.but("one position", "t = AveragePool<kernel_shape=[2]>(x) y = Conv(t, w)", inputs="float[1,3,7] x"),
        _plain.but("size 1", inputs="float[1,3,7] x", w=(4, 3, 2)),
        _plain.but("rounds up", "t = MaxPool<kernel_shape=[1], strides=[2], ceil_mode=1>(x) y = Conv(t, w)"),
        _plain.but("explicit", 't = MaxPool<kernel_shape=[1], strides=[2], auto_pad="SAME_UPPER">(x) y = Conv(t, w)'),
        _plain.but("explicit", 't = MaxPool<kernel_shape=[1], strides=[2]>(x) y = Conv<auto_pad="SAME_UPPER">(t, w)'),
        _plain.but("there are pads", "t = MaxPool<kernel_shape=[1], strides=[2]>(x) y = Conv<pads=[0,1]>(t, w)"),
        Example(
            "float[1,3,6] x",
            "t = AveragePool<kernel_shape=[1], strides=[2], pads=[0,1], count_include_pad=1>(x) y = Conv(t, w)",
            {"w": (4, 3, 1)},
            why="there are pads",
        ),
        _plain.but("not profitable", outputs="y, t"),
    )

    def patterns(self) -> list[Op]:
        return [op.Conv(op.one_of("AveragePool", "MaxPool")(x, name="pool"), w, b, name="conv")]

    def check(self, match: Match) -> None:
        pool, conv = match.node("pool"), window(match.node("conv"), match["w"])
        require(set(listed(pool, "kernel_shape", ())) == {1}, "the pool's window is not one position")
        require(text(pool, "auto_pad", "NOTSET") in ("NOTSET", "VALID"), "the pads are not explicit")
        require(not integer(pool, "ceil_mode", 0), "the pool rounds up")
        _require_pointwise(conv)
        require(not any((*listed(pool, "pads", ()), *conv.before, *conv.after)), "there are pads")

    def rewrite(self, op: Operators, match: Match) -> Result:
        pool, conv = match.node("pool"), window(match.node("conv"), match["w"])
        ones = [1] * conv.spatial_rank
        strides = [s * t for s, t in zip(listed(pool, "strides", ones), conv.strides, strict=True)]
        return op.copy(match.node("conv"), match["x"], match["w"], match.get("b"), strides=strides)


class StrideIntoSlice(Rule):
    """Conv(Slice(x, steps t), w, b, strides s, pads p) = Conv(Slice(x, steps s · t), w, b, pads p')

    along the axes of the Slice, for kernels of size 1, explicit pads, and constant ranges with positive steps on axes of fixed
    size, of which the windows reach something.
    """

    family = "strides"
    examples = (
        Example("float[1,3,9,8] x", "t = Slice(x, a, e, c) y = Conv<strides=[2,2]>(t, w)", {**CUT, "w": (4, 3, 1, 1)}),
        Example(
            "float[1,4,19,9] x",
            "t = Slice(x, a, e, c, s) y = Conv<strides=[3,2], pads=[1,3,4,1], group=2>(t, w, b)",
            {**CUT, "s": [2, 1], "w": (4, 2, 1, 1), "b": (4,)},
        ),
        Example(
            "float[N,3,20,8] x, float[4,3,1,1] w",
            "t = Slice(x, a, e, c) y = Conv<strides=[2,2]>(t, w)",
            {"a": [1], "e": [19], "c": [2]},
        ),
    )
    counterexamples = (
        examples[0].but("size 1", w=(4, 3, 2, 1)),
        examples[0].but("no strides", "t = Slice(x, a, e, c) y = Conv(t, w)"),
        examples[0].but("no strides", inputs="float[1,9,9,8] x", a=[1], e=[4], c=[1]),
        examples[0].but("explicit", 't = Slice(x, a, e, c) y = Conv<strides=[2,2], auto_pad="SAME_UPPER">(t, w)'),
        examples[0].but("fixed size", inputs="float[1,3,N,8] x"),
        Example(
            "float[1,3,9] x",
            "t = Slice(x, e, a, c, s) y = Conv<strides=[2]>(t, w)",
            {"a": [1], "e": [8], "c": [2], "s": [-1], "w": (4, 3, 1)},
            why="negative",
        ),
        Example(
            "float[1,3,9] x",
            "t = Slice(x, a, e, c) y = Conv<strides=[4], pads=[1,0]>(t, w)",
            {"a": [1], "e": [3], "c": [2], "w": (4, 3, 1)},
            why="reach nothing",
        ),
        examples[0].but("not profitable", outputs="y, t"),
    )

    def patterns(self) -> list[Op]:
        return [op.Conv(any_slice(x, "slice"), w, b, name="conv")]

    def check(self, match: Match) -> None:
        _require_pointwise(window(match.node("conv"), match["w"]))

    def rewrite(self, op: Operators, match: Match) -> Result:
        conv, positions = window(match.node("conv"), match["w"]), kept_positions(match.node("slice"))
        strides, before, after = list(conv.strides), list(conv.before), list(conv.after)
        strided = [i for i, stride in enumerate(strides) if stride > 1 and 2 + i in positions]
        require(bool(strided), "there are no strides along the axes of the slice")
        for i in strided:
            kept = positions[2 + i]
            windows = range(-before[i], len(kept) + after[i], strides[i])
            before[i], inside, after[i] = split_at(windows, len(kept))
            require(bool(inside), "the windows reach nothing of x")
            positions[2 + i], strides[i] = kept[inside.start : inside.stop : inside.step], 1
        return op.copy(
            match.node("conv"),
            keep(op, match["x"], positions),
            match["w"],
            match.get("b"),
            strides=strides,
            pads=[*before, *after],
            auto_pad=None,
        )


class SliceAsDepthwise(Rule):
    """Slice(x, steps t) = Conv(x, u, strides t), each channel alone, with u one where the range begins and zero before

    for finite floating-point x with a fixed number of channels, and constant ranges along axes of windows that are of fixed
    size: each begins within its first step, goes on to the end of its axis, and one step at least is above 1. (A runtime that
    blocks channels leaves its layout for a Slice, and comes back behind it.)
    """

    family = "strides"
    cost_based = True
    examples = (
        Example("float[1,4,7,8] x", "y = Slice(x, a, e, c, s)", {**CUT, "s": [2, 3]}),
        Example("float[N,3,9] x", "t = Slice(x, a, e, c, s) y = Relu(t)", {"a": [0], "e": [9], "c": [-1], "s": [4]}),
        Example("float[1,2,5,6,8] x", "y = Slice(x, a, e, c, s)", {"a": [0, 1], "e": [5, 8], "c": [2, 4], "s": [1, 2]}),
    )
    counterexamples = (
        Example("float[1,3,9] x", "y = Slice(x, a, e, c)", {"a": [0], "e": [9], "c": [2]}, why="no step"),
        Example("float[1,3,9] x", "y = Slice(x, a, e, c, s)", {"a": [2], "e": [9], "c": [2], "s": [2]}, why="begins"),
        Example("float[1,3,9] x", "y = Slice(x, a, e, c, s)", {"a": [0], "e": [5], "c": [2], "s": [2]}, why="the end"),
        Example("float[1,4,9] x", "y = Slice(x, a, e, c, s)", {"a": [0], "e": [4], "c": [1], "s": [2]}, why="windows"),
        examples[0].but("fixed size", inputs="float[1,3,N] x", a=[0], e=[9], c=[2], s=[2]),
        Example("float[1,C,9] x", "y = Slice(x, a, e, c, s)", {"a": [0], "e": [9], "c": [2], "s": [2]}, why="channels"),
        Example("float[4,9] x", "y = Slice(x, a, e, c, s)", {"a": [0], "e": [9], "c": [1], "s": [2]}, why="windows"),
        Example("int32[1,3,9] x", "y = Slice(x, a, e, c, s)", {"a": [0], "e": [9], "c": [2], "s": [2]}, why="floating"),
    )

    def patterns(self) -> list[Op]:
        return [any_slice(x, "slice")]

    def check(self, match: Match) -> None:
        floating(match.root)
        data_shape, positions = shape(match["x"]), kept_positions(match.node("slice"))
        require(min(positions, default=0) > 1, "other axes than those of windows are cut")
        require(isinstance(data_shape[1], int) and data_shape[1] > 0, "the number of channels is not known")
        require(max(kept.step for kept in positions.values()) > 1, "there is no step")
        for axis, kept in positions.items():
            require(len(kept) > 0 and kept.start < kept.step, "a range begins behind its first step, or is empty")
            require(
                len(kept) == len(range(kept.start, int(data_shape[axis]), kept.step)),
                "a range ends before the end of its axis",
            )

    def rewrite(self, op: Operators, match: Match) -> Result:
        data_shape, positions = shape(match["x"]), kept_positions(match.node("slice"))
        kept = [positions.get(axis, range(1)) for axis in range(2, len(data_shape))]
        kernel = op.Expand(op.number(1.0, match["x"]), op.integers([int(data_shape[1]), 1, *[1] * len(kept)]))
        before = [0, 0, *(each.start for each in kept)]
        weight = op.Pad(kernel, op.integers([*before, *[0] * len(before)]))
        return op.Conv(match["x"], weight, strides=[each.step for each in kept], group=int(data_shape[1]))
