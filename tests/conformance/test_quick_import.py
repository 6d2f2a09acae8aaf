"""The suite is imported quickly with its own values."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.reference.ops.op_pool_common import pool

from bricolage.conformance.quick_import import at_once


@pytest.mark.parametrize("kind", ["AVG", "MAX", "LPPOOL"])
@pytest.mark.parametrize(("sizes", "kernel", "strides"), [((7, 6, 5), (2, 2, 2), (1, 1, 1)), ((9, 11), (3, 5), (2, 1))])
def test_pools_are_the_references(
    kind: str, sizes: tuple[int, ...], kernel: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    shape = (2, 3, *sizes)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    out = tuple((size - taps) // step + 1 for size, taps, step in zip(sizes, kernel, strides, strict=True))
    more = {"p": 3} if kind == "LPPOOL" else {}
    visited: list[object] = []

    def usual(*given: object, **named: object) -> object:
        visited.append(given)
        return pool(*given, **named)

    found = at_once(usual)(x, shape, kernel, strides, out, kind, **more)
    assert found.dtype == np.float32 and not visited
    np.testing.assert_array_max_ulp(found, pool(x, shape, kernel, strides, out, kind, **more), 2 if more else 0)
    x[0, 0, 1] = np.nan  # stands for padding
    assert np.array_equal(
        at_once(usual)(x, shape, kernel, strides, out, kind, **more),
        pool(x, shape, kernel, strides, out, kind, **more),
        equal_nan=True,
    )
    assert visited
