"""Normalisations and reductions as single ATen calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeGuard

import torch
import torch.nn.functional as F
from torch import fx
from torch.fx.node import Argument

from bricolage.lowering.torch.convolution import CONVOLUTIONS
from bricolage.lowering.torch.fused import NodeView, emitter
from bricolage.lowering.torch.known_values import DeviceTensor, Emitted


@emitter("BatchNormalization")
def batch_normalization(v: NodeView) -> Emitted | None:
    if v.get("training_mode", 0) or not v.get("spatial", 1) or v.outputs > 1:
        return None
    if len({v.dtype(i) for i in range(5)}) != 1:
        return None
    folded = fold_into_convolution(v)
    if folded is not None:
        return folded
    scale, bias, mean, var = (v.tensor(i) for i in range(1, 5))
    factors = {"training": False, "momentum": 0.0, "eps": v.get("epsilon", 1e-5), "cudnn_enabled": False}
    return v.call(torch.batch_norm, v.tensor(0), scale, bias, mean, var, **factors)


def fold_into_convolution(v: NodeView) -> Emitted | None:
    """A convolution whose only reader is this normalisation takes over its scale and shift.

    Not in the float64 reference, which computes what the model says. The factors are computed in float64.
    """
    value, operand = v.node.inputs[0], v.inputs[0]
    scale, shift, mean, var = (v.const(i) for i in range(1, 5))
    if v.builder.xp.float_dtype is not None or not isinstance(operand, DeviceTensor):
        return None
    if scale is None or shift is None or mean is None or var is None:
        return None
    node = operand.node
    if value is None or len(value.uses()) != 1 or value.is_graph_output() or node.target not in CONVOLUTIONS:
        return None
    x, weight_node, bias_node = node.args
    if not _is_stored(weight_node) or not (bias_node is None or _is_stored(bias_node)):
        return None
    weight = v.builder.stored(weight_node)
    factor = scale.double() / torch.sqrt(var.double() + v.get("epsilon", 1e-5))
    before = -mean.double() if bias_node is None else v.builder.stored(bias_node).double() - mean.double()
    scaled = (weight.double() * factor.reshape((-1,) + (1,) * (weight.ndim - 1))).to(weight.dtype)
    offset = (before * factor + shift.double()).to(weight.dtype)
    return v.call(node.target, x, v.builder.attribute(scaled), v.builder.attribute(offset), **node.kwargs)


def _is_stored(argument: Argument) -> TypeGuard[fx.Node]:
    return isinstance(argument, fx.Node) and argument.op == "get_attr"


def _trailing_shape(v: NodeView) -> tuple[int, ...] | None:
    """The shape that is normalised, when it equals the scale's shape."""
    rank, scale = v.rank(0), v.shape(1)
    axis = v.axis(-1, rank)
    if rank is None or scale is None or axis is None or len(scale) != rank - axis:
        return None
    shape = v.shape(0)
    if shape is not None and tuple(shape[axis:]) != tuple(scale):
        return None
    # A scale of size 1 might be broadcast over an unknown size.
    return None if shape is None and 1 in scale else tuple(scale)


@emitter("LayerNormalization")
def layer_normalization(v: NodeView) -> Emitted | None:
    shape = _trailing_shape(v)
    bias = v.shape(2) if v.given(2) else shape
    if shape is None or bias != shape or v.outputs > 1 or v.get("stash_type", 1) != 1:
        return None
    return v.call(F.layer_norm, v.tensor(0), shape, v.tensor(1), v.tensor(2), v.get("epsilon", 1e-5))


@emitter("RMSNormalization")
def rms_normalization(v: NodeView) -> Emitted | None:
    shape = _trailing_shape(v)
    if shape is None or v.dtype(0) not in (torch.float32, torch.float64):
        return None
    return v.call(F.rms_norm, v.tensor(0), shape, v.tensor(1), v.get("epsilon", 1e-5))


@emitter("InstanceNormalization")
def instance_normalization(v: NodeView) -> Emitted | None:
    shape = v.shape(0)
    if shape is None or torch.Size(shape[2:]).numel() < 2:
        return None
    return v.call(
        F.instance_norm, v.tensor(0), weight=v.tensor(1), bias=v.tensor(2), momentum=0.0, eps=v.get("epsilon", 1e-5)
    )


@emitter("GroupNormalization")
def group_normalization(v: NodeView) -> Emitted | None:
    if v.opset < 21:
        return None
    return v.call(F.group_norm, v.tensor(0), v.get("num_groups"), v.tensor(1), v.tensor(2), v.get("epsilon", 1e-5))


@emitter("LRN")
def lrn(v: NodeView) -> Emitted | None:
    rank, size = v.rank(0), v.get("size")
    if rank is None or rank < 3 or size % 2 == 0:
        return None
    alpha, beta, bias = v.get("alpha", 1e-4), v.get("beta", 0.75), v.get("bias", 1.0)
    return v.call(F.local_response_norm, v.tensor(0), size, alpha, beta, bias)


@emitter("Softmax", "LogSoftmax")
def softmax(v: NodeView) -> Emitted | None:
    rank = v.rank(0)
    if v.opset < 13 and (rank is None or v.axis(1, rank) != rank - 1):
        return None  # over several axes at once
    if v.opset < 13:
        return v.call(torch.softmax if v.node.op_type == "Softmax" else torch.log_softmax, v.tensor(0), -1)
    function = torch.softmax if v.node.op_type == "Softmax" else torch.log_softmax
    return v.call(function, v.tensor(0), v.get("axis", -1))


_REDUCE: Mapping[str, Callable[..., torch.Tensor]] = {
    "ReduceSum": torch.sum,
    "ReduceMean": torch.mean,
    "ReduceMax": torch.amax,
    "ReduceMin": torch.amin,
}


@emitter(*_REDUCE)
def reduce(v: NodeView) -> Emitted | None:
    by_input = v.opset >= (13 if v.node.op_type == "ReduceSum" else 18)
    axes = v.sizes(1) if by_input and v.given(1) else v.get("axes")
    shape = v.shape(0)
    if not axes or not v.is_float(0) or (by_input and v.given(1) and not all(isinstance(a, int) for a in axes)):
        return None
    if v.node.op_type in ("ReduceMax", "ReduceMin") and (shape is None or 0 in shape):
        return None
    return v.call(_REDUCE[v.node.op_type], v.tensor(0), tuple(axes), bool(v.get("keepdims", 1)))
