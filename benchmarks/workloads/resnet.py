"""Bottleneck residual networks: ResNet-50, ResNeXt-50 32x4d and 3D-ResNet-50.

He et al., "Deep Residual Learning for Image Recognition", CVPR 2016 (stride on the 3x3 convolution);
Xie et al., "Aggregated Residual Transformations for Deep Neural Networks", CVPR 2017;
Hara et al., "Can Spatiotemporal 3D CNNs Retrace the History of 2D CNNs and ImageNet?", CVPR 2018.
"""

from typing import Any

from torch import Tensor, nn

from benchmarks.workloads.calibrate import branch_end, calibrated, classifier
from benchmarks.workloads.inputs import smooth_noise

BLOCKS = (3, 4, 6, 3)


class Bottleneck(nn.Module):
    """1x1, 3x3 (grouped, strided) and 1x1 convolutions beside a shortcut; in 2 or 3 dimensions, normalised or not."""

    def __init__(
        self, channels: int, width: int, output: int, stride: int, groups: int, dims: int, normalise: bool
    ) -> None:
        super().__init__()
        conv = nn.Conv3d if dims == 3 else nn.Conv2d
        batch_norm = nn.BatchNorm3d if dims == 3 else nn.BatchNorm2d

        def norm(size: int) -> Any:
            return batch_norm(size) if normalise else nn.Identity()

        self.conv1 = conv(channels, width, 1, bias=False)
        self.norm1 = norm(width)
        self.conv2 = conv(width, width, 3, stride, padding=1, groups=groups, bias=False)
        self.norm2 = norm(width)
        self.conv3 = branch_end(conv(width, output, 1, bias=False))
        self.norm3 = branch_end(norm(output))
        self.relu = nn.ReLU()
        same = channels == output and stride == 1
        self.shortcut = (
            nn.Identity() if same else nn.Sequential(conv(channels, output, 1, stride, bias=False), norm(output))
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norm1(self.conv1(x)))
        y = self.relu(self.norm2(self.conv2(y)))
        return self.relu(self.norm3(self.conv3(y)) + self.shortcut(x))


def trunk(groups: int = 1, width: int = 64, dims: int = 2, normalise: bool = True) -> Any:
    """The four stages of 3-4-6-3 bottlenecks: from 64 channels at stride 1 to 2048 channels at stride 8.

    `width` is the number of channels of the first stage's 3x3 convolutions (groups x width per group).
    """
    blocks = []
    channels = 64
    for stage, count in enumerate(BLOCKS):
        output = 256 << stage
        for index in range(count):
            stride = 2 if stage and not index else 1
            blocks.append(Bottleneck(channels, width << stage, output, stride, groups, dims, normalise))
            channels = output
    return nn.Sequential(*blocks)


class ResidualNetwork(nn.Module):
    """Stem, trunk, global average pooling and a linear classifier."""

    def __init__(self, classes: int, groups: int = 1, width: int = 64, dims: int = 2) -> None:
        super().__init__()
        if dims == 2:
            stem: tuple[Any, ...] = (nn.Conv2d(3, 64, 7, 2, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU())
            pool: Any = nn.MaxPool2d(3, 2, padding=1)
            head: Any = nn.AdaptiveAvgPool2d(1)
        else:
            # Hara et al. also halve the depth in the pooling; with only 3 frames it is kept, so that the trunk
            # sees 64x3x56x56, the input that the Collage paper gives to the same trunk.
            stem = (nn.Conv3d(3, 64, 7, (1, 2, 2), padding=3, bias=False), nn.BatchNorm3d(64), nn.ReLU())
            pool = nn.MaxPool3d(3, (1, 2, 2), padding=1)
            head = nn.AdaptiveAvgPool3d(1)
        self.stem = nn.Sequential(*stem, pool)
        self.trunk = trunk(groups, width, dims)
        self.pool = head
        self.classifier = classifier(nn.Linear(2048, classes))

    def forward(self, image: Tensor) -> Tensor:
        return self.classifier(self.pool(self.trunk(self.stem(image))).flatten(1))


def resnet50() -> Any:
    """ResNet-50 for 1x3x224x224 images, 1000 classes."""
    return _calibrated(lambda: ResidualNetwork(1000), (4, 3, 224, 224))


def resnext50() -> Any:
    """ResNeXt-50 32x4d for 1x3x224x224 images, 1000 classes."""
    return _calibrated(lambda: ResidualNetwork(1000, groups=32, width=128), (4, 3, 224, 224))


def resnet3d50() -> Any:
    """3D-ResNet-50 for 1x3x3x224x224 clips (N, C, D, H, W), 400 classes; 7x7x7 stem of stride (1, 2, 2)."""
    return _calibrated(lambda: ResidualNetwork(400, dims=3), (4, 3, 3, 224, 224))


def _calibrated(make: Any, shape: tuple[int, ...]) -> Any:
    import torch

    return calibrated(make, (torch.from_numpy(smooth_noise(shape, seed=1_000_003)),))
