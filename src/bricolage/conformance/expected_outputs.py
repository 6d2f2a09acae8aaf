"""What the reference implementation answers, and whether outputs are the expected ones."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from bricolage.graph.reference_operators import CORRECTED

_UNITS = 4
_EPSILON = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def reference_outputs(model: onnx.ModelProto, inputs: Sequence[object]) -> Sequence[object] | None:
    """What the reference implementation answers; None where it does not: it has gaps, each with its own kind of exception."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            feeds = dict(zip((info.name for info in model.graph.input), inputs, strict=True))
            outputs: Sequence[object] = ReferenceEvaluator(model, new_ops=list(CORRECTED)).run(None, feeds)
    except Exception:
        return None
    return outputs


def difference(expected: Sequence[object], actual: Sequence[object], rtol: float, atol: float) -> str | None:
    """None when all values agree, or the first difference in a few words.

    Element-wise |a - e| ≤ atol + rtol·|e|, where atol is at least four units in the last place of the largest element:
    a sum that cancels is not wrong because its terms were rounded.
    """
    if len(expected) != len(actual):
        return f"{len(actual)} values instead of {len(expected)}"
    for e, a in zip(expected, actual, strict=True):
        complaint = _differs(e, a, rtol, atol)
        if complaint is not None:
            return complaint
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
    wide = np.complex128 if e.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        exact, computed = e.astype(wide), a.astype(wide)
        close = (e == a) | np.isclose(
            computed, exact, rtol=rtol, atol=max(atol, _rounding(exact, e.dtype)), equal_nan=True
        )
    if np.all(close):
        return None
    return f"{np.size(close) - np.count_nonzero(close)} of {np.size(close)} elements differ"


def _rounding(exact: np.ndarray, dtype: np.dtype[np.generic]) -> float:
    finite = np.abs(exact[np.isfinite(exact)])
    return _UNITS * _EPSILON.get(dtype.name, 0.0) * float(finite.max(initial=0.0))
