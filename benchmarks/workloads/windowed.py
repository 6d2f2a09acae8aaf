"""Vision networks after the transformers, for images of 224x224 and 1000 classes.

Liu et al., "Swin Transformer: Hierarchical Vision Transformer using Shifted Windows", ICCV 2021 (the tiny one):
attention within windows, which are shifted in every other layer; Liu et al., "A ConvNet for the 2020s", CVPR 2022
(ConvNeXt, the tiny one): depthwise 7x7 convolutions, layer normalisation over the channels of images.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.workloads.calibrate import branch_end, classifier, zero_mean
from benchmarks.workloads.mobile import calibrated_on_photos

WINDOW = 7
_DEPTHS, _HEADS, _WIDTH = (2, 2, 6, 2), (3, 6, 12, 24), 96
_NEXT_DEPTHS, _NEXT_WIDTHS = (3, 3, 9, 3), (96, 192, 384, 768)


def _in_windows(x: Tensor) -> Tensor:
    """(batch, height, width, channels) to (windows, places, channels)."""
    batch, height, width, channels = x.shape
    x = x.view(batch, height // WINDOW, WINDOW, width // WINDOW, WINDOW, channels)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, WINDOW * WINDOW, channels)


def _whole(windows: Tensor, batch: int, height: int, width: int) -> Tensor:
    """Windows back in their places."""
    x = windows.view(batch, height // WINDOW, width // WINDOW, WINDOW, WINDOW, -1)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(batch, height, width, -1)


def _apart(side: int, shift: int) -> Tensor:
    """-100 between places of a shifted window that are no neighbours in the image: (windows, places, places)."""
    zone = torch.zeros(1, side, side, 1, device="cpu")
    parts = (slice(0, -WINDOW), slice(-WINDOW, -shift), slice(-shift, None))
    for row, rows in enumerate(parts):
        for column, columns in enumerate(parts):
            zone[:, rows, columns] = 3 * row + column
    zones = _in_windows(zone).squeeze(-1)
    return (zones[:, None] != zones[:, :, None]).float() * -100.0


def _relative() -> Tensor:
    """Number of the offset between each two places of a window."""
    places = torch.stack(torch.meshgrid(*[torch.arange(WINDOW, device="cpu")] * 2, indexing="ij")).flatten(1)
    offsets = places[:, :, None] - places[:, None] + WINDOW - 1
    return offsets[0] * (2 * WINDOW - 1) + offsets[1]


class WindowAttention(nn.Module):
    """Self-attention of the places of each window, with a learnt bias for each offset."""

    def __init__(self, width: int, heads: int, side: int, shift: int) -> None:
        super().__init__()
        self.heads, self.each = heads, width // heads
        self.projection = zero_mean(nn.Linear(width, 3 * width), 0.8)
        self.output = branch_end(nn.Linear(width, width))
        self.bias = nn.Embedding((2 * WINDOW - 1) ** 2, heads)
        self.offsets = _relative()
        self.mask = _apart(side, shift) if shift else None

    def forward(self, windows: Tensor) -> Tensor:
        count, places, width = windows.shape
        parts = self.projection(windows).view(count, places, 3, self.heads, self.each).permute(2, 0, 3, 1, 4)
        query, key, value = parts[0] * self.each**-0.5, parts[1], parts[2]
        scores = query @ key.transpose(-2, -1) + 0.2 * self.bias(self.offsets).permute(2, 0, 1)[None]
        if self.mask is not None:
            kinds = self.mask.shape[0]
            scores = scores.view(-1, kinds, self.heads, places, places) + self.mask[None, :, None]
            scores = scores.view(count, self.heads, places, places)
        context = functional.softmax(scores, dim=-1) @ value
        return self.output(context.transpose(1, 2).reshape(count, places, width))


class SwinLayer(nn.Module):
    """Attention within windows, and a feed-forward network."""

    def __init__(self, width: int, heads: int, side: int, shift: int) -> None:
        super().__init__()
        self.shift = shift
        self.attention_norm, self.feed_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = WindowAttention(width, heads, side, shift)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), branch_end(nn.Linear(4 * width, width)))

    def forward(self, x: Tensor) -> Tensor:
        batch, height, width, _ = x.shape
        y = self.attention_norm(x)
        if self.shift:
            y = torch.roll(y, (-self.shift, -self.shift), (1, 2))
        y = _whole(self.attention(_in_windows(y)), batch, height, width)
        if self.shift:
            y = torch.roll(y, (self.shift, self.shift), (1, 2))
        x = x + y
        return x + self.feed(self.feed_norm(x))


class Merging(nn.Module):
    """Four neighbours become one place of twice as many channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * width)
        self.reduction = zero_mean(nn.Linear(4 * width, 2 * width, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        corners = (x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2])
        return self.reduction(self.norm(torch.cat(corners, -1)))


class Swin(nn.Module):
    """Images to logits."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.patch_norm = zero_mean(nn.Conv2d(3, _WIDTH, 4, 4)), nn.LayerNorm(_WIDTH)
        layers: list[Any] = []
        width, side = _WIDTH, 56
        for stage, (depth, heads) in enumerate(zip(_DEPTHS, _HEADS, strict=True)):
            if stage:
                layers.append(Merging(width))
                width, side = 2 * width, side // 2
            layers += [SwinLayer(width, heads, side, WINDOW // 2 * (i % 2) * (side > WINDOW)) for i in range(depth)]
        self.layers = nn.Sequential(*layers)
        self.norm = nn.LayerNorm(width)
        self.head = classifier(nn.Linear(width, 1000))

    def forward(self, image: Tensor) -> Tensor:
        x = self.patch_norm(self.patches(image).permute(0, 2, 3, 1))
        return self.head(self.norm(self.layers(x)).mean((1, 2)))


class ChannelNorm(nn.Module):
    """Layer normalisation over the channels of (batch, channels, height, width)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class NextLayer(nn.Module):
    """A depthwise 7x7 convolution, then a feed-forward network with channels last."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = zero_mean(nn.Conv2d(width, width, 7, padding=3, groups=width))
        self.norm = nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), branch_end(nn.Linear(4 * width, width)))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + self.feed(y).permute(0, 3, 1, 2)


def _convnext() -> Any:
    layers: list[Any] = [zero_mean(nn.Conv2d(3, _NEXT_WIDTHS[0], 4, 4)), ChannelNorm(_NEXT_WIDTHS[0])]
    for stage, (depth, width) in enumerate(zip(_NEXT_DEPTHS, _NEXT_WIDTHS, strict=True)):
        if stage:
            before = _NEXT_WIDTHS[stage - 1]
            layers += [ChannelNorm(before), zero_mean(nn.Conv2d(before, width, 2, 2))]
        layers += [NextLayer(width) for _ in range(depth)]
    end = [nn.AdaptiveAvgPool2d(1), ChannelNorm(_NEXT_WIDTHS[-1]), nn.Flatten()]
    return nn.Sequential(*layers, *end, classifier(nn.Linear(_NEXT_WIDTHS[-1], 1000)))


def swin_tiny() -> Any:
    """Swin transformer, the tiny one."""
    return calibrated_on_photos(Swin)


def convnext_tiny() -> Any:
    """ConvNeXt, the tiny one."""
    return calibrated_on_photos(_convnext)
