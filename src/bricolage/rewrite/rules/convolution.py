"""Convolutions in another shape: strides and dilations moved into the layout of the data, a batch into its width, and
windows of one element as products; and products as convolutions with such windows.

In the manner of PET (Wang et al., OSDI 2021): what comes out wrong between the parts is cut away, so that each is an equation.
Which form is fast depends on the machine: these rules are cost-based, a search decides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from bricolage.graph.graph import Dimension
from bricolage.rewrite.linear import Window, biased, channels, flat, linear, window
from bricolage.rewrite.matching import Match
from bricolage.rewrite.pattern import AnyValue, Op, Weight, op
from bricolage.rewrite.predicates import floating, integer, rank, require, shape, sizes
from bricolage.rewrite.rule import Example, Operators, Result, Rule

x, w, b = AnyValue("x"), AnyValue("w"), AnyValue("b", optional=True)
_MANY = 2**31 - 1


class _Convolution(Rule):
    """Base of rules about one convolution."""

    family = "convolution"
    cost_based = True

    def patterns(self) -> list[Op]:
        return [op.Conv(x, w, b, name="conv")]

    @staticmethod
    def window(match: Match) -> Window:
        return window(match.node("conv"), match["w"])


def _pad(op: Operators, value: ir.Value, before: list[int], after: list[int]) -> ir.Value:
    return op.Pad(value, op.integers([*before, *after])) if any((*before, *after)) else value


class StridedPointwiseBySlice(_Convolution):
    """Conv(x, w, b, strides s) = Conv(Slice(x, every s-th), w, b)

    for kernels of size 1 without pads.
    """

    examples = (
        Example("float[1,3,5,6] x", "y = Conv<strides=[2,2]>(x, w)", {"w": (4, 3, 1, 1)}),
        Example("float[N,4,7] x", "y = Conv<strides=[3], group=2>(x, w, b)", {"w": (4, 2, 1), "b": (4,)}),
    )
    counterexamples = (
        Example("float[1,3,5] x", "y = Conv(x, w)", {"w": (4, 3, 1)}, why="no strides"),
        Example("float[1,3,5] x", "y = Conv<strides=[2]>(x, w)", {"w": (4, 3, 2)}, why="size 1"),
        Example("float[1,3,5] x", "y = Conv<strides=[2], pads=[1,0]>(x, w)", {"w": (4, 3, 1)}, why="pads"),
    )

    def check(self, match: Match) -> None:
        window = self.window(match)
        require(set(window.kernel) == {1}, "the kernel is not of size 1")
        require(max(window.strides) > 1, "there are no strides")
        require(not any((*window.before, *window.after)), "there are pads")

    def rewrite(self, op: Operators, match: Match) -> Result:
        window = self.window(match)
        count = window.spatial_rank
        positions = [op.integers(n) for n in ([0] * count, [_MANY] * count, range(2, 2 + count), window.strides)]
        return op.copy(match.node("conv"), op.Slice(match["x"], *positions), match["w"], match.get("b"), strides=None)


class PointwiseAsProduct(_Convolution):
    """Conv(x, w, b) = Reshape(MatMul(w, Reshape(x)) + b)

    for kernels of size 1 without strides and pads, one group, and x of known sizes but for the batch.
    """

    examples = (
        Example("float[2,3,5,6] x", "y = Conv(x, w)", {"w": (4, 3, 1, 1)}),
        Example("float[N,3,5] x", "y = Conv(x, w, b)", {"w": (4, 3, 1), "b": (4,)}),
    )
    counterexamples = (
        Example("float[1,3,5] x", "y = Conv(x, w)", {"w": (4, 3, 2)}, why="size 1"),
        Example("float[1,3,5] x", "y = Conv<strides=[2]>(x, w)", {"w": (4, 3, 1)}, why="strides"),
        Example("float[1,3,5] x", "y = Conv<pads=[1,1]>(x, w)", {"w": (4, 3, 1)}, why="pads"),
        Example("float[1,4,5] x", "y = Conv<group=2>(x, w)", {"w": (4, 2, 1)}, why="group"),
        Example("float[1,3,N] x", "y = Conv(x, w)", {"w": (4, 3, 1)}, why="not known"),
    )

    def check(self, match: Match) -> None:
        window = self.window(match)
        require(set(window.kernel) == {1}, "the kernel is not of size 1")
        require(set(window.strides) == {1} and not any((*window.before, *window.after)), "there are strides or pads")
        require(integer(match.node("conv"), "group", 1) == 1, "there is more than one group")
        require(all(isinstance(size, int) for size in shape(match["x"])[1:]), "a size is not known")

    def rewrite(self, op: Operators, match: Match) -> Result:
        outputs, inputs = sizes(match["w"])[:2]
        weight, extent = (
            op.Reshape(match["w"], op.integers([outputs, inputs])),
            [int(size) for size in shape(match["x"])[2:]],
        )
        product = op.MatMul(weight, op.Reshape(match["x"], op.integers([0, inputs, math.prod(extent)])))
        bias = match.get("b")
        if bias is not None:
            product = op.Add(product, op.Reshape(bias, op.integers([outputs, 1])))
        return op.Reshape(product, op.integers([0, outputs, *extent]))


class ProductAsPointwise(Rule):
    """L(x, w, b) = Reshape(Transpose(Conv(Transpose(Reshape(x)), wᵀ, b))), rows as positions of an image, columns as its channels

    for L a MatMul, or MatMul(x, w) + b, or a Gemm with α = β = 1 and x not transposed, with a constant matrix w and a constant b
    with one number for each column (or none); x has more than one row, and at most one size that is not known. (Runtimes that
    block channels may read the weights of a convolution in a better order than those of a product.)
    """

    family = "convolution"
    cost_based = True
    examples = (
        Example("float[6,3] x", "y = MatMul(x, w)", {"w": (3, 4)}),
        Example("float[6,3] x", "y = Gemm<transB=1>(x, w, b)", {"w": (4, 3), "b": (4,)}),
        Example("float[N,2,3] x", "t = MatMul(x, w) y = Relu(t)", {"w": (3, 4)}, outputs="y, t"),
        Example("float[M,3] x", "y = Gemm(x, w, b)", {"w": (3, 4), "b": (1, 4)}),
        Example("float[2,3,3] x", "t = MatMul(x, w) y = Add(b, t)", {"w": (3, 4), "b": (1, 1, 4)}),
        Example("float[2,3,3] x", "t = MatMul(x, w) y = Add(t, b)", {"w": (3, 4), "b": (3, 4)}),
        Example("float[6,3] x", "t = MatMul(x, w) y = Add(t, b)", {"w": (3, 4), "b": (1, 1, 4)}),
    )
    counterexamples = (
        Example("float[6,3] x, float[3,4] w", "y = MatMul(x, w)", why="not a constant"),
        Example("float[2,6,3] x", "y = MatMul(x, w)", {"w": (2, 3, 4)}, why="no matrix"),
        Example("float[3] x", "y = MatMul(x, w)", {"w": (3, 4)}, why="one row"),
        Example("float[1,1,3] x", "y = MatMul(x, w)", {"w": (3, 4)}, why="one row"),
        Example("float[N,M,3] x", "y = MatMul(x, w)", {"w": (3, 4)}, why="more than one size"),
        Example("float[N,0,3] x", "y = MatMul(x, w)", {"w": (3, 4)}, why="no element"),
        Example("int32[6,3] x", "y = MatMul(x, w)", {"w": np.ones((3, 4), np.int32)}, why="floating-point"),
        Example("float[3,6] x", "y = Gemm<transA=1>(x, w)", {"w": (3, 4)}, why="transposed"),
        Example("float[6,3] x", "y = Gemm<alpha=2.0>(x, w)", {"w": (3, 4)}, why="factor"),
        Example("float[6,3] x", "y = Gemm(x, w, b)", {"w": (3, 4), "b": (6, 1)}, why="for each column"),
    )

    def patterns(self) -> list[Op]:
        return [op.Add(op.MatMul(x, Weight("w"), name="linear"), Weight("b")), linear("MatMul", "Gemm")]

    def check(self, match: Match) -> None:
        node, bias = match.node("linear"), match.get("b")
        floating(match.root)
        require(
            node.op_type == "Gemm" or bias is not None or biased(node) is None, "the sum with its bias goes with it"
        )
        require(rank(match["w"]) == 2, "w is no matrix")
        require(integer(node, "transA", 0) == 0, "x is transposed")
        factors = {attribute.as_float() for name, attribute in node.attributes.items() if name in ("alpha", "beta")}
        require(factors <= {1.0}, "there is a factor")
        columns = channels(node, match["w"])
        require(bias is None or _for_each(bias, columns), "b is not one number for each column")
        require(rank(match.root) == rank(node.outputs[0]), "b has more axes than the product")
        rows = shape(match["x"])[:-1]
        require(math.prod(n for n in rows if isinstance(n, int)) != 1 or len(_open(rows)) > 0, "there is one row")
        require(len(_open(rows)) < 2, "more than one size is not known")
        require(0 not in shape(match["x"]) and columns > 0, "there is no element")

    def rewrite(self, op: Operators, match: Match) -> Result:
        node, bias, made = match.node("linear"), match.get("b"), shape(match.root)
        outputs, inputs = channels(node, match["w"]), int(shape(match["x"])[-1])
        weight = match["w"] if integer(node, "transB", 0) else op.Transpose(match["w"], perm=[1, 0])
        image = op.Transpose(op.Reshape(match["x"], op.integers([1, -1, 1, inputs])), perm=[0, 3, 1, 2])
        operands = [image, op.Reshape(weight, op.integers([outputs, inputs, 1, 1]))]
        result = op.Conv(*operands, *([flat(op, bias)] if bias is not None else []))
        rows = [size if isinstance(size, int) else -1 for size in made[:-1]]
        return op.Reshape(op.Transpose(result, perm=[0, 2, 3, 1]), op.integers([*rows, outputs]))


def _for_each(bias: ir.Value, columns: int) -> bool:
    return sizes(bias)[-1:] == (columns,) and math.prod(sizes(bias)) == columns


def _open(found: Sequence[Dimension]) -> list[Dimension]:
    """The sizes that are not known."""
    return [size for size in found if not isinstance(size, int)]


class TurnConvolution(_Convolution):
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


class DilationIntoBatch(_Convolution):
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
        Example(
            "float[1,3,9] x", 'y = Conv<auto_pad="SAME_UPPER", dilations=[2]>(x, w)', {"w": (4, 3, 3)}, why="explicit"
        ),
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
        made = [step - size + 1 for step, size in zip(steps, window.kernel, strict=True)]
        result = op.Reshape(result, op.integers([*phases, batch, outputs, *made]))
        back = [count, count + 1, *(n for i in range(count) for n in (count + 2 + i, i))]
        result = op.Transpose(result, perm=back)
        joined = [step * phase for step, phase in zip(made, phases, strict=True)]
        result = op.Reshape(result, op.integers([batch, outputs, *joined]))
        wanted = [n - (k - 1) * d for n, k, d in zip(whole, window.kernel, phases, strict=True)]
        positions = [op.integers(n) for n in ([0] * count, wanted, range(2, 2 + count))]
        return op.Slice(result, *positions) if wanted != joined else result


class StrideIntoChannels(_Convolution):
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
        made = sizes(match.root)[2:]
        needed = [stride * (size - 1 + step) for size, step in zip(made, steps, strict=True)]
        extent = [size + p for size, p in zip(sizes(match["x"])[2:], window.before, strict=True)]
        after = [need - size for need, size in zip(needed, extent, strict=True)]  # negative: what no window reaches
        data = _pad(op, match["x"], [0, 0, *window.before], [0, 0, *after])
        deep = op.SpaceToDepth(data, blocksize=stride)
        return op.copy(
            match.node("conv"), deep, weight, match.get("b"), strides=None, pads=None, kernel_shape=None, auto_pad=None
        )


class BatchIntoWidth(_Convolution):
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
        outputs, made = sizes(match["w"])[0], sizes(match.root)[2]
        result = op.Reshape(result, op.integers([outputs, made, batch, wide]))
        if beyond:
            result = op.Slice(result, op.integers([0]), op.integers([wide - beyond]), op.integers([3]))
        return op.Transpose(result, perm=[2, 0, 1, 3])


class LineInPlane(_Convolution):
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
