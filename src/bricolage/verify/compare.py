"""How far outputs are from the float64 reference.

One number decides, the relative 2-norm ‖y - y64‖ / ‖y64‖, judged against the original model's own error; the other
metrics explain it. Values may be arrays, lists of values where an output is a sequence, or None for an empty optional.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Array = np.ndarray
Value = object

OWN_ERROR_FACTOR = 4.0
"""An answer may be this many times as far from float64 as the original model is."""

_INF = math.inf


@dataclass(frozen=True)
class OutputMetrics:
    """One output against its reference."""

    name: str
    l0: float
    """Fraction of elements that differ beyond the tolerance, |y - r| > tolerance · (|r| + rms(r))."""
    l1: float
    """Σ|y - r| / Σ|r|."""
    l2: float
    """‖y - r‖ / ‖r‖; the number that decides."""
    linf: float
    """max|y - r| / max|r|."""
    cosine: float
    """Cosine of the angle between y and r; 1 when both are zero."""
    minimum_tolerance: float
    """The smallest tolerance for which no element differs (l0 = 0)."""


@dataclass(frozen=True)
class Comparison:
    """All outputs against their references."""

    outputs: tuple[OutputMetrics, ...]
    bound: float
    """Accepted error, see `acceptance_bound`."""

    @property
    def error(self) -> float:
        """Largest relative 2-norm error of an output."""
        return max((output.l2 for output in self.outputs), default=0.0)

    @property
    def accepted(self) -> bool:
        """Whether the error is within the bound."""
        return self.error <= self.bound

    @property
    def worst(self) -> OutputMetrics | None:
        """The output with the largest error; None without outputs."""
        return max(self.outputs, key=lambda output: output.l2, default=None)


def acceptance_bound(bound: float, original_error: float) -> float:
    """max(bound, 4 × the error of the original model against the same reference)."""
    return max(bound, OWN_ERROR_FACTOR * original_error)


def relative_error(actual: Sequence[Value], reference: Sequence[Value]) -> float:
    """Largest error over outputs: ‖y - r‖ / ‖r‖ in the 2-norm over the finite elements of r.

    Infinities that agree, and NaN where the reference has NaN, are no error; any other non-finite difference, a wrong
    shape or a wrong number of outputs is an infinite one. Where the reference is zero everywhere, the error is the root
    mean square of y. Integers, booleans and strings have the fraction of elements that differ: an index that changes
    because two scores tie in float32 (ArgMax, TopK) counts as a difference, since nothing tells it from a mistake.
    Empty outputs agree.
    """
    if len(actual) != len(reference):
        return _INF
    return max((_error(y, r) for y, r in zip(actual, reference, strict=True)), default=0.0)


def compare(
    actual: Sequence[Value], reference: Sequence[Value], *, bound: float, names: Sequence[str] | None = None
) -> Comparison:
    """Every metric of every output. Elements are counted as differing (l0) beyond `bound`. Members of a sequence are
    listed as `name[0]`, `name[1]` and so on; a wrong number of members is one infinite entry."""
    names = names if names is not None else [str(i) for i in range(len(reference))]
    if len(actual) != len(reference):
        return Comparison((_mismatch("number of outputs"),), bound)
    outputs = [m for name, y, r in zip(names, actual, reference, strict=True) for m in _metrics(name, y, r, bound)]
    return Comparison(tuple(outputs), bound)


# --- one value --------------------------------------------------------------------------------------------------


def _error(y: Value, r: Value) -> float:
    if isinstance(r, list | tuple):
        return relative_error(y, r) if isinstance(y, list | tuple) else _INF
    if r is None or y is None:
        return 0.0 if r is y else _INF
    pair = _pair(np.asarray(y), np.asarray(r))
    if pair is None:
        return _INF
    if isinstance(pair, float):
        return pair
    return _ratio(_norm(pair[0]), _norm(pair[1]), math.sqrt(max(pair[0].size, 1)), pair[2])


def _ratio(difference: float, reference: float, unit: float, scale: float) -> float:
    """A norm of the difference over that of the reference; per element in absolute terms where the latter is zero."""
    if reference == 0.0:
        return float(difference) / unit * scale if difference else 0.0
    return float(difference / reference)


def _norm(x: Array) -> float:
    return float(np.linalg.norm(x))


def _pair(y: Array, r: Array) -> tuple[Array, Array, float] | float | None:
    """(difference, reference, scale) of finite elements, flat and divided by `scale` so that squares neither overflow
    nor vanish; the mismatching fraction for discrete types; None where the two cannot be compared."""
    if y.shape != r.shape:
        return None
    if r.size == 0:
        return 0.0
    if r.dtype.kind in "biuOSUT" or y.dtype.kind in "OSUT":
        return float(np.mean(np.asarray(y != r, bool)))
    y, r = _widen(y).reshape(-1), _widen(r).reshape(-1)
    finite = np.isfinite(r)
    if not finite.all():
        special_y, special_r = y[~finite], r[~finite]
        if not np.all((special_y == special_r) | (np.isnan(special_y) & np.isnan(special_r))):
            return None
        y, r = y[finite], r[finite]
    if not np.isfinite(y).all():
        return None
    if r.size == 0:
        return 0.0
    largest = float(np.abs(r).max()) or float(np.abs(y).max()) or 1.0
    scale = math.ldexp(
        1.0, min(max(math.frexp(largest)[1], -1000), 1000)
    )  # a power of two: dividing by it rounds nothing
    with np.errstate(over="ignore"):
        return y / scale - r / scale, r / scale, scale


def _widen(x: Array) -> Array:
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def _metrics(name: str, y: Value, r: Value, tolerance: float) -> list[OutputMetrics]:
    if isinstance(r, list | tuple):
        if not isinstance(y, list | tuple) or len(y) != len(r):
            return [_mismatch(name)]
        members = enumerate(zip(y, r, strict=True))
        return [m for i, (a, b) in members for m in _metrics(f"{name}[{i}]", a, b, tolerance)]
    if r is None or y is None:
        return [OutputMetrics(name, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0) if r is y else _mismatch(name)]
    y, r = np.asarray(y), np.asarray(r)
    pair = _pair(y, r)
    if pair is None:
        return [_mismatch(name)]
    if isinstance(pair, float):
        return [OutputMetrics(name, pair, pair, pair, float(pair > 0), 1.0 - pair, float(pair > 0))]
    difference, reference, scale = pair
    d, absolute = np.abs(difference), np.abs(reference)
    rms = math.sqrt(float(np.mean(absolute**2))) or 1.0 / scale
    with np.errstate(over="ignore", invalid="ignore"):
        needed = d / (absolute + rms)
    return [
        OutputMetrics(
            name,
            l0=float(np.mean(needed > tolerance)),
            l1=_ratio(d.sum(), absolute.sum(), d.size, scale),
            l2=_ratio(_norm(d), _norm(absolute), math.sqrt(d.size), scale),
            linf=_ratio(d.max(), absolute.max(), 1.0, scale),
            cosine=_cosine(difference + reference, reference),
            minimum_tolerance=float(needed.max()),
        )
    ]


def _cosine(a: Array, b: Array) -> float:
    lengths = np.linalg.norm(a) * np.linalg.norm(b)
    if lengths == 0.0:
        return float(not a.any() and not b.any())
    return float(np.clip(np.vdot(b, a).real / lengths, -1.0, 1.0))


def _mismatch(name: str) -> OutputMetrics:
    return OutputMetrics(name, 1.0, _INF, _INF, _INF, 0.0, _INF)
