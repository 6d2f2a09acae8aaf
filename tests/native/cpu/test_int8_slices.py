"""Products of slices of 8 bits: bit for bit what int64 gives, as accurate as float32, and right or refused on every input."""

from __future__ import annotations

import ctypes
import platform
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.engine.slices_in_int64 import multiply_in_int64
from bricolage.backends.interface import RegionModel, Resources
from bricolage.backends.native.engine import FORCED_ISA_VARIABLE, Native
from bricolage.device.host import host
from bricolage.errors import Refused
from bricolage.graph.inference import infer
from bricolage.native.build import in_library, shared_object
from bricolage.native.cpu import toolchain
from bricolage.native.cpu.arithmetic import Arithmetic
from bricolage.native.cpu.c_source import CSource
from bricolage.native.cpu.int8_slices import LARGEST_INTEGER, SHARP, SliceProducts, longest_depth, slices_of
from bricolage.native.cpu.isa import EMULATED_AMX, ISAS, SPLIT_AMX, find_isa
from bricolage.native.fuse.fusion import plan
from bricolage.native.fuse.fusion_target import Target
from bricolage.native.fuse.kernel_plan import PlannedKernel
from bricolage.native.ir.from_onnx import lower_region
from bricolage.native.module import generate
from bricolage.work.implementation import KernelConfig
from tests.backends import regions
from tests.native.targets import FUSION, cpu_target

UNIT = replace(ISAS[0], byte_dot="tdpbusd", byte_flags=("-mamx-tile", "-mamx-int8"))
NINE, SIX = KernelConfig("int8x9"), KernelConfig("int8x6")
UNITS = [
    isa.name
    for isa in (ISAS[0], EMULATED_AMX, SPLIT_AMX)
    if (found := find_isa(isa.name)) and found.byte_dot == "tdpbusd"
]
units = pytest.mark.parametrize("unit", UNITS[:1])
"""The unit itself where there is one; else the best of what emulates it."""
BOTH = (NINE, SIX)
pytestmark = pytest.mark.skipif(not UNITS, reason="no matrix unit runs here, and none is emulated")


def multiply(folder: Path, x: np.ndarray, w: np.ndarray, config: KernelConfig, threads: int = 2) -> np.ndarray:
    """x @ w by the engine."""
    (m, k), n = x.shape, w.shape[1]
    model = regions.region(folder, "y = MatMul (x, w)", f"float[{m}, {k}] x", f"float[{m}, {n}] y", w=w)
    return regions.answer(Native(), model, x, config=config, resources=Resources(threads=threads))[0]


def expected_bits(x: np.ndarray, w: np.ndarray, config: KernelConfig, right: int = 3) -> np.ndarray:
    return multiply_in_int64(x, w, config.slice_products, right)


@units
@pytest.mark.parametrize("config", BOTH, ids=str)
@given(data=st.data())
@settings(max_examples=3, deadline=None)
def test_every_bit_is_that_of_int64(
    config: KernelConfig, unit: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    m, n = data.draw(st.integers(1, 40), "m"), data.draw(st.integers(1, 40), "n")
    k = data.draw(st.sampled_from([64, 65, 127, 128, 500, 1100]), "k")
    draw = np.random.default_rng(data.draw(st.integers(0, 9), "seed"))
    x = draw.standard_normal((m, k)).astype(np.float32) * np.exp(draw.normal(0, 6, (m, 1))).astype(np.float32)
    w = draw.uniform(-1, 1, (k, n)).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FORCED_ISA_VARIABLE, unit)
        found = multiply(tmp_path_factory.mktemp("product"), x, w, config, threads=data.draw(st.integers(1, 3)))
    np.testing.assert_array_equal(found, expected_bits(x, w, config))


@units
def test_columns_with_sharp_weights_have_a_fourth_slice(
    unit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FORCED_ISA_VARIABLE, unit)
    x, w = regions.noise(35, 300), regions.noise(300, 70, seed=1)
    w[5, 20] *= 40
    w[7, 69] *= 40
    assert (np.abs(w).max(axis=0) > SHARP * np.sqrt((w**2).mean(axis=0))).sum() == 2
    found = multiply(tmp_path, x, w, NINE)
    sharp = np.r_[16:32, 64:70]  # panels of 16 columns
    expected = expected_bits(x, w, NINE)
    expected[:, sharp] = expected_bits(x, w, NINE, right=4)[:, sharp]
    np.testing.assert_array_equal(found, expected)
    folder = tmp_path / "all"
    folder.mkdir()
    w[9] *= 40
    np.testing.assert_array_equal(multiply(folder, x, w, NINE), expected_bits(x, w, NINE, right=4))


def rows_of(kind: str, m: int, k: int, draw: np.random.Generator) -> np.ndarray:
    x = draw.standard_normal((m, k))
    if kind == "outliers":
        x[:, draw.choice(k, 6, replace=False)] *= 40
    elif kind == "log-normal":
        x = np.exp(draw.normal(0, 2, (m, k))) * np.sign(x)
    elif kind == "gelu":
        x = x * 0.5 * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x**3)))
    elif kind == "softmax":
        x = np.exp(3 * x)
        x /= x.sum(axis=1, keepdims=True)
    return x.astype(np.float32)


KINDS = ("gauss", "outliers", "log-normal", "gelu", "softmax")


@units
@pytest.mark.parametrize("kind", KINDS)
def test_the_error_is_that_of_the_formulas(
    kind: str, unit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FORCED_ISA_VARIABLE, unit)
    draw = np.random.default_rng(3)
    x, w = rows_of(kind, 64, 768, draw), draw.standard_normal((768, 96)).astype(np.float32)
    exact = x.astype(np.float64) @ w
    errors = {}
    for config in (KernelConfig("f32"), SIX, NINE):
        folder = tmp_path / config.name
        folder.mkdir()
        found = multiply(folder, x, w, config)
        errors[config.name] = float(np.linalg.norm(found - exact) / np.linalg.norm(exact))

    def crest(numbers: np.ndarray, axis: int) -> float:
        """Peak over root mean square, of all rows or columns as their norms weigh them."""
        return float(np.sqrt((np.abs(numbers).max(axis=axis) ** 2).sum() / (numbers**2).mean(axis=axis).sum()))

    left, right = crest(x.astype(np.float64), 1), crest(w.astype(np.float64), 0)
    nine = 3.45e-8 * right + 1.1e-10 * left * right
    six = np.hypot(2.84e-8 * left * right, 3.45e-8 * np.hypot(left, right))
    assert errors["int8x9"] <= 1.3 * nine
    assert errors["int8x6"] <= 1.5 * six  # of rows that are all positive the products left out have one sign
    assert errors["int8x9"] <= errors["f32"]


SPECIAL = {
    "zeros": lambda x: x * 0,
    "one number": lambda x: np.where(np.arange(x.shape[1]) == 3, x, 0),
    "subnormal": lambda x: x * 2.0**-140,
    "a few units": lambda x: np.rint(x * 3) * 2.0**-149,
    "tiny": lambda x: x * 2.0**-110,
    "huge": lambda x: x * 2.0**118,
    "wide": lambda x: x * 2.0 ** -np.linspace(0, 40, x.shape[1]),
    "largest": lambda x: np.where(np.arange(x.shape[1]) == 3, -3.4028235e38, x),
}


@units
@pytest.mark.parametrize("config", BOTH, ids=str)
def test_rows_at_the_ends_of_float32(
    config: KernelConfig, unit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FORCED_ISA_VARIABLE, unit)
    usual, w = regions.noise(len(SPECIAL), 200), regions.noise(200, 20, seed=1) / 16
    x = np.concatenate([change(usual[i : i + 1]) for i, change in enumerate(SPECIAL.values())]).astype(np.float32)
    found = multiply(tmp_path, x, w, config)
    exact = x.astype(np.float64) @ w
    for name, row, want, given_row in zip(SPECIAL, found, exact, x, strict=True):
        scale = np.linalg.norm(given_row.astype(np.float64)) * np.linalg.norm(w[:, 0])
        assert np.abs(row - want).max() <= 4e-6 * scale + 2.0**-149, name


@units
@pytest.mark.parametrize("config", BOTH, ids=str)
def test_what_is_not_finite_makes_its_row_nan_and_no_other(
    config: KernelConfig, unit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FORCED_ISA_VARIABLE, unit)
    x, w = regions.noise(20, 100), regions.noise(100, 17, seed=1)
    x[3, 5], x[7, 99], x[19, 0] = np.nan, np.inf, -np.inf
    found = multiply(tmp_path, x, w, config)
    assert np.isnan(found[[3, 7, 19]]).all()
    fine = [row for row in range(20) if row not in (3, 7, 19)]
    np.testing.assert_array_equal(found[fine], expected_bits(x[fine], w, config))


def refuse(folder: Path, w: np.ndarray, config: KernelConfig = NINE) -> None:
    with pytest.raises(Refused, match="slices of 8 bits suit"):
        multiply(folder, np.ones((2, len(w)), np.float32), w, config)


@units
@pytest.mark.parametrize("weight", [np.nan, np.inf, 2.0**110, 2.0**-110], ids=str)
def test_weights_that_slices_do_not_suit_are_float32(
    weight: float, unit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FORCED_ISA_VARIABLE, unit)
    w = regions.noise(100, 3)
    w[:, 1] = weight
    refuse(tmp_path, w)


@units
def test_products_too_short_or_too_long_are_float32(unit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORCED_ISA_VARIABLE, unit)
    refuse(tmp_path, regions.noise(63, 2))
    assert longest_depth(4, 3, 4) == longest_depth(3, 3, 3) == 43690
    assert longest_depth(4, 4, 4) == 32767
    folder = tmp_path / "long"
    folder.mkdir()
    refuse(folder, np.ones((43691, 1), np.float32))


@units
def test_the_longest_product_of_the_largest_numbers(unit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every slice of all numbers has one sign, so that levels grow as far as they can."""
    monkeypatch.setenv(FORCED_ISA_VARIABLE, unit)
    x, w = np.full((1, 43690), -1.992, np.float32), np.ones((43690, 1), np.float32)
    found = multiply(tmp_path, x, w, NINE)
    assert found[0, 0] == pytest.approx(-1.992 * 43690, rel=1e-6)


@pytest.mark.parametrize("slices", [3, 4])
@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_slices_are_balanced_digits(slices: int, data: st.DataObject) -> None:
    most = LARGEST_INTEGER[slices]
    numbers = np.array([*data.draw(st.lists(st.integers(-most, most), min_size=1)), most, -most, 0])
    digits = slices_of(numbers, slices)
    powers = 256 ** np.arange(slices - 1, -1, -1)
    np.testing.assert_array_equal((digits.astype(np.int64) * powers[:, None]).sum(axis=0), numbers)


@units
@pytest.mark.parametrize("config", BOTH, ids=str)
def test_convolutions_have_one_scale_an_image(
    config: KernelConfig, unit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows are read where they lie, so that all of an image has one scale; another image has another."""
    monkeypatch.setenv(FORCED_ISA_VARIABLE, unit)
    shape = (2, 64, 13, 14)
    x, w, a = regions.noise(*shape), regions.noise(40, 64, 3, 3, seed=1), regions.noise(64, 64, 1, 1, seed=2)
    x[0] *= 2.0**20
    model = regions.region(
        tmp_path,
        "t = Conv (x, a) \n y = Conv <pads = [1, 1, 1, 1]> (t, w)",
        f"float[{', '.join(map(str, shape))}] x",
        "float[2, 40, 13, 14] y",
        a=a,
        w=w,
    )
    (expected,) = regions.reference(model, x)
    outputs = [
        regions.answer(Native(), model, x, config=config, resources=Resources(threads=threads))[0] for threads in (1, 3)
    ]
    np.testing.assert_array_equal(*outputs)
    for image, want in zip(outputs[0], expected, strict=True):
        assert np.linalg.norm(image - want) <= 2e-6 * np.linalg.norm(want)


@units
def test_separable_convolutions_and_recurrences_take_slices(
    unit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that a product makes for itself, and a step of a recurrence whose gates threads go through slice by slice."""
    monkeypatch.setenv(FORCED_ISA_VARIABLE, unit)
    monkeypatch.setattr(Target, "resident_bytes", 0)
    ones = np.sqrt(np.float32(1) / 64)
    convolutions = regions.region(
        tmp_path,
        "a = Conv (x, u) \n b = Conv <group = 64, pads = [1, 1, 1, 1]> (a, v) \n r = Relu (b) \n y = Conv (r, w)",
        "float[1, 5, 9, 30] x",
        "float[1, 40, 9, 30] y",
        u=regions.noise(64, 5, 1, 1) / np.float32(2),
        v=regions.noise(64, 1, 3, 3, seed=1) / np.float32(3),
        w=regions.noise(40, 64, 1, 1, seed=3) * ones,
    )
    assert "separable" in [kernel.kind for kernel in kernels_of(convolutions)]
    folder = tmp_path / "recurrent"
    folder.mkdir()
    recurrent = regions.region(
        folder,
        "y, h, c = LSTM <hidden_size = 128> (x, w, r)",
        "float[3, 2, 70] x",
        "float[3, 1, 2, 128] y",
        w=regions.noise(1, 512, 70) / np.float32(9),
        r=regions.noise(1, 512, 128, seed=1) / np.float32(12),
    )
    for model in (convolutions, recurrent):
        x = regions.noise(*model.inputs[0].sizes, seed=4)
        for config in BOTH:
            found = regions.answer(Native(), model, x, config=config, resources=Resources(threads=2))
            assert regions.error(found, regions.reference(model, x)) < 3e-6


def kernels_of(model: RegionModel) -> tuple[PlannedKernel, ...]:
    infer(model.model)
    return tuple(plan(*lower_region(model.model), FUSION).kernels)


def source_of(folder: Path, arithmetic: Arithmetic) -> CSource:
    """For a processor with the unit."""
    model = regions.region(
        folder, "y = MatMul (x, w)", "float[70, 2100] x", "float[70, 80] y", w=regions.noise(2100, 80)
    )
    infer(model.model)
    return generate(plan(*lower_region(model.model), FUSION, "nothing"), cpu_target(UNIT), arithmetic)


def test_without_a_unit_for_bytes_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORCED_ISA_VARIABLE, "generic")
    for precision in ("highest", "high"):
        assert not {"int8x6", "int8x9"} & {config.name for config in Native().configs(precision, host())}
    monkeypatch.setenv(FORCED_ISA_VARIABLE, UNITS[0])
    assert {"int8x6", "int8x9"} <= {config.name for config in Native().configs("highest", host())}
    assert "int8x6" in {config.name for config in Native().configs("high", host())}
    assert not any(config.name.startswith("int8x") for config in Native().configs("medium", host()))


@pytest.mark.parametrize(("products", "loads"), [(9, 7), (6, 15)])
def test_the_code_compiles_for_the_real_unit(products: SliceProducts, loads: int, tmp_path: Path) -> None:
    """Nine multiplications with seven loads; six for each of two tiles, with fifteen."""
    if toolchain.compiler() is None or platform.machine() != "x86_64":
        pytest.skip("this compiler makes no code for such processors")
    arithmetic = Arithmetic(slice_products=products)
    source = source_of(tmp_path, arithmetic)
    text = in_library(source, source.text)
    kernel = text[text.index("static __attribute__((noinline, noipa)) void slices") :]
    loop = kernel[kernel.index("for (long k") : kernel.index("tile_store")]
    assert loop.count("tile_load") == loads
    assert loop.count("tile_multiply_slices") == (9 if products == 9 else 12)
    assert "_tile_dpbssd" in text
    toolchain.compile_library(text, arithmetic.flags(UNIT), tmp_path / "region.so", "native", shared_object())
    assert hasattr(ctypes.CDLL(str(tmp_path / "region.so")), "region_run")
