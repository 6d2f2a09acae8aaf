"""A speaker's voice as a vector, after the paper: Desplanques et al., "ECAPA-TDNN", Interspeech 2020 (512 channels)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


def _unit(channels: int, output: int, kernel: int = 1, dilation: int = 1) -> nn.Sequential:
    """A convolution over time, ReLU, batch normalisation."""
    convolution = nn.Conv1d(channels, output, kernel, dilation=dilation, padding=dilation * (kernel // 2))
    return nn.Sequential(convolution, nn.ReLU(), nn.BatchNorm1d(output))


class MultiScale(nn.Module):
    """Channels in groups, each of which also sees the answer of the group before."""

    def __init__(self, channels: int, groups: int, dilation: int) -> None:
        super().__init__()
        width = channels // groups
        self.groups = groups
        self.units = nn.ModuleList(_unit(width, width, 3, dilation) for _ in range(groups - 1))

    def forward(self, x: Tensor) -> Tensor:
        first, *rest = x.chunk(self.groups, 1)
        answers, last = [first], torch.zeros(())
        for index, (part, unit) in enumerate(zip(rest, self.units, strict=True)):
            last = unit(part if index == 0 else part + last)
            answers.append(last)
        return torch.cat(answers, 1)


class ChannelGate(nn.Module):
    """Squeeze and excitation over time."""

    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.squeeze, self.excite = nn.Conv1d(channels, inner, 1), nn.Conv1d(inner, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.excite(functional.relu(self.squeeze(x.mean(2, keepdim=True)))))


class SpeakerBlock(nn.Module):
    """Multi-scale convolutions and a gate, added to the input."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            _unit(channels, channels),
            MultiScale(channels, 8, dilation),
            _unit(channels, channels),
            ChannelGate(channels, 128),
        )

    def forward(self, x: Tensor) -> Tensor:
        added: Tensor = x + self.layers(x)
        return added


class StatisticsPool(nn.Module):
    """Mean and deviation over time, weighted by attention that knows those of the whole."""

    def __init__(self, channels: int, inner: int = 128) -> None:
        super().__init__()
        self.attention = nn.Sequential(
            _unit(3 * channels, inner), nn.Tanh(), nn.Conv1d(inner, channels, 1), nn.Softmax(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(2, keepdim=True)
        deviation = (x - mean).square().mean(2, keepdim=True).clamp(min=1e-5).sqrt()
        weights = self.attention(torch.cat([x, mean.expand_as(x), deviation.expand_as(x)], 1))
        mean = (weights * x).sum(2)
        return torch.cat([mean, ((weights * x.square()).sum(2) - mean.square()).clamp(min=1e-5).sqrt()], 1)


class SpeakerEncoder(nn.Module):
    """ECAPA-TDNN: features (batch, mels, frames) to vectors (batch, 192)."""

    def __init__(self, mels: int = 80, channels: int = 512, output: int = 192) -> None:
        super().__init__()
        self.first = _unit(mels, channels, 5)
        self.blocks = nn.ModuleList(SpeakerBlock(channels, dilation) for dilation in (2, 3, 4))
        self.join = nn.Sequential(nn.Conv1d(3 * channels, 1536, 1), nn.ReLU())
        self.pool = nn.Sequential(StatisticsPool(1536), nn.BatchNorm1d(3072), nn.Linear(3072, output))

    def forward(self, features: Tensor) -> Tensor:
        x = self.first(features)
        maps = [x := block(x) for block in self.blocks]
        pooled: Tensor = self.pool(self.join(torch.cat(maps, 1)))
        return pooled
