"""A speech network with connectionist temporal classification, and what reads text off its answer.

Amodei et al., "Deep Speech 2: End-to-End Speech Recognition in English and Mandarin", ICML 2016: convolutions over the
spectrogram, recurrent layers in both directions with batch normalisation between them, one score for each letter and
step. Its scores become text by CTC: Graves et al., "Connectionist Temporal Classification: Labelling Unsegmented
Sequence Data with Recurrent Neural Networks", ICML 2006 (most likely path), and its prefix search as Hannun et al., "First-Pass
Large Vocabulary Continuous Speech Recognition using Bi-Directional Recurrent DNNs", 2014, do it with a beam.
"""

import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.workloads.calibrate import calibrated, zero_mean
from benchmarks.workloads.inputs import smooth_noise

BINS, FRAMES = 161, 200
UNITS, LAYERS = 512, 5
LETTERS = "_ 'abcdefghijklmnopqrstuvwxyz"
"""The first stands for none."""
_OPSET = 17


class SequenceNorm(nn.Module):
    """Batch normalisation of (batch, steps, features) over batch and steps."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(features)
        self.norm.calibration_target = (0.0, 1.0)  # type: ignore[assignment]  # any attribute is a module to PyTorch

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.transpose(1, 2)).transpose(1, 2)


class Speech(nn.Module):
    """Spectrogram (batch, 1, bins, frames) to scores of letters (batch, steps, letters), two frames a step."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, 32, (41, 11), (2, 2), (20, 5), bias=False),
            nn.BatchNorm2d(32),
            nn.Hardtanh(0, 20),
            nn.Conv2d(32, 32, (21, 11), (2, 1), (10, 5), bias=False),
            nn.BatchNorm2d(32),
            nn.Hardtanh(0, 20),
        )
        width = 32 * math.ceil(math.ceil(BINS / 2) / 2)
        widths = [width] + [UNITS] * (LAYERS - 1)
        self.layers = nn.ModuleList(nn.GRU(size, UNITS, batch_first=True, bidirectional=True) for size in widths)
        self.norms = nn.ModuleList(SequenceNorm(UNITS) for _ in range(LAYERS))
        self.head = zero_mean(nn.Linear(UNITS, len(LETTERS)), 2.0)

    def forward(self, spectrogram: Tensor) -> Tensor:
        x = self.convolutions(spectrogram)
        batch, channels, bins, steps = x.shape
        x = x.reshape(batch, channels * bins, steps).transpose(1, 2)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            both, _ = layer(x)
            x = norm(both[..., :UNITS] + both[..., UNITS:])  # directions are added, as in the paper's code
        return self.head(x)


def speech() -> Any:
    """Five layers of 512 units in each direction, on two seconds."""
    return calibrated(Speech, (torch.from_numpy(smooth_noise((4, 1, BINS, FRAMES), 1_000_003)),))


def write_speech(path: Path) -> None:
    """As older tools export it: each recurrent layer is one operator."""
    with torch.no_grad():
        torch.onnx.export(
            speech(),
            (torch.zeros(1, 1, BINS, FRAMES),),
            path,
            input_names=["spectrogram"],
            output_names=["letters"],
            opset_version=_OPSET,
            dynamo=False,
        )


def most_likely_path(scores: NDArray[Any], letters: str = LETTERS) -> str:
    """The text of the likeliest letter at each step: repeated ones are one, and what stands for none goes.
    `scores`: (steps, letters)."""
    best = scores.argmax(1)
    kept = [int(now) for before, now in zip([-1, *best[:-1]], best, strict=True) if now != before and now != 0]
    return "".join(letters[index] for index in kept)


def beam_search(scores: NDArray[Any], width: int = 16, letters: str = LETTERS) -> tuple[str, float]:
    """The likeliest text over all its paths, by prefixes of which `width` are kept, and the logarithm of its probability.
    `scores`: (steps, letters), before the softmax."""
    logs = scores.astype(np.float64)
    logs -= np.logaddexp.reduce(logs, axis=1, keepdims=True)
    beam: dict[tuple[int, ...], tuple[float, float]] = {(): (0.0, -math.inf)}  # ends in none, ends in a letter
    for step in logs:
        after: dict[tuple[int, ...], list[float]] = defaultdict(lambda: [-math.inf, -math.inf])
        for prefix, (none, letter) in beam.items():
            whole = float(np.logaddexp(none, letter))
            same = after[prefix]
            same[0] = float(np.logaddexp(same[0], whole + step[0]))
            if prefix:
                same[1] = float(np.logaddexp(same[1], letter + step[prefix[-1]]))
            for index in range(1, len(letters)):
                longer = after[(*prefix, index)]
                coming = none if prefix and index == prefix[-1] else whole
                longer[1] = float(np.logaddexp(longer[1], coming + step[index]))
        kept = sorted(after.items(), key=lambda one: -np.logaddexp(one[1][0], one[1][1]))[:width]
        beam = {prefix: (ends[0], ends[1]) for prefix, ends in kept}
    best, ends = max(beam.items(), key=lambda one: np.logaddexp(one[1][0], one[1][1]))
    return "".join(letters[index] for index in best), float(np.logaddexp(ends[0], ends[1]))
