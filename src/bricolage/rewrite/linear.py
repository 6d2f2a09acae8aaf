"""Operators that are linear in their weight: Conv, ConvTranspose, MatMul and Gemm, seen alike. What multiplies or shifts
their output channels can be done to weight and bias instead."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from bricolage.graph.graph import describe
from bricolage.rewrite.facts import integer, listed, rank, require, shape, sizes, text
from bricolage.rewrite.matching import Match
from bricolage.rewrite.pattern import Any, Op, Weight, op
from bricolage.rewrite.rule import Operators

CONVOLUTIONS = ("Conv", "ConvTranspose")


@dataclass(frozen=True)
class Window:
    """Of a convolution: one number for each direction."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def directions(self) -> int:
        return len(self.kernel)


def window(node: ir.Node, weight: ir.Value) -> Window:
    """The window of a Conv.

    Raises:
        Mismatch: pads are not explicit, or the size of the kernel is not known.
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
        Mismatch: see `window`.
    """
    weight = node.inputs[1]
    assert weight is not None
    return window(node, weight), integer(node, "group", 1)


def linear(*types: str) -> Op:
    """The pattern of such an operator with a constant weight `w`, and a constant or no bias `b`."""
    return op.one_of(*types)(Any("x"), Weight("w"), Weight("b", optional=True), name="linear")


def channels(node: ir.Node, weight: ir.Value) -> int:
    """Number of output channels."""
    own = sizes(weight)
    require(len(own) > 1, "the weight is a vector")
    if node.op_type == "Conv":
        return own[0]
    if node.op_type == "ConvTranspose":
        return own[1] * integer(node, "group", 1)
    return own[0] if node.op_type == "Gemm" and integer(node, "transB", 0) else own[-1]


def output_channels(match: Match) -> tuple[int, int, int]:
    """Rank of the operator's output, the axis of its channels, and their number."""
    node = match.node("linear")
    whole = rank(node.outputs[0])
    return whole, 1 if node.op_type in CONVOLUTIONS else whole - 1, channels(node, match["w"])


def require_per_channel(constant: ir.Value, whole: int, axis: int, count: int) -> None:
    """A constant that, broadcast with a tensor of rank `whole` and `count` channels along `axis`, gives one number for each
    channel (or one for all), and changes the shape in nothing."""
    own = sizes(constant)
    aligned = [*([1] * (whole - len(own))), *own]
    fits = len(own) <= whole and all(size in ((1, count) if i == axis else (1,)) for i, size in enumerate(aligned))
    require(fits, f"'{constant.name}' is not one number for each output channel")


def flat(op: Operators, constant: ir.Value) -> ir.Value:
    """The constant as a vector."""
    return (
        constant
        if describe(constant).shape is not None and rank(constant) == 1
        else op.Reshape(constant, op.integers([-1]))
    )


def scaled(op: Operators, match: Match, factor: ir.Value) -> ir.Value:
    """The weight with its output channels multiplied by the vector `factor` (of one element, or of one a channel)."""
    node, weight = match.node("linear"), match["w"]
    own = shape(weight)
    if shape(factor) == (1,):
        return op.Mul(weight, factor)
    if node.op_type == "Conv":
        return op.Mul(weight, op.Reshape(factor, op.integers([-1, *[1] * (len(own) - 1)])))
    if node.op_type == "ConvTranspose":
        groups = integer(node, "group", 1)
        inputs, outputs, *kernel = sizes(weight)
        split = op.Reshape(weight, op.integers([groups, inputs // groups, outputs, *kernel]))
        product = op.Mul(split, op.Reshape(factor, op.integers([groups, 1, outputs, *[1] * len(kernel)])))
        return op.Reshape(product, op.integers([inputs, outputs, *kernel]))
    if node.op_type == "Gemm" and integer(node, "transB", 0):
        return op.Mul(weight, op.Reshape(factor, op.integers([-1, 1])))
    return op.Mul(weight, factor)
