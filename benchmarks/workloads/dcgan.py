"""The DCGAN generator: Radford et al., "Unsupervised Representation Learning with DCGANs", ICLR 2016 (64 maps)."""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.workloads.calibrate import calibrated
from benchmarks.workloads.inputs import normal

LATENT = 100


class Generator(nn.Module):
    """Five transposed convolutions from a 100x1x1 latent to a 3x64x64 image in (-1, 1)."""

    def __init__(self, maps: int = 64) -> None:
        super().__init__()
        layers: list[Any] = []
        sizes = (LATENT, maps * 8, maps * 4, maps * 2, maps)
        for index, (channels, output) in enumerate(pairwise(sizes)):
            stride, padding = (1, 0) if index == 0 else (2, 1)
            layers += [
                nn.ConvTranspose2d(channels, output, 4, stride, padding, bias=False),
                nn.BatchNorm2d(output),
                nn.ReLU(),
            ]
        layers += [nn.ConvTranspose2d(maps, 3, 4, 2, 1, bias=False), nn.Tanh()]
        self.layers = nn.Sequential(*layers)

    def forward(self, latent: Tensor) -> Tensor:
        return self.layers(latent)


def dcgan() -> Any:
    """The generator with calibrated weights."""
    return calibrated(Generator, (torch.from_numpy(normal((16, LATENT, 1, 1), seed=1_000_003)),))
