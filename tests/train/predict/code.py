"""What the specs of these tests name beside the demonstration's networks: made-up images, which need no library to be had."""

from __future__ import annotations

import torch


def images(size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images [size, 1, 8, 8] from 0 to 1, and classes [size]."""
    made = torch.Generator().manual_seed(seed)
    return torch.rand(size, 1, 8, 8, generator=made), torch.randint(10, (size,), generator=made)
