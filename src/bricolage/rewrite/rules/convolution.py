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

from bricolage.device.tensor_form import Dimension
from bricolage.rewrite.analyses.linear import Window, channels, find_bias_sum, flat, linear, window
from bricolage.rewrite.engine.matching import Match
from bricolage.rewrite.pattern import AnyValue, Op, Weight, op
from bricolage.rewrite.predicates import floating, integer, rank, require, shape, sizes
from bricolage.rewrite.rule import Example, Operators, Result, Rule

x, w, b = AnyValue("x"), AnyValue("w"), AnyValue("b", optional=True)
_MANY = 2**31 - 1


class ConvolutionRule(Rule):
    """Base of rules about one convolution."""

    family = "convolution"
    cost_based = True

    def patterns(self) -> list[Op]:
        return [op.Conv(x, w, b, name="conv")]

    @staticmethod
    def window(match: Match) -> Window:
        return window(match.node("conv"), match["w"])


class StridedPointwiseBySlice(ConvolutionRule):
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


class PointwiseAsProduct(ConvolutionRule):
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
            node.op_type == "Gemm" or bias is not None or find_bias_sum(node) is None,
            "the sum with its bias goes with it",
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
        node, bias, output_shape = match.node("linear"), match.get("b"), shape(match.root)
        outputs, inputs = channels(node, match["w"]), int(shape(match["x"])[-1])
        weight = match["w"] if integer(node, "transB", 0) else op.Transpose(match["w"], perm=[1, 0])
        image = op.Transpose(op.Reshape(match["x"], op.integers([1, -1, 1, inputs])), perm=[0, 3, 1, 2])
        operands = [image, op.Reshape(weight, op.integers([outputs, inputs, 1, 1]))]
        result = op.Conv(*operands, *([flat(op, bias)] if bias is not None else []))
        rows = [size if isinstance(size, int) else -1 for size in output_shape[:-1]]
        return op.Reshape(op.Transpose(result, perm=[0, 2, 3, 1]), op.integers([*rows, outputs]))


def _for_each(bias: ir.Value, columns: int) -> bool:
    return sizes(bias)[-1:] == (columns,) and math.prod(sizes(bias)) == columns


def _open(found: Sequence[Dimension]) -> list[Dimension]:
    """The sizes that are not known."""
    return [size for size in found if not isinstance(size, int)]
