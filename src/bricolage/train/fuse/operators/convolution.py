"""Convolutions: with groups for lanes, as batched products over patches, or lane by lane."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from bricolage.train.fuse.operators.call import (
    TABLE,
    Call,
    Compute,
    Joined,
    Operand,
    Result,
    batch_outside,
    channels_joined,
    channels_split,
)
from bricolage.train.fuse.operators.general import by_lane

if TYPE_CHECKING:
    import torch

_MOST_PATCHES = 1 << 26
"""Elements of all patches, beyond which unfolding is not tried."""


@TABLE.rule(
    "aten::conv1d",
    "aten::conv2d",
    "aten::conv3d",
    "aten::conv1d.padding",
    "aten::conv2d.padding",
    "aten::conv3d.padding",
)
def convolution(call: Call) -> Joined | None:
    """Weights [lanes, Co, Ci / g, ...]: channels of all lanes side by side and lanes · g groups; where all lanes share the input
    and g = 1, one convolution with lanes · Co filters; or patches [lanes, batch, Ci · k, places] by weights, as batched
    products."""
    x, weight, bias, stride, padding, dilation, groups = call.args
    lanes = call.lanes
    spatial = weight.rank - 2
    if x.rank != spatial + 2 or not weight.stacked or (bias is not None and not bias.stacked):
        return None
    target = call.target

    def convolve_groups(value: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
        joined = channels_joined(value if x.stacked else value.expand(lanes, *value.shape))
        flat = None if b is None else b.reshape(-1)
        output = target(joined, w.flatten(0, 1), flat, stride, padding, dilation, lanes * groups)
        return channels_split(output, lanes)

    def wide(value: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
        output = target(value, w.flatten(0, 1), None if b is None else b.reshape(-1), stride, padding, dilation, 1)
        return channels_split(output, lanes)

    ways: dict[str, Compute] = {"groups": convolve_groups, "loop": by_lane(call)}
    if not x.stacked and groups == 1:
        ways = {"one convolution": wide, **ways}
    if spatial == 2:
        ways |= {f"{name}, channels last": _channels_last(ways[name]) for name in tuple(ways) if name != "loop"}
    patches = lanes * x.shape[0] * math.prod(weight.shape[1:]) * math.prod(call.shape[2:])
    if spatial == 2 and groups == 1 and not isinstance(padding, str) and patches <= _MOST_PATCHES:
        ways["patches"] = _patches(call, x, weight)
    return Joined(ways)


def _channels_last(compute: Compute) -> Compute:
    """The same with the channels of all lanes innermost in memory, which what follows keeps: with few channels a lane, they are
    what fills a vector."""
    import torch

    def innermost(value: torch.Tensor) -> torch.Tensor:
        # Of a stacked tensor, [lanes, batch, C, H, W], as of a shared one, [batch, C, H, W].
        joined = channels_joined(value) if value.ndim == 5 else value
        output = joined.contiguous(memory_format=torch.channels_last)
        return channels_split(output, value.shape[0]) if value.ndim == 5 else output

    def compute_innermost(value: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None) -> Result:
        # [lanes, Co, Ci, h, w] with Ci innermost: so it is with lanes and Co as one dimension.
        return compute(innermost(value), w.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3), b)

    return compute_innermost


def _patches(call: Call, x: Operand, weight: Operand) -> Compute:
    import torch

    _, _, _, stride, padding, dilation, _ = call.args
    kernel, lanes, outputs = weight.shape[2:], call.lanes, weight.shape[0]
    spatial, batch = call.shape[2:], x.shape[0]

    def compute(value: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
        if x.stacked:
            outside = batch_outside(value)
            joined = (value.transpose(0, 1) if outside else value).flatten(0, 1)
            columns = torch.nn.functional.unfold(joined, kernel, dilation, padding, stride)
            columns = columns.unflatten(0, (batch, lanes) if outside else (lanes, batch))
            columns = columns.transpose(0, 1) if outside else columns
        else:
            columns = torch.nn.functional.unfold(value, kernel, dilation, padding, stride).unsqueeze(0)
        products = torch.matmul(w.reshape(lanes, 1, outputs, -1), columns)
        if b is not None:
            products = products + b.reshape(lanes, 1, outputs, 1)
        return products.view(lanes, batch, outputs, *spatial)

    return compute


@TABLE.rule("aten::conv_transpose1d", "aten::conv_transpose2d.input", "aten::conv_transpose3d.input")
def transposed_convolution(call: Call) -> Joined | None:
    """As `convolution`, with weights [lanes, Ci, Co / g, ...]."""
    x, weight, bias, stride, padding, extra, groups, dilation = call.args
    lanes = call.lanes
    if x.rank != weight.rank or not weight.stacked or (bias is not None and not bias.stacked):
        return None
    target = call.target

    def convolve_groups(value: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
        joined = channels_joined(value if x.stacked else value.expand(lanes, *value.shape))
        flat = None if b is None else b.reshape(-1)
        sizes = (stride, padding, extra, lanes * groups, dilation)
        output = target(joined, w.flatten(0, 1), flat, *sizes)
        return channels_split(output, lanes)

    return Joined({"groups": convolve_groups, "loop": by_lane(call)})
