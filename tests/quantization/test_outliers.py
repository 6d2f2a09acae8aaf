"""A few large channels multiplied apart: an equal graph, and a smaller error of a file that runtimes read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bricolage.api.quantize import quantize
from bricolage.quantization.activation_statistics import collect_statistics
from bricolage.quantization.outliers import CHANNELS, apart, outlier_channels
from bricolage.quantization.products import products
from bricolage.verify.reference import evaluate
from tests.quantization.networks import OUTLIERS, PRODUCTS, data, graph_of, model_of

RNG = np.random.default_rng(0)
SAMPLES = [{"x": RNG.standard_normal((9, 16)).astype(np.float32)} for _ in range(8)]


def test_an_equal_graph() -> None:
    graph = graph_of(*OUTLIERS)
    able, _ = products(graph)
    statistics = collect_statistics(graph.model, SAMPLES, {one.activation: -1 for one in able}, 0)
    channels = outlier_channels(able, statistics)
    assert [len(one) for one in channels.values()] == [CHANNELS]
    assert set(range(5, 160, 23)) <= set(*channels.values())
    found = apart(graph, able, channels)
    assert len(products(found)[0]) == len(able) + 2
    for sample in SAMPLES[:2]:
        for y, right in zip(
            evaluate(found.model, sample).values(), evaluate(graph.model, sample).values(), strict=True
        ):
            np.testing.assert_allclose(np.asarray(y), np.asarray(right), rtol=1e-9, atol=1e-9)


def test_alike_channels_stay_together() -> None:
    body, weights = OUTLIERS[1], {**OUTLIERS[2], "g": np.ones(160, np.float32)}
    graph = graph_of(OUTLIERS[0], body, weights)
    able, _ = products(graph)
    assert not outlier_channels(able, collect_statistics(graph.model, SAMPLES, {one.activation: -1 for one in able}, 0))


@pytest.mark.apart
def test_the_error_falls_and_runtimes_read_the_file(tmp_path: Path) -> None:
    import onnxruntime

    alone = {"max_error": None, "equalise": False}  # which would move these outliers into the factor in front
    plain, found = (quantize(model_of(*OUTLIERS), SAMPLES, outliers=on, **alone) for on in (False, True))
    assert plain.report.error is not None and found.report.error is not None
    assert found.report.error < 0.5 * plain.report.error
    assert {one.name for one in plain.report.operators} < {one.name for one in found.report.operators}
    found.save(tmp_path / "q.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "q.onnx"), providers=["CPUExecutionProvider"])
    (y,), (right,) = session.run(None, SAMPLES[0]), evaluate(model_of(*OUTLIERS), SAMPLES[0]).values()
    assert np.linalg.norm(y - np.asarray(right)) < 2 * found.report.error * np.linalg.norm(np.asarray(right))


def test_salient_weights_are_larger_in_the_file() -> None:
    """AWQ's factors go into the normalisation in front of two products."""
    weights = {**PRODUCTS[2], "g": np.where(np.arange(16) % 8 == 3, 20.0, 1.0).astype(np.float32)}
    model, samples = model_of(PRODUCTS[0], PRODUCTS[1], weights), data(3, 5, 16)
    found = {
        method: quantize(model, samples, weights="int4", block_size=16, block_method=method, max_error=None)
        for method in ("rtn", "awq")
    }
    errors = {name: one.report.error for name, one in found.items()}
    assert errors["awq"] is not None and errors["rtn"] is not None and errors["awq"] < errors["rtn"]
    kinds = [node.op_type for node in found["awq"].model.graph]
    assert kinds.count("MatMulNBits") == 3 and kinds.count("LayerNormalization") == 1
