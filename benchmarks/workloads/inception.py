"""Inception-v3: Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", CVPR 2016.

Image 299x299, no auxiliary head; blocks and channels of the released model, 5 : 1 : 4 : 1 : 2 of the kinds A to E.
"""

from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.workloads.calibrate import calibrated, classifier
from benchmarks.workloads.inputs import smooth_noise

_Size = int | tuple[int, int]


def _conv(channels: int, output: int, kernel: _Size, stride: int = 1, padding: _Size = 0) -> Any:
    return nn.Sequential(
        nn.Conv2d(channels, output, kernel, stride, padding, bias=False), nn.BatchNorm2d(output, eps=1e-3), nn.ReLU()
    )


def _chain(channels: int, *layers: tuple[int, _Size]) -> Any:
    """Convolutions of stride 1 that keep the size, each given by its output channels and kernel."""
    built = []
    for output, kernel in layers:
        padding = kernel // 2 if isinstance(kernel, int) else (kernel[0] // 2, kernel[1] // 2)
        built.append(_conv(channels, output, kernel, padding=padding))
        channels = output
    return nn.Sequential(*built)


class Branches(nn.Module):
    """Branches on one input, concatenated along the channels."""

    def __init__(self, *branches: Any) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def _pooled(channels: int, output: int) -> Any:
    return nn.Sequential(nn.AvgPool2d(3, 1, 1), _conv(channels, output, 1))


def _a(channels: int, pooled: int) -> Any:
    return Branches(
        _conv(channels, 64, 1),
        _chain(channels, (48, 1), (64, 5)),
        _chain(channels, (64, 1), (96, 3), (96, 3)),
        _pooled(channels, pooled),
    )


def _b(channels: int) -> Any:
    deep = nn.Sequential(*_chain(channels, (64, 1), (96, 3)), _conv(96, 96, 3, 2))
    return Branches(_conv(channels, 384, 3, 2), deep, nn.MaxPool2d(3, 2))


def _c(inner: int) -> Any:
    row, column = (1, 7), (7, 1)
    return Branches(
        _conv(768, 192, 1),
        _chain(768, (inner, 1), (inner, row), (192, column)),
        _chain(768, (inner, 1), (inner, column), (inner, row), (inner, column), (192, row)),
        _pooled(768, 192),
    )


def _d() -> Any:
    wide = nn.Sequential(_conv(768, 192, 1), _conv(192, 320, 3, 2))
    deep = nn.Sequential(*_chain(768, (192, 1), (192, (1, 7)), (192, (7, 1))), _conv(192, 192, 3, 2))
    return Branches(wide, deep, nn.MaxPool2d(3, 2))


def _e(channels: int) -> Any:
    def fork() -> Any:
        return Branches(_chain(384, (384, (1, 3))), _chain(384, (384, (3, 1))))

    return Branches(
        _conv(channels, 320, 1),
        nn.Sequential(_conv(channels, 384, 1), fork()),
        nn.Sequential(*_chain(channels, (448, 1), (384, 3)), fork()),
        _pooled(channels, 192),
    )


def _network() -> Any:
    stem = [_conv(3, 32, 3, 2), _conv(32, 32, 3), _conv(32, 64, 3, padding=1), nn.MaxPool2d(3, 2)]
    stem += [_conv(64, 80, 1), _conv(80, 192, 3), nn.MaxPool2d(3, 2)]
    blocks = [
        _a(192, 32),
        _a(256, 64),
        _a(288, 64),
        _b(288),
        _c(128),
        _c(160),
        _c(160),
        _c(192),
        _d(),
        _e(1280),
        _e(2048),
    ]
    head = [nn.AdaptiveAvgPool2d(1), nn.Dropout(), nn.Flatten(), classifier(nn.Linear(2048, 1000))]
    return nn.Sequential(*stem, *blocks, *head)


def inception_v3() -> Any:
    """Inception-v3 for 1x3x299x299 images, 1000 classes."""
    return calibrated(_network, (torch.from_numpy(smooth_noise((4, 3, 299, 299), seed=1_000_003)),))
