"""Code for a matrix unit (AMX): run on an emulated one, compiled for a real one, and run there where there is one."""

from __future__ import annotations

import ctypes
import platform
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bricolage.backends.interface import RegionModel, Resources
from bricolage.backends.native.engine import FORCED_ISA_VARIABLE, Native
from bricolage.base.options import Precision
from bricolage.device.host import host
from bricolage.errors import Refused
from bricolage.graph.inference import infer
from bricolage.native.build import in_library, shared_object
from bricolage.native.cpu import isa as isas
from bricolage.native.cpu import toolchain
from bricolage.native.cpu.arithmetic import Arithmetic
from bricolage.native.cpu.isa import EMULATED_AMX, ISAS, available_isas, find_isa
from bricolage.native.fuse.fusion import plan
from bricolage.native.ir.from_onnx import lower_region
from bricolage.native.module import generate
from bricolage.work.implementation import KernelConfig
from tests.backends import regions
from tests.native.targets import FUSION, cpu_target

AMX = ISAS[0]
BOUNDS = {KernelConfig("bf16"): 1e-2, KernelConfig("bf16x3"): 2e-5, KernelConfig("bf16x6"): 2e-6}
"""Error of a product of random normal matrices, by configuration."""

units = pytest.mark.parametrize(
    "unit",
    [
        pytest.param(isa.name, marks=pytest.mark.skipif(find_isa(isa.name) is None, reason="it does not run here"))
        for isa in (AMX, EMULATED_AMX)
    ],
)


def product(folder: Path, m: int, k: int, n: int, *, constant: bool = True) -> tuple[RegionModel, list[np.ndarray]]:
    x, w = regions.noise(m, k), regions.noise(k, n, seed=1)
    if constant:
        model = regions.region(folder, "y = MatMul (x, w)", f"float[{m}, {k}] x", f"float[{m}, {n}] y", w=w)
        return model, [x]
    inputs = f"float[2, {m}, {k}] x, float[2, {k}, {n}] w"
    model = regions.region(folder, "y = MatMul (x, w)", inputs, f"float[2, {m}, {n}] y")
    return model, [regions.noise(2, m, k), regions.noise(2, k, n, seed=1)]


def check(model: RegionModel, given: list[np.ndarray], config: KernelConfig, threads: int = 2) -> None:
    found = regions.answer(Native(), model, *given, config=config, resources=Resources(threads=threads))
    assert regions.error(found, regions.reference(model, *given)) < BOUNDS[config]


@pytest.mark.thinned("constant", "config")
@units
@pytest.mark.parametrize("config", BOUNDS, ids=str)
@pytest.mark.parametrize("constant", [True, False], ids=["weights", "inputs"])
@pytest.mark.parametrize(
    "shape",
    [(1, 1, 1), (3, 7, 5), (16, 32, 16), (29, 64, 33), (49, 600, 64), (33, 1200, 17), (16, 1500, 300)],
    ids=str,
)
def test_products(
    shape: tuple[int, int, int],
    constant: bool,
    config: KernelConfig,
    unit: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(FORCED_ISA_VARIABLE, unit)
    model, inputs = product(tmp_path, *shape, constant=constant)
    check(model, inputs, config, threads=1 + shape[0] % 3)


@units
@given(data=st.data())
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_products_of_any_size(unit: str, data: st.DataObject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORCED_ISA_VARIABLE, unit)
    m, n = (data.draw(st.integers(1, 80)) for _ in range(2))
    k = data.draw(st.integers(1, 700))
    model, inputs = product(tmp_path, m, k, n, constant=data.draw(st.booleans()))
    check(model, inputs, data.draw(st.sampled_from(list(BOUNDS))), threads=data.draw(st.integers(1, 3)))


@pytest.mark.thinned("config")
@units
@pytest.mark.parametrize("config", BOUNDS, ids=str)
@pytest.mark.parametrize(
    ("make", "shape"),
    [(regions.conv_net, (1, 8, 32, 32)), (regions.attention_block, (1, 16, 32))],
    ids=["convolutions", "attention"],
)
def test_networks(
    make: object,
    shape: tuple[int, ...],
    config: KernelConfig,
    unit: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(FORCED_ISA_VARIABLE, unit)
    assert callable(make)
    check(make(tmp_path), [regions.noise(*shape)], config)


@units
def test_winograd_in_bfloat16(unit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORCED_ISA_VARIABLE, unit)
    monkeypatch.setattr(
        "bricolage.native.cpu.winograd_transform._TRANSFORM_COST", 0.0
    )  # or the unit is too fast for it
    model = regions.region(
        tmp_path,
        "y = Conv <pads = [1, 1, 1, 1]> (x, w)",
        "float[1, 32, 21, 18] x",
        "float[1, 40, 21, 18] y",
        w=regions.noise(40, 32, 3, 3, seed=1),
    )
    # The input is row-major: a product before makes it what Winograd's transformation reads.
    x = regions.noise(1, 32, 21, 18)
    with pytest.raises(Refused, match="gains from tiles"):
        regions.answer(Native(), model, x, config=KernelConfig("bf16-winograd2"), resources=Resources(threads=2))
    twice = regions.region(
        tmp_path,
        "t = Conv (x, a) \n y = Conv <pads = [1, 1, 1, 1]> (t, w)",
        "float[1, 32, 21, 18] x",
        "float[1, 40, 21, 18] y",
        a=regions.noise(32, 32, 1, 1, seed=2),
        w=regions.noise(40, 32, 3, 3, seed=1),
    )
    found = regions.answer(Native(), twice, x, config=KernelConfig("bf16-winograd2"), resources=Resources(threads=2))
    assert regions.error(found, regions.reference(twice, x)) < 2e-2


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_the_code_compiles_for_the_real_unit(parts: int, tmp_path: Path) -> None:
    if toolchain.compiler() is None or platform.machine() != "x86_64":
        pytest.skip("this compiler makes no code for such processors")
    model, _ = product(tmp_path, 70, 2100, 80)
    infer(model.model)
    arithmetic = Arithmetic(parts=parts)
    source = generate(
        plan(*lower_region(model.model), FUSION, "operands" if parts == 1 else "nothing"), cpu_target(AMX), arithmetic
    )
    assert "_tile_dpbf16ps" in source.text
    text = in_library(source, source.text)
    toolchain.compile_library(text, arithmetic.flags(AMX), tmp_path / "region.so", "native", shared_object())
    assert hasattr(ctypes.CDLL(str(tmp_path / "region.so")), "region_run")


def test_without_the_kernel_s_permission_the_next_best_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = frozenset().union(*(isa.needs for isa in ISAS))
    device = replace(host(), instructions=everything)
    monkeypatch.setattr(isas, "tiles_permitted", lambda: False)
    assert available_isas(device)[0].name == "avx512"
    monkeypatch.setattr(isas, "tiles_permitted", lambda: True)
    assert available_isas(device)[0].name == "amx"


def test_the_emulated_unit_is_never_chosen_unasked() -> None:
    everything = frozenset().union(*(isa.needs for isa in ISAS))
    assert EMULATED_AMX not in available_isas(replace(host(), instructions=everything))


def offered(precision: Precision) -> set[str]:
    return {config.name for config in Native().configs(precision, host())}


@pytest.mark.skipif(available_isas()[0].matrix_unit == "amx", reason="it has one")
def test_a_processor_without_the_unit_offers_no_split_products(monkeypatch: pytest.MonkeyPatch) -> None:
    for precision in ("highest", "high", "medium"):
        assert not {"bf16x3", "bf16x6"} & offered(precision)
    if find_isa("emulated-amx") is not None:
        monkeypatch.setenv(FORCED_ISA_VARIABLE, "emulated-amx")
        assert "bf16x6" in offered("highest")
        assert "bf16x3" in offered("high")
        assert "bf16" in offered("medium")
    monkeypatch.setenv(FORCED_ISA_VARIABLE, "amx")
    with pytest.raises(Refused, match="does not run here"):
        Native().configs("highest", host())
