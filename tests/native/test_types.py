"""Element types beside float32: conversions against numpy, empty tensors, and forms that the shared definitions take over."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from bricolage.backends.interface import Resources
from bricolage.backends.native.engine import Native
from bricolage.errors import Refused
from bricolage.native.cpu.math_c import FUNCTIONS, function_of
from bricolage.native.cpu.wide import UNSIGNED, WIDE
from bricolage.native.ir.tensors import C_TYPES, STORED_BYTES, STORED_TYPES, numpy_type
from tests.backends import regions

NAMES = {"float32": "float", "float64": "double"}
"""How ONNX texts call types that numpy calls otherwise."""


def native(
    folder: Path, body: str, inputs: str, outputs: str, *arrays: np.ndarray, opset: int = 18, **constants: np.ndarray
) -> list:
    """Outputs of a region on the native engine."""
    region = regions.region(folder, body, inputs, outputs, opset, **constants)
    _, found, call = regions.bound(Native().compile(region, regions.F32, Resources(threads=2)), region, *arrays)
    call()
    return [array.copy() for array in found]


def text(dtype: str, shape: str) -> str:
    return f"{NAMES.get(dtype, dtype)}[{shape}]"


def test_types_have_a_size_and_c() -> None:
    assert C_TYPES.keys() == STORED_TYPES.keys() == STORED_BYTES.keys()
    assert all(numpy_type(name).itemsize == size for name, size in STORED_BYTES.items())


def test_functions_of_wide_and_unsigned_numbers_are_functions() -> None:
    assert WIDE.keys() <= FUNCTIONS.keys()
    assert UNSIGNED.keys() <= FUNCTIONS.keys()
    assert function_of("modulo", ["uint8", "uint8"]) != function_of("modulo", ["int8", "int8"])
    assert function_of("exp", ["float64"]) != function_of("exp", ["float32"])


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_every_half_precision_number_comes_back(half: str, tmp_path: Path) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16).view(numpy_type(half))
    both = f"{text(half, '65536')} same, float[65536] wide"
    same, wide = native(
        tmp_path, "same = Identity (x) wide = Cast <to = 1> (x)", text(half, "65536 ") + " x", both, bits
    )
    np.testing.assert_array_equal(wide, bits.astype(np.float32))
    np.testing.assert_array_equal(np.isnan(same.astype(np.float32)), np.isnan(bits.astype(np.float32)))
    numbers = ~np.isnan(bits.astype(np.float32))
    np.testing.assert_array_equal(same.view(np.uint16)[numbers], bits.view(np.uint16)[numbers])


def awkward(dtype: type) -> np.ndarray:
    """Numbers between two of a half precision, on both sides of the middle and in it, tiny, huge and special."""
    draw = np.random.default_rng(3)
    for_halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(dtype)
    middle = (for_halves[1:] + for_halves[:-1]) / 2
    brain = np.arange(0, 0x7F80, 7, dtype=np.uint16).view(ml_dtypes.bfloat16).astype(dtype)
    middle = np.concatenate([middle, brain[1:] / 2 + brain[:-1] / 2])
    beside = [np.nextafter(middle, dtype(side)) for side in (-np.inf, np.inf)]
    special = np.array([0.0, 65504, 65519.9, 65520, 65536, 1e30, np.inf, np.nan, 2.0**-24, 2.0**-25, 1e-40], dtype)
    drawn = draw.standard_normal(4000).astype(dtype) * dtype(2) ** draw.integers(-30, 18, 4000).astype(dtype)
    all_of_them = np.concatenate([middle, *beside, special, drawn])
    return np.concatenate([all_of_them, -all_of_them])


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
@pytest.mark.parametrize("wide", [np.float32, np.float64])
def test_halves_are_rounded_once_to_the_nearest_even(half: str, wide: type, tmp_path: Path) -> None:
    x = awkward(wide)
    to = {"float16": 10, "bfloat16": 16}[half]
    name = np.dtype(wide).name
    body = f"y = Cast <to = {to}> (x)"
    (found,) = native(tmp_path, body, text(name, str(len(x))) + " x", text(half, str(len(x))) + " y", x)
    bits = found.view(np.uint16)
    size, infinite = bits & 0x7FFF, {"float16": 0x7C00, "bfloat16": 0x7F80}[half]
    np.testing.assert_array_equal(np.isnan(x), size > infinite)
    np.testing.assert_array_equal(np.signbit(x[~np.isnan(x)]), bits[~np.isnan(x)] > 0x7FFF)
    largest = float(np.asarray(infinite - 1, np.uint16).view(numpy_type(half)))
    last = largest - float(np.asarray(infinite - 2, np.uint16).view(numpy_type(half)))
    exact = np.abs(x)

    def number(of: np.ndarray) -> np.ndarray:
        """Magnitudes; the first that is infinite stands for what it would be with another exponent."""
        finite = np.minimum(of, infinite - 1).astype(np.uint16).view(numpy_type(half)).astype(np.float64)
        return np.where(of >= infinite, largest + last, finite)

    off = np.abs(number(size) - exact)
    beside = [np.abs(number(size + 1) - exact), np.abs(number(np.maximum(size, 1) - 1) - exact)]
    inside = (size < infinite) & ~np.isnan(x)
    for other in beside:
        nearer = (off < other) | ((off == other) & (size % 2 == 0)) | (size == 0)
        assert np.all(nearer[inside])
    assert np.all(exact[size == infinite] >= largest + last / 2)


WHOLE = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


@pytest.mark.parametrize("dtype", WHOLE)
def test_whole_numbers_wrap_divide_and_compare_as_numpys(dtype: str, tmp_path: Path) -> None:
    limits = np.iinfo(dtype)
    a = np.array([limits.min, limits.max, 0, 1, 7, 100, limits.max // 2 + 1, limits.max], dtype)
    b = np.array([limits.max, limits.max, 3, 2, 3, 7, 3, 1], dtype)
    kind = text(dtype, "8")
    body = """
        s = Add (a, b)
        p = Mul (a, b)
        d = Div (a, b)
        m = Mod (a, b)
        l = Less (a, b)
        g = Max (a, b)
        f = Cast <to = 11> (a)
        """
    outputs = f"{kind} s, {kind} p, {kind} d, {kind} m, bool[8] l, {kind} g, double[8] f"
    found = native(tmp_path, body, f"{kind} a, {kind} b", outputs, a, b)
    with np.errstate(over="ignore"):
        quotient = np.array(
            [abs(int(x)) // abs(int(y)) * (1 if (x < 0) == (y < 0) else -1) for x, y in zip(a, b, strict=True)], object
        )
        expected = [a + b, a * b, quotient.astype(dtype), np.mod(a, b), a < b, np.maximum(a, b), a.astype(np.float64)]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_functions_of_float64_are_computed_in_it(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal(50)
    functions = ["Exp", "Tanh", "Sigmoid", "Sin", "Softplus", "Erf", "Sqrt", "Log", "Relu", "Elu", "Gelu", "Floor"]
    body = "p = Abs (x) " + " ".join(
        f"y{i} = {name} ({'p' if name in ('Sqrt', 'Log') else 'x'})" for i, name in enumerate(functions)
    )
    outputs = ", ".join(f"double[50] y{i}" for i in range(len(functions)))
    found = native(tmp_path, body, "double[50] x", outputs, x, opset=20)
    import torch

    t = torch.from_numpy(x)
    exact = [
        t.exp(), t.tanh(), t.sigmoid(), t.sin(), torch.nn.functional.softplus(t), t.erf(), t.abs().sqrt(), t.abs().log(), t.relu(),
        torch.nn.functional.elu(t), torch.nn.functional.gelu(t), t.floor(),
    ]  # fmt: skip
    for name, one, other in zip(functions, found, exact, strict=True):
        np.testing.assert_allclose(one, other.numpy(), rtol=1e-14, atol=1e-15, err_msg=name)


def test_products_and_sums_of_float64_and_integers(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    a, b = draw.standard_normal((2, 3, 5)), draw.standard_normal((5, 4))
    n = draw.integers(-(2**40), 2**40, (3, 5))
    m = draw.integers(-100, 100, (5,))
    body = "y = MatMul (a, b) s = Softmax (a) k = MatMul (n, m) t = ReduceSum <keepdims = 0> (a)"
    found = native(
        tmp_path,
        body,
        "double[2, 3, 5] a, double[5, 4] b, int64[3, 5] n, int64[5] m",
        "double[2, 3, 4] y, double[2, 3, 5] s, int64[3] k, double t",
        a, b, n, m,
    )  # fmt: skip
    e = np.exp(a - a.max(-1, keepdims=True))
    for one, other in zip(found, [a @ b, e / e.sum(-1, keepdims=True), n @ m, a.sum()], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-13)


def test_empty_tensors(tmp_path: Path) -> None:
    """Inside, at the ends, and what reductions and products make of nothing."""
    nothing, x = np.zeros((2, 0, 3), np.float32), np.arange(6, dtype=np.float32).reshape(2, 3)
    body = """
        a = Relu (e)
        s = ReduceSum <keepdims = 0> (e, axes)
        l = ReduceMax <keepdims = 0> (e, axes)
        p = ReduceProd <keepdims = 0> (e, axes)
        c = Concat <axis = 1> (e, wide)
        m = MatMul (turned, e)
        w = Unsqueeze (x, axes)
        wide = Identity (w)
        turned = Transpose <perm = [0, 2, 1]> (e)
        """
    lines = [line.strip() for line in body.strip().splitlines()]
    order = [0, 1, 2, 3, 6, 7, 4, 8, 5]
    found = native(
        tmp_path,
        " ".join(lines[i] for i in order),
        "float[2, 0, 3] e, float[2, 3] x",
        "float[2, 0, 3] a, float[2, 3] s, float[2, 3] l, float[2, 3] p, float[2, 1, 3] c, float[2, 3, 3] m",
        nothing, x,
        axes=np.int64([1]),
    )  # fmt: skip
    assert found[0].shape == (2, 0, 3)
    for one, other in zip(found[1:], [0, -np.inf, 1, x[:, None], 0], strict=True):
        np.testing.assert_array_equal(one, np.broadcast_to(np.float32(other), one.shape))


def test_axes_that_are_computed_are_read_off_the_shapes_or_refused(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((3, 4, 5)).astype(np.float32)
    axes = np.int64([1])
    (found,) = native(
        tmp_path, "y = ReduceSum <keepdims = 0> (x, a)", "float[3, 4, 5] x, int64[1] a", "float[3, 5] y", x, axes
    )
    np.testing.assert_allclose(found, x.sum(1), rtol=1e-6)
    (tmp_path / "two").mkdir()
    with pytest.raises(Refused, match="leave open"):
        native(
            tmp_path / "two",
            "y = ReduceSum <keepdims = 0> (x, a)",
            "float[3, 4, 4] x, int64[1] a",
            "float[3, 4] y",
            np.zeros((3, 4, 4), np.float32),
            axes,
        )


def test_several_updates_of_one_place(tmp_path: Path) -> None:
    """The last one counts, or all are put together."""
    x, places = np.zeros(4, np.float32), np.int64([1, 1, 3, -1])
    values = np.float32([1, 2, 3, 4])
    body = 'y = ScatterElements (x, i, u) z = ScatterElements <reduction = "add"> (x, i, u)'
    y, z = native(tmp_path, body, "float[4] x, int64[4] i, float[4] u", "float[4] y, float[4] z", x, places, values)
    np.testing.assert_array_equal(y, [0, 2, 0, 4])
    np.testing.assert_array_equal(z, [0, 3, 0, 7])


def test_nothing_of_it_is_written_where_it_is_not_called(tmp_path: Path) -> None:
    """The C of float32 alone is what it was."""
    from bricolage.native.cpu.wide import PREFIX

    for number, (body, inputs, outputs) in enumerate(
        [("y = Exp (x)", "float[9] x", "float[9] y"), ("y = Cast <to = 1> (x)", "float16[9] x", "float[9] y")]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        made = Native().kernel_report(regions.region(folder, body, inputs, outputs), regions.F32, Resources(threads=1))
        assert (PREFIX in made.source) == bool(number)
