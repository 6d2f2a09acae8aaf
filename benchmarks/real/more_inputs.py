"""Inputs of the further networks in `benchmarks.real.more`: what the others' generators do not draw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.real.inputs import page, speech
from benchmarks.real.packages import Arrays
from benchmarks.real.sounds import mel


def unit_hwc(names: Sequence[str], height: int, width: int, count: int = 1) -> Callable[[int], Arrays]:
    """(count, height, width, 3) between 0 and 1 for each name, different pictures."""

    def draw(seed: int) -> Arrays:
        return {
            name: np.stack([page(seed + count * place + i, height, width) for i in range(count)])
            for place, name in enumerate(names)
        }

    return draw


def levels(name: str, height: int, width: int) -> Callable[[int], Arrays]:
    """(1, 3, height, width) between 0 and 255."""
    return lambda seed: {name: np.ascontiguousarray(255 * page(seed, height, width).transpose(2, 0, 1)[None])}


def bytes_as_picture(count: int) -> Callable[[int], Arrays]:
    """(count, 3, 224, 224): the bytes of a file as a grey picture, with ImageNet's mean and deviation."""

    def draw(seed: int) -> Arrays:
        text = np.frombuffer(Path(__file__).read_bytes(), np.uint8)
        grey = np.stack([np.resize(np.roll(text, seed + 97 * i), (224, 224)) for i in range(count)]) / 255.0
        mean, deviation = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
        images = (grey[:, None] - mean[:, None, None]) / deviation[:, None, None]
        return {"input": images.astype(np.float32)}

    return draw


def three_parts(count: int) -> Callable[[int], Arrays]:
    """(count, 1536): 512 bytes each of the beginning, the middle and the end of a Python file."""

    def draw(seed: int) -> Arrays:
        text = np.frombuffer(Path(__file__).read_bytes(), np.uint8)
        files = [text[(seed + i) % 64 :] for i in range(count)]
        cut = [np.concatenate([f[:512], f[len(f) // 2 - 256 : len(f) // 2 + 256], f[-512:]]) for f in files]
        return {"bytes": np.stack(cut).astype(np.float32)}

    return draw


def voice_windows(count: int) -> Callable[[int], Arrays]:
    """(count, 576): overlapping windows of speech."""

    def draw(seed: int) -> Arrays:
        sound = speech(seed, 512 * count + 64)
        return {"input": np.stack([sound[512 * i : 512 * i + 576] for i in range(count)])}

    return draw


def voice_state(count: int) -> Callable[[int], Arrays]:
    """What an encoder of windows gives, after a ReLU, and zero states."""

    def draw(seed: int) -> Arrays:
        seen = np.maximum(np.random.default_rng(seed).normal(0.0, 0.5, (count, 128)), 0)
        return {"input": seen.astype(np.float32), "state": np.zeros((2, count, 128), np.float32)}

    return draw


def voice_step(seed: int) -> Arrays:
    """One window of speech and a zero state."""
    return {"audio_with_context": speech(seed, 2304)[1152:1728][None], "h": np.zeros((1, 1, 128), np.float32)}


def spliced(frames: int) -> Callable[[int], Arrays]:
    """(1, frames, 400): five neighbouring frames of 80 bands each, with mean 0 and deviation 1; and zero caches."""

    def draw(seed: int) -> Arrays:
        bands = mel(seed, frames + 4, 80)
        bands = (bands - bands.mean(0)) / (bands.std(0) + 1.0)
        stacked = np.stack([bands[i : i + 5].reshape(-1) for i in range(frames)])[None]
        caches = {f"in_cache{i}": np.zeros((1, 128, 19, 1), np.float32) for i in range(4)}
        return {"speech": stacked.astype(np.float32), **caches}

    return draw


def hot_word(seed: int) -> Arrays:
    """(1, 1, 149, 64): logarithms of energies in a second and a half."""
    return {"input": mel(seed, 149, 64)[None, None]}


def spelled_words(count: int, length: int) -> Callable[[int], Arrays]:
    """(count, length, 59): words letter by letter, one-hot; all but the first are shorter and begin with blanks."""

    def draw(seed: int) -> Arrays:
        letters = np.eye(59, dtype=np.float32)[np.random.default_rng(seed).integers(0, 59, (count, length))]
        for i in range(count):
            letters[i, : i % length] = 0.0
        return {"lstm_input": letters}

    return draw


def spelling(letters: int, length: int, so_far: int) -> Callable[[int], Arrays]:
    """A word by the numbers of its letters, from 4 on and with the end's, and the letters written so far."""

    def draw(seed: int) -> Arrays:
        rng = np.random.default_rng(seed)
        source, target = (rng.integers(4, letters, (1, n)) for n in (length, so_far))
        source[0, -1], target[0, 0] = 2, 1
        return {"src": source, "tgt_in": target}

    return draw


def _subwords(seed: int, count: int, length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Subwords of T5's, each text with its end, the last one shorter where there are several; and which are text."""
    words = np.random.default_rng(seed).integers(3, 32000, (count, length))
    words[:, -1] = 1
    mask = np.ones((count, length), np.int64)
    if count > 1:
        words[-1, length // 2 - 1], words[-1, length // 2 :], mask[-1, length // 2 :] = 1, 0, 0
    return words, mask


def text_to_encode(count: int, length: int) -> Callable[[int], Arrays]:
    """Subwords for an encoder, and which are text."""
    return lambda seed: dict(zip(("input_ids", "attention_mask"), _subwords(seed, count, length), strict=True))


def text_to_continue(count: int, so_far: int, length: int) -> Callable[[int], Arrays]:
    """Subwords written so far, and what an encoder made of a text."""

    def draw(seed: int) -> Arrays:
        words, _ = _subwords(seed, 1, so_far)
        _, mask = _subwords(seed, count, length)
        started = np.repeat(np.concatenate([np.zeros((1, 1), np.int64), words[:, :-1]], 1), count, 0)
        memory = np.random.default_rng(seed).normal(0.0, 0.2, (count, length, 512)).astype(np.float32)
        return {"input_ids": started, "encoder_hidden_states": memory, "encoder_attention_mask": mask}

    return draw


def asleep(count: int) -> Callable[[int], Arrays]:
    """Thirty seconds of a sleeping brain at 250 Hz, with bursts at 13 Hz, and its wavelet magnitudes; each row has mean 0
    and deviation 1."""

    def draw(seed: int) -> Arrays:
        rng = np.random.default_rng(seed)
        t = np.arange(7500) / 250.0
        slow = sum(np.sin(2 * np.pi * f * t + rng.uniform(0, 6, (count, 1))) / f for f in (0.8, 1.3, 2.9, 6.0))
        centres = rng.uniform(2, 28, (count, 3, 1))
        burst = np.exp(-(((t - centres) / 0.4) ** 2))
        signal = slow + 0.4 * (burst * np.sin(2 * np.pi * 13.0 * t)).sum(1) + 0.2 * rng.standard_normal((count, 7500))
        height = np.exp(-((np.linspace(-2, 2, 15) - rng.uniform(-0.5, 0.5)) ** 2))
        power = height[:, None] * burst.sum(1)[:, None] + 0.1 * np.abs(rng.standard_normal((count, 15, 7500)))
        named = {"raw_signal": signal[:, None], "spectrogram": power}
        return {
            name: ((a - a.mean(-1, keepdims=True)) / a.std(-1, keepdims=True)).astype(np.float32)
            for name, a in named.items()
        }

    return draw


def components(count: int) -> Callable[[int], Arrays]:
    """Independent components of a brain's signals: maps of the head as they are, negated and mirrored, and for each the
    spectrum and the autocorrelation, between -1 and 1."""

    def draw(seed: int) -> Arrays:
        rng = np.random.default_rng(seed)
        y, x = np.mgrid[-1:1:32j, -1:1:32j]
        at = rng.uniform(-0.6, 0.6, (2, count, 1, 1))
        maps = np.exp(-((x - at[0]) ** 2 + (y - at[1]) ** 2) / 0.3) * (np.hypot(x, y) < 1)
        turned = np.concatenate([maps, -maps, maps[:, ::-1], -maps[:, ::-1]])
        frequencies = np.arange(1, 101)
        fall = 1.0 / frequencies + 0.3 * np.exp(-(((frequencies - rng.uniform(8, 12, (count, 1))) / 1.5) ** 2))
        decay = np.exp(-frequencies / rng.uniform(5, 30, (count, 1))) * np.cos(frequencies / 2.5)
        rows = {"psds": fall / fall.max(1, keepdims=True), "autocorr": 0.99 * decay}
        drawn: Arrays = {"topo": 0.99 * turned[:, None].astype(np.float32)}
        return drawn | {n: np.tile(row, (4, 1)).reshape(-1, 1, 1, 100).astype(np.float32) for n, row in rows.items()}

    return draw


def magnetic(count: int) -> Callable[[int], Arrays]:
    """Maps of a head in red and blue, up to 255, and a minute of each component at 250 Hz."""

    def draw(seed: int) -> Arrays:
        rng = np.random.default_rng(seed)
        y, x = np.mgrid[-1:1:120j, -1:1:120j]
        at = rng.uniform(-0.5, 0.5, (2, count, 1, 1))
        map_ = np.sin(3 * (x - at[0])) * np.exp(-((y - at[1]) ** 2))
        colours = np.stack([1 + np.minimum(map_, 0), 1 - np.abs(map_), 1 - np.maximum(map_, 0)], -1)
        inside = (np.hypot(x, y) < 0.95)[..., None]
        t = np.arange(15000) / 250.0
        beats = np.sin(2 * np.pi * rng.uniform(0.9, 1.4, (count, 1)) * t) ** 15
        series = beats + 0.3 * rng.standard_normal((count, 15000))
        return {
            "spatial_input": (255 * colours * inside).astype(np.float32),
            "temporal_input": series[..., None].astype(np.float32),
        }

    return draw


_WORD_KINDS: tuple[tuple[str, ...], ...] = (
    ("フィラー", "助動詞", "助詞", "動詞", "名詞", "記号"),
    ("*", "サ変接続", "一般", "並立助詞", "代名詞", "係助詞"),
    ("*", "一般", "助数詞", "地域", "引用"),
    ("、", "ィ", "エキ", "カ", "カイ", "カク"),
    ("*", "サ変・スル", "一段", "五段・ラ行"),
    ("*", "仮定形", "体言接続", "基本形"),
)
"""What a Japanese word is: part of speech, its groups, pronunciation, and how it is conjugated."""


def words_described(count: int) -> Callable[[int], Arrays]:
    """(count, 6) of strings that describe the words after one that is read in two ways."""

    def draw(seed: int) -> Arrays:
        rng = np.random.default_rng(seed)
        return {"input": np.array([[str(rng.choice(kind)) for kind in _WORD_KINDS] for _ in range(count)])}

    return draw


def words_one_hot(count: int) -> Callable[[int], Arrays]:
    """(count, 131): the same, a one in the place of each description and zeros elsewhere."""

    def draw(seed: int) -> Arrays:
        rng = np.random.default_rng(seed)
        widths = (6, 18, 5, 85, 10, 7)
        blocks = [np.eye(width, dtype=np.float32)[rng.integers(0, width, count)] for width in widths]
        return {"input": np.concatenate(blocks, 1)}

    return draw
