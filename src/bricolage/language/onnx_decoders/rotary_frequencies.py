"""Rotary frequencies from angles that are known up to whole turns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bricolage.frontends.decoders.decoder_description import RotaryEmbedding, default_frequencies
from bricolage.language.onnx_decoders.reading_failure import NotUnderstood

_TURN = 2 * np.pi
_ROUNDING = 2.0**-24
"""Of float32, relative."""


def fit_frequencies(
    places: Sequence[np.ndarray], angles: Sequence[np.ndarray], tolerance: float, base: float | None
) -> RotaryEmbedding:
    """Frequencies whose multiples by the places are the angles.

    Two neighbours give a frequency; each longer distance gives it more exactly, once the turns before it are counted. Where
    base^(-2i / head_size) fits as well, it is taken: it is not rounded.

    Args:
        places: positions of tokens, int64 [tokens] each, consecutive; from short to long texts.
        angles: float64 [tokens, head_size / 2] of each, modulo a turn.
        tolerance: of sines and cosines.
        base: what the graph's other files say.

    Raises:
        NotUnderstood: the angles do not grow evenly with the places.
    """
    short = angles[0]
    frequencies = _nearest(short[1] - short[0], np.zeros(short.shape[1]))
    distance = 2
    while distance < len(short):
        frequencies = _nearest(short[distance] - short[0], frequencies * distance) / distance
        distance *= 2
    for at, turned in zip(places, angles, strict=True):
        frequencies = _nearest(turned[-1], frequencies * at[-1]) / at[-1]
    if base is not None:
        exact = default_frequencies(base, 2 * len(frequencies))
        if _misfit(exact, places, angles, tolerance) is None:
            return RotaryEmbedding(base, exact)
    misfit = _misfit(frequencies, places, angles, tolerance)
    if misfit is not None:
        raise NotUnderstood(f"its keys do not turn evenly with their positions: pair {misfit[1]} at token {misfit[0]}")
    with np.errstate(all="ignore"):
        guess = float((frequencies[0] / frequencies[1]) ** len(frequencies)) if len(frequencies) > 1 else 1.0
    return RotaryEmbedding(guess if np.isfinite(guess) else 1.0, frequencies)


def _nearest(angles: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Angles with as many whole turns as bring them next to what is expected."""
    return np.asarray(angles + np.round((expected - angles) / _TURN) * _TURN)


def _misfit(
    frequencies: np.ndarray, places: Sequence[np.ndarray], angles: Sequence[np.ndarray], tolerance: float
) -> tuple[int, int] | None:
    """Where angles differ by more than rounding; None where they do not. Exporters multiply in float32, so an angle is as inexact
    as its size."""
    for at, turned in zip(places, angles, strict=True):
        whole = np.outer(at, frequencies)
        difference = np.abs(_nearest(turned, whole) - whole)
        wrong = difference > tolerance + 4 * _ROUNDING * np.abs(whole)
        if wrong.any():
            row, pair = np.argwhere(wrong)[0]
            return int(at[row]), int(pair)
    return None
