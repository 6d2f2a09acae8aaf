"""Convolutions with less window: without taps that meet padding alone, over fewer spatial axes, and transposed ones as convolutions
and products.

Runtimes have fast kernels for convolutions over two spatial axes, and not always for three or for transposed ones. Zeros that a
weight gains on the way are computed with, so most of these rules are cost-based (in the manner of PET, Wang et al., OSDI 2021).
"""

from __future__ import annotations

import math

import onnx_ir as ir

from bricolage.rewrite.analyses.linear import Window, window
from bricolage.rewrite.engine.matching import Match
from bricolage.rewrite.pattern import AnyValue, Op, op
from bricolage.rewrite.predicates import integer, listed, require, shape, sizes, text
from bricolage.rewrite.rule import Example, Operators, Result, Rule

x, w, b = AnyValue("x"), AnyValue("w"), AnyValue("b", optional=True)


class _Window(Rule):
    """Base of rules about one convolution."""

    family = "kernel_trimming"

    def patterns(self) -> list[Op]:
        return [op.Conv(x, w, b, name="conv")]

    @staticmethod
    def window(match: Match) -> Window:
        return window(match.node("conv"), match["w"])


class TrimWindow(_Window):
    """Conv(x, w, b, pads) = Conv(x, Slice(w), b, less pads), without taps that meet padding wherever the window stands

    for explicit pads, and known sizes in the spatial axes that are trimmed.
    """

    examples = (
        Example("float[1,2,1,4] x", "y = Conv<pads=[1,1,1,1]>(x, w)", {"w": (3, 2, 3, 3)}),
        Example("float[N,2,1] x", "y = Conv<pads=[2,2], strides=[2], group=2>(x, w, b)", {"w": (2, 1, 5), "b": (2,)}),
        Example("float[1,2,2] x", "y = Conv<pads=[2,2], strides=[4], dilations=[2]>(x, w)", {"w": (2, 2, 3)}),
    )
    counterexamples = (
        Example("float[1,2,2,4] x", "y = Conv<pads=[1,1,1,1]>(x, w)", {"w": (3, 2, 3, 3)}, why="meets the data"),
        Example("float[1,2,1] x", 'y = Conv<auto_pad="SAME_UPPER">(x, w)', {"w": (3, 2, 3)}, why="explicit"),
        Example("float[1,2,M] x", "y = Conv<pads=[1,1]>(x, w)", {"w": (3, 2, 3)}, why="meets the data"),
    )

    def check(self, match: Match) -> None:
        require(any(sum(cut) for cut in self._cuts(match)), "every tap meets the data somewhere")

    def rewrite(self, op: Operators, match: Match) -> Result:
        window, cuts = self.window(match), self._cuts(match)
        count = window.spatial_rank
        first = [before for before, _ in cuts]
        last = [size - after for size, (_, after) in zip(window.kernel, cuts, strict=True)]
        weight = op.Slice(match["w"], op.integers(first), op.integers(last), op.integers(range(2, 2 + count)))
        before = [n - cut[0] * d for n, cut, d in zip(window.before, cuts, window.dilations, strict=True)]
        after = [n - cut[1] * d for n, cut, d in zip(window.after, cuts, window.dilations, strict=True)]
        kernel = [end - start for start, end in zip(first, last, strict=True)]
        return op.copy(
            match.node("conv"), match["x"], weight, match.get("b"), kernel_shape=kernel, pads=[*before, *after]
        )

    def _cuts(self, match: Match) -> list[tuple[int, int]]:
        """For each spatial axis, how many taps at its beginning and at its end meet padding alone."""
        window, extent, output_extent = self.window(match), shape(match["x"])[2:], shape(match.root)[2:]
        return [
            self._cut(window, i, size, positions) if isinstance(size, int) and isinstance(positions, int) else (0, 0)
            for i, (size, positions) in enumerate(zip(extent, output_extent, strict=True))
        ]

    @staticmethod
    def _cut(window: Window, i: int, size: int, positions: int) -> tuple[int, int]:
        kernel, dilation = window.kernel[i], window.dilations[i]
        used = [
            k
            for k in range(kernel)
            if any(0 <= p * window.strides[i] + k * dilation - window.before[i] < size for p in range(positions))
        ]
        if not used:
            return 0, 0
        # Fewer pads than none would be a slice of x.
        return (
            min(used[0], window.before[i] // dilation),
            min(kernel - 1 - used[-1], window.after[i] // dilation),
        )


class JoinSpatialDimensions(_Window):
    """Conv(x, w, b) = Reshape(Conv(Reshape(x), Reshape(w), b)), two spatial axes as one

    for at least three spatial axes, and two neighbours of kernel 1 and stride 1 without pads, or one of them of size 1 and kernel 1
    without pads; explicit pads, and x of known sizes but for the batch.
    """

    cost_based = True
    examples = (
        Example("float[2,3,2,3,4] x", "y = Conv<pads=[0,0,1,0,0,1]>(x, w)", {"w": (4, 3, 1, 1, 3)}),
        Example(
            "float[N,4,1,5,6] x",
            "y = Conv<pads=[0,1,1,0,1,1], strides=[2,2,1], group=2>(x, w, b)",
            {"w": (4, 2, 1, 3, 3), "b": (4,)},
        ),
        Example("float[1,2,5,6,1] x", "y = Conv<dilations=[1,2,1]>(x, w)", {"w": (3, 2, 2, 2, 1)}),
        Example("float[1,2,4,1,3] x", "y = Conv<strides=[1,2,2]>(x, w)", {"w": (3, 2, 1, 1, 2)}),
    )
    counterexamples = (
        Example("float[1,3,1,5] x", "y = Conv(x, w)", {"w": (4, 3, 1, 1)}, why="three spatial axes"),
        Example("float[1,3,2,5,5] x", "y = Conv(x, w)", {"w": (4, 3, 1, 2, 2)}, why="no two spatial axes"),
        Example(
            "float[1,3,2,2,2] x", "y = Conv<strides=[2,2,2]>(x, w)", {"w": (4, 3, 1, 1, 1)}, why="no two spatial axes"
        ),
        Example(
            "float[1,3,1,5,5] x",
            "y = Conv<pads=[1,1,1,1,1,1]>(x, w)",
            {"w": (4, 3, 3, 3, 3)},
            why="no two spatial axes",
        ),
        Example("float[1,3,2,N,5] x", "y = Conv(x, w)", {"w": (4, 3, 1, 1, 1)}, why="not known"),
        Example("float[1,3,1,5,5] x", 'y = Conv<auto_pad="SAME_UPPER">(x, w)', {"w": (4, 3, 1, 3, 3)}, why="explicit"),
    )

    def check(self, match: Match) -> None:
        require(self.window(match).spatial_rank > 2, "it has not three spatial axes")
        require(all(isinstance(size, int) for size in shape(match["x"])[1:]), "a size is not known")
        require(self._find_joinable_axes(match) is not None, "no two spatial axes can be joined")

    def rewrite(self, op: Operators, match: Match) -> Result:
        window, joined = self.window(match), self._find_joinable_axes(match)
        assert joined is not None
        at, kept = joined
        extent = [int(size) for size in shape(match["x"])[1:]]
        outputs, inputs, *_ = sizes(match["w"])

        def less(numbers: tuple[int, ...]) -> list[int]:
            return [*numbers[:at], numbers[kept], *numbers[at + 2 :]]

        data = [0, *extent[: 1 + at], extent[1 + at] * extent[2 + at], *extent[3 + at :]]
        kernel = less(window.kernel)
        convolution = op.copy(
            match.node("conv"),
            op.Reshape(match["x"], op.integers(data)),
            op.Reshape(match["w"], op.integers([outputs, inputs, *kernel])),
            match.get("b"),
            kernel_shape=kernel,
            strides=less(window.strides),
            dilations=less(window.dilations),
            pads=[*less(window.before), *less(window.after)],
            auto_pad=None,
        )
        return op.Reshape(convolution, op.integers([0, *(int(size) for size in shape(match.root)[1:])]))

    def _find_joinable_axes(self, match: Match) -> tuple[int, int] | None:
        """The first of two neighbouring spatial axes that can be joined, and the one of them whose window stays."""
        window, extent = self.window(match), shape(match["x"])[2:]
        for at in range(window.spatial_rank - 1):
            for kept, other in ((at + 1, at), (at, at + 1)):
                single = extent[other] == 1
                if _trivial(window, other, single) and (single or _trivial(window, kept, single=False)):
                    return at, kept
        return None


def _trivial(window: Window, i: int, single: bool) -> bool:
    """Whether a convolution leaves a spatial axis as it is."""
    unpadded = window.kernel[i] == 1 and window.before[i] == window.after[i] == 0
    return unpadded and (single or window.strides[i] == 1)


class _Transposed(Rule):
    """Base of rules about one transposed convolution of one group without dilation."""

    family = "kernel_trimming"
    cost_based = True

    def patterns(self) -> list[Op]:
        return [op.ConvTranspose(x, w, b, name="conv")]

    def check(self, match: Match) -> None:
        node = match.node("conv")
        self.spatial_sizes(match["x"]), sizes(match["w"]), self.spatial_sizes(match.root)
        require(text(node, "auto_pad", "NOTSET") in ("NOTSET", "VALID"), "the pads are not explicit")
        require("output_shape" not in node.attributes, "the pads are not explicit")
        require(integer(node, "group", 1) == 1, "there is more than one group")
        require(set(listed(node, "dilations", [1])) == {1}, "it is dilated")

    @staticmethod
    def spatial_sizes(value: ir.Value) -> tuple[int, ...]:
        """The size of each spatial axis.

        Raises:
            MatchFailure: one is not known.
        """
        dimensions = shape(value)[2:]
        require(all(isinstance(size, int) for size in dimensions), f"a spatial axis of '{value.name}' is not known")
        return tuple(map(int, dimensions))

    @staticmethod
    def before(match: Match) -> list[int]:
        """What is cut from the beginning of each spatial axis."""
        count = len(sizes(match["w"])) - 2
        return list(listed(match.node("conv"), "pads", [0] * (2 * count))[:count])


class TransposedByPhases(_Transposed):
    """ConvTranspose(x, w, b, strides s) = Slice(DepthToSpace(Conv(x, w', b'))), the phases of w turned round as channels of w'

    (Shi et al., CVPR 2016) for two spatial axes of known sizes and one stride above 1, one group, no dilation, and explicit pads.
    """

    examples = (
        Example("float[1,3,4,5] x", "y = ConvTranspose<strides=[2,2], pads=[1,1,1,1]>(x, w)", {"w": (3, 2, 4, 4)}),
        Example(
            "float[2,2,3,3] x",
            "y = ConvTranspose<strides=[3,3], pads=[0,1,2,0], output_padding=[1,2]>(x, w, b)",
            {"w": (2, 2, 4, 3), "b": (2,)},
        ),
        Example("float[N,2,3,3] x", "y = ConvTranspose<strides=[2,2]>(x, w)", {"w": (2, 1, 1, 2)}),
    )
    counterexamples = (
        Example("float[1,3,4] x", "y = ConvTranspose<strides=[2]>(x, w)", {"w": (3, 2, 4)}, why="two spatial axes"),
        Example("float[1,3,4,4] x", "y = ConvTranspose<strides=[2,1]>(x, w)", {"w": (3, 2, 4, 4)}, why="one stride"),
        Example("float[1,3,4,4] x", "y = ConvTranspose(x, w)", {"w": (3, 2, 4, 4)}, why="no stride"),
        Example(
            "float[1,4,4,4] x", "y = ConvTranspose<strides=[2,2], group=2>(x, w)", {"w": (4, 2, 4, 4)}, why="group"
        ),
        Example(
            "float[1,3,4,4] x",
            "y = ConvTranspose<strides=[2,2], dilations=[2,2]>(x, w)",
            {"w": (3, 2, 4, 4)},
            why="dilated",
        ),
        Example(
            "float[1,3,4,4] x",
            'y = ConvTranspose<strides=[2,2], auto_pad="SAME_UPPER">(x, w)',
            {"w": (3, 2, 4, 4)},
            why="explicit",
        ),
        Example("float[1,3,N,4] x", "y = ConvTranspose<strides=[2,2]>(x, w)", {"w": (3, 2, 4, 4)}, why="not known"),
    )

    def check(self, match: Match) -> None:
        super().check(match)
        strides = listed(match.node("conv"), "strides", [1, 1])
        require(len(sizes(match["w"])) == 4, "it has not two spatial axes")
        require(len(set(strides)) == 1, "it has not one stride")
        require(strides[0] > 1, "there is no stride")

    def rewrite(self, op: Operators, match: Match) -> Result:
        stride = listed(match.node("conv"), "strides", [1, 1])[0]
        inputs, outputs, *kernel = sizes(match["w"])
        extent, output_extent = self.spatial_sizes(match["x"]), self.spatial_sizes(match.root)
        taps = [-(-size // stride) for size in kernel]
        missing = [stride * count - size for count, size in zip(taps, kernel, strict=True)]
        weight = match["w"]
        if any(missing):
            weight = op.Pad(weight, op.integers([0, 0, 0, 0, 0, 0, *missing]))
        weight = op.Reshape(weight, op.integers([inputs, outputs, taps[0], stride, taps[1], stride]))
        weight = op.Transpose(weight, perm=[1, 3, 5, 0, 2, 4])
        weight = op.Reshape(weight, op.integers([outputs * stride * stride, inputs, *taps]))
        turned = op.integers([-1, -1]), op.integers([-1 - count for count in taps]), op.integers([2, 3])
        weight = op.Slice(weight, *turned, op.integers([-1, -1]))
        bias = match.get("b")
        if bias is not None:
            spread = op.Expand(op.Reshape(bias, op.integers([outputs, 1])), op.integers([outputs, stride * stride]))
            bias = op.Reshape(spread, op.integers([-1]))
        # Phase positions from the first that is kept to the last that is: q = (position + before) // stride.
        before = self.before(match)
        first = [n // stride for n in before]
        last = [(size - 1 + n) // stride for size, n in zip(output_extent, before, strict=True)]
        pads = [
            *(count - 1 - q for count, q in zip(taps, first, strict=True)),
            *(q - size + 1 for q, size in zip(last, extent, strict=True)),
        ]
        data = match["x"]
        if min(pads) < 0:
            data, pads = op.Pad(data, op.integers([0, 0, *pads[:2], 0, 0, *pads[2:]])), [0, 0, 0, 0]
        deep = op.Conv(data, weight, *([] if bias is None else [bias]), pads=pads)
        whole = op.DepthToSpace(deep, blocksize=stride, mode="CRD")
        start = [n - stride * q for n, q in zip(before, first, strict=True)]
        end = [n + size for n, size in zip(start, output_extent, strict=True)]
        kept = [stride * (q - p + 1) for p, q in zip(first, last, strict=True)]
        if not any(start) and end == kept:
            return whole
        return op.Slice(whole, op.integers(start), op.integers(end), op.integers([2, 3]))


class TransposedPixelAsProduct(_Transposed):
    """ConvTranspose(x, w, b) = Reshape(MatMul(Reshape(x), Reshape(w))) + b

    for x of one position, one group, explicit pads, and a result that w reaches everywhere.
    """

    examples = (
        Example("float[N,3,1,1] x", "y = ConvTranspose(x, w)", {"w": (3, 2, 4, 4)}),
        Example("float[1,3,1] x", "y = ConvTranspose<pads=[1,0], strides=[2]>(x, w, b)", {"w": (3, 2, 4), "b": (2,)}),
    )
    counterexamples = (
        Example("float[1,3,2,1] x", "y = ConvTranspose(x, w)", {"w": (3, 2, 4, 4)}, why="one position"),
        Example("float[1,4,1] x", "y = ConvTranspose<group=2>(x, w)", {"w": (4, 2, 4)}, why="group"),
        Example(
            "float[1,3,1] x", "y = ConvTranspose<strides=[2], output_padding=[1]>(x, w)", {"w": (3, 2, 4)}, why="reach"
        ),
        Example("float[1,3,1] x", "y = ConvTranspose<dilations=[2]>(x, w)", {"w": (3, 2, 4)}, why="dilated"),
        Example("float[1,3,N] x", "y = ConvTranspose(x, w)", {"w": (3, 2, 4)}, why="not known"),
    )

    def check(self, match: Match) -> None:
        super().check(match)
        kernel, output_extent = sizes(match["w"])[2:], self.spatial_sizes(match.root)
        require(set(self.spatial_sizes(match["x"])) == {1}, "x has more than one position")
        reached = all(n + m <= k for n, m, k in zip(self.before(match), output_extent, kernel, strict=True))
        require(reached, "w does not reach everywhere")

    def rewrite(self, op: Operators, match: Match) -> Result:
        inputs, outputs, *kernel = sizes(match["w"])
        output_extent, before = self.spatial_sizes(match.root), self.before(match)
        weight = match["w"]
        if list(output_extent) != kernel:
            end = [n + m for n, m in zip(before, output_extent, strict=True)]
            weight = op.Slice(weight, op.integers(before), op.integers(end), op.integers(range(2, 2 + len(kernel))))
        weight = op.Reshape(weight, op.integers([inputs, outputs * math.prod(output_extent)]))
        product = op.MatMul(op.Reshape(match["x"], op.integers([-1, inputs])), weight)
        bias = match.get("b")
        if bias is not None:
            spread = op.Expand(
                op.Reshape(bias, op.integers([outputs, 1])), op.integers([outputs, math.prod(output_extent)])
            )
            product = op.Add(product, op.Reshape(spread, op.integers([-1])))
        return op.Reshape(product, op.integers([-1, outputs, *output_extent]))
