"""OpenVINO."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bricolage.backends import registry
from bricolage.device.host import host
from bricolage.errors import Refused
from bricolage.graph.graph import Graph
from bricolage.work.implementation import KernelConfig, named
from tests.backends import regions

BACKEND = registry.get("openvino")


def test_bfloat16_is_offered_at_medium_precision_where_the_device_has_it() -> None:
    able, bare = (replace(host(), instructions=frozenset(flags)) for flags in (["avx512_bf16"], ["avx2"]))
    f32, bf16 = named("f32", "bf16")
    offered = [tuple(BACKEND.configs(precision, able)) for precision in ("highest", "high", "medium")]
    assert offered == [(f32,), (f32,), (f32, bf16)]
    assert tuple(BACKEND.configs("medium", bare)) == (f32,)


def test_an_output_that_is_an_input_is_written(tmp_path: Path) -> None:
    """OpenVINO finds that Dropout computes nothing, and then leaves the output tensor as it was."""
    model = regions.region(tmp_path, "y = Dropout (x)")
    x = np.float32([1, -2, 3, 4])
    assert regions.answer(BACKEND, model, x)[0].tolist() == x.tolist()
    assert BACKEND.compile(model, regions.F32, regions.ONE_THREAD).run([x])[0].tolist() == x.tolist()  # type: ignore[attr-defined]


def test_an_output_that_is_an_input_among_others_is_refused(tmp_path: Path) -> None:
    model = regions.region(tmp_path, "y = Dropout (x) \n z = Relu (x)", outputs="float[4] y, float[4] z")
    with pytest.raises(Refused, match="one of several outputs is an input unchanged"):
        BACKEND.compile(model, regions.F32, regions.ONE_THREAD)


def test_nothing_is_reported_over_the_network() -> None:
    script = (
        "import sys; from bricolage.backends.openvino import _core; _core();"
        "import openvino.tools.ovc.telemetry_utils as t; print(t.tm.__name__, sys.modules['openvino_telemetry'])"
    )
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, encoding="utf-8")
    assert shown.stdout.split() == ["openvino.tools.ovc.telemetry_stub", "None"]


def test_products_with_blocks_multiply_bytes_at_low_alone(tmp_path: Path) -> None:
    (config,) = named("int8-blocks")
    sums = replace(host(), instructions=host().instructions | {"avx512_vnni"})
    assert config in BACKEND.configs("low", sums) and config not in BACKEND.configs("medium", sums)
    assert config not in BACKEND.configs("low", sums.kept_to("avx2")), "nothing changes there"
    draw = np.random.default_rng(0)
    weights, scales = draw.integers(-127, 128, (256, 64)).astype(np.int8), draw.uniform(0.01, 0.02, (8, 64))
    text = "v=DequantizeLinear<axis=0,block_size=32>(w,s) y=MatMul(x,v)"
    model = regions.region(
        tmp_path, text, "float[3,256] x", "float[3,64] y", opset=21, w=weights, s=scales.astype(np.float32)
    )
    assert BACKEND.suits(config, Graph(model.model).everything)
    x = regions.noise(3, 256)
    right = regions.reference(model, x)
    assert regions.error(regions.answer(BACKEND, model, x), right) < 1e-6
    coarse = regions.error(regions.answer(BACKEND, model, x, config=config), right)
    assert (coarse > 1e-4) == (config in BACKEND.configs("low", host())) and coarse < 0.1, "coarser, and not wrong"
    other = regions.region(tmp_path, "y = Relu (x)")
    assert not BACKEND.suits(config, Graph(other.model).everything)


def test_a_precision_that_the_processor_lacks_is_refused_and_not_replaced(tmp_path: Path) -> None:
    """OpenVINO takes the hint and computes in float32 without a word."""
    from openvino import Core

    model = regions.region(tmp_path, "y=MatMul(x,w)", "float[8,64] x", "float[8,32] y", w=regions.noise(64, 32))
    able = "BF16" in Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    x, config = regions.noise(8, 64), KernelConfig("bf16")
    if able:
        assert (
            1e-5 < regions.error(regions.answer(BACKEND, model, x, config=config), regions.reference(model, x)) < 0.05
        )
    else:
        with pytest.raises(Refused, match="it computes in f32 here, although bf16 was asked for"):
            BACKEND.compile(model, config, regions.ONE_THREAD)
