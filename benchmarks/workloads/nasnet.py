"""NASNet-A large, 6 @ 4032.

Zoph et al., "Learning Transferable Architectures for Scalable Image Recognition", CVPR 2018.

Image 331x331, 18 normal cells in three groups of 6, two reduction cells between them and two reduction cells as a stem,
168 filters in the first group, separable convolutions applied twice, no auxiliary head. Padding is symmetric (k // 2);
the original's one-sided padding for even sizes moves the 42 -> 21 windows by a pixel and changes neither shapes nor
work.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.workloads.calibrate import calibrated, classifier
from benchmarks.workloads.inputs import smooth_noise

FILTERS = 168
STEM = 96
CELLS = 6


def _norm(channels: int) -> Any:
    return nn.BatchNorm2d(channels, eps=1e-3)


def _squeeze(channels: int, output: int) -> Any:
    return nn.Sequential(nn.ReLU(), nn.Conv2d(channels, output, 1, bias=False), _norm(output))


def _separable(channels: int, output: int, kernel: int, stride: int = 1) -> Any:
    """ReLU, separable convolution, batch normalisation; twice. Stride and change of channels are in the first."""
    layers: list[Any] = []
    for size, step in ((channels, stride), (output, 1)):
        layers += [
            nn.ReLU(),
            nn.Conv2d(size, size, kernel, step, kernel // 2, groups=size, bias=False),
            nn.Conv2d(size, output, 1, bias=False),
            _norm(output),
        ]
    return nn.Sequential(*layers)


def _average(stride: int = 1) -> Any:
    return nn.AvgPool2d(3, stride, 1, count_include_pad=False)


class FactorisedReduction(nn.Module):
    """Halve height and width by two strided 1x1 paths, the second shifted by a pixel, each giving half the channels."""

    def __init__(self, channels: int, output: int) -> None:
        super().__init__()
        self.relu = nn.ReLU()
        self.pick = nn.AvgPool2d(1, 2, count_include_pad=False)
        self.conv1 = nn.Conv2d(channels, output // 2, 1, bias=False)
        self.conv2 = nn.Conv2d(channels, output - output // 2, 1, bias=False)
        self.norm = _norm(output)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(x)
        shifted = functional.pad(x, (0, 1, 0, 1))[:, :, 1:, 1:]
        return self.norm(torch.cat([self.conv1(self.pick(x)), self.conv2(self.pick(shifted))], 1))


class NormalCell(nn.Module):
    """The normal cell; `halve` says that the previous state is twice as large as the current one."""

    def __init__(self, current: int, previous: int, filters: int, halve: bool) -> None:
        super().__init__()
        self.squeeze = _squeeze(current, filters)
        self.adjust = FactorisedReduction(previous, filters) if halve else _squeeze(previous, filters)
        self.current5, self.current3 = _separable(filters, filters, 5), _separable(filters, filters, 3)
        self.previous3a, self.previous3b = _separable(filters, filters, 3), _separable(filters, filters, 3)
        self.previous5 = _separable(filters, filters, 5)
        self.average1, self.average2, self.average3 = _average(), _average(), _average()

    def forward(self, current: Tensor, previous: Tensor) -> Tensor:
        h, p = self.squeeze(current), self.adjust(previous)
        a = self.current5(h) + self.previous3a(p)
        b = self.previous5(p) + self.previous3b(p)
        c = self.average1(h) + p
        d = self.average2(p) + self.average3(p)
        e = self.current3(h) + h
        return torch.cat([p, a, b, c, d, e], 1)


class ReductionCell(nn.Module):
    """The reduction cell; `adjust` brings the previous state to the cell's width and to the current state's size."""

    def __init__(self, current: int, filters: int, adjust: Any, previous: int) -> None:
        super().__init__()
        self.squeeze = _squeeze(current, filters)
        self.adjust = adjust
        self.current5 = _separable(filters, filters, 5, 2)
        self.previous7a, self.previous7b = _separable(previous, filters, 7, 2), _separable(previous, filters, 7, 2)
        self.previous5 = _separable(previous, filters, 5, 2)
        self.first3 = _separable(filters, filters, 3)
        self.max1, self.max2 = nn.MaxPool2d(3, 2, 1), nn.MaxPool2d(3, 2, 1)
        self.average1, self.average2 = _average(2), _average()

    def forward(self, current: Tensor, previous: Tensor) -> Tensor:
        h, p = self.squeeze(current), self.adjust(previous)
        a = self.current5(h) + self.previous7a(p)
        b = self.max1(h) + self.previous7b(p)
        c = self.average1(h) + self.previous5(p)
        d = self.average2(a) + b
        e = self.first3(a) + self.max2(h)
        return torch.cat([b, c, d, e], 1)


class NasNetALarge(nn.Module):
    """Stem convolution, two stem reductions, three groups of normal cells, classifier with 1000 classes.

    The first cell after a reduction takes as previous state the one *before* the reduction's input, as the published
    large model does.
    """

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, STEM, 3, 2, bias=False), _norm(STEM))
        # the first cell has no previous state: the stem's output, not adjusted, stands in for it
        self.stem1 = ReductionCell(STEM, FILTERS // 4, nn.Identity(), STEM)
        self.stem2 = ReductionCell(FILTERS, FILTERS // 2, FactorisedReduction(STEM, FILTERS // 2), FILTERS // 2)
        groups, reductions = [], []
        current, previous = 2 * FILTERS, FILTERS
        for group in range(3):
            filters = FILTERS << group
            if group:
                reductions.append(ReductionCell(current, filters, _squeeze(previous, filters), filters))
                current = 4 * filters
            cells = []
            for index in range(CELLS):
                cells.append(NormalCell(current, previous, filters, halve=index == 0))
                previous, current = current, 6 * filters
            groups.append(nn.ModuleList(cells))
        self.groups, self.reductions = nn.ModuleList(groups), nn.ModuleList(reductions)
        self.relu, self.pool = nn.ReLU(), nn.AdaptiveAvgPool2d(1)
        self.classifier = classifier(nn.Linear(current, classes))

    def forward(self, image: Tensor) -> Tensor:
        start = self.stem(image)
        previous = self.stem1(start, start)
        current = self.stem2(previous, start)
        for group, cells in enumerate(self.groups):
            if group:
                current = self.reductions[group - 1](current, previous)
            assert isinstance(cells, nn.ModuleList)
            for cell in cells:
                # `previous` still is the state from before the reduction's input here when a group begins
                previous, current = current, cell(current, previous)
        return self.classifier(self.pool(self.relu(current)).flatten(1))


def nasnet_a_large() -> Any:
    """The network with calibrated weights."""
    return calibrated(NasNetALarge, (torch.from_numpy(smooth_noise((3, 3, 331, 331), seed=1_000_003)),))
