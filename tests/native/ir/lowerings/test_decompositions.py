"""Operators carried out by their shared definitions, and long rows, against the reference implementation of the onnx package."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bricolage.backends.interface import Resources
from bricolage.backends.native.engine import Native
from bricolage.errors import Refused
from bricolage.native.ir.lowerings.ordering import LONGEST_COUNTED
from tests.backends import regions


def check(folder: Path, body: str, inputs: str, outputs: str, *values: np.ndarray, **constants: np.ndarray) -> None:
    model = regions.region(folder, body, inputs, outputs, opset=24, **constants)
    found = regions.answer(Native(), model, *values, resources=Resources(threads=2))
    for got, expected in zip(found, regions.reference(model, *values), strict=True):
        assert got.dtype == expected.dtype
        assert np.allclose(got, expected, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("causal", [0, 1])
def test_attention_of_grouped_queries_with_a_mask(causal: int, tmp_path: Path) -> None:
    q, k, v = regions.noise(2, 6, 5, 16), regions.noise(2, 3, 7, 16, seed=1), regions.noise(2, 3, 7, 8, seed=2)
    check(
        tmp_path,
        f"y = Attention <is_causal = {causal}, softcap = 5.0> (q, k, v, m)",
        "float[2, 6, 5, 16] q, float[2, 3, 7, 16] k, float[2, 3, 7, 8] v",
        "float[2, 6, 5, 8] y",
        q,
        k,
        v,
        m=np.arange(35).reshape(5, 7) % 3 != 1,
    )


def test_rows_longer_than_a_stack_holds(tmp_path: Path) -> None:
    width = 20_000
    check(
        tmp_path,
        "s = Softmax (x) \n l = LogSoftmax (x) \n n = LayerNormalization (x, g, b)",
        f"float[3, {width}] x",
        f"float[3, {width}] s, float[3, {width}] l, float[3, {width}] n",
        regions.noise(3, width),
        g=regions.noise(width, seed=1),
        b=regions.noise(width, seed=2),
    )


def test_largest_elements_where_some_are_equal(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 6, (4, 30, 3)).astype(np.float32)
    check(
        tmp_path,
        """
        v, i = TopK <axis = 1> (x, k)
        w, j = TopK <axis = 1, largest = 0> (x, k)
        a = ArgMax <axis = 1> (x)
        b = ArgMin <axis = 1, select_last_index = 1, keepdims = 0> (x)
        """,
        "float[4, 30, 3] x",
        "float[4, 7, 3] v, int64[4, 7, 3] i, float[4, 7, 3] w, int64[4, 7, 3] j, int64[4, 1, 3] a, int64[4, 3] b",
        x,
        k=np.int64([7]),
    )


def test_a_nan_counts_as_the_largest(tmp_path: Path) -> None:
    x = np.float32([[1, np.nan, 3, np.nan], [2, 5, 5, 1], [-np.inf, -np.inf, -np.inf, -np.inf]])
    check(tmp_path, "a = ArgMax <axis = 1> (x)", "float[3, 4] x", "int64[3, 1] a", x)


def test_integers_are_divided_summed_and_compared(tmp_path: Path) -> None:
    x = np.int64([[7, -7, 5, 2**40], [-3, 3, 0, 1]])
    check(
        tmp_path,
        """
        q = Div (x, d) \n r = Mod <fmod = 1> (x, d) \n m = Mod (x, d)
        s = ReduceSum (x, axes) \n t = ReduceMax (x, axes) \n u = ReduceMin (x, axes) \n c = CumSum (x, axis)
        """,
        "int64[2, 4] x",
        "int64[2, 4] q, int64[2, 4] r, int64[2, 4] m, int64[2, 1] s, int64[2, 1] t, int64[2, 1] u, int64[2, 4] c",
        x,
        d=np.int64([2, -3, -2, 3]),
        axes=np.int64([1]),
        axis=np.int64(1),
    )


@pytest.mark.parametrize(
    ("equation", "shapes", "out"),
    [
        ("bthd,bshd->bhts", ((2, 3, 4, 5), (2, 6, 4, 5)), (2, 4, 3, 6)),
        ("...ij,...jk", ((2, 3, 4), (2, 4, 5)), (2, 3, 5)),
        ("i,j->ji", ((3,), (4,)), (4, 3)),
        ("bij->ib", ((2, 3, 4),), (3, 2)),
    ],
)
def test_einsum(equation: str, shapes: tuple[tuple[int, ...], ...], out: tuple[int, ...], tmp_path: Path) -> None:
    names = "xz"[: len(shapes)]
    declared = ", ".join(f"float{list(shape)} {name}" for shape, name in zip(shapes, names, strict=True))
    check(
        tmp_path,
        f'y = Einsum <equation = "{equation}"> ({", ".join(names)})',
        declared,
        f"float{list(out)} y",
        *(regions.noise(*shape, seed=i) for i, shape in enumerate(shapes)),
    )


def test_cumulative_sums_keep_infinities_to_those_behind(tmp_path: Path) -> None:
    x = np.float32([[1, 2, np.inf, 4, 5], [1, 1, 1, np.nan, 1]])
    check(tmp_path, "y = CumSum (x, a)", "float[2, 5] x", "float[2, 5] y", x, a=np.int64(1))


def test_what_it_refuses(tmp_path: Path) -> None:
    model = regions.region(
        tmp_path,
        "v, i = TopK (x, k)",
        f"float[1, {LONGEST_COUNTED + 1}] x",
        "float[1, 2] v, int64[1, 2] i",
        k=np.int64([2]),
    )
    with pytest.raises(Refused, match=f"TopK needs an order of more than {LONGEST_COUNTED} elements"):
        Native().compile(model, regions.F32, Resources(threads=1))
