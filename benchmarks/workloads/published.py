"""Networks whose kernels DNNFusion counted (Niu et al., PLDI 2021, table 5), from their own papers.

For images: Simonyan and Zisserman, "Very Deep Convolutional Networks", ICLR 2015 (VGG-16); Howard et al., "MobileNets", 2017 with
Liu et al., "SSD", ECCV 2016 (300x300, six maps, 91 classes); Bochkovskiy et al., "YOLOv4", 2020 (416x416; Mish in the trunk); Lin
et al., "Feature Pyramid Networks", CVPR 2017 with the region proposals of Ren et al., "Faster R-CNN", NIPS 2015 (the part before
the boxes are chosen, 320x320). For clips of 16 frames: Tran et al., "C3D", ICCV 2015 (112x112); Xie et al., "S3D", ECCV 2018
(224x224).
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.workloads.calibrate import branch_end, calibrated, classifier, zero_mean
from benchmarks.workloads.inputs import smooth_noise
from benchmarks.workloads.mobile import calibrated_on_photos, unit
from benchmarks.workloads.resnet import trunk

_Three = tuple[int, int, int]


def _vgg() -> Any:
    layers: list[Any] = []
    channels = 3
    for output, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            layers += [nn.Conv2d(channels, output, 3, padding=1), nn.ReLU()]
            channels = output
        layers.append(nn.MaxPool2d(2))
    layers.append(nn.Flatten())
    for given, found in ((512 * 49, 4096), (4096, 4096)):
        layers += [nn.Linear(given, found), nn.ReLU(), nn.Dropout()]
    return nn.Sequential(*layers, classifier(nn.Linear(4096, 1000)), nn.Softmax(-1))


def _leaky() -> Any:
    return nn.LeakyReLU(0.1)


class SingleShot(nn.Module):
    """MobileNet and six maps with boxes and classes: (batch, places, 4) and (batch, places, classes)."""

    def __init__(self, classes: int = 91) -> None:
        super().__init__()
        steps = [(64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5]
        first, channels = unit(3, 32, 3, nn.ReLU6, 2), 32
        for output, stride in steps:
            first += _separable(channels, output, stride)
            channels = output
        self.first = nn.Sequential(*first)
        self.second = nn.Sequential(*_separable(512, 1024, 2), *_separable(1024, 1024, 1))
        extra, channels = [], 1024
        for inner, output in ((256, 512), (128, 256), (128, 256), (64, 128)):
            extra.append(nn.Sequential(*unit(channels, inner, 1, nn.ReLU6), *unit(inner, output, 3, nn.ReLU6, 2)))
            channels = output
        self.extra = nn.ModuleList(extra)
        widths, anchors = (512, 1024, 512, 256, 256, 128), (3, 6, 6, 6, 6, 6)
        self.boxes = nn.ModuleList(
            zero_mean(nn.Conv2d(width, 4 * count, 1)) for width, count in zip(widths, anchors, strict=True)
        )
        self.classes = nn.ModuleList(
            zero_mean(nn.Conv2d(width, classes * count, 1)) for width, count in zip(widths, anchors, strict=True)
        )
        self.count = classes

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        x = self.first(image)
        maps = [x, x := self.second(x)]
        maps += [x := part(x) for part in self.extra]
        boxes = [_places(head(one), 4) for head, one in zip(self.boxes, maps, strict=True)]
        scores = [_places(head(one), self.count) for head, one in zip(self.classes, maps, strict=True)]
        return torch.cat(boxes, 1), torch.sigmoid(torch.cat(scores, 1))


def _separable(channels: int, output: int, stride: int) -> list[Any]:
    return [*unit(channels, channels, 3, nn.ReLU6, stride, channels), *unit(channels, output, 1, nn.ReLU6)]


def _places(x: Tensor, width: int) -> Tensor:
    return x.permute(0, 2, 3, 1).reshape(x.shape[0], -1, width)


class Residual(nn.Module):
    """1x1 and 3x3 convolutions with Mish, added to the input."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        end = unit(inner, channels, 3, nn.Mish)
        branch_end(end[0]), branch_end(end[1])
        self.layers = nn.Sequential(*unit(channels, inner, 1, nn.Mish), *end)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


class CrossStage(nn.Module):
    """A stage of CSPDarknet: halves the image; half of the channels pass by the blocks."""

    def __init__(self, channels: int, output: int, count: int) -> None:
        super().__init__()
        half = output if count == 1 else output // 2
        self.down = nn.Sequential(*unit(channels, output, 3, nn.Mish, 2))
        self.past = nn.Sequential(*unit(output, half, 1, nn.Mish))
        self.blocks = nn.Sequential(
            *unit(output, half, 1, nn.Mish),
            *(Residual(half, half // 2 if count == 1 else half) for _ in range(count)),
            *unit(half, half, 1, nn.Mish),
        )
        self.join = nn.Sequential(*unit(2 * half, output, 1, nn.Mish))

    def forward(self, x: Tensor) -> Tensor:
        x = self.down(x)
        return self.join(torch.cat([self.blocks(x), self.past(x)], 1))


def _around(channels: int, inner: int, count: int = 5) -> Any:
    """1x1 and 3x3 convolutions in turn, ending with 1x1."""
    layers: list[Any] = []
    for index in range(count):
        wide = index % 2
        layers += unit(channels, 2 * inner if wide else inner, 3 if wide else 1, _leaky)
        channels = 2 * inner if wide else inner
    return nn.Sequential(*layers)


class Yolo4(nn.Module):
    """CSPDarknet-53, spatial pyramid pooling, path aggregation, three heads with decoded boxes: (batch, places, 5 + classes)."""

    def __init__(self, classes: int = 80) -> None:
        super().__init__()
        self.stem = nn.Sequential(*unit(3, 32, 3, nn.Mish))
        sizes = [(32, 64, 1), (64, 128, 2), (128, 256, 8), (256, 512, 8), (512, 1024, 4)]
        self.stages = nn.ModuleList(CrossStage(*size) for size in sizes)
        self.before = _around(1024, 512, 3)
        self.behind = _around(2048, 512, 3)
        self.lateral = nn.ModuleList(nn.Sequential(*unit(c, c // 2, 1, _leaky)) for c in (512, 256))
        self.up = nn.ModuleList(nn.Sequential(*unit(c, c // 2, 1, _leaky)) for c in (512, 256))
        self.merge_up = nn.ModuleList([_around(512, 256), _around(256, 128)])
        self.down = nn.ModuleList(nn.Sequential(*unit(c, 2 * c, 3, _leaky, 2)) for c in (128, 256))
        self.merge_down = nn.ModuleList([_around(512, 256), _around(1024, 512)])
        self.heads = nn.ModuleList(
            nn.Sequential(*unit(c, 2 * c, 3, _leaky), zero_mean(nn.Conv2d(2 * c, 3 * (5 + classes), 1)))
            for c in (128, 256, 512)
        )

    def forward(self, image: Tensor) -> Tensor:
        x = self.stem(image)
        maps = [x := stage(x) for stage in self.stages][2:]
        x = self.before(maps[2])
        x = self.behind(torch.cat([functional.max_pool2d(x, size, 1, size // 2) for size in (13, 9, 5)] + [x], 1))
        levels = [x]
        for up, lateral, merge, one in zip(self.up, self.lateral, self.merge_up, maps[1::-1], strict=True):
            x = functional.interpolate(up(x), scale_factor=2.0)
            levels.append(x := merge(torch.cat([lateral(one), x], 1)))
        ends = [x]
        for down, merge, one in zip(self.down, self.merge_down, levels[1::-1], strict=True):
            ends.append(x := merge(torch.cat([down(x), one], 1)))
        return torch.cat([self._decoded(head(one)) for head, one in zip(self.heads, ends, strict=True)], 1)

    def _decoded(self, x: Tensor) -> Tensor:
        batch, channels, side, _ = x.shape
        x = x.view(batch, 3, channels // 3, side, side).permute(0, 1, 3, 4, 2)
        steps = torch.arange(side, dtype=x.dtype)
        grid = torch.stack(torch.meshgrid(steps, steps, indexing="xy"), -1)
        centre = (torch.sigmoid(x[..., :2]) + grid) / side
        extent = torch.exp(0.1 * x[..., 2:4]) / side
        return torch.cat([centre, extent, torch.sigmoid(x[..., 4:])], -1).reshape(batch, -1, channels // 3)


class Proposals(nn.Module):
    """ResNet-50 with a pyramid and the head that proposes regions: for each of five maps objects and boxes."""

    def __init__(self, width: int = 256, anchors: int = 3) -> None:
        super().__init__()
        self.stem = nn.Sequential(*unit(3, 64, 7, nn.ReLU, 2), nn.MaxPool2d(3, 2, 1))
        blocks = list(trunk())
        self.stages = nn.ModuleList(nn.Sequential(*blocks[a:b]) for a, b in ((0, 3), (3, 7), (7, 13), (13, 16)))
        self.lateral = nn.ModuleList(zero_mean(nn.Conv2d(c, width, 1)) for c in (256, 512, 1024, 2048))
        self.smooth = nn.ModuleList(zero_mean(nn.Conv2d(width, width, 3, padding=1)) for _ in range(4))
        self.shared = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU())
        self.objects = zero_mean(nn.Conv2d(width, anchors, 1))
        self.boxes = zero_mean(nn.Conv2d(width, 4 * anchors, 1))

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        x = self.stem(image)
        maps = [lateral(x := stage(x)) for stage, lateral in zip(self.stages, self.lateral, strict=True)]
        for upper in (2, 1, 0):
            maps[upper] = maps[upper] + functional.interpolate(maps[upper + 1], size=maps[upper].shape[2:])
        maps = [smooth(one) for smooth, one in zip(self.smooth, maps, strict=True)]
        maps.append(functional.max_pool2d(maps[-1], 1, 2))
        heads = [self.shared(one) for one in maps]
        objects = torch.cat([_places(self.objects(one), 1) for one in heads], 1)
        return torch.sigmoid(objects), torch.cat([_places(self.boxes(one), 4) for one in heads], 1)


def _c3d() -> Any:
    layers: list[Any] = []
    channels = 3
    for index, (output, count) in enumerate(((64, 1), (128, 1), (256, 2), (512, 2), (512, 2))):
        for _ in range(count):
            layers += [nn.Conv3d(channels, output, 3, padding=1), nn.ReLU()]
            channels = output
        last = index == 4
        layers.append(nn.MaxPool3d((1, 2, 2) if not index else 2, padding=(0, 1, 1) if last else 0))
    layers.append(nn.Flatten())
    for given, found in ((8192, 4096), (4096, 4096)):
        layers += [nn.Linear(given, found), nn.ReLU(), nn.Dropout()]
    return nn.Sequential(*layers, classifier(nn.Linear(4096, 487)))


def _convolved(channels: int, output: int, kernel: _Three, stride: _Three = (1, 1, 1)) -> list[Any]:
    """A convolution over space, time or both, batch normalisation, ReLU."""
    padding = (kernel[0] // 2, kernel[1] // 2, kernel[2] // 2)
    return [
        nn.Conv3d(channels, output, kernel, stride, padding, bias=False),
        nn.BatchNorm3d(output),
        nn.ReLU(),
    ]


def _apart(channels: int, output: int, size: int = 3, stride: int = 1) -> list[Any]:
    """A convolution over space and one over time."""
    space = _convolved(channels, output, (1, size, size), (1, stride, stride))
    return [*space, *_convolved(output, output, (size, 1, 1), (stride, 1, 1))]


class Mixed(nn.Module):
    """Four branches as in Inception, with separable convolutions."""

    def __init__(self, channels: int, one: int, before: int, three: int, before2: int, three2: int, pool: int) -> None:
        super().__init__()
        point = (1, 1, 1)
        self.branches = nn.ModuleList(
            [
                nn.Sequential(*_convolved(channels, one, point)),
                nn.Sequential(*_convolved(channels, before, point), *_apart(before, three)),
                nn.Sequential(*_convolved(channels, before2, point), *_apart(before2, three2)),
                nn.Sequential(nn.MaxPool3d(3, 1, 1), *_convolved(channels, pool, point)),
            ]
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def _s3d() -> Any:
    return nn.Sequential(
        *_apart(3, 64, 7, 2),
        nn.MaxPool3d((1, 3, 3), (1, 2, 2), (0, 1, 1)),
        *_convolved(64, 64, (1, 1, 1)),
        *_apart(64, 192),
        nn.MaxPool3d((1, 3, 3), (1, 2, 2), (0, 1, 1)),
        Mixed(192, 64, 96, 128, 16, 32, 32),
        Mixed(256, 128, 128, 192, 32, 96, 64),
        nn.MaxPool3d(3, 2, 1),
        Mixed(480, 192, 96, 208, 16, 48, 64),
        Mixed(512, 160, 112, 224, 24, 64, 64),
        Mixed(512, 128, 128, 256, 24, 64, 64),
        Mixed(512, 112, 144, 288, 32, 64, 64),
        Mixed(528, 256, 160, 320, 32, 128, 128),
        nn.MaxPool3d(2, 2),
        Mixed(832, 256, 160, 320, 32, 128, 128),
        Mixed(832, 384, 192, 384, 48, 128, 128),
        nn.AdaptiveAvgPool3d(1),
        nn.Flatten(),
        nn.Dropout(),
        classifier(nn.Linear(1024, 400)),
    )


def vgg16() -> Any:
    """VGG-16 for 1x3x224x224 images, 1000 classes."""
    return calibrated_on_photos(_vgg)


def _fitted(make: Any, *shape: int) -> Any:
    return calibrated(make, (torch.from_numpy(smooth_noise((2, *shape), seed=1_000_003)),))


def mobilenet_ssd() -> Any:
    """MobileNetV1-SSD."""
    return _fitted(SingleShot, 3, 300, 300)


def yolo4() -> Any:
    """YOLOv4."""
    return _fitted(Yolo4, 3, 416, 416)


def proposals() -> Any:
    """The trunk of a Faster R-CNN."""
    return _fitted(Proposals, 3, 320, 320)


def c3d() -> Any:
    """C3D."""
    return _fitted(_c3d, 3, 16, 112, 112)


def s3d() -> Any:
    """S3D."""
    return _fitted(_s3d, 3, 16, 224, 224)
