"""Networks whose training steps are predicted and run: a perceptron, a residual network, one of depthwise convolutions, an encoder,
a recurrent network, a U-Net. Weights and batches are random; a step takes 30 to 300 ms on two cores."""

from __future__ import annotations

import torch
from torch import nn


def _images(size: int, seed: int, side: int) -> torch.Tensor:
    return torch.randn(size, 3, side, side, generator=torch.Generator().manual_seed(seed))


def _classes(size: int, seed: int, count: int) -> torch.Tensor:
    return torch.randint(count, (size,), generator=torch.Generator().manual_seed(seed + 1))


def mlp() -> nn.Module:
    """Four linear layers, 1024 wide."""
    return nn.Sequential(
        nn.Linear(784, 1024),
        nn.ReLU(),
        nn.Linear(1024, 1024),
        nn.ReLU(),
        nn.Linear(1024, 1024),
        nn.ReLU(),
        nn.Linear(1024, 10),
    )


def mlp_batch(size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[size, 784], and one of 10 classes."""
    return torch.randn(size, 784, generator=torch.Generator().manual_seed(seed)), _classes(size, seed, 10)


def wide_mlp(layers: int = 3, width: int = 4096) -> nn.Module:
    """Linear layers of one width behind the first: many weights for the work that a small batch is."""
    inner = [part for _ in range(layers - 2) for part in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(nn.Linear(784, width), nn.ReLU(), *inner, nn.Linear(width, 16))


def word_classifier(words: int = 8192, width: int = 256) -> nn.Module:
    """A mean over the words' rows of a table, and a layer of as many classes: nearly all of it are two large tables."""
    return nn.Sequential(nn.Embedding(words, width), MeanOfWords(), nn.Linear(width, words))


class MeanOfWords(nn.Module):
    """Over the second axis."""

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """[N, words, width] to [N, width]."""
        return words.mean(1)


def word_batch(size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """16 words [size, 16] of 8,192, and the next."""
    words = torch.randint(8192, (size, 16), generator=torch.Generator().manual_seed(seed))
    return words, _classes(size, seed, 8192)


class Residual(nn.Module):
    """He et al.'s basic block."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(outer)
        self.second = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.other_norm = nn.BatchNorm2d(outer)
        self.short = nn.Conv2d(inner, outer, 1, stride, bias=False) if stride > 1 or inner != outer else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, inner, H, W] to [N, outer, H / stride, W / stride]."""
        y = torch.relu(self.norm(self.first(x)))
        return torch.relu(self.other_norm(self.second(y)) + self.short(x))


def resnet() -> nn.Module:
    """Eight blocks on small images, 32 to 256 channels."""
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, 1, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU()]
    inner = 32
    for outer, stride in ((32, 1), (32, 1), (64, 2), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1)):
        layers.append(Residual(inner, outer, stride))
        inner = outer
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, 10))


def image_batch(size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[size, 3, 32, 32], and one of 10 classes."""
    return _images(size, seed, 32), _classes(size, seed, 10)


class Inverted(nn.Module):
    """MobileNetV2's block: wider, depthwise, narrow again."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        wide = 4 * inner
        self.layers = nn.Sequential(
            nn.Conv2d(inner, wide, 1, bias=False),
            nn.BatchNorm2d(wide),
            nn.ReLU6(),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False),
            nn.BatchNorm2d(wide),
            nn.ReLU6(),
            nn.Conv2d(wide, outer, 1, bias=False),
            nn.BatchNorm2d(outer),
        )
        self.same = stride == 1 and inner == outer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, inner, H, W] to [N, outer, H / stride, W / stride]."""
        return x + self.layers(x) if self.same else self.layers(x)


def mobilenet() -> nn.Module:
    """Six inverted blocks."""
    layers: list[nn.Module] = [nn.Conv2d(3, 24, 3, 1, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU6()]
    inner = 24
    for outer, stride in ((24, 1), (32, 2), (32, 1), (64, 2), (64, 1), (96, 2)):
        layers.append(Inverted(inner, outer, stride))
        inner = outer
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, 10))


class Encoder(nn.Module):
    """A small BERT that guesses tokens."""

    def __init__(self, vocabulary: int = 4000, width: int = 256, layers: int = 4, length: int = 64) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.randn(1, length, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.1, "gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """[N, L] to scores [N, vocabulary, L]."""
        return self.out(self.encoder(self.words(tokens) + self.places)).transpose(1, 2)


def encoder() -> nn.Module:
    """Four layers, 256 wide, 64 tokens."""
    return Encoder()


def token_batch(size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[size, 64] tokens, twice."""
    made = torch.Generator().manual_seed(seed)
    return torch.randint(4000, (size, 64), generator=made), torch.randint(4000, (size, 64), generator=made)


class Recurrent(nn.Module):
    """Two layers of LSTM that guess the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(1000, 128)
        self.lstm = nn.LSTM(128, 256, 2, batch_first=True, dropout=0.1)
        self.out = nn.Linear(256, 1000)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """[N, L] to scores [N, 1000, L]."""
        states, _ = self.lstm(self.words(tokens))
        return self.out(states).transpose(1, 2)


def lstm() -> nn.Module:
    """256 wide, 64 tokens."""
    return Recurrent()


def letter_batch(size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[size, 64] of 1000 tokens, twice."""
    tokens, targets = token_batch(size, seed)
    return tokens % 1000, targets % 1000


class UNet(nn.Module):
    """Three levels, 16 to 64 channels, with transposed convolutions back up."""

    def __init__(self) -> None:
        super().__init__()

        def twice(inner: int, outer: int) -> nn.Module:
            return nn.Sequential(
                nn.Conv2d(inner, outer, 3, 1, 1),
                nn.GroupNorm(4, outer),
                nn.SiLU(),
                nn.Conv2d(outer, outer, 3, 1, 1),
                nn.SiLU(),
            )

        self.down = nn.ModuleList([twice(3, 16), twice(16, 32), twice(32, 64)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(64, 32, 2, 2), nn.ConvTranspose2d(32, 16, 2, 2)])
        self.join = nn.ModuleList([twice(64, 32), twice(32, 16)])
        self.out = nn.Conv2d(16, 5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 3, H, W] to scores [N, 5, H, W]."""
        kept = []
        for number, layer in enumerate(self.down):
            x = layer(x if number == 0 else nn.functional.max_pool2d(x, 2))
            kept.append(x)
        for up, join, beside in zip(self.up, self.join, reversed(kept[:-1]), strict=True):
            x = join(torch.cat((up(x), beside), 1))
        return self.out(x)


def unet() -> nn.Module:
    """On images of 64 x 64."""
    return UNet()


def mask_batch(size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[size, 3, 64, 64], and one of five classes for each pixel."""
    made = torch.Generator().manual_seed(seed + 1)
    return _images(size, seed, 64), torch.randint(5, (size, 64, 64), generator=made)
