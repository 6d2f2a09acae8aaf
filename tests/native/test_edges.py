"""Tensors at the edges: of no elements, of rank 0, of integers that no float holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bricolage.backends.interface import Resources
from bricolage.backends.native.engine import Native
from tests.backends import regions


@pytest.mark.parametrize(
    ("body", "inputs", "outputs"),
    [
        ("y = Relu (x)", "float[0] x", "float[0] y"),
        ("y = MatMul (x, z)", "float[3, 0] x, float[0, 4] z", "float[3, 4] y"),
        ("e = Slice (x, one, one) \n y = Concat <axis = 0> (x, e)", "float[3] x", "float[3] y"),
        ("y = ReduceSum <keepdims = 0> (x, one)", "float[3, 0] x", "float[3] y"),
    ],
    ids=["given", "summed over", "in between", "reduced"],
)
def test_empty_tensors(body: str, inputs: str, outputs: str, tmp_path: Path) -> None:
    model = regions.region(tmp_path, body, inputs, outputs, one=np.array([1], np.int64))
    given = [np.ones(info.sizes, np.float32) for info in model.inputs]
    (found,), (expected,) = regions.answer(Native(), model, *given), regions.reference(model, *given)
    assert found.shape == expected.shape and found.tolist() == expected.tolist()


@pytest.mark.usefixtures("isa")
def test_rank_0_all_the_way(tmp_path: Path) -> None:
    model = regions.region(
        tmp_path,
        """
        a = Tanh (x)
        b = ReduceSum (a)
        c = ReduceMax (b)
        d = Less (c, x)
        e = Where (d, x, c)
        f = Expand (e, shape)
        g = Gather <axis = 0> (z, n)
        h = Add (g, f)
        m = MatMul (z, z)
        s = Squeeze (f)
        y = Max (s, m, x)
        i = Size (h)
        """,
        "float x, float[5] z, int64 n",
        "float y, float[1] h, int64 i, bool d",
        shape=np.int64([1]),
    )
    given = [np.float32(-0.7), regions.noise(5), np.int64(-2)]
    found = regions.answer(Native(), model, *given, resources=Resources(threads=2))
    for value, expected in zip(found, regions.reference(model, *given), strict=True):
        assert value.shape == expected.shape and np.allclose(value, expected, rtol=1e-6)


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63), 2**53 + 1], ids=str)
def test_integers_that_no_float_holds(value: int, tmp_path: Path) -> None:
    model = regions.region(
        tmp_path,
        "y = Pad (x, widths, value) \n z = Max (x, value) \n m = ReduceMin (y)",
        "int64[3] x",
        "int64[6] y, int64[3] z, int64[1] m",
        widths=np.int64([1, 2]),
        value=np.int64(value),
    )
    x = np.int64([2**53 + 1, -(2**63), 7])
    for found, expected in zip(regions.answer(Native(), model, x), regions.reference(model, x), strict=True):
        assert np.array_equal(found, expected)
