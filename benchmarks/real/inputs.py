"""Inputs that make sense to a trained network: speech, pages, spectrograms, rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.real.packages import Arrays


def speech(seed: int, samples: int, rate: int = 16000) -> NDArray[np.float32]:
    """Something like a voice: harmonics of a gliding pitch under a few formants, in syllables, over faint noise;
    within ±0.5."""
    rng = np.random.default_rng(seed)
    t = np.arange(samples) / rate
    pitch = 120.0 + 30.0 * np.sin(2 * np.pi * (1.1 * t + rng.random()))
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    formants = rng.uniform((400, 1000, 2200), (800, 1800, 3000))
    voice = np.zeros(samples)
    for harmonic in range(1, 30):
        height = sum(np.exp(-(((harmonic * 120.0 - f) / 200.0) ** 2)) for f in formants) + 0.05
        voice += height * np.sin(harmonic * phase + rng.uniform(0, 6.28)) / np.sqrt(harmonic)
    syllables = 0.35 + 0.65 * np.clip(np.sin(2 * np.pi * (3.7 * t + 0.1)), 0, 1)
    voice = voice * syllables / np.abs(voice).max()
    found: NDArray[np.float32] = (0.4 * voice + 0.004 * rng.standard_normal(samples)).astype(np.float32)
    return found


def page(seed: int, height: int, width: int) -> NDArray[np.float32]:
    """An image of a printed page, (height, width, 3), between 0 and 1: dark strokes in lines on a light, unevenly lit ground,
    and a picture, an oval with gradients."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    ground = 0.85 + 0.1 * np.cos(2.0 * x + rng.random()) * np.cos(1.5 * y)
    image = np.stack([ground, ground * 0.98, ground * 0.94], -1)
    cell = max(min(height, width) // 14, 6)
    thick = max(cell // 8, 1)
    for top in range(cell, height - cell, 2 * cell):
        for left in range(cell // 2, width - cell, cell):
            for _ in range(3):
                down, right = rng.integers(0, cell - thick, 2)
                length = int(rng.integers(cell // 2, cell))
                stroke = (slice(top + down, top + down + thick), slice(left, left + length))
                if rng.random() < 0.5:
                    stroke = (slice(top, top + length), slice(left + right, left + right + thick))
                image[stroke] = 0.1
    oval = ((x - 0.3) / 0.16) ** 2 + ((y - 0.35) / 0.22) ** 2 < 1.0
    image[oval] = np.stack([0.8 - 0.3 * x, 0.55 + 0.2 * y, 0.4 + 0.2 * x * y], -1)[oval]
    found: NDArray[np.float32] = np.clip(image + 0.01 * rng.standard_normal(image.shape), 0, 1).astype(np.float32)
    return found


def spectrogram(seed: int, frames: int, bins: int) -> NDArray[np.float32]:
    """(frames, bins): log power of speech between -1 and 1."""
    size = 2 * (bins - 1) if bins > 130 else 320
    sound = speech(seed, 160 * frames + size)
    taken = np.stack([sound[160 * i : 160 * i + size] for i in range(frames)]) * np.hanning(size)
    power = np.abs(np.fft.rfft(taken)) ** 2
    if power.shape[1] != bins:
        power = power[:, np.linspace(0, power.shape[1] - 1, bins).astype(int)]
    level = 10 * np.log10(np.maximum(power, 1e-10))
    found: NDArray[np.float32] = ((level - level.max() + 40) / 40).astype(np.float32)
    return found


def chw(
    name: str, height: int, width: int, mean: float = 0.0, deviation: float = 1.0, count: int = 1
) -> Callable[[int], Arrays]:
    """(count, 3, height, width), normalised."""

    def draw(seed: int) -> Arrays:
        images = np.stack([(page(seed + i, height, width) - mean) / deviation for i in range(count)])
        return {name: np.ascontiguousarray(images.transpose(0, 3, 1, 2).astype(np.float32))}

    return draw


def hwc(name: str, height: int, width: int, mean: tuple[float, ...], count: int = 1) -> Callable[[int], Arrays]:
    """(count, height, width, 3) with values up to 255, less the mean."""

    def draw(seed: int) -> Arrays:
        images = [255 * page(seed + i, height, width) - np.asarray(mean) for i in range(count)]
        return {name: np.stack(images).astype(np.float32)}

    return draw


def waveform(name: str, samples: int, *tail: int, scale: float = 1.0, count: int = 1) -> Callable[[int], Arrays]:
    """(count, samples, ...) of speech."""

    def draw(seed: int) -> Arrays:
        sounds = np.stack([scale * speech(seed + i, samples) for i in range(count)])
        return {name: sounds.reshape(count, samples, *tail).astype(np.float32)}

    return draw


def integers(name: str, shape: Sequence[int], low: int, high: int, kind: type = np.int64) -> Callable[[int], Arrays]:
    """Letters, words or the like by number, from `low` to below `high`."""
    return lambda seed: {name: np.random.default_rng(seed).integers(low, high, tuple(shape)).astype(kind)}


def rows(name: str, count: int, columns: Sequence[tuple[float, float]], kind: type) -> Callable[[int], Arrays]:
    """(count, columns) of a table of numbers, each column within its bounds; whole numbers where the bounds are."""

    def draw(seed: int) -> Arrays:
        rng = np.random.default_rng(seed)
        found: list[NDArray[Any]] = [
            rng.integers(int(low), int(high) + 1, count)
            if isinstance(low, int) and isinstance(high, int)
            else rng.uniform(low, high, count)
            for low, high in columns
        ]
        return {name: np.stack(found, 1).astype(kind)}

    return draw
