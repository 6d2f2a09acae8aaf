"""Whether outputs are the expected ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_BFLOAT16_RTOL = 2.0**-6  # two units in the last place, as in the suite's own runner


def difference(expected: Sequence[object], actual: Sequence[object], rtol: float, atol: float) -> str | None:
    """None when all values agree, or the first difference in a few words. Element-wise |a - e| ≤ atol + rtol·|e|."""
    if len(expected) != len(actual):
        return f"{len(actual)} values instead of {len(expected)}"
    for e, a in zip(expected, actual, strict=True):
        found = _differs(e, a, rtol, atol)
        if found is not None:
            return found
    return None


def _differs(expected: object, actual: object, rtol: float, atol: float) -> str | None:
    if expected is None or actual is None:
        return None if expected is actual else "an optional is empty"
    if isinstance(expected, list):
        return difference(expected, actual, rtol, atol) if isinstance(actual, list) else "no sequence"
    e, a = np.asarray(expected), np.asarray(actual)
    if e.shape != a.shape:
        return f"shape {a.shape} instead of {e.shape}"
    if e.dtype.kind in "OUST" or a.dtype.kind in "OUST":
        return None if np.array_equal(e.astype(str), a.astype(str)) else "other strings"
    if e.dtype != a.dtype:
        return f"type {a.dtype} instead of {e.dtype}"
    if e.dtype.name == "bfloat16":
        rtol = max(rtol, _BFLOAT16_RTOL)
    if e.dtype.kind in "iub":
        close = e == a if e.dtype.kind in "ub" else np.abs(e - a) <= atol + rtol * np.abs(e)
    else:
        wide = np.complex128 if e.dtype.kind == "c" else np.float64
        with np.errstate(all="ignore"):
            close = np.isclose(a.astype(wide), e.astype(wide), rtol=rtol, atol=atol, equal_nan=True)
    if np.all(close):
        return None
    return f"{np.size(close) - np.count_nonzero(close)} of {np.size(close)} elements differ"
