"""Models of kinds that capability tables had no word for, end to end: optimised, written, loaded from the artifact and run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from bricolage.api.optimize import optimize
from bricolage.base.options import Options
from bricolage.driver.context import open_pool
from bricolage.measure.pool import Pool
from bricolage.runtime.load import load
from bricolage.testing.kinds import KINDS

OPTIONS = Options(effort="instant", backends=("onnxruntime",), threads=1)


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with open_pool(OPTIONS) as workers:
        yield workers


def assert_same(found: Any, wanted: Any) -> None:
    """Sequences and maps by their members."""
    if isinstance(wanted, list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other)
        return
    if isinstance(wanted, dict):
        assert found == pytest.approx(wanted, rel=1e-4)
        return
    value = np.asarray(found)
    assert value.shape == wanted.shape
    if wanted.dtype.kind == "f":
        assert value.dtype == wanted.dtype
        rtol = 2e-2 if wanted.dtype == np.float16 else 1e-4
        np.testing.assert_allclose(value.astype(np.float64), wanted.astype(np.float64), rtol=rtol, atol=rtol)
    else:
        assert value.tolist() == wanted.tolist()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", KINDS)
def test_what_ships_answers_as_onnx_runtime_does_without_optimisations(
    tmp_path: Path, pool: Pool, kind: str, seed: int
) -> None:
    model, inputs = KINDS[kind](np.random.default_rng(seed))
    optimize(model, OPTIONS, inputs=inputs, pool=pool).save(tmp_path / "model.bric")
    found = load(tmp_path / "model.bric").run(inputs)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    for output, wanted in zip(model.graph.output, session.run(None, inputs), strict=True):
        assert_same(found[output.name], wanted)
