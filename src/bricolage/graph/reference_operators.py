"""Operators that the ONNX reference implementation computes wrongly, put right. Everything that uses it is given these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference.op_run import OpRun
from onnx.reference.ops import op_loop

from bricolage.graph.extents import slice_bounds


class Slice(OpRun):  # type: ignore[misc]
    """A start before the axis is its first element when the step is negative; Python's slices leave that one out."""

    def _run(
        self, data: np.ndarray, starts: Any = None, ends: Any = None, axes: Any = None, steps: Any = None
    ) -> tuple[np.ndarray]:
        """`data` between `starts` and `ends` along `axes`; before opset 10 these are attributes."""
        first, last = np.asarray(starts).reshape(-1), np.asarray(ends).reshape(-1)
        over = range(len(first)) if axes is None else np.asarray(axes).reshape(-1)
        by = np.ones(len(first), np.int64) if steps is None else np.asarray(steps).reshape(-1)
        kept = [slice(None)] * data.ndim
        for start, end, axis, step in zip(first, last, over, by, strict=True):
            low, high = slice_bounds(int(start), int(end), int(step), data.shape[axis])
            kept[axis] = slice(low, high, int(step)) if low >= 0 else slice(0, 0)
        return (np.asarray(data[tuple(kept)]),)


class Loop(op_loop.Loop):  # type: ignore[misc]
    """Scan outputs of the rounds are stacked along a new axis. onnx writes them one below another, which is the same for vectors
    alone, and has none for a loop of 0 rounds."""

    _run_body: Callable[..., Any]

    def _run(self, *args: Any, **named: Any) -> tuple[Any, ...]:
        """Inputs and outputs as the operator's."""
        trips, condition, *state = args
        if not condition or (trips is not None and trips <= 0):
            types = self.body.output_types
            return (*state, *(_no_rounds(kind) for kind in types[len(types) - self.K :]))
        rounds: list[list[np.ndarray]] = []
        body = self._run_body

        def record_round(*given: Any, **facts: Any) -> Any:
            outputs = body(*given, **facts)
            rounds.append(outputs[len(outputs) - self.K :])
            return outputs

        self._run_body = record_round
        try:
            results = super()._run(*args, **named)
        finally:
            self._run_body = body
        scanned = [np.stack(values) for values in zip(*rounds, strict=True)]
        return (*results[: self.N], *scanned, *results[self.N + len(scanned) :])


def _no_rounds(kind: onnx.TypeProto) -> np.ndarray:
    """A scan output of no rounds: its type, and sizes as far as the body states them."""
    tensor = kind.tensor_type
    sizes = [dimension.dim_value for dimension in tensor.shape.dim]
    return np.zeros((0, *sizes), ir.DataType(tensor.elem_type or ir.DataType.FLOAT).numpy())


class Erf(OpRun):  # type: ignore[misc]
    """In the type of its input. onnx computes float64 in float32."""

    def _run(self, x: np.ndarray) -> tuple[np.ndarray]:
        """`x` of any shape."""
        from scipy.special import erf

        return (np.asarray(erf(np.asarray(x, np.float64))).astype(x.dtype),)


class Scaler(OpRun):  # type: ignore[misc]
    """Of ai.onnx.ml: its result is a float. onnx keeps integers."""

    op_domain = "ai.onnx.ml"

    def _run(self, x: np.ndarray, offset: Any = None, scale: Any = None) -> tuple[np.ndarray]:
        """`x` [n, features]; `offset` and `scale` of one number or one for each feature."""
        real = _real(x)
        return ((real - np.asarray(offset, real.dtype)) * np.asarray(scale, real.dtype),)


class Normalizer(OpRun):  # type: ignore[misc]
    """Of ai.onnx.ml: by the largest element, not by the largest size of one as onnx has it; integers become floats."""

    op_domain = "ai.onnx.ml"

    def _run(self, x: np.ndarray, norm: Any = None) -> tuple[np.ndarray]:
        """`x` [n, features]."""
        real = _real(x)
        if norm == "MAX":
            length = real.max(-1, keepdims=True)
        elif norm == "L1":
            length = np.abs(real).sum(-1, keepdims=True)
        else:
            length = np.sqrt((real * real).sum(-1, keepdims=True))
        return (np.divide(real, length, out=real.copy(), where=length != 0),)


def _real(x: np.ndarray) -> np.ndarray:
    return x if x.dtype.kind == "f" else x.astype(np.float32)


class OneHotEncoder(OpRun):  # type: ignore[misc]
    """Of ai.onnx.ml: numbers are cast to integers before they are looked up, and a tensor may have any rank. onnx looks up 1.5 as
    it is, and takes vectors and matrices alone."""

    op_domain = "ai.onnx.ml"

    def _run(
        self, x: np.ndarray, cats_int64s: list[int] | None = None, cats_strings: list[str] | None = None, zeros: int = 0
    ) -> tuple[np.ndarray]:
        """`x` of any shape; the result has an axis more.

        Raises:
            ValueError: an element is of no category, and `zeros` is not set.
        """
        categories = np.asarray(cats_int64s) if cats_int64s else np.asarray(list(cats_strings or ()), object)
        matches = (x.astype(np.int64) if cats_int64s else x)[..., None] == categories
        if not zeros and not matches.any(-1).all():
            raise ValueError("an element is of no category")
        return (matches.astype(np.float32),)


class ZipMap(OpRun):  # type: ignore[misc]
    """Of ai.onnx.ml, which onnx has none of: a map from labels to scores for each row."""

    op_domain = "ai.onnx.ml"

    def _run(
        self, x: np.ndarray, classlabels_int64s: Any = None, classlabels_strings: Any = None
    ) -> tuple[list[dict[int | str, float]]]:
        """`x` [n, labels]."""
        labels = list(classlabels_strings or classlabels_int64s)
        return ([dict(zip(labels, map(float, row), strict=True)) for row in np.atleast_2d(x)],)


class Optional(OpRun):  # type: ignore[misc]
    """What it is given. onnx makes a list of it, and its OptionalGetElement does not take that apart again."""

    def _run(self, x: Any = None, type: Any = None) -> tuple[Any]:
        """`x` is a tensor or a sequence, None where there is none."""
        del type
        return (x,)


CORRECTED: tuple[type[OpRun], ...] = (Slice, Loop, Erf, Optional, Scaler, Normalizer, OneHotEncoder, ZipMap)
