"""Attention as one kernel: when it is, and that it is right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bricolage.backends.interface import RegionModel, Resources
from bricolage.backends.native.engine import Native
from bricolage.graph.inference import infer
from bricolage.native.fuse.fusion import plan
from bricolage.native.ir.from_onnx import lower_region
from tests.backends import regions
from tests.native.targets import FUSION
from tests.native.ways import BOUNDS, ISAS, configs

BODY = """
    t = Transpose <perm = [0, 1, 3, 2]> (k)
    a = MatMul (q, t)
    b = Mul (a, c)
    s = Add (b, m)
    p = Softmax <axis = -1> (s)
    o = MatMul (p, v)
"""


def attention(
    folder: Path, batch: int, preamble: int, rows: int, columns: int, depth: int, *, body: str = BODY, more: str = ""
) -> RegionModel:
    inputs = (
        f"float[{batch}, {preamble}, {rows}, {depth}] q, float[{batch}, {preamble}, {columns}, {depth}] k,"
        f" float[{batch}, {preamble}, {columns}, {depth}] v, float[{batch}, 1, 1, {columns}] m"
    )
    outputs = f"float[{batch}, {rows}, {preamble}, {depth}] y{more}"
    body += "y = Transpose <perm = [0, 2, 1, 3]> (o)"
    return regions.region(folder, body, inputs, outputs, c=np.array(0.2, np.float32))


def inputs_of(model: RegionModel) -> list[np.ndarray]:
    return [regions.noise(*info.sizes, seed=seed) for seed, info in enumerate(model.inputs)]


def kinds(model: RegionModel) -> list[str]:
    infer(model.model)
    return [kernel.kind for kernel in plan(*lower_region(model.model), FUSION).kernels]


@pytest.mark.parametrize("isa", ISAS, ids=lambda isa: isa.name, indirect=True)
@pytest.mark.usefixtures("isa")
@given(data=st.data())
@settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_it_is_one_kernel_and_right(data: st.DataObject, tmp_path: Path) -> None:
    batch, preamble = data.draw(st.integers(1, 2)), data.draw(st.integers(1, 3))
    rows, columns, depth = (data.draw(st.integers(1, 70)) for _ in range(3))
    model = attention(tmp_path, batch, preamble, rows, columns, depth)
    assert kinds(model) == ["attention"]
    given = inputs_of(model)
    expected = regions.reference(model, *given)
    for config in configs():
        threads = data.draw(st.integers(1, 3))
        found = regions.answer(Native(), model, *given, config=config, resources=Resources(threads=threads))
        assert regions.error(found, expected) < BOUNDS[config], config


def test_what_is_needed_elsewhere_is_stored(tmp_path: Path) -> None:
    shape = (1, 2, 5, 7, 4)
    for name in ("s", "p"):
        folder = tmp_path / name
        folder.mkdir()
        model = attention(folder, *shape, more=f", float[1, 2, 5, 7] {name}")
        assert "attention" not in kinds(model)
        given = inputs_of(model)
        found = regions.answer(Native(), model, *given, resources=Resources(threads=2))
        assert regions.error(found, regions.reference(model, *given)) < 2e-6


def test_an_epilogue_of_the_softmax_keeps_it_apart(tmp_path: Path) -> None:
    body = BODY.replace("o = MatMul (p, v)", "r = Mul (p, c) o = MatMul (r, v)")
    model = attention(tmp_path, 1, 2, 5, 7, 4, body=body)
    assert "attention" not in kinds(model)
    given = inputs_of(model)
    found = regions.answer(Native(), model, *given, resources=Resources(threads=2))
    assert regions.error(found, regions.reference(model, *given)) < 2e-6


def test_one_that_feeds_the_scores_of_another(tmp_path: Path) -> None:
    """A product belongs to one attention: what is second in the first of them is not the scores of the next."""
    body = "a = MatMul (x, w) b = Softmax (a) c = MatMul (b, w) d = Softmax (c) y = MatMul (d, w)"
    weights = regions.noise(16, 16, seed=1)
    model = regions.region(tmp_path, body, "float[16, 16] x", "float[16, 16] y", w=weights)
    assert kinds(model).count("attention") == 1
    given = regions.noise(16, 16, seed=2)
    found = regions.answer(Native(), model, given, resources=Resources(threads=2))
    assert regions.error(found, regions.reference(model, given)) < 2e-6
