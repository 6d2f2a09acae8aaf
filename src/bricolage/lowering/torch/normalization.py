"""Normalisations and reductions as single ATen calls."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from bricolage.lowering.torch.fused import View, emitter


@emitter("BatchNormalization")
def batch_normalization(v: View) -> Any:
    if v.get("training_mode", 0) or not v.get("spatial", 1) or len(v.node.outputs) > 1:
        return None
    scale, bias, mean, var = (v.tensor(i) for i in range(1, 5))
    if len({v.dtype(i) for i in range(5)}) != 1:
        return None
    return v.call(torch.batch_norm, v.tensor(0), scale, bias, mean, var, False, 0.0, v.get("epsilon", 1e-5), False)


def _trailing_shape(v: View) -> tuple[int, ...] | None:
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
def layer_normalization(v: View) -> Any:
    shape = _trailing_shape(v)
    bias = v.shape(2) if v.given(2) else shape
    if shape is None or bias != shape or len(v.node.outputs) > 1 or v.get("stash_type", 1) != 1:
        return None
    return v.call(F.layer_norm, v.tensor(0), shape, v.tensor(1), v.tensor(2), v.get("epsilon", 1e-5))


@emitter("RMSNormalization")
def rms_normalization(v: View) -> Any:
    shape = _trailing_shape(v)
    if shape is None or v.dtype(0) not in (torch.float32, torch.float64):
        return None
    return v.call(F.rms_norm, v.tensor(0), shape, v.tensor(1), v.get("epsilon", 1e-5))


@emitter("InstanceNormalization")
def instance_normalization(v: View) -> Any:
    shape = v.shape(0)
    if shape is None or torch.Size(shape[2:]).numel() < 2:
        return None
    return v.call(F.instance_norm, v.tensor(0), None, None, v.tensor(1), v.tensor(2), True, 0.0, v.get("epsilon", 1e-5))


@emitter("GroupNormalization")
def group_normalization(v: View) -> Any:
    if v.opset < 21:
        return None
    return v.call(F.group_norm, v.tensor(0), v.get("num_groups"), v.tensor(1), v.tensor(2), v.get("epsilon", 1e-5))


@emitter("Softmax", "LogSoftmax")
def softmax(v: View) -> Any:
    if v.opset < 13:
        return None
    function = torch.softmax if v.node.op_type == "Softmax" else torch.log_softmax
    return v.call(function, v.tensor(0), v.get("axis", -1))


_REDUCE = {"ReduceSum": torch.sum, "ReduceMean": torch.mean, "ReduceMax": torch.amax, "ReduceMin": torch.amin}


@emitter(*_REDUCE)
def reduce(v: View) -> Any:
    by_input = v.opset >= (13 if v.node.op_type == "ReduceSum" else 18)
    axes = v.sizes(1) if by_input and v.given(1) else v.get("axes")
    shape = v.shape(0)
    if not axes or not v.is_float(0) or (by_input and v.given(1) and not all(isinstance(a, int) for a in axes)):
        return None
    if v.node.op_type in ("ReduceMax", "ReduceMin") and (shape is None or 0 in shape):
        return None
    return v.call(_REDUCE[v.node.op_type], v.tensor(0), tuple(axes), bool(v.get("keepdims", 1)))
