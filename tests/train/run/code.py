"""What the specs of these tests name: a small Transformer, one with a skip connection and a mask, one whose weights are tied."""

from __future__ import annotations

import os
import time

import torch
from torch import nn

TOKENS, WORDS = 8, 20


class Encoder(nn.Module):
    """Words to words, through layers; every layer sees which words are there."""

    def __init__(self, layers: int, width: int, *, skip: bool, tied: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.layers = nn.ModuleList(
            [nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True) for _ in range(layers)]
        )
        self.head = nn.Linear(width, WORDS, bias=False)
        self.skip = skip
        if tied:
            self.head.weight = self.words.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """[N, tokens] to [N, words, tokens]."""
        y = first = self.words(words)
        mask = words == 0 if self.skip else None
        for one in self.layers:
            y = one(y, src_key_padding_mask=mask)
        return self.head(y + first if self.skip else y).transpose(1, 2)


def plain(layers: int = 4, width: int = 16) -> nn.Module:
    """A row of layers."""
    return Encoder(layers, width, skip=False, tied=False)


class Perceptrons(nn.Module):
    """Words to words, through layers that PyTorch traces in no time."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(layers)])
        self.head = nn.Linear(width, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """[N, tokens] to [N, words, tokens]."""
        y = self.words(words)
        for one in self.layers:
            y = one(y) + y
        return self.head(y).transpose(1, 2)


def perceptrons(layers: int = 4, width: int = 16) -> nn.Module:
    """A row of layers, for tests of schedules."""
    return Perceptrons(layers, width)


def wide(layers: int = 4, width: int = 320) -> nn.Module:
    """Many weights for its work."""
    return Encoder(layers, width, skip=False, tied=False)


def skipping(layers: int = 4, width: int = 16) -> nn.Module:
    """The last stage reads what the first one made; all but the first read a mask, which has no gradient."""
    return Encoder(layers, width, skip=True, tied=False)


def tied(layers: int = 3, width: int = 16) -> nn.Module:
    """The first weights are the last."""
    return Encoder(layers, width, skip=False, tied=True)


def batch(size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Words [size, tokens], the next ones as targets."""
    words = torch.randint(WORDS, (size, TOKENS), generator=torch.Generator().manual_seed(seed))
    return words, words.roll(1, 1)


def total_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A sum, not a mean: micro-batches do not give its gradients."""
    return torch.nn.functional.cross_entropy(outputs, targets, reduction="sum")


def dying(size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The last of several processes ends when it makes its batch."""
    if os.environ.get("RANK", "0") != "0":
        os._exit(7)
    return batch(size, seed)


def hanging(size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The last of several processes never makes its batch."""
    if os.environ.get("RANK", "0") != "0":
        time.sleep(600)
    return batch(size, seed)


class Awkward(nn.Module):
    """Layers that write in place and keep states of their own; with dropout, random ones."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 16)
        self.recurrent = nn.LSTM(16, 16, batch_first=True)
        self.convolution = nn.Conv1d(16, 16, 3, padding=1)
        self.normalisation = nn.BatchNorm1d(16)
        self.dropout = dropout
        self.head = nn.Linear(16, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """[N, tokens] to [N, words, tokens]."""
        y, _ = self.recurrent(self.words(words))
        y = torch.relu_(self.normalisation(self.convolution(y.transpose(1, 2)))).transpose(1, 2)
        y = torch.dropout(y, self.dropout, self.dropout > 0.0)
        return self.head(y).transpose(1, 2)


def awkward(dropout: float = 0.0) -> nn.Module:
    """For placements of operators."""
    return Awkward(dropout)
