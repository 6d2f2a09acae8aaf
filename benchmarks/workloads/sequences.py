"""Networks over sequences: names in text, lines of writing, speech.

Huang et al., "Bidirectional LSTM-CRF Models for Sequence Tagging", 2015 (two layers; without the conditional random
field); Shi et al., "An End-to-End Trainable Neural Network for Image-based Sequence Recognition", 2015 (CRNN:
convolutions over a line of writing as wide as it is, then recurrent layers); Gulati et al., "Conformer:
Convolution-augmented Transformer for Speech Recognition", Interspeech 2020 (the small one's width, six blocks,
attention without relative positions).
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.workloads.calibrate import branch_end, calibrated, zero_mean
from benchmarks.workloads.inputs import smooth_noise, tokens

WORDS, LENGTH, TAGS = 20000, 64, 17
HEIGHT, WIDTH, LETTERS = 32, 160, 97
BINS, FRAMES = 80, 400
_OPSET = 17


class Tagger(nn.Module):
    """Token numbers (batch, length) to scores of tags (batch, length, tags)."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.layers = nn.LSTM(width, width, 2, batch_first=True, bidirectional=True)
        self.head = zero_mean(nn.Linear(2 * width, TAGS), 2.0)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.layers(self.words(words))[0])


class Writing(nn.Module):
    """Lines (batch, 1, 32, width) to scores of letters (batch, width / 4 - 1, letters), for any width that 4 divides."""

    def __init__(self, units: int = 256) -> None:
        super().__init__()

        def unit(channels: int, output: int, kernel: int = 3, pad: int = 1) -> list[Any]:
            return [nn.Conv2d(channels, output, kernel, 1, pad, bias=False), nn.BatchNorm2d(output), nn.ReLU()]

        self.convolutions = nn.Sequential(
            *unit(1, 64),
            nn.MaxPool2d(2),
            *unit(64, 128),
            nn.MaxPool2d(2),
            *unit(128, 256),
            *unit(256, 256),
            nn.MaxPool2d((2, 1)),
            *unit(256, 512),
            *unit(512, 512),
            nn.MaxPool2d((2, 1)),
            *unit(512, 512, 2, 0),
        )
        self.layers = nn.LSTM(512, units, 2, batch_first=True, bidirectional=True)
        self.head = zero_mean(nn.Linear(2 * units, LETTERS), 2.0)

    def forward(self, line: Tensor) -> Tensor:
        x = self.convolutions(line).squeeze(2).transpose(1, 2)
        return self.head(self.layers(x)[0])


class Feed(nn.Module):
    """A feed-forward network on the normalised input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), branch_end(nn.Linear(4 * width, width))
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Attention(nn.Module):
    """Multi-head self-attention on the normalised input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.each = heads, width // heads
        self.norm = nn.LayerNorm(width)
        self.projection = zero_mean(nn.Linear(width, 3 * width), 0.8)
        self.output = branch_end(nn.Linear(width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.projection(self.norm(x)).view(batch, length, 3, self.heads, self.each).permute(2, 0, 3, 1, 4)
        scores = functional.softmax(parts[0] @ parts[1].transpose(-2, -1) * self.each**-0.5, dim=-1)
        return self.output((scores @ parts[2]).transpose(1, 2).reshape(batch, length, width))


class Gated(nn.Module):
    """A gated linear unit, a depthwise convolution of 31 steps, and a projection."""

    def __init__(self, width: int, kernel: int = 31) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(
            zero_mean(nn.Conv1d(width, 2 * width, 1)),
            nn.GLU(1),
            zero_mean(nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width)),
            zero_mean(nn.BatchNorm1d(width)),
            nn.SiLU(),
            branch_end(nn.Conv1d(width, width, 1)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(self.norm(x).transpose(1, 2)).transpose(1, 2)


class Block(nn.Module):
    """Feed-forward, attention, convolution, feed-forward, each added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.before, self.after = Feed(width), Feed(width)
        self.attention, self.convolution = Attention(width, heads), Gated(width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.before(x)
        x = x + self.attention(x)
        x = x + self.convolution(x)
        return self.norm(x + 0.5 * self.after(x))


class Conformer(nn.Module):
    """Spectrogram (batch, 1, frames, bins) to states (batch, steps, width), four frames a step."""

    def __init__(self, width: int = 144, heads: int = 4, blocks: int = 6) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, width, 3, 2, 1), nn.ReLU(), nn.Conv2d(width, width, 3, 2, 1), nn.ReLU()
        )
        self.project = zero_mean(nn.Linear(width * (BINS // 4), width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(blocks)))

    def forward(self, spectrogram: Tensor) -> Tensor:
        x = self.convolutions(spectrogram)
        batch, width, steps, bins = x.shape
        return self.blocks(self.project(x.transpose(1, 2).reshape(batch, steps, width * bins)))


def tagger() -> Any:
    """Two recurrent layers in both directions, on a sentence of 64 words."""
    return calibrated(Tagger, (torch.from_numpy(tokens((4, LENGTH), 1_000_003, WORDS)),))


def crnn() -> Any:
    """Lines of writing of any width."""
    return calibrated(Writing, (torch.from_numpy(smooth_noise((4, 1, HEIGHT, WIDTH), 1_000_003)),))


def conformer() -> Any:
    """Six blocks, on four seconds."""
    return calibrated(Conformer, (torch.from_numpy(smooth_noise((4, 1, FRAMES, BINS), 1_000_003)),))


def _write(model: Any, example: Tensor, path: Path, given: str, found: str, dynamic: Any = None) -> None:
    """As older tools export it: each recurrent layer is one operator."""
    with torch.no_grad():
        torch.onnx.export(
            model,
            (example,),
            path,
            input_names=[given],
            output_names=[found],
            opset_version=_OPSET,
            dynamo=False,
            dynamic_axes=dynamic,
        )


def write_tagger(path: Path) -> None:
    """The ONNX file of `tagger`."""
    _write(tagger(), torch.zeros(1, LENGTH, dtype=torch.int64), path, "words", "tags")


def write_crnn(path: Path) -> None:
    """The ONNX file of `crnn`, with lines as wide as they are."""
    axes = {"line": {3: "width"}, "letters": {1: "steps"}}
    _write(crnn(), torch.zeros(1, 1, HEIGHT, WIDTH), path, "line", "letters", axes)
