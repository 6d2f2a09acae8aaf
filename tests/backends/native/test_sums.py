"""Sums of millions of elements, whose rounding must not grow with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bricolage.backends.interface import Resources
from bricolage.backends.native.engine import ISA_VARIABLE, Native
from bricolage.backends.native.isa import Isa, available
from tests.backends import regions

BOUND = 3e-7


def large(*shape: int) -> np.ndarray:
    """Of one sign, so that every partial sum is rounded to the size of the whole."""
    return np.random.default_rng(0).uniform(0.5, 1.5, shape).astype(np.float32)


@pytest.mark.parametrize("isa", available(), ids=lambda isa: isa.name)
@pytest.mark.parametrize(
    "shape",
    [(2, 1_000_003), (2, 1_000, 700), (2, 200_001, 3), (2, 31, 9, 1_100, 2), (2, 3, 5_000, 1, 17)],
    ids=str,
)
def test_reductions(shape: tuple[int, ...], isa: Isa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One long dimension, long rows, short rows, and dimensions in between."""
    monkeypatch.setenv(ISA_VARIABLE, isa.name)
    model = regions.region(
        tmp_path,
        "s = ReduceSum <keepdims = 0> (x, axes) \n m = ReduceMean <keepdims = 0> (x, axes) \n q = ReduceSumSquare (x)",
        f"float{list(shape)} x",
        f"float[2] s, float[2] m, float{[1] * len(shape)} q",
        axes=np.arange(1, len(shape)),
    )
    x = large(*shape)
    exact = x.astype(np.float64).reshape(2, -1)
    found = regions.answer(Native(), model, x, resources=Resources(threads=2))
    assert regions.error(found, [exact.sum(axis=1), exact.mean(axis=1), (x.astype(np.float64) ** 2).sum()]) < BOUND


@pytest.mark.parametrize("isa", available(), ids=lambda isa: isa.name)
def test_normalisations_of_large_images(isa: Isa, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ISA_VARIABLE, isa.name)
    model = regions.region(
        tmp_path,
        "y = InstanceNormalization (x, g, b) \n z = GlobalAveragePool (x)",
        "float[1, 3, 900, 700] x",
        "float[1, 3, 900, 700] y, float[1, 3, 1, 1] z",
        g=np.ones(3, np.float32),
        b=np.zeros(3, np.float32),
    )
    x = large(1, 3, 900, 700)
    wide = x.astype(np.float64)
    mean = wide.mean(axis=(2, 3), keepdims=True)
    expected = (wide - mean) / np.sqrt(wide.var(axis=(2, 3), keepdims=True) + 1e-5)
    assert regions.error(regions.answer(Native(), model, x, resources=Resources(threads=2)), [expected, mean]) < BOUND
