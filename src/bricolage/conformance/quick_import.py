"""The ONNX backend suite computes its data when it is imported: without what takes half of that time and changes nothing.

Its pools visit one window after another, a hundred thousand of them; and it reads the source text of each case for ONNX's
documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

_Numbers = npt.NDArray[np.floating]


@contextmanager
def quick_import() -> Iterator[None]:
    """What is imported meanwhile has the suite's own values, bit by bit; those of LpPool within two units in the last place."""
    from onnx.backend.test.case import base
    from onnx.reference.ops import op_pool_common

    pool, snippet = op_pool_common.pool, base.process_snippet
    op_pool_common.pool = at_once(pool)
    base.process_snippet = _no_snippet
    try:
        yield
    finally:
        op_pool_common.pool, base.process_snippet = pool, snippet


def _no_snippet(operator: str, name: str, export: object) -> tuple[str, str]:
    del operator, export
    return name, ""


def at_once(usual: Callable[..., _Numbers]) -> Callable[..., _Numbers]:
    """ONNX's `pool` for all windows together; where there is padding, dilation or a NaN, `usual` computes it."""

    def pool(
        padded: _Numbers,
        x_shape: Sequence[int],
        kernel: Sequence[int],
        strides: Sequence[int],
        out_shape: Sequence[int],
        kind: str,
        *rest: object,
        **more: float,
    ) -> _Numbers:
        if rest or set(more) - {"p"} or padded.shape != tuple(x_shape) or np.isnan(padded).any():
            return usual(padded, x_shape, kernel, strides, out_shape, kind, *rest, **more)
        axes = tuple(range(2, padded.ndim))
        windows = np.lib.stride_tricks.sliding_window_view(padded, tuple(kernel), axes)
        windows = windows[(slice(None), slice(None), *(slice(None, None, step) for step in strides))]
        if windows.shape[2 : padded.ndim] != tuple(out_shape):
            return usual(padded, x_shape, kernel, strides, out_shape, kind, *rest, **more)
        values = windows.reshape(*windows.shape[: padded.ndim], -1)
        if kind == "AVG":
            pooled = np.average(values, axis=-1)
        elif kind == "MAX":
            pooled = values.max(axis=-1)
        else:
            p = more.get("p", 1)
            pooled = np.sum(np.abs(values) ** p, axis=-1) ** (1.0 / p)
        return pooled.astype(padded.dtype)

    return pool
