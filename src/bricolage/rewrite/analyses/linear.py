"""Operators that are linear in their weight: Conv, ConvTranspose, MatMul and Gemm, seen alike. What multiplies or shifts
their output channels can be done to weight and bias instead."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from bricolage.graph.constant_folding import is_known
from bricolage.graph.graph import describe
from bricolage.rewrite.engine.matching import Match
from bricolage.rewrite.pattern import AnyValue, Op, Weight, op
from bricolage.rewrite.predicates import (
    integer,
    listed,
    normalised,
    rank,
    require,
    require_constant,
    shape,
    sizes,
    text,
)
from bricolage.rewrite.rule import MatchFailure, Operators

CONVOLUTIONS = ("Conv", "ConvTranspose")


@dataclass(frozen=True)
class Window:
    """Of a convolution: one number for each spatial axis."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def spatial_rank(self) -> int:
        """How many spatial axes there are: 2 for images."""
        return len(self.kernel)


def window(node: ir.Node, weight: ir.Value) -> Window:
    """The window of a Conv.

    Raises:
        MatchFailure: pads are not explicit, or the size of the kernel is not known.
    """
    require(text(node, "auto_pad", "NOTSET") in ("NOTSET", "VALID"), "the pads are not explicit")
    kernel = sizes(weight)[2:]
    count = len(kernel)
    pads = listed(node, "pads", [0] * (2 * count))
    ones = [1] * count
    return Window(kernel, listed(node, "strides", ones), listed(node, "dilations", ones), pads[:count], pads[count:])


def geometry(node: ir.Node) -> tuple[Window, int]:
    """What is equal for convolutions that can be done as one, however they are written: the window and the groups.

    Raises:
        MatchFailure: see `window`.
    """
    weight = node.inputs[1]
    assert weight is not None
    return window(node, weight), integer(node, "group", 1)


def linear(*types: str) -> Op:
    """The pattern of such an operator with a constant weight `w`, and a constant or no bias `b`."""
    return op.one_of(*types)(AnyValue("x"), Weight("w"), Weight("b", optional=True), name="linear")


def channels(node: ir.Node, weight: ir.Value) -> int:
    """Number of output channels."""
    weight_sizes = sizes(weight)
    require(len(weight_sizes) > 1, "the weight is a vector")
    if node.op_type == "Conv":
        return weight_sizes[0]
    if node.op_type == "ConvTranspose":
        return weight_sizes[1] * integer(node, "group", 1)
    return weight_sizes[0] if node.op_type == "Gemm" and integer(node, "transB", 0) else weight_sizes[-1]


def output_channels(match: Match) -> tuple[int, int, int]:
    """Rank of the operator's output, the axis of its channels, and their number."""
    node = match.node("linear")
    whole = rank(node.outputs[0])
    return whole, 1 if node.op_type in CONVOLUTIONS else whole - 1, channels(node, match["w"])


def require_per_channel(constant: ir.Value, whole: int, axis: int, count: int) -> None:
    """A constant that, broadcast with a tensor of rank `whole` and `count` channels along `axis`, gives one number for each
    channel (or one for all), and changes the shape in nothing."""
    constant_sizes = sizes(constant)
    aligned = [*([1] * (whole - len(constant_sizes))), *constant_sizes]
    fits = len(constant_sizes) <= whole and all(
        size in ((1, count) if i == axis else (1,)) for i, size in enumerate(aligned)
    )
    require(fits, f"'{constant.name}' is not one number for each output channel")


def flat(op: Operators, constant: ir.Value) -> ir.Value:
    """The constant as a vector."""
    return (
        constant
        if describe(constant).shape is not None and rank(constant) == 1
        else op.Reshape(constant, op.integers([-1]))
    )


def operands(node: ir.Node) -> tuple[ir.Value, ir.Value, ir.Value | None]:
    """Data, weight, and bias of such an operator."""
    data, weight, bias = [*node.inputs, None][:3]
    assert data is not None and weight is not None
    return data, weight, bias


def read_joined_parts(match: Match) -> list[tuple[ir.Node, range]]:
    """Such operators (no MatMul) with a constant weight, and a constant or no bias, whose results the operator `concat` joins along
    their channels, each with its positions among all channels.

    Raises:
        MatchFailure: it joins something else, or along another axis.
    """
    concat = match.node("concat")
    (axis,) = normalised([integer(concat, "axis", 0)], rank(concat.outputs[0]))
    require(axis == 1, "the parts are not joined along the channels")
    parts: list[tuple[ir.Node, range]] = []
    first = 0
    for value in concat.inputs:
        node = value.producer() if value is not None else None
        if node is None or node.domain or node.graph is not match.home or node.op_type not in (*CONVOLUTIONS, "Gemm"):
            raise MatchFailure("a part is not computed by Conv, ConvTranspose or Gemm")
        _, weight, bias = operands(node)
        require_constant(weight)
        require(bias is None or is_known(bias), "the bias of a part is not a constant")
        parts.append((node, range(first, first + channels(node, weight))))
        first = parts[-1][1].stop
    return parts


def normalised_channels(op: Operators, node: ir.Node, norm: ir.Node, *parameters: ir.Value) -> ir.Value:
    """BatchNormalization of the operator's result in inference, with constant scale, shift, mean and variance."""
    (data, _, bias), (scale, shift, mean, variance) = operands(node), parameters
    epsilon = op.number(norm.attributes.get_float("epsilon", 1e-5), variance)
    factor = op.Div(scale, op.Sqrt(op.Add(variance, epsilon)))
    if bias is None:
        return op.copy(node, data, _scale_weight(op, node, factor), op.Sub(shift, op.Mul(mean, factor)))
    term = op.Add(op.Mul(op.Sub(_times_beta(op, node, bias), mean), factor), shift)
    return op.copy(node, data, _scale_weight(op, node, factor), term, **_without_beta(node))


def scaled_channels(op: Operators, node: ir.Node, factor: ir.Value) -> ir.Value:
    """The operator's result, times a constant vector (of one element, or of one a channel)."""
    data, _, bias = operands(node)
    return op.copy(node, data, _scale_weight(op, node, factor), None if bias is None else op.Mul(bias, factor))


def shifted_channels(op: Operators, node: ir.Node, term: ir.Value) -> ir.Value:
    """The operator's result (not of a MatMul), plus a constant vector (of one element, or of one a channel)."""
    data, weight, bias = operands(node)
    if bias is not None:
        term = op.Add(_times_beta(op, node, bias), term)
    elif shape(term) == (1,):
        term = op.Expand(term, op.integers([channels(node, weight)]))
    return op.copy(node, data, weight, term, **_without_beta(node))


def _times_beta(op: Operators, node: ir.Node, bias: ir.Value) -> ir.Value:
    beta = float(node.attributes.get_float("beta", 1.0)) if node.op_type == "Gemm" else 1.0
    return bias if beta == 1.0 else op.Mul(bias, op.number(beta, bias))


def _without_beta(node: ir.Node) -> dict[str, object]:
    """Attributes of an operator whose bias has been multiplied by beta."""
    return {"beta": 1.0} if node.op_type == "Gemm" else {}


def _scale_weight(op: Operators, node: ir.Node, factor: ir.Value) -> ir.Value:
    """The weight with its output channels multiplied by the vector `factor` (of one element, or of one a channel)."""
    _, weight, _ = operands(node)
    weight_shape = shape(weight)
    if shape(factor) == (1,):
        return op.Mul(weight, factor)
    if node.op_type == "Conv":
        return op.Mul(weight, op.Reshape(factor, op.integers([-1, *[1] * (len(weight_shape) - 1)])))
    if node.op_type == "ConvTranspose":
        groups = integer(node, "group", 1)
        inputs, outputs, *kernel = sizes(weight)
        split = op.Reshape(weight, op.integers([groups, inputs // groups, outputs, *kernel]))
        product = op.Mul(split, op.Reshape(factor, op.integers([groups, 1, outputs, *[1] * len(kernel)])))
        return op.Reshape(product, op.integers([inputs, outputs, *kernel]))
    if node.op_type == "Gemm" and integer(node, "transB", 0):
        return op.Mul(weight, op.Reshape(factor, op.integers([-1, 1])))
    return op.Mul(weight, factor)


def find_bias_sum(node: ir.Node) -> ir.Node | None:
    """The sum of a MatMul and its bias, a constant with one number for each column, that alone reads the product."""
    value = node.outputs[0]
    if node.op_type != "MatMul" or value.is_graph_output() or len(value.uses()) != 1:
        return None
    (reader,) = value.consumers()
    is_bias_sum = any(product is node and _is_bias(bias, value) for product, bias in terms(reader))
    return reader if is_bias_sum else None


def terms(node: ir.Node) -> list[tuple[ir.Node, ir.Value]]:
    """The two ways to see a sum as a product and a bias."""
    first, second = (*node.inputs, None, None)[:2]
    if node.op_type != "Add" or node.domain or first is None or second is None:
        return []
    pairs = ((first.producer(), second), (second.producer(), first))
    return [(producer, other) for producer, other in pairs if producer is not None and producer.op_type == "MatMul"]


def _is_bias(value: ir.Value, product: ir.Value) -> bool:
    floats = describe(product).dtype in (
        ir.DataType.FLOAT,
        ir.DataType.DOUBLE,
        ir.DataType.FLOAT16,
        ir.DataType.BFLOAT16,
    )
    return floats and is_one_row(value) and 0 < rank(value) <= rank(product) and shape(value)[-1] == shape(product)[-1]


def is_one_row(value: ir.Value) -> bool:
    """A constant that is the same for every row."""
    return is_known(value) and all(size == 1 for size in shape(value)[:-1])
