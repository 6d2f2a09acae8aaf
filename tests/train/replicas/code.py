"""What the specs of these tests name: small networks on a made-up task, and data functions that fail."""

from __future__ import annotations

import os

import torch
from torch import nn


def data() -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """Points in 8 dimensions, by which of three directions they are nearest to."""
    made = torch.Generator().manual_seed(0)
    points = torch.randn(512, 8, generator=made)
    classes = (points @ torch.randn(8, 3, generator=made)).argmax(1)
    return (points[:384], classes[:384]), (points[384:], classes[384:])


def batch(size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Some of them."""
    (points, classes), _ = data()
    chosen = torch.randint(len(points), (size,), generator=torch.Generator().manual_seed(seed))
    return points[chosen], classes[chosen]


def net() -> nn.Module:
    """Two linear layers."""
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))


def normed() -> nn.Module:
    """With batch-norm."""
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


def frozen() -> nn.Module:
    """Nothing to train."""
    found = nn.Linear(8, 3)
    found.requires_grad_(False)
    return found


def failing_data() -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """Ends one worker's process without a word."""
    if (
        os.environ.get("BRICOLAGE_TEST_ENDS")
        and torch.distributed.is_initialized()
        and torch.distributed.get_rank() == 1
    ):
        os._exit(7)
    return data()
