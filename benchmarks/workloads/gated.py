"""Mobile networks with gates, for images of 224x224 and 1000 classes.

Howard et al., "Searching for MobileNetV3", ICCV 2019 (the large one, width 1): hard-swish, and squeeze-and-excite
with hard sigmoids; Tan and Le, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks", ICML
2019 (B0): swish, and squeeze-and-excite with sigmoids. Squeeze-and-excite: Hu et al., "Squeeze-and-Excitation
Networks", CVPR 2018.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from benchmarks.workloads.calibrate import classifier, zero_mean
from benchmarks.workloads.mobile import Inverted, calibrated_on_photos, unit

# kernel, expanded, output channels, gates, hard-swish, stride
_MOBILE = (
    *(
        (3, 16, 16, False, False, 1),
        (3, 64, 24, False, False, 2),
        (3, 72, 24, False, False, 1),
        (5, 72, 40, True, False, 2),
    ),
    *(
        (5, 120, 40, True, False, 1),
        (5, 120, 40, True, False, 1),
        (3, 240, 80, False, True, 2),
        (3, 200, 80, False, True, 1),
    ),
    *(
        (3, 184, 80, False, True, 1),
        (3, 184, 80, False, True, 1),
        (3, 480, 112, True, True, 1),
        (3, 672, 112, True, True, 1),
    ),
    *((5, 672, 160, True, True, 2), (5, 960, 160, True, True, 1), (5, 960, 160, True, True, 1)),
)
# kernel, expansion, output channels, repetitions, stride of the first
_EFFICIENT = (
    *((3, 1, 16, 1, 1), (3, 6, 24, 2, 2), (5, 6, 40, 2, 2), (3, 6, 80, 3, 2)),
    *((5, 6, 112, 3, 1), (5, 6, 192, 4, 2), (3, 6, 320, 1, 1)),
)


class Gate(nn.Module):
    """Squeeze-and-excite: every channel times a number between 0 and 1 that the means of all channels decide."""

    def __init__(self, channels: int, squeezed: int, inner: Callable[[], Any], outer: Callable[[], Any]) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            zero_mean(nn.Conv2d(channels, squeezed, 1)),
            inner(),
            zero_mean(nn.Conv2d(squeezed, channels, 1)),
            outer(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * self.layers(x)


def _mobilenet() -> Any:
    layers, channels = unit(3, 16, 3, nn.Hardswish, 2), 16
    for kernel, inner, output, gated, hard, stride in _MOBILE:
        squeezed = -(-inner // 32) * 8
        gate = Gate(inner, squeezed, nn.ReLU, nn.Hardsigmoid) if gated else None
        layers.append(Inverted(channels, inner, output, kernel, stride, nn.Hardswish if hard else nn.ReLU, gate))
        channels = output
    layers += [*unit(160, 960, 1, nn.Hardswish), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(960, 1280), nn.Hardswish(), nn.Dropout(), classifier(nn.Linear(1280, 1000)))


def _efficientnet() -> Any:
    layers, channels = unit(3, 32, 3, nn.SiLU, 2), 32
    for kernel, expansion, output, count, stride in _EFFICIENT:
        for index in range(count):
            inner = channels * expansion
            gate = Gate(inner, channels // 4, nn.SiLU, nn.Sigmoid)
            layers.append(Inverted(channels, inner, output, kernel, 1 if index else stride, nn.SiLU, gate))
            channels = output
    layers += [*unit(320, 1280, 1, nn.SiLU), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout()]
    return nn.Sequential(*layers, classifier(nn.Linear(1280, 1000)))


def mobilenet_v3() -> Any:
    """MobileNet-V3, the large one."""
    return calibrated_on_photos(_mobilenet)


def efficientnet_b0() -> Any:
    """EfficientNet-B0."""
    return calibrated_on_photos(_efficientnet)
