"""Operators without a rule of their own: through `torch.vmap`, or lane by lane. And those that act element by element."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import TYPE_CHECKING

from bricolage.train.fuse.custom_backward import OPERATOR, application
from bricolage.train.fuse.operators.call import TABLE, Call, Compute, Joined, Result, align_tensor, only

if TYPE_CHECKING:
    import torch

_SCALED = ("aten::add.Tensor", "aten::sub.Tensor", "aten::mul.Tensor", "aten::div.Tensor")


def general(call: Call) -> Joined:
    """Any operator: by its batching rule in PyTorch, or as many calls as there are lanes."""
    return Joined({"vmap": by_vmap(call), "loop": by_lane(call)})


def by_vmap(call: Call) -> Compute:
    """The operator through `torch.vmap`."""
    import torch

    def call_lane(*tensors: torch.Tensor) -> Result:
        args, keywords = call.filled(tensors)
        output: Result = call.target(*args, **keywords)
        return output

    places = tuple(0 if operand.stacked else None for operand in call.operands)
    return torch.vmap(call_lane, in_dims=places)


def by_lane(call: Call) -> Compute:
    """The operator once for each lane, its results stacked."""
    import torch

    operands = call.operands

    def compute(*tensors: torch.Tensor) -> Result:
        results = []
        for lane in range(call.lanes):
            lane_tensors = [t[lane] if operand.stacked else t for t, operand in zip(tensors, operands, strict=True)]
            args, keywords = call.filled(lane_tensors)
            results.append(call.target(*args, **keywords))
        if isinstance(results[0], torch.Tensor):
            return torch.stack(results)
        return tuple(torch.stack(parts) for parts in zip(*results, strict=True))

    return compute


def acts_elementwise(call: Call) -> bool:
    """Whether PyTorch says that the operator acts element by element."""
    import torch

    return torch.Tag.pointwise in getattr(call.target, "tags", ())


def pointwise(call: Call) -> Joined:
    """Element by element: the operator itself, with each lane's tensors aligned so that they broadcast as they would alone."""
    operands = call.operands
    rank = max((operand.rank for operand in operands), default=0)
    if all(operand.rank == rank for operand in operands if operand.stacked):
        if not call.keywords and len(call.args) == len(operands) and all(map(operator.is_, call.args, operands)):
            return only("unchanged", call.target)
        if len(operands) == 1 and call.args and call.args[0] is operands[0] and not call.keywords:
            rest, target = call.args[1:], call.target
            return only("unchanged", lambda x: target(x, *rest))

    def compute(*tensors: torch.Tensor) -> Result:
        fitting = [align_tensor(tensor, operand, rank) for tensor, operand in zip(tensors, operands, strict=True)]
        args, keywords = call.filled(fitting)
        output: Result = call.target(*args, **keywords)
        return output

    return only("unchanged", compute)


@TABLE.rule(OPERATOR)
def function(call: Call) -> Joined:
    """A function of the user's with a backward of its own."""
    user_function = application(call.args[1])
    applied_call = replace(call, target=lambda tensors, _: user_function.results(tensors))
    return Joined(
        {"loop": by_lane(applied_call), "vmap": by_vmap(applied_call)}
        if user_function.batches
        else {"loop": by_lane(applied_call)}
    )


@TABLE.rule("aten::copy")
def copy(call: Call) -> Joined:
    """What is to be written, as large as what it is written to. The operator itself has no gradient."""
    into, source = call.args[:2]
    shape = (call.lanes, *into.shape)
    return only("expanded", lambda _, tensor: align_tensor(tensor, source, into.rank).expand(shape).to(into.dtype))


@TABLE.rule("aten::prelu")
def prelu(call: Call) -> Joined | None:
    """One slope, or one for each channel: of each lane (HFTA's table has it unchanged, which shares lane 0's)."""
    import torch

    x, weight = call.operands
    if not x.stacked or not weight.stacked:
        return None
    ones = [1] * (max(x.rank, 2) - 2)
    channels = weight.shape[0] if weight.rank else 1

    def compute(value: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
        if x.rank < 2:
            slope = slope.reshape(call.lanes, *[1] * x.rank)
        else:
            slope = slope.reshape(call.lanes, 1, channels, *ones)
        return torch.where(value >= 0, value, slope * value)

    return only("slopes of each lane", compute)
