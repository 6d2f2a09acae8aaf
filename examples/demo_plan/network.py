"""A small Transformer that predicts the next letter, and batches of made-up text: nothing is downloaded."""

from __future__ import annotations

import torch
from torch import nn

LETTERS, LENGTH = 64, 64


class Letters(nn.Module):
    """Layers of attention over letters, without dropout, so that gradients can be compared."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.letters = nn.Embedding(LETTERS, width)
        self.places = nn.Parameter(torch.zeros(LENGTH, width))
        self.layers = nn.ModuleList(
            [nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True) for _ in range(layers)]
        )
        self.head = nn.Linear(width, LETTERS)

    def forward(self, letters: torch.Tensor) -> torch.Tensor:
        """[N, LENGTH] to [N, LETTERS, LENGTH]."""
        y = self.letters(letters) + self.places
        for one in self.layers:
            y = one(y)
        return self.head(y).transpose(1, 2)


def transformer(layers: int = 4, width: int = 128) -> nn.Module:
    """The module of the demonstration."""
    return Letters(layers, width)


def batch(size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Letters [size, LENGTH], and the next ones."""
    letters = torch.randint(LETTERS, (size, LENGTH), generator=torch.Generator().manual_seed(seed))
    return letters, letters.roll(-1, 1)
