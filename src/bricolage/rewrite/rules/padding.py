"""Pads into windows, and slices before pads."""

from __future__ import annotations

from bricolage.rewrite.analyses.slices import any_pad, any_slice, keep, kept_positions, padding, split_at
from bricolage.rewrite.engine.matching import Match
from bricolage.rewrite.pattern import Op, op
from bricolage.rewrite.predicates import integer, listed, require, require_filled, shape, text
from bricolage.rewrite.rule import Example, MatchFailure, Operators, Result, Rule
from bricolage.rewrite.rules.strides import CUT, b, w, x


def _require_constant_mode(match: Match) -> None:
    require(text(match.node("pad"), "mode", "constant") == "constant", "the mode of the pad is not constant")


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
        examples[0].but("axis", inputs="float[1,3,5] x", p=[0, 1, 0, 0, 0, 0], w=(4, 4, 3)),
        examples[0].but("negative", inputs="float[1,3,5] x", p=[0, 0, -1, 0, 0, 1], w=(4, 3, 3)),
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
            window_pads = listed(window, "pads", ())
            counts = integer(window, "count_include_pad", 0) or not any(window_pads)
            require(bool(counts), "the pool does not count its pads")
            require(not integer(window, "ceil_mode", 0), "the pool rounds up, into pads")
            kernel = listed(window, "kernel_shape", ())
            fits = all(pad < size for pad, size in zip(self._join_pads(match), (*kernel, *kernel), strict=True))
            require(fits, "a window of the pool would see nothing but pads")

    def rewrite(self, op: Operators, match: Match) -> Result:
        window = match.node("window")
        changed: dict[str, object] = {"pads": self._join_pads(match), "auto_pad": None}
        if window.op_type == "AveragePool":
            return op.copy(window, match["x"], **changed, count_include_pad=1)
        return op.copy(window, match["x"], match["w"], match.get("b"), **changed)

    @staticmethod
    def _join_pads(match: Match) -> list[int]:
        """The pads of both, before all spatial axes and behind."""
        begin, end = padding(match.node("pad"))
        window_pads = listed(match.node("window"), "pads", [0] * (2 * len(begin[2:])))
        return [a + b for a, b in zip([*begin[2:], *end[2:]], window_pads, strict=True)]


class SliceBeforePad(Rule):
    """Slice(Pad(x, p, c)) = Pad(Slice(x), p', c), or Slice(x)

    for constant pads, and constant ranges with positive steps on axes of fixed size that keep something of x.
    """

    family = "strides"
    examples = (
        Example("float[1,2,7,8] x", "t = Pad(x, p) y = Slice(t, a, e, c)", {"p": [0, 0, 0, 0, 0, 0, 1, 1], **CUT}),
        Example(
            "float[1,2,9,9] x",
            "t = Pad(x, p, f) y = Slice(t, a, e, c, s)",
            {"p": [0, 0, 2, 1, 0, 0, 2, 3], "f": 1.0, **CUT, "s": [3, 2]},
        ),
        Example(
            "float[N,9] x", "t = Pad(x, p, , d) y = Slice(t, a, e, d)", {"p": [2, -1], "a": [3], "e": [6], "d": [1]}
        ),
    )
    counterexamples = (
        examples[0].but("mode", 't = Pad<mode="reflect">(x, p) y = Slice(t, a, e, c)'),
        Example("float[1,2,7,8] x, int64[8] p", "t = Pad(x, p) y = Slice(t, a, e, c)", CUT, why="not a constant"),
        examples[0].but("fixed", inputs="float[1,2,7,N] x"),
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
        examples[0].but("not profitable", outputs="y, t"),
    )

    def patterns(self) -> list[Op]:
        return [any_slice(any_pad(x, "pad"), "slice")]

    def check(self, match: Match) -> None:
        _require_constant_mode(match)

    def rewrite(self, op: Operators, match: Match) -> Result:
        (begin, end), data_shape = padding(match.node("pad")), shape(match["x"])
        positions = kept_positions(match.node("slice"))
        for axis, kept in positions.items():
            size = data_shape[axis]
            if not isinstance(size, int):
                raise MatchFailure("a sliced axis has no fixed size")
            shifted = range(kept.start - begin[axis], kept.stop - begin[axis], kept.step)
            begin[axis], positions[axis], end[axis] = split_at(shifted, size)
            require(bool(positions[axis]), "nothing of x is kept")
        data = keep(op, match["x"], positions)
        return op.Pad(data, op.integers([*begin, *end]), match.get("value")) if any((*begin, *end)) else data
