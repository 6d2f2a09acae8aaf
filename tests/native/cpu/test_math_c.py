"""The engine's mathematics against float64, over everything that float32 holds."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bricolage.native.c import define
from bricolage.native.cpu import toolchain
from bricolage.native.cpu.c_source import HEAD
from bricolage.native.cpu.isa import Isa, available_isas
from bricolage.native.cpu.math_c import FUNCTIONS, MATHS
from bricolage.native.ir import elementwise_functions

NAMES = ("exp", "exp_below", "expm1", "log", "erf", "tanh", "sigmoid", "softplus", "sin", "cos")


def erf(x: np.ndarray) -> np.ndarray:
    import torch

    found: np.ndarray = torch.erf(torch.from_numpy(x)).numpy()
    return found


EXACT: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "exp": np.exp,
    "exp_below": np.exp,
    "expm1": np.expm1,
    "sin": np.sin,
    "cos": np.cos,
    "log": np.log,
    "erf": erf,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "softplus": lambda x: np.logaddexp(0, x),
}
LARGEST_ULP = {
    "exp": 1.5,
    "exp_below": 1.5,
    "expm1": 2.0,
    "log": 1.5,
    "erf": 7.0,
    "tanh": 2.0,
    "sigmoid": 3.0,
    "softplus": 4.0,
    "sin": 1.0,
    "cos": 1.0,
    "pow": 1.0,
}


@pytest.fixture(scope="module", params=available_isas(), ids=lambda isa: isa.name)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    isa: Isa = request.param
    loops = [
        f"void all_{name}(const float *x, float *y, long n) {{ for (long i = 0; i < n; i++) y[i] = nat_{name}(x[i]); }}"
        for name in NAMES
    ]
    loops.append(
        "void all_pow(const float *x, const float *e, float *y, long n) {"
        " for (long i = 0; i < n; i++) y[i] = nat_pow(x[i], e[i]); }"
    )
    loops += [
        f"int64_t one_{name}(int64_t a, int64_t b) {{ return nat_{name}(a, b); }}"
        for name in ("quotient", "remainder", "modulo")
    ]
    loops += [f"{kind}_t one_{kind}(float x) {{ return nat_{kind}(x); }}" for kind in ("int32", "int64")]
    path = tmp_path_factory.mktemp("maths") / "maths.so"
    toolchain.compile_library("\n".join([define(LANES=isa.lanes), HEAD, MATHS, *loops]), isa.flags, path, "test")
    return ctypes.CDLL(str(path))


def computed(library: ctypes.CDLL, name: str, x: np.ndarray) -> np.ndarray:
    y = np.empty_like(x)
    getattr(library, f"all_{name}")(
        ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data), ctypes.c_long(x.size)
    )
    return y


@pytest.mark.thinned("isa")
@pytest.mark.parametrize("isa", [isa for isa in available_isas() if isa.flags], ids=lambda isa: isa.name)
def test_the_compiler_vectorises_all_of_them(isa: Isa, tmp_path: Path) -> None:
    if (
        "Free Software Foundation"
        not in subprocess.run(["cc", "--version"], capture_output=True, text=True, check=False, encoding="utf-8").stdout
    ):
        pytest.skip("only GCC tells which loops it vectorised, in these words")
    preamble = [f"void all_{name}(const float *restrict x, float *restrict y, long n)" for name in (*NAMES, "pow")]
    calls = [*(f"nat_{name}(x[i])" for name in NAMES), "nat_pow(x[i], 1.7f)"]
    pairs = zip(preamble, calls, strict=True)
    loops = [f"{head} {{ for (long i = 0; i < n; i++) y[i] = {call}; }}" for head, call in pairs]
    source = tmp_path / "loops.c"
    source.write_text("\n".join([define(LANES=isa.lanes), HEAD, MATHS, *loops]), encoding="utf-8")
    command = [
        "cc",
        *toolchain.FLAGS,
        "-O3",
        *isa.flags,
        "-fopt-info-vec-optimized",
        "-c",
        str(source),
        "-o",
        "/dev/null",
    ]
    told = subprocess.run(command, capture_output=True, text=True, check=True, encoding="utf-8").stderr
    first = source.read_text(encoding="utf-8").splitlines().index(loops[0]) + 1
    scalar = [n for i, n in enumerate((*NAMES, "pow")) if f"loops.c:{first + i}:" not in told]
    assert not scalar, scalar


@pytest.mark.parametrize("name", NAMES)
def test_error_in_units_of_the_last_place(library: ctypes.CDLL, name: str) -> None:
    sizes = 10.0 ** np.linspace(-37, 38, 20_001)
    x = np.concatenate([np.linspace(-87, 88, 100_001), np.linspace(-6, 6, 100_001), sizes, -sizes]).astype(np.float32)
    if name == "log":
        x = np.abs(x)
        x = x[x >= 1e-37]
    if name == "exp_below":
        x = np.minimum(x, 0)
    if name in ("sigmoid", "softplus"):
        x = x[x > -87]  # below, the results are subnormal or nearly so
    with np.errstate(all="ignore"):
        exact = EXACT[name](x.astype(np.float64))
    within(name, computed(library, name, x), exact, x)


def within(name: str, y: np.ndarray, exact: np.ndarray, x: np.ndarray) -> None:
    """Checks results against exact values of the arguments `x`."""
    with np.errstate(over="ignore"):
        rounded = exact.astype(np.float32)
    regular = np.isfinite(rounded) & (np.abs(exact) > 1.2e-38)
    ulp = np.abs(y[regular].astype(np.float64) - exact[regular]) / np.spacing(np.abs(rounded[regular])).astype(
        np.float64
    )
    assert ulp.max() <= LARGEST_ULP[name], x[regular][ulp.argmax()]
    assert np.array_equal(y[np.isinf(rounded)], rounded[np.isinf(rounded)])
    tiny = np.abs(exact) <= 1.2e-38
    assert np.all(np.abs(y[tiny]) <= 1.3e-38)


def test_special_values(library: ctypes.CDLL) -> None:
    x = np.float32([np.nan, np.inf, -np.inf, 0.0])
    expected = {
        "exp": [np.nan, np.inf, 0, 1],
        "log": [np.nan, np.inf, np.nan, -np.inf],
        "erf": [np.nan, 1, -1, 0],
        "tanh": [np.nan, 1, -1, 0],
        "sigmoid": [np.nan, 1, 0, 0.5],
        "softplus": [np.nan, np.inf, 0, np.log(2)],
        "expm1": [np.nan, np.inf, -1, 0],
        "sin": [np.nan, np.nan, np.nan, 0],
        "cos": [np.nan, np.nan, np.nan, 1],
    }
    for name in expected:
        assert np.allclose(computed(library, name, x), expected[name], rtol=1e-6, atol=0, equal_nan=True), name


def raised(library: ctypes.CDLL, x: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    y = np.empty_like(x)
    library.all_pow(
        *(ctypes.c_void_p(array.ctypes.data) for array in (x, exponent, y)),
        ctypes.c_long(x.size),
    )
    return y


def test_powers(library: ctypes.CDLL) -> None:
    draw = np.random.default_rng(0)
    x = np.exp(draw.uniform(-80, 80, 400_000)).astype(np.float32)
    exponent = (draw.uniform(-90, 90, x.size) / np.log(x)).astype(np.float32)
    x[::3] *= -1
    exponent[::3] = draw.integers(-6, 7, exponent[::3].size)
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.float64), exponent.astype(np.float64))
    within("pow", raised(library, x, exponent), exact, x)


def test_powers_of_special_values(library: ctypes.CDLL) -> None:
    values = np.float32([0, -0.0, 1, -1, 2, -2, 0.5, -0.5, 3, -3, 2.5, np.inf, -np.inf, np.nan, 1e-45, 3e38, 16777217])
    x, exponent = (grid.reshape(-1).copy() for grid in np.meshgrid(values, values))
    with np.errstate(all="ignore"):
        expected = np.power(x, exponent)
    found = raised(library, x, exponent)
    with np.errstate(all="ignore"):
        wrong = ~((found == expected) | (np.isnan(found) & np.isnan(expected)) | (np.abs(found / expected - 1) < 1e-6))
    assert not wrong.any(), list(zip(x[wrong], exponent[wrong], found[wrong], expected[wrong], strict=True))


def test_waves_of_every_size_and_near_their_zeros(library: ctypes.CDLL) -> None:
    """Arguments up to the largest float, and the floats next to multiples of a quarter turn."""
    draw = np.random.default_rng(0)
    bits = draw.integers(0, 0x7F800000, 1_000_000, dtype=np.int32)
    near = (np.round(10 ** draw.uniform(0, 30, 200_000)) * (np.pi / 2)).astype(np.float32)
    x = np.concatenate([bits.view(np.float32), near, np.nextafter(near, np.float32(0))])
    for name in ("sin", "cos"):
        within(name, computed(library, name, x), EXACT[name](x.astype(np.float64)), x)


def test_integers_where_processors_trap(library: ctypes.CDLL) -> None:
    """Nothing stops the process; Python's own rules where there is an answer."""
    smallest = np.iinfo(np.int64).min
    pairs = [(7, 2), (-7, 2), (7, -2), (-7, -2), (6, -3), (5, 0), (smallest, -1), (smallest, 3)]
    for name, expected in {
        "quotient": [3, -3, -3, 3, -2, 0, smallest, smallest // 3 + 1],
        "remainder": [1, -1, 1, -1, 0, 0, 0, -2],
        "modulo": [1, 1, -1, -1, 0, 0, 0, 1],
    }.items():
        function = getattr(library, f"one_{name}")
        function.restype, function.argtypes = ctypes.c_int64, [ctypes.c_int64] * 2
        assert [function(a, b) for a, b in pairs] == expected, name


def test_floats_that_no_integer_holds(library: ctypes.CDLL) -> None:
    for bits in (32, 64):
        function = getattr(library, f"one_int{bits}")
        function.restype, function.argtypes = getattr(ctypes, f"c_int{bits}"), [ctypes.c_float]
        smallest = -(2 ** (bits - 1))
        given = (2.7, -2.7, 0.0, float("nan"), float("inf"), -float("inf"), 1e30, 2.0 ** (bits - 1))
        assert [function(x) for x in given] == [2, -2, 0, *[smallest] * 5]


def test_every_function_has_c() -> None:
    assert FUNCTIONS.keys() == elementwise_functions.FUNCTIONS.keys()


def test_every_function_of_the_tensors_has_c_and_no_other() -> None:
    assert FUNCTIONS.keys() == elementwise_functions.FUNCTIONS.keys()


def test_exponentials_of_a_softmax_at_their_ends(library: ctypes.CDLL) -> None:
    x = np.array([0.0, -0.0, -87.0, -87.4, -104.0, -3.4e38, -np.inf, np.nan], np.float32)
    found = computed(library, "exp_below", x)
    assert found[:2].tolist() == [1.0, 1.0] and found[2] > 1.2e-38 and not found[3:7].any() and np.isnan(found[7])
    assert not computed(library, "exp", np.array([-104.1, -3.4e38, -np.inf], np.float32)).any()
    assert computed(library, "exp", np.array([-103.0], np.float32))[0] > 0, "a subnormal number"
