"""True equations are proved over random shapes, and a false neighbour of each is refuted by real numbers."""

from __future__ import annotations

import random
from collections.abc import Collection

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.rulemaking.proof import Disproved, Proved, prove
from tests.rulemaking.proof.axioms import AXIOMS
from tests.rulemaking.proof.models import model

ort = pytest.importorskip("onnxruntime")

seeds = st.integers(0, 2**32 - 1)


def float32(made: ir.Model, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    # Fusing a pad of the kernel into the convolution makes this runtime lose a value.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(ir.to_proto(made).SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


def drawn(made: ir.Model, seed: int, nonnegative: Collection[str]) -> dict[str, np.ndarray]:
    """Numbers away from zero, where quotients are large; truth values."""
    generator = np.random.default_rng(seed)
    inputs = {}
    for value in made.graph.inputs:
        values = generator.uniform(0.5, 1.5, [int(d) for d in value.shape])
        if value.dtype == ir.DataType.BOOL:
            inputs[value.name] = values > 1
            continue
        sign = 1 if value.name in nonnegative else generator.choice([-1, 1], values.shape)
        inputs[value.name] = np.asarray(values * sign, np.float32)
    return inputs


@pytest.mark.parametrize("name", AXIOMS)
@settings(max_examples=2, deadline=None)
@given(seed=seeds)
def test_a_true_equation_is_proved(name: str, seed: int) -> None:
    axiom = AXIOMS[name](random.Random(seed))
    verdict = prove(model(axiom.shapes, axiom.left), model(axiom.shapes, axiom.right), seed=seed % 97, **axiom.options)
    assert isinstance(verdict, Proved), verdict
    assert verdict.error_bound < 1e-9
    left, right = model(axiom.shapes, axiom.left), model(axiom.shapes, axiom.right)
    inputs = drawn(left, seed, axiom.options.get("nonnegative", ()))
    for a, b in zip(float32(left, inputs), float32(right, inputs), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(
            a.astype(float), b.astype(float), rtol=1e-3, atol=1e-4 * np.abs(a.astype(float)).max()
        )


@pytest.mark.parametrize("name", AXIOMS)
@settings(max_examples=1, deadline=None)
@given(seed=seeds)
def test_a_false_neighbour_is_refuted_by_real_numbers(name: str, seed: int) -> None:
    axiom = AXIOMS[name](random.Random(seed))
    left, wrong = model(axiom.shapes, axiom.left), model(axiom.shapes, axiom.wrong)
    verdict = prove(left, wrong, **axiom.options)
    assert isinstance(verdict, Disproved), verdict
    answers = [float32(made, dict(verdict.inputs)) for made in (left, wrong)]
    position = [value.name for value in left.graph.outputs].index(verdict.output)
    a, b = (answer[position] for answer in answers)
    if not verdict.index:
        assert a.shape != b.shape
        return
    assert a[verdict.index] == pytest.approx(verdict.left, rel=1e-3, abs=1e-4)
    assert b[verdict.index] == pytest.approx(verdict.right, rel=1e-3, abs=1e-4)
    assert verdict.left != verdict.right
