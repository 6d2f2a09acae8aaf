"""Two small networks for images of 224x224 and 1000 classes.

Iandola et al., "SqueezeNet: AlexNet-level accuracy with 50x fewer parameters", 2016 (the released version 1.1);
Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks", CVPR 2018 (width 1).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.workloads.calibrate import branch_end, calibrated, classifier, zero_mean
from benchmarks.workloads.inputs import smooth_noise

# input channels, squeezed, expanded by each of the two
_FIRE = (
    *((64, 16, 64), (128, 16, 64), (128, 32, 128), (256, 32, 128)),
    *((256, 48, 192), (384, 48, 192), (384, 64, 256), (512, 64, 256)),
)
_POOL_BEFORE = (2, 4)
# expansion, output channels, repetitions, stride of the first
_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


class Fire(nn.Module):
    """A 1x1 convolution that squeezes, then 1x1 and 3x3 convolutions side by side."""

    def __init__(self, channels: int, squeezed: int, expanded: int) -> None:
        super().__init__()
        self.squeeze = nn.Sequential(nn.Conv2d(channels, squeezed, 1), nn.ReLU())
        self.small = nn.Sequential(nn.Conv2d(squeezed, expanded, 1), nn.ReLU())
        self.large = nn.Sequential(nn.Conv2d(squeezed, expanded, 3, padding=1), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        x = self.squeeze(x)
        return torch.cat([self.small(x), self.large(x)], 1)


def _squeezenet() -> Any:
    layers = [nn.Conv2d(3, 64, 3, 2), nn.ReLU(), nn.MaxPool2d(3, 2, ceil_mode=True)]
    for index, sizes in enumerate(_FIRE):
        if index in _POOL_BEFORE:
            layers.append(nn.MaxPool2d(3, 2, ceil_mode=True))
        layers.append(Fire(*sizes))
    layers += [nn.Dropout(), nn.Conv2d(512, 1000, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers)


def unit(
    channels: int, output: int, kernel: int, activation: Callable[[], Any], stride: int = 1, groups: int = 1
) -> list[Any]:
    """A convolution, batch normalisation, an activation."""
    return [
        nn.Conv2d(channels, output, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(output),
        activation(),
    ]


class Inverted(nn.Module):
    """Expansion to `inner` channels, depthwise convolution, gates where there are any, linear projection; added to the input where
    the shapes agree."""

    def __init__(
        self,
        channels: int,
        inner: int,
        output: int,
        kernel: int,
        stride: int,
        activation: Callable[[], Any],
        gate: Any = None,
    ) -> None:
        super().__init__()
        self.residual = stride == 1 and channels == output
        end = branch_end if self.residual else zero_mean
        self.layers = nn.Sequential(
            *(unit(channels, inner, 1, activation) if inner != channels else []),
            *unit(inner, inner, kernel, activation, stride, inner),
            *([gate] if gate is not None else []),
            end(nn.Conv2d(inner, output, 1, bias=False)),
            end(nn.BatchNorm2d(output)),
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.layers(x)
        return x + y if self.residual else y


def _mobilenet() -> Any:
    layers, channels = unit(3, 32, 3, nn.ReLU6, 2), 32
    for expansion, output, count, stride in _STAGES:
        for index in range(count):
            layers.append(Inverted(channels, channels * expansion, output, 3, 1 if index else stride, nn.ReLU6))
            channels = output
    layers += [*unit(320, 1280, 1, nn.ReLU6), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout()]
    return nn.Sequential(*layers, classifier(nn.Linear(1280, 1000)))


def calibrated_on_photos(make: Any) -> Any:
    """The network with weights for images of 224x224."""
    return calibrated(make, (torch.from_numpy(smooth_noise((4, 3, 224, 224), seed=1_000_003)),))


def squeezenet() -> Any:
    """SqueezeNet 1.1."""
    return calibrated_on_photos(_squeezenet)


def mobilenet_v2() -> Any:
    """MobileNet-V2."""
    return calibrated_on_photos(_mobilenet)
