"""Convolutions with other axes: turned, dilated or strided by batch and channels, lines in planes."""

from __future__ import annotations

import onnx_ir as ir

from bricolage.rewrite.engine.matching import Match
from bricolage.rewrite.predicates import integer, rank, require, sizes
from bricolage.rewrite.rule import Example, Operators, Result
from bricolage.rewrite.rules.convolution import ConvolutionRule


def _pad(op: Operators, value: ir.Value, before: list[int], after: list[int]) -> ir.Value:
    return op.Pad(value, op.integers([*before, *after])) if any((*before, *after)) else value


class TurnConvolution(ConvolutionRule):
    """Conv(x, w, b) = Transpose(Conv(Transpose(x), Transpose(w), b)), height and width exchanged

    for two spatial axes and explicit pads: a 1×k kernel becomes a k×1 one.
    """

    examples = (
        Example("float[2,3,5,6] x", "y = Conv<pads=[0,1,0,2]>(x, w)", {"w": (4, 3, 1, 3)}),
        Example(
            "float[N,4,7,5] x",
            "y = Conv<group=2, strides=[1,2], dilations=[2,1]>(x, w, b)",
            {"w": (4, 2, 3, 1), "b": (4,)},
        ),
    )
    counterexamples = (
        Example("float[1,3,5] x", "y = Conv(x, w)", {"w": (4, 3, 2)}, why="two spatial axes"),
        Example("float[1,3,5,5] x", 'y = Conv<auto_pad="SAME_UPPER">(x, w)', {"w": (4, 3, 1, 3)}, why="explicit"),
        Example("float[1,3,5,5] x", "y = Conv(x, w)", {"w": (4, 3, 3, 3)}, why="square"),
    )

    def check(self, match: Match) -> None:
        window = self.window(match)
        require(window.spatial_rank == 2, "it has not two spatial axes")
        require(window.kernel[0] != window.kernel[1], "the kernel is square")

    def rewrite(self, op: Operators, match: Match) -> Result:
        window, turn = self.window(match), [0, 1, 3, 2]
        turned = op.copy(
            match.node("conv"),
            op.Transpose(match["x"], perm=turn),
            op.Transpose(match["w"], perm=turn),
            match.get("b"),
            kernel_shape=window.kernel[::-1],
            strides=window.strides[::-1],
            dilations=window.dilations[::-1],
            pads=[*window.before[::-1], *window.after[::-1]],
        )
        return op.Transpose(turned, perm=turn)


class DilationIntoBatch(ConvolutionRule):
    """Conv(x, w, b, dilations d) = the phases of Conv(the phases of x, w, b), x padded and the result cut to size

    for no strides and x of known sizes: every d-th element belongs to one phase, phases are images of a batch.
    """

    examples = (
        Example("float[2,3,7] x", "y = Conv<dilations=[2]>(x, w)", {"w": (4, 3, 3)}),
        Example(
            "float[1,2,5,6] x", "y = Conv<dilations=[2,2], pads=[2,2,2,2]>(x, w, b)", {"w": (2, 2, 3, 3), "b": (2,)}
        ),
        Example("float[1,2,4,5] x", "y = Conv<dilations=[1,2], pads=[1,0,1,1], group=2>(x, w)", {"w": (2, 1, 3, 2)}),
    )
    counterexamples = (
        examples[0].but("explicit", 'y = Conv<auto_pad="SAME_UPPER", dilations=[2]>(x, w)', inputs="float[1,3,9] x"),
        Example("float[1,3,5] x", "y = Conv(x, w)", {"w": (4, 3, 2)}, why="not dilated"),
        Example("float[1,3,9] x", "y = Conv<dilations=[2], strides=[2]>(x, w)", {"w": (4, 3, 2)}, why="strides"),
        Example("float[1,3,N] x", "y = Conv<dilations=[2]>(x, w)", {"w": (4, 3, 2)}, why="not known"),
    )

    def check(self, match: Match) -> None:
        window = self.window(match)
        require(max(window.dilations) > 1, "it is not dilated")
        require(set(window.strides) == {1}, "there are strides")
        sizes(match["x"])

    def rewrite(self, op: Operators, match: Match) -> Result:
        window = self.window(match)
        (batch, channels, *extent), phases = sizes(match["x"]), window.dilations
        count = window.spatial_rank
        whole = [size + p + q for size, p, q in zip(extent, window.before, window.after, strict=True)]
        filled = [-size % phase for size, phase in zip(whole, phases, strict=True)]
        after = [q + more for q, more in zip(window.after, filled, strict=True)]
        data = _pad(op, match["x"], [0, 0, *window.before], [0, 0, *after])
        steps = [(size + more) // phase for size, more, phase in zip(whole, filled, phases, strict=True)]
        pairs = [n for step, phase in zip(steps, phases, strict=True) for n in (step, phase)]
        data = op.Reshape(data, op.integers([batch, channels, *pairs]))
        inner, outer = [2 + 2 * i for i in range(count)], [3 + 2 * i for i in range(count)]
        data = op.Transpose(data, perm=[*outer, 0, 1, *inner])
        data = op.Reshape(data, op.integers([-1, channels, *steps]))
        result = op.copy(match.node("conv"), data, match["w"], match.get("b"), dilations=None, pads=None, auto_pad=None)
        outputs = sizes(match["w"])[0]
        phase_sizes = [step - size + 1 for step, size in zip(steps, window.kernel, strict=True)]
        result = op.Reshape(result, op.integers([*phases, batch, outputs, *phase_sizes]))
        back = [count, count + 1, *(n for i in range(count) for n in (count + 2 + i, i))]
        result = op.Transpose(result, perm=back)
        joined = [step * phase for step, phase in zip(phase_sizes, phases, strict=True)]
        result = op.Reshape(result, op.integers([batch, outputs, *joined]))
        wanted = [n - (k - 1) * d for n, k, d in zip(whole, window.kernel, phases, strict=True)]
        positions = [op.integers(n) for n in ([0] * count, wanted, range(2, 2 + count))]
        return op.Slice(result, *positions) if wanted != joined else result


class StrideIntoChannels(ConvolutionRule):
    """Conv(x, w, b, strides s) = Conv(SpaceToDepth(x), w', b), with the phases of w as channels of w'

    for two spatial axes with one stride, one group, no dilations and x of known sizes (a stem of few channels becomes one of many).
    """

    examples = (
        Example("float[1,3,8,8] x", "y = Conv<strides=[2,2], pads=[3,3,3,3]>(x, w)", {"w": (2, 3, 7, 7)}),
        Example("float[2,1,7,9] x", "y = Conv<strides=[2,2]>(x, w, b)", {"w": (2, 1, 3, 2), "b": (2,)}),
        Example("float[1,2,10,8] x", "y = Conv<strides=[3,3], pads=[1,0,1,2]>(x, w)", {"w": (2, 2, 4, 3)}),
    )
    counterexamples = (
        Example(
            "float[1,3,9,9] x",
            'y = Conv<auto_pad="SAME_UPPER", strides=[2,2]>(x, w)',
            {"w": (4, 3, 3, 3)},
            why="explicit",
        ),
        Example("float[1,3,5,5] x", "y = Conv(x, w)", {"w": (4, 3, 2, 2)}, why="no stride"),
        Example("float[1,3,9,9] x", "y = Conv<strides=[2,1]>(x, w)", {"w": (4, 3, 2, 2)}, why="one stride"),
        Example("float[1,3,9] x", "y = Conv<strides=[2]>(x, w)", {"w": (4, 3, 2)}, why="two spatial axes"),
        Example("float[1,4,9,9] x", "y = Conv<strides=[2,2], group=2>(x, w)", {"w": (4, 2, 2, 2)}, why="group"),
        Example(
            "float[1,3,9,9] x", "y = Conv<strides=[2,2], dilations=[2,2]>(x, w)", {"w": (4, 3, 2, 2)}, why="dilated"
        ),
        Example("float[1,3,N,9] x", "y = Conv<strides=[2,2]>(x, w)", {"w": (4, 3, 2, 2)}, why="not known"),
    )

    def check(self, match: Match) -> None:
        window = self.window(match)
        require(window.spatial_rank == 2, "it has not two spatial axes")
        require(max(window.strides) > 1, "there is no stride")
        require(len(set(window.strides)) == 1, "it has not one stride")
        require(set(window.dilations) == {1}, "it is dilated")
        require(integer(match.node("conv"), "group", 1) == 1, "there is more than one group")
        sizes(match["x"])

    def rewrite(self, op: Operators, match: Match) -> Result:
        window, stride = self.window(match), self.window(match).strides[0]
        outputs, inputs, *kernel = sizes(match["w"])
        steps = [-(-size // stride) for size in kernel]
        missing = [stride * step - size for step, size in zip(steps, kernel, strict=True)]
        weight = _pad(op, match["w"], [0, 0, 0, 0], [0, 0, *missing])
        weight = op.Reshape(weight, op.integers([outputs, inputs, steps[0], stride, steps[1], stride]))
        weight = op.Transpose(weight, perm=[0, 3, 5, 1, 2, 4])
        weight = op.Reshape(weight, op.integers([outputs, stride * stride * inputs, *steps]))
        output_extent = sizes(match.root)[2:]
        needed = [stride * (size - 1 + step) for size, step in zip(output_extent, steps, strict=True)]
        extent = [size + p for size, p in zip(sizes(match["x"])[2:], window.before, strict=True)]
        after = [need - size for need, size in zip(needed, extent, strict=True)]  # negative: what no window reaches
        data = _pad(op, match["x"], [0, 0, *window.before], [0, 0, *after])
        deep = op.SpaceToDepth(data, blocksize=stride)
        return op.copy(
            match.node("conv"), deep, weight, match.get("b"), strides=None, pads=None, kernel_shape=None, auto_pad=None
        )


class BatchIntoWidth(ConvolutionRule):
    """Conv(x, w, b) = the images of one Conv over all images of x side by side, with pads between them

    for a batch of several images of known size, two spatial axes, and no strides along the width. Windows that reach from one
    image into the next are computed and cut away.
    """

    examples = (
        Example("float[2,3,4,3] x", "y = Conv<pads=[1,1,1,1]>(x, w)", {"w": (2, 3, 3, 3)}),
        Example("float[3,2,5,4] x", "y = Conv<strides=[2,1], group=2>(x, w, b)", {"w": (2, 1, 3, 2), "b": (2,)}),
        Example("float[2,1,3,6] x", "y = Conv<dilations=[1,2], pads=[0,0,0,1]>(x, w)", {"w": (2, 1, 1, 3)}),
    )
    counterexamples = (
        Example("float[2,3,5,5] x", 'y = Conv<auto_pad="SAME_UPPER">(x, w)', {"w": (4, 3, 3, 3)}, why="explicit"),
        Example("float[1,3,5,5] x", "y = Conv(x, w)", {"w": (4, 3, 2, 2)}, why="one image"),
        Example("float[N,3,5,5] x", "y = Conv(x, w)", {"w": (4, 3, 2, 2)}, why="not known"),
        Example("float[2,3,5] x", "y = Conv(x, w)", {"w": (4, 3, 2)}, why="two spatial axes"),
        Example("float[2,3,5,5] x", "y = Conv<strides=[1,2]>(x, w)", {"w": (4, 3, 2, 2)}, why="along the width"),
    )

    def check(self, match: Match) -> None:
        window = self.window(match)
        require(window.spatial_rank == 2, "it has not two spatial axes")
        require(window.strides[1] == 1, "there are strides along the width")
        require(sizes(match["x"])[0] > 1, "there is one image")

    def rewrite(self, op: Operators, match: Match) -> Result:
        window = self.window(match)
        batch, channels, height, width = sizes(match["x"])
        left, right = window.before[1], window.after[1]
        wide = left + width + right
        data = _pad(op, match["x"], [0, 0, 0, left], [0, 0, 0, right])
        data = op.Reshape(op.Transpose(data, perm=[1, 2, 0, 3]), op.integers([1, channels, height, batch * wide]))
        beyond = (window.kernel[1] - 1) * window.dilations[1]
        pads = [window.before[0], 0, window.after[0], beyond]
        result = op.copy(match.node("conv"), data, match["w"], match.get("b"), pads=pads, auto_pad=None)
        outputs, output_height = sizes(match["w"])[0], sizes(match.root)[2]
        result = op.Reshape(result, op.integers([outputs, output_height, batch, wide]))
        if beyond:
            result = op.Slice(result, op.integers([0]), op.integers([wide - beyond]), op.integers([3]))
        return op.Transpose(result, perm=[2, 0, 1, 3])


class LineInPlane(ConvolutionRule):
    """Conv(x, w, b) = Squeeze(Conv(Unsqueeze(x), Unsqueeze(w), b)), a line as a plane of height 1

    for one spatial axis and explicit pads.
    """

    examples = (
        Example("float[2,3,5] x", "y = Conv<pads=[1,2], strides=[2]>(x, w)", {"w": (4, 3, 3)}),
        Example("float[N,4,7] x", "y = Conv<group=2, dilations=[2]>(x, w, b)", {"w": (4, 2, 3), "b": (4,)}),
    )
    counterexamples = (
        Example("float[1,3,5,5] x", "y = Conv(x, w)", {"w": (4, 3, 2, 2)}, why="one spatial axis"),
        Example("float[1,3,5] x", 'y = Conv<auto_pad="SAME_LOWER">(x, w)', {"w": (4, 3, 3)}, why="explicit"),
    )

    def check(self, match: Match) -> None:
        require(rank(match["x"]) == 3, "it has not one spatial axis")
        self.window(match)

    def rewrite(self, op: Operators, match: Match) -> Result:
        window, above = self.window(match), op.integers([2])
        flat = op.copy(
            match.node("conv"),
            op.Unsqueeze(match["x"], above),
            op.Unsqueeze(match["w"], above),
            match.get("b"),
            kernel_shape=[1, *window.kernel],
            strides=[1, *window.strides],
            dilations=[1, *window.dilations],
            pads=[0, *window.before, 0, *window.after],
        )
        return op.Squeeze(flat, above)
