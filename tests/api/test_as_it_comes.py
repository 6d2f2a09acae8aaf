"""The user's file as it comes: a contestant of every decision, and what ships where it is handed through."""

from __future__ import annotations

import dataclasses
import zipfile
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import bricolage
from bricolage.base.options import Options
from bricolage.device.buffers import allocate_aligned
from bricolage.driver.sub_graphs import divide
from bricolage.errors import FileUnlikeModel
from bricolage.graph.region_model import FileModel
from bricolage.plan import artifact
from bricolage.plan.plan import Plan
from bricolage.plan.program_step import USER_FILE
from bricolage.plan.shipped_program import whole_region
from bricolage.report import words
from bricolage.runtime.executable import Executable
from bricolage.work.implementation import AS_IT_COMES, Implementation, KernelConfig
from tests.plan.bucket_facts import alter_bucket

X = np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32)
FILE = Implementation("onnxruntime", KernelConfig(AS_IT_COMES))


def perceptron(*, odd_output: bool = False) -> onnx.ModelProto:
    """relu(x @ w) with an open batch; with `odd_output`, x is an output too."""
    weights = numpy_helper.from_array(np.random.default_rng(0).normal(size=(32, 16)).astype(np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 32])
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 16]), *([x] if odd_output else [])]
    graph = helper.make_graph(nodes, "perceptron", [x], outputs, [weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("model") / "perceptron.onnx"
    onnx.save(perceptron(odd_output=True), found)
    return found


@pytest.fixture(scope="module")
def fast(path: Path) -> Executable:
    options = Options(effort="instant", backends=("onnxruntime", "openvino"), shapes={"n": (2,)})
    return bricolage.optimize(path, options)


def handed_through(fast: Executable, file: Implementation = FILE) -> Plan:
    """The same decision, had the file won."""
    bucket = fast.plan.buckets[0]
    regions = (whole_region(file, bucket.program.operators),)
    shipped = alter_bucket(bucket, regions=regions, chosen=str(file), best_baseline=str(file))
    return dataclasses.replace(fast.plan, buckets=(shipped,))


def test_every_tool_that_reads_files_has_a_row_of_its_own(fast: Executable) -> None:
    bucket = fast.plan.buckets[0]
    files = [one for one in bucket.race.contestants if one.as_it_comes]
    assert {one.implementation.backend for one in files if one.implementation} == {"onnxruntime", "openvino"}
    (own,) = (one for one in files if one.name == str(FILE))
    assert own.accepted and own.other_tool and own.kind == "baseline" and own.median_ms
    assert own.error is not None and own.error < 1e-6, "compared with float64 as all are"
    assert [one.as_it_comes for one in words.rank_contestants(bucket)][:3] == [True, True, False], (
        "they are the first rows"
    )


def test_a_plan_that_hands_the_file_through(fast: Executable, path: Path, tmp_path: Path) -> None:
    written = Executable(handed_through(fast), fast._source.directory).save(tmp_path / "a.bricolage")
    with zipfile.ZipFile(written) as archive:
        assert archive.read(USER_FILE) == path.read_bytes()
    loaded = bricolage.load(written)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for x in (X, np.vstack([X, X, X]), X[:0]):
        for given, wanted in zip(loaded(x), session.run(None, {"x": x}), strict=True):
            np.testing.assert_array_equal(given, wanted)
    first = loaded(X)
    loaded(X + 1)
    np.testing.assert_array_equal(first[1], X, "an answer is the caller's own")


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino"])
def test_a_file_of_open_sizes_is_bound_to_the_callers_buffers(tmp_path: Path, backend: str) -> None:
    onnx.save(perceptron(), tmp_path / "a.onnx")
    options = Options(effort="instant", backends=("onnxruntime", "openvino"), shapes={"n": (2,)})
    fast = bricolage.optimize(tmp_path / "a.onnx", options)
    plan = handed_through(fast, dataclasses.replace(FILE, backend=backend))
    loaded = bricolage.load(Executable(plan, fast._source.directory).save(tmp_path / "a.bricolage"))
    x = allocate_aligned(X.shape, X.dtype)
    for values in (X, X + 1):
        x[...] = values
        bound = loaded.bind({"x": x})
        bound()
        for name, wanted in loaded.run({"x": values}).items():
            np.testing.assert_array_equal(bound.outputs[name], wanted)


def test_a_plan_that_hands_the_file_through_is_cut_without_it(tmp_path: Path) -> None:
    """Regions of a part of the graph run graphs of ours in the tool that ran the file."""
    text = """<ir_version: 8, opset_import: ["": 18]>
        branches (float[2,32] x, float[32,8] v, float[32,8] w) => (float[2,8] y) {
            a = MatMul(x, w) b = Relu(a) c = MatMul(x, v) d = Tanh(c) y = Add(b, d) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "a.onnx")
    fast = bricolage.optimize(tmp_path / "a.onnx", Options(effort="instant", backends=("onnxruntime",), threads=1))
    written = Executable(handed_through(fast), fast._source.directory).save(tmp_path / "a.bricolage")
    divided = divide(written)
    implementations = [region.implementation for region in divided.plan.buckets[0].program.regions]
    assert len(implementations) == 3
    assert {(part.backend, part.config.as_it_comes) for part in implementations} == {("onnxruntime", False)}
    assert len(divided.curves(1)) == 3


def test_the_file_is_only_in_artifacts_that_run_it(fast: Executable, tmp_path: Path) -> None:
    written = fast.save(tmp_path / "a.bricolage")
    with zipfile.ZipFile(written) as archive:
        assert (USER_FILE in archive.namelist()) == any(
            one.implementation.config.as_it_comes for one in fast.plan.buckets[0].program.regions
        )


def test_an_artifact_whose_file_has_another_interface_is_refused(fast: Executable, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for one in fast._source.directory.iterdir():
        if one.is_file():
            (folder / one.name).write_bytes(one.read_bytes())
    onnx.save(perceptron(), folder / USER_FILE)
    with pytest.raises(bricolage.BricolageError, match="1 outputs, not 2"):
        artifact.save(handed_through(fast), folder, tmp_path / "a.bricolage")
    assert not (tmp_path / "a.bricolage").exists()
    (folder / USER_FILE).unlink()
    with pytest.raises(OSError, match=USER_FILE):
        artifact.save(handed_through(fast), folder, tmp_path / "a.bricolage")


def test_a_tool_that_refuses_the_file_is_told_in_its_row() -> None:
    """An operator of sequences, which OpenVINO does not read."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "x", "x"], ["s"]),
        helper.make_node("ConcatFromSequence", ["s"], ["c"], axis=0, new_axis=1),
        helper.make_node("ReduceSum", ["c"], ["h"], keepdims=0),
        helper.make_node("SequenceMap", ["s"], ["t"], body=_negated()),
        helper.make_node("ConcatFromSequence", ["t"], ["d"], axis=0, new_axis=1),
        helper.make_node("ReduceMax", ["d"], ["y"], axes=[1], keepdims=0),
    ]
    graph = helper.make_graph(nodes, "sequences", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = Options(effort="instant", backends=("onnxruntime", "openvino"))
    bucket = bricolage.optimize(model, options).plan.buckets[0]
    rows = {
        one.implementation.backend: one for one in bucket.race.contestants if one.as_it_comes and one.implementation
    }
    assert rows["onnxruntime"].accepted
    assert not rows["openvino"].accepted and rows["openvino"].reason.startswith(("refused", "failed"))


def _negated() -> onnx.GraphProto:
    a = helper.make_tensor_value_info("a", TensorProto.FLOAT, [4])
    b = helper.make_tensor_value_info("b", TensorProto.FLOAT, [4])
    return helper.make_graph([helper.make_node("Neg", ["a"], ["b"])], "body", [a], [b])


def test_a_file_that_is_unlike_the_model_is_refused_by_what_differs(path: Path) -> None:
    with pytest.raises(FileUnlikeModel, match="no input 'z'"):
        _ = FileModel(path, (("z", None),), (("y", None), ("x", None))).inputs
    with pytest.raises(FileUnlikeModel, match="2 outputs, and 1 are expected"):
        _ = FileModel(path, (("x", None),), (("y", None),)).results
