"""Code for vectors of 16 numbers and for a matrix unit, with every vector split in two: exact on whole numbers."""

from __future__ import annotations

import numpy as np
import pytest

from bricolage.backends.interface import Resources
from bricolage.backends.native.engine import FORCED_ISA_VARIABLE, Native
from bricolage.conformance.regions import answers
from bricolage.native.cpu.isa import available_isas, find_isa
from bricolage.work.implementation import KernelConfig
from tests.graph.models import parse


@pytest.mark.parametrize(("isa", "config"), [("split-avx512", "f32"), ("split-amx", "bf16"), ("split-amx", "bf16x6")])
def test_products_of_whole_numbers(isa: str, config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if find_isa(isa) is None:
        pytest.skip("it does not run here")
    monkeypatch.setenv(FORCED_ISA_VARIABLE, isa)
    draw = np.random.default_rng(0)
    x, w = (draw.integers(-9, 10, shape).astype(np.float32) for shape in ((5, 64), (64, 33)))
    text = '<ir_version: 10, opset_import: ["" : 18]> g (float[5,64] x, float[64,33] w) => (float[5,33] y) { y = MatMul (x, w) }'
    for found in answers(Native(), parse(text), {"x": x, "w": w}, KernelConfig(config), Resources(threads=2)):
        assert np.array_equal(found["y"], x @ w)


def test_they_are_never_chosen_unasked() -> None:
    assert not any(isa.name.startswith("split") for isa in available_isas())
