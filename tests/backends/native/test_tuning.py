"""The measured search for how products are cut up: what it concludes from times, and that its libraries are right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bricolage.backends.interface import Resources
from bricolage.backends.native import tuning
from bricolage.backends.native.cpu import isa as isas
from bricolage.backends.native.cpu.arithmetic import Arithmetic
from bricolage.backends.native.cpu.isa import named
from bricolage.backends.native.cpu.kernel_choice import GemmConfig, KernelChoice
from bricolage.backends.native.engine import ISA_VARIABLE, Native
from tests.backends import regions

SMALL, LARGE = KernelChoice(gemm=GemmConfig(1 << 10)), KernelChoice(gemm=GemmConfig(1 << 20))


def turns(usual: list[float], other: list[float], noise: float = 0.01) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    return tuple(np.array(ms) * (1 + noise * draw.standard_normal((15, len(ms)))) for ms in (usual, other))  # type: ignore[return-value]


def test_each_kernel_keeps_its_fastest_alternative() -> None:
    times = [turns([1.0, 1.0, 1.0], [0.9, 1.2, 0.8]), turns([1.0, 1.0, 1.0], [0.7, 1.1, 0.9])]
    assert tuning.choose([SMALL, LARGE], times) == {0: LARGE, 2: SMALL}


def test_what_is_not_clearly_faster_is_not_chosen() -> None:
    assert tuning.choose([SMALL], [turns([1.0, 1.0], [0.99, 1.0])]) == {}
    usual, other = turns([1.0], [0.9], noise=0.0)
    other[::2] = 1.1  # faster in the middle, but not in most rounds
    assert tuning.choose([SMALL], [(usual, other)]) == {}


def test_the_alternatives_fit_the_arithmetic() -> None:
    plain = tuning.alternatives(Arithmetic(), isas.ISAS[-1])
    assert len(set(plain)) == len(plain)
    assert all(choice.tile is None and choice.gemm.kc_bytes is None for choice in plain)
    assert {choice.tile for choice in tuning.alternatives(Arithmetic(tile=4), isas.ISAS[-1])} == {None, 0, 2}
    assert any(choice.gemm.kc_bytes for choice in tuning.alternatives(Arithmetic(parts=3), isas.EMULATED_AMX))


@pytest.mark.parametrize("variant", ["f32", "f32-winograd4"])
def test_tuned_libraries_are_right(variant: str, tmp_path: Path) -> None:
    tuned = Native().tuned(variant)
    assert tuned is not None and Native().tuned(tuned) is None
    model = regions.region(
        tmp_path,
        "a = Conv <pads = [1, 1, 1, 1]> (x, v) \n b = Relu (a) \n y = Conv <pads = [1, 1, 1, 1]> (b, w)",
        "float[1, 32, 28, 28] x",
        "float[1, 64, 28, 28] y",
        v=regions.noise(64, 32, 3, 3),
        w=regions.noise(64, 64, 3, 3, seed=1),
    )
    x = regions.noise(1, 32, 28, 28)
    found = regions.answer(Native(), model, x, variant=tuned, resources=Resources(threads=2))
    assert regions.error(found, regions.reference(model, x)) < 2e-6


@pytest.mark.parametrize("choice", tuning.alternatives(Arithmetic(tile=4), isas.ISAS[-1]), ids=str)
def test_every_alternative_is_right(choice: KernelChoice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "choose", lambda *_: dict.fromkeys(range(10), choice))
    monkeypatch.setattr(tuning, "alternatives", lambda *_: ())
    model, x = regions.conv_net(tmp_path), regions.noise(1, 8, 32, 32)
    found = regions.answer(Native(), model, x, variant="f32-winograd4-tuned", resources=Resources(threads=2))
    assert regions.error(found, regions.reference(model, x)) < 1e-5


@pytest.mark.skipif(named("emulated-amx") is None, reason="it does not run here")
@pytest.mark.parametrize("choice", tuning.alternatives(Arithmetic(parts=2), isas.EMULATED_AMX), ids=str)
def test_every_alternative_for_a_matrix_unit_is_right(
    choice: KernelChoice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ISA_VARIABLE, "emulated-amx")
    monkeypatch.setattr(tuning, "choose", lambda *_: {0: choice})
    monkeypatch.setattr(tuning, "alternatives", lambda *_: ())
    w = regions.noise(900, 70)
    model = regions.region(tmp_path, "y = MatMul (x, w)", "float[90, 900] x", "float[90, 70] y", w=w)
    x = regions.noise(90, 900, seed=1)
    found = regions.answer(Native(), model, x, variant="bf16x3-tuned", resources=Resources(threads=2))
    assert regions.error(found, regions.reference(model, x)) < 2e-5
