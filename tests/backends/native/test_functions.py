"""The engine's mathematics against float64, over everything that float32 holds."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import pytest

from bricolage.backends.native import toolchain
from bricolage.backends.native.functions import MATHS
from bricolage.backends.native.isa import Isa, available

NAMES = ("exp", "log", "erf", "tanh", "sigmoid", "softplus")


def erf(x: np.ndarray) -> np.ndarray:
    import torch

    found: np.ndarray = torch.erf(torch.from_numpy(x)).numpy()
    return found


EXACT: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "exp": np.exp,
    "log": np.log,
    "erf": erf,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "softplus": lambda x: np.logaddexp(0, x),
}
LARGEST_ULP = {"exp": 1.5, "log": 1.5, "erf": 3.0, "tanh": 2.0, "sigmoid": 3.0, "softplus": 4.0}


@pytest.fixture(scope="module", params=available(), ids=lambda isa: isa.name)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    isa: Isa = request.param
    loops = [
        f"void all_{name}(const float *x, float *y, long n) {{ for (long i = 0; i < n; i++) y[i] = nat_{name}(x[i]); }}"
        for name in NAMES
    ]
    path = tmp_path_factory.mktemp("maths") / "maths.so"
    toolchain.build("\n".join(["#include <stdint.h>", MATHS, *loops]), isa.flags, path, "test")
    return ctypes.CDLL(str(path))


def computed(library: ctypes.CDLL, name: str, x: np.ndarray) -> np.ndarray:
    y = np.empty_like(x)
    getattr(library, f"all_{name}")(
        ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data), ctypes.c_long(x.size)
    )
    return y


@pytest.mark.parametrize("name", NAMES)
def test_error_in_units_of_the_last_place(library: ctypes.CDLL, name: str) -> None:
    sizes = 10.0 ** np.linspace(-37, 38, 20_001)
    x = np.concatenate([np.linspace(-87, 88, 100_001), np.linspace(-6, 6, 100_001), sizes, -sizes]).astype(np.float32)
    if name == "log":
        x = np.abs(x)
        x = x[x >= 1e-37]
    if name in ("sigmoid", "softplus"):
        x = x[x > -87]  # below, the results are subnormal or nearly so
    with np.errstate(all="ignore"):
        exact = EXACT[name](x.astype(np.float64))
        rounded = exact.astype(np.float32)
    y = computed(library, name, x)
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
    }
    for name in NAMES:
        assert np.allclose(computed(library, name, x), expected[name], rtol=1e-6, atol=0, equal_nan=True), name
