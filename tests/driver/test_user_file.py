"""The user's own file, kept as it comes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from bricolage.driver.user_file import keep_file
from bricolage.errors import ExternalDataOutside, MissingExternalData
from bricolage.plan.program_step import USER_FILE


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


def test_weights_that_lead_outside_or_are_missing_are_told(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "deep" / "model.onnx"
    path.parent.mkdir()
    onnx.save(linear(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    (path.parent / "weights.bin").rename(tmp_path / "weights.bin")
    with pytest.raises(MissingExternalData, match=r"weights\.bin"):
        keep_file(path, folder)
    (path.parent / "weights.bin").symlink_to(tmp_path / "weights.bin")
    with pytest.raises(ExternalDataOutside):
        keep_file(path, folder)
    assert not list(folder.iterdir()), "nothing of it is kept"


def test_a_path_that_links_to_a_folder_of_data(tmp_path: Path, folder: Path) -> None:
    """As download caches keep models: links in one folder, files in another."""
    blobs, links = tmp_path / "blobs", tmp_path / "links"
    blobs.mkdir()
    links.mkdir()
    onnx.save(linear(), blobs / "model.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    for name in ("model.onnx", "weights.bin"):
        (links / name).symlink_to(blobs / name)
    assert keep_file(links / "model.onnx", folder) == keep_file(blobs / "model.onnx", folder)


def test_a_constant_input_is_a_default_in_the_file(folder: Path) -> None:
    plain = keep_file(linear(), folder)
    flag = numpy_helper.from_array(np.array(True), "c")
    assert keep_file(linear(), folder, {"c": flag}) != plain
    kept = onnx.load(folder / USER_FILE)
    assert {one.name for one in kept.graph.initializer} == {"w", "c"}
    (y,) = ort.InferenceSession(kept.SerializeToString()).run(None, {"x": np.ones((1, 64), np.float32)})
    np.testing.assert_array_equal(y, np.full((1, 64), 65, np.float32))
