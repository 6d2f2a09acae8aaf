"""What the optimisations of a backend refuse: the model is served without them, under a name and with a reason that say so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import bricolage.onnx_backend
from bricolage.api.optimize import optimize
from bricolage.backends import registry
from bricolage.backends.capabilities import switched_off
from bricolage.backends.interface import Available
from bricolage.base.options import Options
from bricolage.frontends import to_model
from bricolage.runtime.load import load

pytestmark = pytest.mark.skipif(
    not isinstance(registry.get("onnxruntime").status(), Available), reason="ONNX Runtime is not installed"
)
OPTIONS = Options(effort="instant", backends=("onnxruntime",), threads=1)


def padded_pool(pool: str = "AveragePool") -> onnx.ModelProto:
    """A Pad as wide as the window of the pool behind it, into which ONNX Runtime 1.31.1 merges it before it refuses the pool."""
    nodes = [
        helper.make_node("Pad", ["x", "p"], ["a"]),
        helper.make_node(pool, ["a"], ["y"], kernel_shape=[3, 3]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, "n", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.int64([0, 0, 3, 3, 0, 0, 3, 3]), "p")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def averaged(x: np.ndarray) -> np.ndarray:
    padded = np.pad(x, ((0, 0), (0, 0), (3, 3), (3, 3)))
    return np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3)).mean(axis=(-2, -1))


def test_the_plan_names_the_unoptimised_session_and_why_at_every_size(tmp_path: Path) -> None:
    x = {n: np.random.default_rng(n).normal(size=(1, 1, n, 3)).astype(np.float32) for n in (3, 5)}
    optimize(padded_pool(), OPTIONS, inputs={"x": x[3]}).save(tmp_path / "model.bric")
    fast = load(tmp_path / "model.bric")
    (bucket,) = fast.plan.buckets
    contestants = {one.name: one for one in bucket.race.contestants}
    if contestants["onnxruntime f32"].accepted:
        pytest.skip("this version merges the pad rightly")
    assert bucket.race.chosen == "onnxruntime f32-unoptimised"
    assert "Pad should be smaller than kernel" in contestants["onnxruntime f32"].reason
    assert "onnxruntime f32 was refused" in contestants[bucket.race.chosen].reason
    for given in x.values():
        np.testing.assert_allclose(fast.run({"x": given})["y"], averaged(given), rtol=1e-5, atol=1e-6)


def test_without_measuring_the_placement_names_it_too() -> None:
    made = bricolage.onnx_backend.prepare(padded_pool(), options=OPTIONS)
    x = np.random.default_rng(0).normal(size=(1, 1, 4, 3)).astype(np.float32)
    np.testing.assert_allclose(made.run({"x": x})[0], averaged(x), rtol=1e-5, atol=1e-6)
    (part,) = made.placement({"n": 4})
    assert str(part.implementation) in ("onnxruntime f32-unoptimised", "onnxruntime f32")


def test_the_plan_says_which_optimisations_are_left_out() -> None:
    x = np.random.default_rng(0).normal(size=(1, 1, 4, 3)).astype(np.float32)
    (bucket,) = optimize(padded_pool("MaxPool"), OPTIONS, inputs={"x": x}).plan.buckets
    (own,) = (one for one in bucket.race.contestants if one.name == "onnxruntime f32")
    without = switched_off(registry.get("onnxruntime"), to_model(padded_pool("MaxPool")))
    assert own.accepted and all(name in own.reason for name in without) == bool(without)
