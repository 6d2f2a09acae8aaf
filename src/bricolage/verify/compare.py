"""How far outputs are from the float64 reference, and what of that is too far.

The error of an output is the relative 2-norm ‖y - y64‖ / ‖y64‖, and a hundredth of the largest error of an element where that
is more: in an output of a million elements the norm alone would not see one that is wrong. Values may be arrays, lists of
values where an output is a sequence, dicts where it is a map, or None for an empty optional.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bricolage.verify.randomness import Drawn

Array = np.ndarray
Value = object

ELEMENT = 100.0
"""An element may be off by this multiple of what the whole output may, relative to its size plus the root mean square."""

_INF = math.inf
_RANGE = 255.0
"""Steps of 8 bits."""


@dataclass(frozen=True)
class Deviation:
    """How far an answer is from the reference."""

    error: float
    """The largest error of an output."""
    excess: float
    """The largest error among the outputs that are farther off than rounding in float32 explains; 0 where none is. This
    decides: an answer is right where it is at most the bound."""


def deviation(actual: Sequence[Value], reference: Sequence[Value], limits: Sequence[float]) -> Deviation:
    """Judges an answer. `limits`: for each output the error that is still float32's own (`bricolage.verify.bound`)."""
    if len(actual) != len(reference):
        return Deviation(_INF, _INF)
    output_errors = errors(actual, reference)
    beyond = (error for error, limit in zip(output_errors, limits, strict=True) if error > limit)
    return Deviation(max(output_errors, default=0.0), max(beyond, default=0.0))


def too_far(found: Deviation, bound: float) -> str:
    """Why an answer is not accepted, in words."""
    return f"the relative error is {found.excess:.2e}, the bound {bound:.2e}"


def relative_error(actual: Sequence[Value], reference: Sequence[Value]) -> float:
    """The largest error over outputs, see `errors`."""
    return max(errors(actual, reference), default=0.0)


def usual_size(value: Value) -> float:
    """Root mean square of the finite elements of an output, over all members of a sequence or a map; 0 where there are none, or no
    floats."""
    parts = [_numbers(value)] if not isinstance(value, list | tuple | dict) else list(map(_numbers, _leaves(value)))
    flat = np.concatenate(parts) if parts else np.empty(0)
    largest = float(np.abs(flat).max(initial=0.0))
    return largest * float(np.sqrt(np.mean((np.abs(flat) / largest) ** 2))) if largest else 0.0


def _leaves(value: Value) -> list[Value]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [leaf for member in value for leaf in _leaves(member)]
    return [value]


def _numbers(value: Value) -> Array:
    array = np.asarray(value) if value is not None else np.empty(0)
    if array.dtype.kind in "biuOSUT":
        return np.empty(0)
    wide = _widen(array).reshape(-1)
    finite: Array = wide[np.isfinite(wide)]
    return finite


def errors(actual: Sequence[Value], reference: Sequence[Value], sizes: Sequence[float] = ()) -> list[float]:
    """Error of each output over the finite elements of the reference; one infinite error where their number is wrong.

    `sizes`: for each output the least size that an error is relative to, as a root mean square (`usual_size`); without them there
    is none. An output that vanishes on some inputs is not wrong where it vanishes otherwise.

    Infinities that agree, and NaN where the reference has NaN, are no error, nor are infinities where the answer's type holds no
    number as large as the reference's; any other non-finite difference and a wrong shape
    are an infinite one. What is drawn at random in the reference (`randomness.Drawn`) is compared in ascending order. Where the
    reference is zero everywhere, the error is the root mean square of y. Integers, booleans and strings have the fraction of
    elements that differ: an index that changes because two scores tie in float32 (ArgMax, TopK) counts as a difference; that
    rounding may change it, `bricolage.verify.bound` measures. Of 8-bit integers, which are steps of a scale, one that is several
    steps off counts as well: each step after the first as a 255th. Empty outputs agree.
    """
    if len(actual) != len(reference):
        return [_INF]
    least = sizes or [0.0] * len(reference)
    return [_error(y, r, size) for y, r, size in zip(actual, reference, least, strict=True)]


def _error(y: Value, r: Value, least: float = 0.0) -> float:
    if isinstance(r, dict):
        return _error([y], [r], least)
    if isinstance(r, list | tuple):
        if not isinstance(y, list | tuple):
            return _INF
        if r and all(isinstance(member, dict) for member in r):
            return _maps_error(y, r, least)
        return max(errors(y, r, [least] * len(r)), default=0.0)
    if r is None or y is None:
        return 0.0 if r is y else _INF
    y, r = np.asarray(y), np.asanyarray(r)
    if isinstance(r, Drawn) and y.shape == r.shape:
        y, r = np.sort(y, axis=None), np.sort(np.asarray(r), axis=None)
    pair = _pair(y, np.asarray(r), least)
    if pair is None:
        return _INF
    if isinstance(pair, float):
        return pair
    difference, reference, scale = np.abs(pair[0]), np.abs(pair[1]), pair[2]
    length = _norm(reference)
    rms = max(length / math.sqrt(reference.size), least / scale) or 1.0 / scale
    with np.errstate(over="ignore", invalid="ignore"):
        element = float((difference / (reference + rms)).max())
    whole = _norm(difference) / (rms * math.sqrt(reference.size))
    error = max(float(whole), element / ELEMENT)
    return error if math.isfinite(error) else _INF


def _maps_error(y: Sequence[Value], r: Sequence[Value], least: float) -> float:
    """Of all numbers in a sequence of maps together, as of one tensor: the scores of one row's classes are no output each."""
    if len(y) != len(r):
        return _INF
    scores: list[Value] = []
    wanted: list[Value] = []
    for actual_map, wanted_map in zip(y, r, strict=True):
        if not isinstance(actual_map, dict) or not isinstance(wanted_map, dict) or set(actual_map) != set(wanted_map):
            return _INF
        scores += [actual_map[key] for key in wanted_map]
        wanted += wanted_map.values()
    return _error(np.asarray(scores), np.asarray(wanted), least)


def _norm(x: Array) -> float:
    return float(np.linalg.norm(x))


def _pair(y: Array, r: Array, least: float) -> tuple[Array, Array, float] | float | None:
    """(difference, reference, scale) of finite elements, flat and divided by `scale` so that squares neither overflow
    nor vanish; the mismatching fraction for discrete types; None where the two cannot be compared."""
    if y.shape != r.shape:
        return None
    if r.size == 0:
        return 0.0
    if r.dtype.kind in "biuOSUT" or y.dtype.kind in "OSUT":
        return max(float(np.mean(np.asarray(y != r, bool))), _steps(y, r))
    kind, y, r = y.dtype, _widen(y).reshape(-1), _widen(r).reshape(-1)
    if not np.isfinite(y).all():
        r = _overflow_to_type(r, kind)
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
    largest = max(float(np.abs(r).max()), least) or float(np.abs(y).max()) or 1.0
    scale = math.ldexp(
        1.0, min(max(math.frexp(largest)[1], -1000), 1000)
    )  # a power of two: dividing by it rounds nothing
    with np.errstate(over="ignore"):
        return y / scale - r / scale, r / scale, scale


def _steps(y: Array, r: Array) -> float:
    """Of 8-bit integers how far one is off beyond a step, as a share of their range."""
    if r.dtype.kind not in "iu" or r.dtype.itemsize != 1 or y.dtype.kind not in "iu":
        return 0.0
    return max(0, int(np.abs(y.astype(np.int64) - r.astype(np.int64)).max()) - 1) / _RANGE


def _overflow_to_type(r: Array, kind: np.dtype) -> Array:
    """The reference with infinities where a type holds nothing so large."""
    if r.dtype.kind != "f" or kind.kind not in "fV":
        return r
    with np.errstate(over="ignore", invalid="ignore"):
        held = r.astype(kind).astype(r.dtype)
    return np.where(np.isinf(held), held, r)


def _widen(x: Array) -> Array:
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)
