"""The user's own file, kept as it comes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from bricolage.api.user_file import keep_file
from bricolage.plan.step import USER_FILE


def linear(size: int = 64) -> onnx.ModelProto:
    """x @ w, and a branch whose weights lie in a sub-graph."""
    weights = numpy_helper.from_array(np.ones((size, size), np.float32), "w")
    inner = numpy_helper.from_array(np.ones((size,), np.float32), "inner")

    def branch(name: str) -> onnx.GraphProto:
        own = onnx.TensorProto()
        own.CopyFrom(inner)
        own.name = f"{name}_inner"
        out = helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, None)
        return helper.make_graph([helper.make_node("Add", ["h", own.name], [f"{name}_out"])], name, [], [out], [own])

    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("If", ["c"], ["y"], then_branch=branch("then"), else_branch=branch("else")),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", size])
    c = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "linear", [x, c], [y], [weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "kept").mkdir()
    return tmp_path / "kept"


def test_a_file_is_kept_byte_for_byte(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(linear(), path)
    digest = keep_file(path, folder)
    assert digest and (folder / USER_FILE).read_bytes() == path.read_bytes()
    assert keep_file(str(path), folder) == digest, "the same file has the same hash"


def test_weights_outside_come_along_under_other_names(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "deep" / "model.onnx"
    path.parent.mkdir()
    onnx.save(linear(), path, save_as_external_data=True, location="some where.bin", size_threshold=0)
    assert keep_file(path, folder)
    names = {one.name for one in folder.iterdir()}
    assert names == {USER_FILE, "as-it-comes-0.data"}
    kept = onnx.load(folder / USER_FILE)
    assert kept.SerializeToString() == onnx.load(path).SerializeToString(), "those of sub-graphs too"


def test_an_object_is_what_it_would_be_as_a_file(folder: Path) -> None:
    assert keep_file(linear(), folder)
    assert onnx.load(folder / USER_FILE) == linear()


def test_what_is_no_file_is_not_kept(tmp_path: Path, folder: Path) -> None:
    assert keep_file(ir.from_proto(linear()), folder) == ""
    assert keep_file(tmp_path / "absent.onnx", folder) == ""
    assert not list(folder.iterdir())
