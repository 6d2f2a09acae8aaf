"""Networks whose answer is as large as their image: a class for every place, or boxes.

Ronneberger et al., "U-Net: Convolutional Networks for Biomedical Image Segmentation", MICCAI 2015 (padded, with
batch normalisation, half its width, 256x256, 2 classes); Chen et al., "Rethinking Atrous Convolution for Semantic
Image Segmentation", 2017 (DeepLabv3 over a residual network of 18 layers with output stride 8, 257x257, 21
classes); a detector of one stage after Wang et al., "CSPNet", CVPRW 2020 and Ge et al., "YOLOX: Exceeding YOLO
Series in 2021" (its smallest width but one; heads apart, no anchors, 320x320, 80 classes).
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.workloads.calibrate import branch_end, calibrated, zero_mean
from benchmarks.workloads.inputs import smooth_noise


def _unit(
    channels: int, output: int, kernel: int = 3, stride: int = 1, dilation: int = 1, activation: Any = nn.ReLU
) -> list[Any]:
    pad = dilation * (kernel // 2)
    return [
        nn.Conv2d(channels, output, kernel, stride, pad, dilation, bias=False),
        nn.BatchNorm2d(output),
        activation(),
    ]


class UNet(nn.Module):
    """Down four times, up four times, with what was on the way down beside what comes up."""

    def __init__(self, width: int = 32, classes: int = 2) -> None:
        super().__init__()
        widths = [width << level for level in range(5)]
        self.down = nn.ModuleList(
            nn.Sequential(*_unit(before, after), *_unit(after, after))
            for before, after in zip([3, *widths], widths, strict=False)
        )
        self.pool = nn.MaxPool2d(2)
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in reversed(widths[:-1]))
        self.join = nn.ModuleList(nn.Sequential(*_unit(2 * w, w), *_unit(w, w)) for w in reversed(widths[:-1]))
        self.head = zero_mean(nn.Conv2d(width, classes, 1), 2.0)

    def forward(self, x: Tensor) -> Tensor:
        kept: list[Tensor] = []
        for number, layer in enumerate(self.down):
            x = layer(self.pool(x) if number else x)
            kept.append(x)
        for up, join, beside in zip(self.up, self.join, reversed(kept[:-1]), strict=True):
            x = join(torch.cat([beside, up(x)], 1))
        return self.head(x)


class Basic(nn.Module):
    """Two 3x3 convolutions, added to the input."""

    def __init__(self, channels: int, output: int, stride: int, dilation: int) -> None:
        super().__init__()
        self.first = nn.Sequential(*_unit(channels, output, 3, stride, dilation))
        self.second = nn.Conv2d(output, output, 3, 1, dilation, dilation, bias=False)
        self.norm = branch_end(nn.BatchNorm2d(output))
        same = stride == 1 and channels == output
        self.shortcut = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(channels, output, 1, stride, bias=False), nn.BatchNorm2d(output))
        )

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.shortcut(x) + self.norm(self.second(self.first(x))))


class DeepLab(nn.Module):
    """Dilated convolutions side by side over a dilated backbone, and their answer enlarged to the image."""

    def __init__(self, classes: int = 21) -> None:
        super().__init__()
        layers = [*_unit(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
        channels = 64
        for output, stride, dilation in ((64, 1, 1), (128, 2, 1), (256, 1, 2), (512, 1, 4)):
            layers += [Basic(channels, output, stride, dilation), Basic(output, output, 1, dilation)]
            channels = output
        self.backbone = nn.Sequential(*layers)
        self.sides = nn.ModuleList(
            [nn.Sequential(*_unit(512, 256, 1)), *(nn.Sequential(*_unit(512, 256, 3, 1, d)) for d in (12, 24, 36))]
        )
        self.whole = nn.Sequential(nn.AdaptiveAvgPool2d(1), zero_mean(nn.Conv2d(512, 256, 1)), nn.ReLU())
        self.join = nn.Sequential(*_unit(5 * 256, 256, 1), *_unit(256, 256), zero_mean(nn.Conv2d(256, classes, 1), 2.0))

    def forward(self, image: Tensor) -> Tensor:
        x = self.backbone(image)
        whole = self.whole(x).expand(-1, -1, x.shape[2], x.shape[3])
        y = self.join(torch.cat([*(side(x) for side in self.sides), whole], 1))
        return functional.interpolate(y, size=image.shape[2:], mode="bilinear", align_corners=False)


class Partial(nn.Module):
    """Half of the channels through residual layers, the other half past them."""

    def __init__(self, channels: int, output: int, count: int, residual: bool = True) -> None:
        super().__init__()
        half = output // 2
        self.residual = residual
        self.first, self.second = (nn.Sequential(*_silu(channels, half, 1)) for _ in range(2))
        self.layers = nn.ModuleList(
            nn.Sequential(*_silu(half, half, 1), *_silu(half, half, end=residual)) for _ in range(count)
        )
        self.join = nn.Sequential(*_silu(output, output, 1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        for layer in self.layers:
            y = y + layer(y) if self.residual else layer(y)
        return self.join(torch.cat([y, self.second(x)], 1))


def _silu(channels: int, output: int, kernel: int = 3, stride: int = 1, end: bool = False) -> list[Any]:
    layers = _unit(channels, output, kernel, stride, activation=nn.SiLU)
    if end:
        branch_end(layers[1])
    return layers


class Pyramid(nn.Module):
    """Maxima over windows of several sizes, side by side."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.reduce = nn.Sequential(*_silu(channels, channels // 2, 1))
        self.pools = nn.ModuleList(nn.MaxPool2d(k, 1, k // 2) for k in (5, 9, 13))
        self.join = nn.Sequential(*_silu(2 * channels, channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.reduce(x)
        return self.join(torch.cat([x, *(pool(x) for pool in self.pools)], 1))


class Head(nn.Module):
    """Boxes, whether there is anything, and what, for every place: (batch, places, 5 + classes)."""

    def __init__(self, channels: int, width: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(*_silu(channels, width, 1))
        self.what = nn.Sequential(*_silu(width, width), *_silu(width, width), zero_mean(nn.Conv2d(width, classes, 1)))
        self.where = nn.Sequential(*_silu(width, width), *_silu(width, width))
        self.box = zero_mean(nn.Conv2d(width, 4, 1))
        self.there = zero_mean(nn.Conv2d(width, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        where = self.where(x)
        found = [self.box(where), torch.sigmoid(self.there(where)), torch.sigmoid(self.what(x))]
        return torch.cat(found, 1).flatten(2).transpose(1, 2)


class Detector(nn.Module):
    """Images to boxes with scores on three scales, in places of the image."""

    def __init__(self, width: int = 24, depth: int = 1, classes: int = 80) -> None:
        super().__init__()
        w = [width << level for level in range(5)]
        self.stem = nn.Sequential(*_silu(12, w[0]))
        self.early = nn.Sequential(
            *_silu(w[0], w[1], 3, 2),
            Partial(w[1], w[1], depth),
            *_silu(w[1], w[2], 3, 2),
            Partial(w[2], w[2], 3 * depth),
        )
        self.middle = nn.Sequential(*_silu(w[2], w[3], 3, 2), Partial(w[3], w[3], 3 * depth))
        self.late = nn.Sequential(
            *_silu(w[3], w[4], 3, 2), Pyramid(w[4]), Partial(w[4], w[4], depth, residual=False), *_silu(w[4], w[3], 1)
        )
        self.enlarge = nn.Upsample(scale_factor=2, mode="nearest")
        self.from_late = nn.Sequential(Partial(2 * w[3], w[3], depth, residual=False), *_silu(w[3], w[2], 1))
        self.small = Partial(2 * w[2], w[2], depth, residual=False)
        self.to_medium, self.medium = (
            nn.Sequential(*_silu(w[2], w[2], 3, 2)),
            Partial(2 * w[2], w[3], depth, residual=False),
        )
        self.to_large, self.large = (
            nn.Sequential(*_silu(w[3], w[3], 3, 2)),
            Partial(2 * w[3], w[4], depth, residual=False),
        )
        self.heads = nn.ModuleList(Head(channels, w[2], classes) for channels in w[2:])

    def forward(self, image: Tensor) -> Tensor:
        corners = [image[:, :, row::2, column::2] for column in (0, 1) for row in (0, 1)]
        early = self.early(self.stem(torch.cat(corners, 1)))
        middle = self.middle(early)
        late = self.late(middle)
        joined = self.from_late(torch.cat([self.enlarge(late), middle], 1))
        small = self.small(torch.cat([self.enlarge(joined), early], 1))
        medium = self.medium(torch.cat([self.to_medium(small), joined], 1))
        large = self.large(torch.cat([self.to_large(medium), late], 1))
        found: list[Tensor] = []
        for scale, (x, head) in enumerate(zip((small, medium, large), self.heads, strict=True)):
            step, (height, width) = 8 << scale, x.shape[2:]
            rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
            places = torch.stack([columns, rows], -1).view(1, -1, 2)
            boxes = head(x)
            centre = (boxes[..., :2] + places) * step
            found.append(torch.cat([centre, torch.exp(boxes[..., 2:4]) * step, boxes[..., 4:]], -1))
        return torch.cat(found, 1)


def _calibrated(make: Any, side: int) -> Any:
    return calibrated(make, (torch.from_numpy(smooth_noise((4, 3, side, side), seed=1_000_003)),))


def unet() -> Any:
    """U-Net of half its width."""
    return _calibrated(UNet, 256)


def deeplab() -> Any:
    """DeepLabv3 over 18 layers."""
    return _calibrated(DeepLab, 257)


def detector() -> Any:
    """A detector in the manner of YOLOX."""
    return _calibrated(Detector, 320)
