"""Which positions windows read: pads, slices and strides moved into one another, so that nothing is padded, cut or picked out into
a larger tensor than is needed."""

from __future__ import annotations

from bricolage.rewrite.linear import Window, window
from bricolage.rewrite.matching import Match
from bricolage.rewrite.pattern import AnyValue, Op, op
from bricolage.rewrite.predicates import floating, integer, listed, require, require_filled, shape, text
from bricolage.rewrite.rule import Example, MatchFailure, Operators, Result, Rule
from bricolage.rewrite.slices import any_pad, any_slice, keep, kept_positions, padding, split_at

x, w, b = AnyValue("x"), AnyValue("w"), AnyValue("b", optional=True)
_CUT = {"a": [1, 1], "e": [2**31 - 1, 2**31 - 1], "c": [2, 3]}


def _require_constant_mode(match: Match) -> None:
    require(text(match.node("pad"), "mode", "constant") == "constant", "the mode of the pad is not constant")


def _require_pointwise(window: Window) -> None:
    require(set(window.kernel) == {1}, "the kernel is not of size 1")


class PadIntoWindow(Rule):
    """W(Pad(x, p, 0), pads q) = W(x, pads p + q)

    for W a Conv, or an AveragePool that counts its pads (or has none); p constant, not negative, and on no axis but those
    of the window, with the constant 0; the pads of a pool stay smaller than its window, as ONNX Runtime wants them.
    """

    family = "strides"
    examples = (
        Example("float[1,3,5,5] x", "t = Pad(x, p) y = Conv(t, w)", {"p": [0, 0, 1, 2, 0, 0, 1, 0], "w": (4, 3, 3, 3)}),
        Example(
            "float[1,3,5] x",
            'u = Pad<mode="constant">(x, p, z) y = Conv<pads=[1,0], auto_pad="NOTSET">(u, w, b)',
            {"p": [0, 0, 1, 0, 0, 1], "z": 0.0, "w": (4, 3, 3), "b": (4,)},
        ),
        Example("float[1,3,6] x", "t = Pad(x, p, , a) y = AveragePool<kernel_shape=[3]>(t)", {"p": [1, 1], "a": [-1]}),
        Example(
            "float[1,3,6] x",
            "t = Pad(x, p) y = AveragePool<kernel_shape=[4], pads=[1,1], count_include_pad=1>(t)",
            {"p": [0, 0, 1, 0, 0, 1]},
        ),
    )
    counterexamples = (
        Example(
            "float[1,3,5] x",
            "t = Pad(x, p, z) y = Conv(t, w)",
            {"p": [0, 0, 1, 0, 0, 1], "z": 1.0, "w": (4, 3, 3)},
            why="0",
        ),
        Example(
            "float[1,3,5] x", "t = Pad(x, p) y = Conv(t, w)", {"p": [0, 1, 0, 0, 0, 0], "w": (4, 4, 3)}, why="axis"
        ),
        Example(
            "float[1,3,5] x", "t = Pad(x, p) y = Conv(t, w)", {"p": [0, 0, -1, 0, 0, 1], "w": (4, 3, 3)}, why="negative"
        ),
        Example(
            "float[1,3,5] x",
            't = Pad<mode="reflect">(x, p) y = Conv(t, w)',
            {"p": [0, 0, 1, 0, 0, 1], "w": (4, 3, 3)},
            why="mode",
        ),
        Example(
            "float[1,3,5] x",
            't = Pad(x, p) y = Conv<auto_pad="SAME_UPPER">(t, w)',
            {"p": [0, 0, 1, 0, 0, 1], "w": (4, 3, 3)},
            why="auto_pad",
        ),
        Example("float[1,3,5] x, int64[6] p", "t = Pad(x, p) y = Conv(t, w)", {"w": (4, 3, 3)}, why="not a constant"),
        Example(
            "float[1,3,6] x",
            "t = Pad(x, p) y = AveragePool<kernel_shape=[4], pads=[1,1]>(t)",
            {"p": [0, 0, 1, 0, 0, 1]},
            why="does not count its pads",
        ),
        Example(
            "float[1,3,6] x",
            "t = Pad(x, p) y = AveragePool<kernel_shape=[3], strides=[2], ceil_mode=1>(t)",
            {"p": [0, 0, 1, 0, 0, 0]},
            why="rounds up",
        ),
        Example(
            "float[1,3,6] x",
            "t = Pad(x, p) y = AveragePool<kernel_shape=[2], pads=[0,1], count_include_pad=1>(t)",
            {"p": [0, 0, 0, 0, 0, 1]},
            why="nothing but pads",
        ),
    )

    def patterns(self) -> list[Op]:
        pad = any_pad(x, "pad")
        return [
            op.Conv(pad, w, b, name="window"),
            op.AveragePool(pad, name="window"),
        ]

    def check(self, match: Match) -> None:
        window = match.node("window")
        _require_constant_mode(match)
        if match.get("value") is not None:
            require_filled(match["value"], 0)
        require(text(window, "auto_pad", "NOTSET") in ("NOTSET", "VALID"), "auto_pad depends on the padded size")
        begin, end = padding(match.node("pad"))
        require(all(size >= 0 for size in (*begin, *end)), "a pad is negative")
        require(not any((*begin[:2], *end[:2])), "an axis other than the window's is padded")
        if window.op_type == "AveragePool":
            own = listed(window, "pads", ())
            counts = integer(window, "count_include_pad", 0) or not any(own)
            require(bool(counts), "the pool does not count its pads")
            require(not integer(window, "ceil_mode", 0), "the pool rounds up, into pads")
            kernel = listed(window, "kernel_shape", ())
            fits = all(pad < size for pad, size in zip(self._joined(match), (*kernel, *kernel), strict=True))
            require(fits, "a window of the pool would see nothing but pads")

    def rewrite(self, op: Operators, match: Match) -> Result:
        window = match.node("window")
        changed: dict[str, object] = {"pads": self._joined(match), "auto_pad": None}
        if window.op_type == "AveragePool":
            return op.copy(window, match["x"], **changed, count_include_pad=1)
        return op.copy(window, match["x"], match["w"], match.get("b"), **changed)

    @staticmethod
    def _joined(match: Match) -> list[int]:
        """The pads of both, before all spatial axes and behind."""
        begin, end = padding(match.node("pad"))
        own = listed(match.node("window"), "pads", [0] * (2 * len(begin[2:])))
        return [a + b for a, b in zip([*begin[2:], *end[2:]], own, strict=True)]


class SliceBeforePad(Rule):
    """Slice(Pad(x, p, c)) = Pad(Slice(x), p', c), or Slice(x)

    for constant pads, and constant ranges with positive steps on axes of fixed size that keep something of x.
    """

    family = "strides"
    examples = (
        Example("float[1,2,7,8] x", "t = Pad(x, p) y = Slice(t, a, e, c)", {"p": [0, 0, 0, 0, 0, 0, 1, 1], **_CUT}),
        Example(
            "float[1,2,9,9] x",
            "t = Pad(x, p, f) y = Slice(t, a, e, c, s)",
            {"p": [0, 0, 2, 1, 0, 0, 2, 3], "f": 1.0, **_CUT, "s": [3, 2]},
        ),
        Example(
            "float[N,9] x", "t = Pad(x, p, , d) y = Slice(t, a, e, d)", {"p": [2, -1], "a": [3], "e": [6], "d": [1]}
        ),
    )
    counterexamples = (
        Example(
            "float[1,2,7,8] x",
            't = Pad<mode="reflect">(x, p) y = Slice(t, a, e, c)',
            {"p": [0, 0, 0, 0, 0, 0, 1, 1], **_CUT},
            why="mode",
        ),
        Example("float[1,2,7,8] x, int64[8] p", "t = Pad(x, p) y = Slice(t, a, e, c)", _CUT, why="not a constant"),
        Example(
            "float[1,2,7,N] x",
            "t = Pad(x, p) y = Slice(t, a, e, c)",
            {"p": [0, 0, 0, 0, 0, 0, 1, 1], **_CUT},
            why="fixed",
        ),
        Example(
            "float[2,9] x",
            "t = Pad(x, p, , d) y = Slice(t, a, e, d, s)",
            {"p": [2, 1], "a": [6], "e": [3], "d": [1], "s": [-1]},
            why="negative",
        ),
        Example(
            "float[2,9] x",
            "t = Pad(x, p, , d) y = Slice(t, a, e, d)",
            {"p": [4, 1], "a": [0], "e": [3], "d": [1]},
            why="nothing",
        ),
        Example(
            "float[1,2,7,8] x",
            "t = Pad(x, p) y = Slice(t, a, e, c)",
            {"p": [0, 0, 0, 0, 0, 0, 1, 1], **_CUT},
            outputs="y, t",
            why="not profitable",
        ),
    )

    def patterns(self) -> list[Op]:
        return [any_slice(any_pad(x, "pad"), "slice")]

    def check(self, match: Match) -> None:
        _require_constant_mode(match)

    def rewrite(self, op: Operators, match: Match) -> Result:
        (begin, end), own = padding(match.node("pad")), shape(match["x"])
        positions = kept_positions(match.node("slice"))
        for axis, kept in positions.items():
            size = own[axis]
            if not isinstance(size, int):
                raise MatchFailure("a sliced axis has no fixed size")
            shifted = range(kept.start - begin[axis], kept.stop - begin[axis], kept.step)
            begin[axis], positions[axis], end[axis] = split_at(shifted, size)
            require(bool(positions[axis]), "nothing of x is kept")
        data = keep(op, match["x"], positions)
        return op.Pad(data, op.integers([*begin, *end]), match.get("value")) if any((*begin, *end)) else data


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
    counterexamples = (
        Example(
            "float[1,3,7] x",
            "t = AveragePool<kernel_shape=[2]>(x) y = Conv(t, w)",
            {"w": (4, 3, 1)},
            why="one position",
        ),
        Example(
            "float[1,3,7] x",
            "t = MaxPool<kernel_shape=[1], strides=[2]>(x) y = Conv(t, w)",
            {"w": (4, 3, 2)},
            why="size 1",
        ),
        Example(
            "float[1,3,6] x",
            "t = MaxPool<kernel_shape=[1], strides=[2], ceil_mode=1>(x) y = Conv(t, w)",
            {"w": (4, 3, 1)},
            why="rounds up",
        ),
        Example(
            "float[1,3,6] x",
            't = MaxPool<kernel_shape=[1], strides=[2], auto_pad="SAME_UPPER">(x) y = Conv(t, w)',
            {"w": (4, 3, 1)},
            why="explicit",
        ),
        Example(
            "float[1,3,6] x",
            't = MaxPool<kernel_shape=[1], strides=[2]>(x) y = Conv<auto_pad="SAME_UPPER">(t, w)',
            {"w": (4, 3, 1)},
            why="explicit",
        ),
        Example(
            "float[1,3,6] x",
            "t = MaxPool<kernel_shape=[1], strides=[2]>(x) y = Conv<pads=[0,1]>(t, w)",
            {"w": (4, 3, 1)},
            why="there are pads",
        ),
        Example(
            "float[1,3,6] x",
            "t = AveragePool<kernel_shape=[1], strides=[2], pads=[0,1], count_include_pad=1>(x) y = Conv(t, w)",
            {"w": (4, 3, 1)},
            why="there are pads",
        ),
        Example(
            "float[1,3,6] x",
            "t = MaxPool<kernel_shape=[1], strides=[2]>(x) y = Conv(t, w)",
            {"w": (4, 3, 1)},
            outputs="y, t",
            why="not profitable",
        ),
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
        Example("float[1,3,9,8] x", "t = Slice(x, a, e, c) y = Conv<strides=[2,2]>(t, w)", {**_CUT, "w": (4, 3, 1, 1)}),
        Example(
            "float[1,4,19,9] x",
            "t = Slice(x, a, e, c, s) y = Conv<strides=[3,2], pads=[1,3,4,1], group=2>(t, w, b)",
            {**_CUT, "s": [2, 1], "w": (4, 2, 1, 1), "b": (4,)},
        ),
        Example(
            "float[N,3,20,8] x, float[4,3,1,1] w",
            "t = Slice(x, a, e, c) y = Conv<strides=[2,2]>(t, w)",
            {"a": [1], "e": [19], "c": [2]},
        ),
    )
    counterexamples = (
        Example(
            "float[1,3,9,8] x",
            "t = Slice(x, a, e, c) y = Conv<strides=[2,2]>(t, w)",
            {**_CUT, "w": (4, 3, 2, 1)},
            why="size 1",
        ),
        Example(
            "float[1,3,9,8] x",
            "t = Slice(x, a, e, c) y = Conv(t, w)",
            {**_CUT, "w": (4, 3, 1, 1)},
            why="no strides",
        ),
        Example(
            "float[1,9,9,8] x",
            "t = Slice(x, a, e, c) y = Conv<strides=[2,2]>(t, w)",
            {"a": [1], "e": [4], "c": [1], "w": (4, 3, 1, 1)},
            why="no strides",
        ),
        Example(
            "float[1,3,9,8] x",
            't = Slice(x, a, e, c) y = Conv<strides=[2,2], auto_pad="SAME_UPPER">(t, w)',
            {**_CUT, "w": (4, 3, 1, 1)},
            why="explicit",
        ),
        Example(
            "float[1,3,N,8] x",
            "t = Slice(x, a, e, c) y = Conv<strides=[2,2]>(t, w)",
            {**_CUT, "w": (4, 3, 1, 1)},
            why="fixed size",
        ),
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
        Example(
            "float[1,3,9,8] x",
            "t = Slice(x, a, e, c) y = Conv<strides=[2,2]>(t, w)",
            {**_CUT, "w": (4, 3, 1, 1)},
            outputs="y, t",
            why="not profitable",
        ),
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
        Example("float[1,4,7,8] x", "y = Slice(x, a, e, c, s)", {**_CUT, "s": [2, 3]}),
        Example("float[N,3,9] x", "t = Slice(x, a, e, c, s) y = Relu(t)", {"a": [0], "e": [9], "c": [-1], "s": [4]}),
        Example("float[1,2,5,6,8] x", "y = Slice(x, a, e, c, s)", {"a": [0, 1], "e": [5, 8], "c": [2, 4], "s": [1, 2]}),
    )
    counterexamples = (
        Example("float[1,3,9] x", "y = Slice(x, a, e, c)", {"a": [0], "e": [9], "c": [2]}, why="no step"),
        Example("float[1,3,9] x", "y = Slice(x, a, e, c, s)", {"a": [2], "e": [9], "c": [2], "s": [2]}, why="begins"),
        Example("float[1,3,9] x", "y = Slice(x, a, e, c, s)", {"a": [0], "e": [5], "c": [2], "s": [2]}, why="the end"),
        Example("float[1,4,9] x", "y = Slice(x, a, e, c, s)", {"a": [0], "e": [4], "c": [1], "s": [2]}, why="windows"),
        Example(
            "float[1,3,N] x", "y = Slice(x, a, e, c, s)", {"a": [0], "e": [9], "c": [2], "s": [2]}, why="fixed size"
        ),
        Example("float[1,C,9] x", "y = Slice(x, a, e, c, s)", {"a": [0], "e": [9], "c": [2], "s": [2]}, why="channels"),
        Example("float[4,9] x", "y = Slice(x, a, e, c, s)", {"a": [0], "e": [9], "c": [1], "s": [2]}, why="windows"),
        Example("int32[1,3,9] x", "y = Slice(x, a, e, c, s)", {"a": [0], "e": [9], "c": [2], "s": [2]}, why="floating"),
    )

    def patterns(self) -> list[Op]:
        return [any_slice(x, "slice")]

    def check(self, match: Match) -> None:
        floating(match.root)
        own, positions = shape(match["x"]), kept_positions(match.node("slice"))
        require(min(positions, default=0) > 1, "other axes than those of windows are cut")
        require(isinstance(own[1], int) and own[1] > 0, "the number of channels is not known")
        require(max(kept.step for kept in positions.values()) > 1, "there is no step")
        for axis, kept in positions.items():
            require(len(kept) > 0 and kept.start < kept.step, "a range begins behind its first step, or is empty")
            require(
                len(kept) == len(range(kept.start, int(own[axis]), kept.step)),
                "a range ends before the end of its axis",
            )

    def rewrite(self, op: Operators, match: Match) -> Result:
        own, positions = shape(match["x"]), kept_positions(match.node("slice"))
        kept = [positions.get(axis, range(1)) for axis in range(2, len(own))]
        one = op.Expand(op.number(1.0, match["x"]), op.integers([int(own[1]), 1, *[1] * len(kept)]))
        before = [0, 0, *(each.start for each in kept)]
        weight = op.Pad(one, op.integers([*before, *[0] * len(before)]))
        return op.Conv(match["x"], weight, strides=[each.step for each in kept], group=int(own[1]))
