"""The five networks that the Collage paper was evaluated on: no stem, no batch normalisation, no classifier head.

Jeon et al., "Collage: Seamless Integration of Deep Learning Backends with Automatic Placement", PACT 2022. Each takes
a single float32 input of batch 1 in the paper's shapes, and its published counts follow from the definitions: 204
convolutions in NASNet-A; 52 in 3D-ResNet-50, 22 of them distinct; 52 in ResNeXt-50, 23 distinct.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.workloads.bert import SelfAttention
from benchmarks.workloads.calibrate import branch_end, calibrated, zero_mean
from benchmarks.workloads.inputs import normal, smooth_noise
from benchmarks.workloads.resnet import trunk

_CALIBRATION_SEED = 1_000_003


class PreNormLayer(nn.Module):
    """Transformer layer that normalises before attention and before the feed-forward network (ReLU)."""

    def __init__(self, hidden: int, heads: int, feed_forward: int) -> None:
        super().__init__()
        self.attention_norm, self.norm = nn.LayerNorm(hidden, eps=1e-6), nn.LayerNorm(hidden, eps=1e-6)
        self.attention = SelfAttention(hidden, heads)
        self.expand, self.contract = nn.Linear(hidden, feed_forward), branch_end(nn.Linear(feed_forward, hidden))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.contract(functional.relu(self.expand(self.norm(x))))


class TransformerStack(nn.Module):
    """8 pre-norm layers, hidden 256, 8 heads, feed-forward 1024; no embedding, no mask, no final normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(PreNormLayer(256, 8, 1024) for _ in range(8)))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class GeneratorDiscriminator(nn.Module):
    """Generator 1x100 -> 3x256x256 and discriminator -> 1, as one network that returns (image, validity)."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(100, 128 * 64 * 64)
        self.generator = nn.Sequential(
            nn.Upsample(scale_factor=2),
            nn.Conv2d(128, 128, 3, padding=1),
            nn.ReLU(),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(128, 64, 3, padding=1),
            nn.ReLU(),
            zero_mean(nn.Conv2d(64, 3, 3, padding=1)),
            nn.Tanh(),
        )
        layers: list[Any] = []
        for channels, output in ((3, 16), (16, 32), (32, 64), (64, 128)):
            layers += [nn.Conv2d(channels, output, 3, 2, 1), nn.ReLU()]
        self.discriminator = nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 16 * 16, 1), nn.Sigmoid())

    def forward(self, latent: Tensor) -> tuple[Tensor, Tensor]:
        image = self.generator(self.project(latent).reshape(-1, 128, 64, 64))
        return image, self.discriminator(image)


def _squeeze(channels: int, output: int) -> Any:
    return nn.Sequential(nn.Conv2d(channels, output, 1), nn.ReLU())


def _separable(channels: int, kernel: int, stride: int = 1) -> Any:
    return nn.Sequential(
        nn.Conv2d(channels, channels, kernel, stride, kernel // 2, groups=channels, bias=False),
        nn.Conv2d(channels, channels, 1, bias=False),
    )


def _average(stride: int = 1) -> Any:
    return nn.AvgPool2d(3, stride, 1, count_include_pad=False)


class NormalCell(nn.Module):
    """The paper's normal cell: single separable 3x3 convolutions, both states first brought to the cell's width."""

    def __init__(self, current: int, previous: int, channels: int) -> None:
        super().__init__()
        self.squeeze, self.fit = _squeeze(current, channels), _squeeze(previous, channels)
        self.separable = nn.ModuleList(_separable(channels, 3) for _ in range(5))
        self.average1, self.average2, self.average3 = _average(), _average(), _average()

    def forward(self, current: Tensor, previous: Tensor) -> Tensor:
        h, p = self.squeeze(current), self.fit(previous)
        conv = self.separable
        return torch.cat(
            [
                conv[0](h) + h,
                conv[1](p) + conv[2](h),
                self.average1(h) + p,
                self.average2(p) + self.average3(p),
                conv[3](p) + conv[4](p),
            ],
            1,
        )


class ReductionCell(nn.Module):
    """The paper's reduction cell: five outputs side by side, height and width halved."""

    def __init__(self, current: int, previous: int, channels: int) -> None:
        super().__init__()
        self.squeeze, self.fit = _squeeze(current, channels), _squeeze(previous, channels)
        self.previous7a, self.previous7b = _separable(channels, 7, 2), _separable(channels, 7, 2)
        self.current5, self.previous5 = _separable(channels, 5, 2), _separable(channels, 5, 2)
        self.first3 = _separable(channels, 3)
        self.max1, self.max2 = nn.MaxPool2d(3, 2, 1), nn.MaxPool2d(3, 2, 1)
        self.average1, self.average2 = _average(2), _average()

    def forward(self, current: Tensor, previous: Tensor) -> Tensor:
        h, p = self.squeeze(current), self.fit(previous)
        a = self.previous7a(p) + self.current5(h)
        b = self.max1(h) + self.previous7b(p)
        c = self.average1(h) + self.previous5(p)
        d = self.max2(h) + self.first3(a)
        e = self.average2(a) + b
        return torch.cat([a, b, c, d, e], 1)


class NasNetA(nn.Module):
    """3 stages of 5 normal cells (64, 128, 256 wide), 2 reduction cells; after these both states are their output."""

    def __init__(self) -> None:
        super().__init__()
        cells: list[Any] = []
        current = previous = 64
        for stage in range(3):
            channels = 64 << stage
            if stage:
                cells.append(ReductionCell(current, previous, channels))
                current = previous = 5 * channels
            for _ in range(5):
                cells.append(NormalCell(current, previous, channels))
                previous, current = current, 5 * channels
        self.cells = nn.ModuleList(cells)

    def forward(self, x: Tensor) -> Tensor:
        current = previous = x
        for cell in self.cells:
            following = cell(current, previous)
            previous = following if isinstance(cell, ReductionCell) else current
            current = following
        return current


def bert() -> Any:
    """collage-bert: 1x64x256."""
    return _calibrated(TransformerStack, normal((4, 64, 256), _CALIBRATION_SEED))


def dcgan() -> Any:
    """collage-dcgan: 1x100."""
    return _calibrated(GeneratorDiscriminator, normal((4, 100), _CALIBRATION_SEED))


def nasnet() -> Any:
    """collage-nasnet: 1x64x56x56."""
    return _calibrated(NasNetA, smooth_noise((4, 64, 56, 56), _CALIBRATION_SEED))


def resnet3d() -> Any:
    """collage-resnet3d: 1x64x3x56x56 (N, C, D, H, W)."""
    return _calibrated(lambda: trunk(dims=3, normalise=False), smooth_noise((4, 64, 3, 56, 56), _CALIBRATION_SEED))


def resnext() -> Any:
    """collage-resnext: 1x64x56x56."""
    return _calibrated(
        lambda: trunk(groups=32, width=128, normalise=False), smooth_noise((4, 64, 56, 56), _CALIBRATION_SEED)
    )


def _calibrated(make: Callable[[], Any], batch: Any) -> Any:
    return calibrated(make, (torch.from_numpy(batch),))
