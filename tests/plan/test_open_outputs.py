"""Outputs whose sizes inference does not know, though the model states them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import bricolage
from bricolage.base.options import Options


@pytest.mark.usefixtures("light_reference")
@pytest.mark.parametrize("rows", [3, 5])
def test_a_stated_size_that_no_inference_finds_is_loaded(
    rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRICOLAGE_CACHE", str(tmp_path / "cache"))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in "xy")
    nodes = [
        helper.make_node("Gather", ["x", "first"], ["flags"], axis=1),
        helper.make_node("NonZero", ["flags"], ["where"]),
        helper.make_node("Squeeze", ["where", "axes"], ["rows"]),
        helper.make_node("Gather", ["x", "rows"], ["y"]),
    ]
    constants = [
        helper.make_tensor("first", TensorProto.INT64, [], [0]),
        helper.make_tensor("axes", TensorProto.INT64, [1], [0]),
    ]
    model = helper.make_model(
        helper.make_graph(nodes, "kept", [x], [y], constants), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    onnx.save(model, tmp_path / "kept.onnx")
    options = Options(backends=("onnxruntime",), threads=1, budget_s=1.0)
    given = {"x": np.ones((3, 4), np.float32)}
    artifact = bricolage.optimize(tmp_path / "kept.onnx", options, inputs=given).save(tmp_path / "kept.bricolage")
    shown = np.arange(1, 4 * rows + 1, dtype=np.float32).reshape(rows, 4)
    np.testing.assert_array_equal(bricolage.load(artifact).run({"x": shown})["y"], shown)
