"""Normalisation: statistics of each lane and channel, scales and shifts of each lane."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from bricolage.train.fuse.operators.call import (
    TABLE,
    Call,
    Joined,
    Operand,
    apply_folded,
    channels_joined,
    channels_split,
    only,
)
from bricolage.train.fuse.operators.general import by_lane

if TYPE_CHECKING:
    import torch


@TABLE.rule("aten::batch_norm", "aten::instance_norm")
def batch_norm(call: Call) -> Joined | None:
    """One batch-norm or instance-norm over lanes · channels channels, running statistics included."""
    x, weight, bias, mean, variance, *rest = call.args
    lanes, target = call.lanes, call.target
    given = [isinstance(argument, Operand) for argument in (weight, bias, mean, variance)]
    if x.rank < 2 or not all(operand.stacked for operand in call.operands[1:]):
        return None

    def compute(value: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        w, b, m, v = _parts(given, iter(others))
        joined = channels_joined(value if x.stacked else value.expand(lanes, *value.shape))
        return channels_split(target(joined, w, b, m, v, *rest), lanes)

    return only("channels of all lanes", compute)


def _parts(given: list[bool], left: Iterator[torch.Tensor]) -> list[torch.Tensor | None]:
    """Flat over lanes. Running statistics are written to, so those have to be views."""
    flat = []
    for place, present in enumerate(given):
        tensor = next(left) if present else None
        flat.append(tensor if tensor is None else tensor.reshape(-1) if place < 2 else tensor.view(-1))
    return flat


@TABLE.rule("aten::layer_norm")
def layer_norm(call: Call) -> Joined | None:
    """Normalised without scale and shift, which then are those of each lane."""
    import torch

    x, shape, weight, bias, eps, _ = call.args
    if not x.stacked:
        return None
    ones = [1] * (x.rank - len(shape))
    given, operands = [isinstance(argument, Operand) for argument in (weight, bias)], call.operands[1:]

    def written(value: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        normalised = torch.nn.functional.layer_norm(value, shape, None, None, eps)
        views = [
            tensor.reshape(-1 if operand.stacked else 1, *ones, *shape)
            for tensor, operand in zip(rest, operands, strict=True)
        ]
        if all(given):
            return torch.addcmul(views[1], normalised, views[0])
        return normalised * views[0] if given[0] else normalised + views[0] if given[1] else normalised

    return Joined({"scales of each lane": written, "loop": by_lane(call)})


@TABLE.rule("aten::group_norm")
def group_norm(call: Call) -> Joined | None:
    """The same by groups of channels."""
    import torch

    x, groups, weight, bias, eps, _ = call.args
    if not x.stacked or not isinstance(weight, Operand) or not isinstance(bias, Operand):
        return None
    if not weight.stacked or not bias.stacked:
        return None
    channels, ones = x.shape[1], [1] * (x.rank - 2)

    def compute(value: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        normalised = apply_folded(
            value, lambda samples: torch.nn.functional.group_norm(samples, groups, None, None, eps)
        )
        return torch.addcmul(b.reshape(-1, 1, channels, *ones), normalised, w.reshape(-1, 1, channels, *ones))

    return Joined({"scales of each lane": compute, "loop": by_lane(call)})
