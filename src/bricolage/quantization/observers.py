"""The range of an activation in 8 bits, from values that were seen.

`minmax` keeps all values; `percentile` cuts both ends; `mse` takes the range with the least square error; `entropy` the one that
keeps most of the distribution (the least Kullback-Leibler divergence; Migacz, "8-bit inference with TensorRT", GTC 2017). All but
`minmax` work on a histogram. Where a function alone reads a value, `mse` takes the range with the least square error of what the
function makes of it: HardSwish makes zero of all below -3, so that steps there would be wasted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from bricolage.base.quantization_options import Observer, QuantizationOptions

Function = Callable[[np.ndarray], np.ndarray]
"""Of each number by itself."""
STEPS = 255
"""Between the least and the largest byte without a sign."""
_BINS = 2048
_SHARES = np.linspace(0.3, 1.0, 29)
"""Of the whole range, that `mse` and `entropy` try."""
_WORSE = 1.25
"""Root mean square errors: a divergence says nothing of how far off cut values are, and on one-sided or peaked data, or data far
from zero, it is least where most of them are cut. So `entropy` chooses among ranges that lose at most this many times what `minmax`
does."""


def pass_through(x: np.ndarray) -> np.ndarray:
    """The function of a value that others read as it is."""
    return x


@dataclass(frozen=True)
class AffineScale:
    """A number is scale · (byte - zero)."""

    scale: np.float32
    zero: int

    def rounded(self, x: np.ndarray) -> np.ndarray:
        """What is left of float numbers of any shape."""
        rounded_values: np.ndarray = (np.clip(np.rint(x / self.scale) + self.zero, 0, STEPS) - self.zero) * self.scale
        return rounded_values


@dataclass(frozen=True)
class Histogram:
    """Values in bins of equal width. Zeros stand apart: a byte holds them exactly whatever the range is, and a rectifier or a mask
    makes enough of them to hide the rest."""

    counts: np.ndarray
    """Of values other than zero."""
    means: np.ndarray
    """Of the values of each bin."""
    low: float
    """Least of all values, zeros included."""
    high: float
    zeros: int = 0

    @classmethod
    def of(cls, values: np.ndarray) -> Histogram:
        """Of finite numbers, one at least."""
        flat = np.asarray(values, np.float64).reshape(-1)
        low, high = float(flat.min()), float(flat.max())
        width = (high - low) / _BINS or 1.0
        rest = flat[flat != 0.0]
        bins = np.minimum(((rest - low) / width).astype(np.int64), _BINS - 1)
        counts = np.bincount(bins, minlength=_BINS)
        sums = np.bincount(bins, weights=rest, minlength=_BINS)
        return cls(counts, sums / np.maximum(counts, 1), low, high, flat.size - rest.size)


def affine(low: float, high: float) -> AffineScale:
    """The scale of a range, widened to hold zero, which is a byte exactly: padding and rectifiers need that."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = np.float32((high - low) / STEPS)
    if not scale > np.finfo(np.float32).tiny:
        return AffineScale(np.float32(1.0), 0)
    return AffineScale(scale, int(np.clip(np.rint(-low / scale), 0, STEPS)))


def observe_scale(values: np.ndarray, options: QuantizationOptions, function: Function | None = None) -> AffineScale:
    """The scale that an observer chooses for values of any shape. `function`: all that reads them."""
    histogram = Histogram.of(values)
    if function is not None and options.observer == "mse":
        return affine(*_mse_behind(histogram, function))
    low, high = _RANGES[options.observer](histogram, options)
    return affine(low, high)


def square_error(histogram: Histogram, scale: AffineScale, function: Function = pass_through) -> float:
    """The mean square of what rounding and cutting off take away from what a function makes of the values."""
    lost = function(histogram.means) - function(scale.rounded(histogram.means))
    return float((histogram.counts * lost**2).sum() / (histogram.counts.sum() + histogram.zeros))


def _minmax(histogram: Histogram, _: QuantizationOptions) -> tuple[float, float]:
    return histogram.low, histogram.high


def _percentile(histogram: Histogram, options: QuantizationOptions) -> tuple[float, float]:
    """Of the values other than zero."""
    if not histogram.counts.any():
        return histogram.low, histogram.high
    below = np.cumsum(histogram.counts) / histogram.counts.sum()
    cut = (1 - options.percentile / 100) / 2
    first, last = int(np.searchsorted(below, cut, side="right")), int(np.searchsorted(below, 1 - cut))
    return float(histogram.means[min(first, _BINS - 1)]), float(histogram.means[min(last, _BINS - 1)])


def _mse(histogram: Histogram, _: QuantizationOptions) -> tuple[float, float]:
    tried = [(histogram.low * share, histogram.high * share) for share in _SHARES]
    tried += [(histogram.low, histogram.high * share) for share in _SHARES]
    tried += [(histogram.low * share, histogram.high) for share in _SHARES]
    return min(tried, key=lambda ends: square_error(histogram, affine(*ends)))


def _mse_behind(histogram: Histogram, function: Function) -> tuple[float, float]:
    """Both ends one after the other, since each may be cut off by itself."""
    low, high = histogram.low, histogram.high
    shares = np.concatenate([np.linspace(0.02, 0.28, 14), _SHARES])
    for _ in range(2):
        low = min(histogram.low * shares, key=lambda end: square_error(histogram, affine(end, high), function))
        high = min(histogram.high * shares, key=lambda end: square_error(histogram, affine(low, end), function))
    return float(low), float(high)


def _entropy(histogram: Histogram, _: QuantizationOptions) -> tuple[float, float]:
    def divergence(ends: tuple[float, float]) -> float:
        return _divergence(histogram, affine(*ends))

    tried = ((histogram.low * share, histogram.high * share) for share in _SHARES)
    return min((ends for ends in tried if _serves(histogram, ends)), key=divergence)


def _serves(histogram: Histogram, ends: tuple[float, float]) -> bool:
    """Whether a range loses no more than `_WORSE` times what the whole range does."""
    whole = square_error(histogram, affine(histogram.low, histogram.high))
    return square_error(histogram, affine(*ends)) <= _WORSE**2 * whole or ends == (histogram.low, histogram.high)


def _divergence(histogram: Histogram, scale: AffineScale) -> float:
    """KL of the values other than zero, those beyond the range counted at its ends, from what is left of them in 256 steps."""
    counts = histogram.counts.astype(np.float64)
    steps = np.clip(np.rint(histogram.means / scale.scale) + scale.zero, 0, STEPS).astype(np.int64)
    inside = np.abs(histogram.means - (steps - scale.zero) * scale.scale) <= scale.scale
    kept = np.where(inside, counts, 0.0)
    full = kept.copy()
    outside = counts.sum() - kept.sum()
    where = np.flatnonzero(kept)
    if not where.size:
        return float("inf")
    for end in (where[0], where[-1]):
        beyond = counts[:end].sum() - kept[:end].sum() if end == where[0] else counts[end:].sum() - kept[end:].sum()
        full[end] += beyond if outside else 0.0
    used = np.bincount(steps, weights=(kept > 0).astype(np.float64), minlength=STEPS + 1)
    sums = np.bincount(steps, weights=kept, minlength=STEPS + 1)
    left = np.where(kept > 0, sums[steps] / np.maximum(used[steps], 1), 0.0)
    p, q = full / full.sum(), left / left.sum()
    held = p > 0
    return float((p[held] * np.log(p[held] / np.maximum(q[held], 1e-12))).sum())


_RANGES: Mapping[Observer, Callable[[Histogram, QuantizationOptions], tuple[float, float]]] = {
    "minmax": _minmax,
    "percentile": _percentile,
    "mse": _mse,
    "entropy": _entropy,
}
