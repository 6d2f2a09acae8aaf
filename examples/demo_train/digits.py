"""What the sweeps of this folder name: scikit-learn's digits (1797 images of 8 × 8), and networks that read them."""

from __future__ import annotations

import torch
from torch import nn

TRAINED = 1400
"""Images that are trained on; the other 397 are held out."""


def data() -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """Training and held-out images [n, 1, 8, 8] from 0 to 1, with their digits [n]; shuffled once, since they come by writer."""
    from sklearn.datasets import load_digits  # the networks need nothing of it

    digits = load_digits()
    order = torch.randperm(len(digits.images), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1)[order] / 16
    targets = torch.tensor(digits.target)[order]
    return (images[:TRAINED], targets[:TRAINED]), (images[TRAINED:], targets[TRAINED:])


def batch(size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Some training images and their digits, for `bricolage train predict`."""
    (images, targets), _ = data()
    chosen = torch.randint(TRAINED, (size,), generator=torch.Generator().manual_seed(seed))
    return images[chosen], targets[chosen]


def mlp(width: int = 32) -> nn.Module:
    """Two linear layers."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, 10))


def cnn(width: int = 8) -> nn.Module:
    """Two convolutions with batch-norm."""
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1, bias=False),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(8 * width, 10),
    )


class Transformer(nn.Module):
    """Reads an image row by row: eight tokens."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.places = nn.Parameter(torch.zeros(1, 8, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers)
        self.out = nn.Linear(width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores of the digits."""
        rows = self.embed(images.squeeze(1)) + self.places
        return self.out(self.encoder(rows).mean(1))


def transformer(width: int = 32, layers: int = 2) -> nn.Module:
    """An encoder with four heads."""
    return Transformer(width, layers)


class Recurrent(nn.Module):
    """Reads an image row by row with an LSTM."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, width, layers, batch_first=True, dropout=0.1)
        self.out = nn.Linear(width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores of the digits."""
        states, _ = self.lstm(images.squeeze(1))
        return self.out(states[:, -1])


def lstm(width: int = 32, layers: int = 2) -> nn.Module:
    """A recurrent network of two layers."""
    return Recurrent(width, layers)
