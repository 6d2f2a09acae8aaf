"""Operators that treat each sample by itself: lanes and batch become one dimension."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bricolage.train.fuse.operators.call import (
    TABLE,
    Call,
    Joined,
    apply_folded,
    batch_outside,
    channels_joined,
    channels_split,
    only,
)

if TYPE_CHECKING:
    import torch

_SPATIAL = {
    **{f"aten::max_pool{d}d": d for d in (1, 2, 3)},
    **{f"aten::avg_pool{d}d": d for d in (1, 2, 3)},
    **{f"aten::adaptive_avg_pool{d}d": d for d in (1, 2, 3)},
    "aten::upsample_nearest2d.vec": 2,
    "aten::upsample_bilinear2d.vec": 2,
    "aten::pixel_shuffle": 2,
    "aten::pad": 0,
    "aten::constant_pad_nd": 0,
}


@TABLE.rule(*_SPATIAL)
def pooling(call: Call) -> Joined | None:
    """[lanes, batch, ...] folded to [lanes · batch, ...], in the order that memory has; where the batch is outside, and channels
    count for themselves, the channels of all lanes side by side."""
    operands, spatial = call.operands, _SPATIAL[call.name]
    if len(operands) != 1 or (spatial and operands[0].rank != spatial + 2) or operands[0].rank < 2:
        return None
    rest, target, keywords = call.args[1:], call.target, call.keywords
    if spatial == 0 and len(rest[0]) > 2 * (operands[0].rank - 1):
        return None  # it pads the batch

    channels = spatial > 0 and call.name != "aten::pixel_shuffle" and operands[0].rank == spatial + 2

    def compute(value: torch.Tensor) -> torch.Tensor:
        if channels and batch_outside(value):
            return channels_split(target(channels_joined(value), *rest, **keywords), call.lanes)
        return apply_folded(value, lambda samples: target(samples, *rest, **keywords))

    return only("folded", compute)
