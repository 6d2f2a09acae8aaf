"""Calls end with an answer or with an error of ours, on every backend: for indices that lie outside, and after a failure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

from bricolage.backends import registry
from bricolage.backends.interface import Available, Kernel, Missing, RegionModel, Resources
from bricolage.device.buffers import in_buffer
from bricolage.errors import IndexBeyond, MissingBackend, Refused, RunFailed
from bricolage.plan.program_step import Step
from bricolage.runtime.compile import compile_step
from bricolage.work.implementation import Implementation

RNG = np.random.default_rng(0)
QUICK = ("onnxruntime", "openvino", "torch", "reference")
COMPILERS = ("native", "xla", "tvm", "iree")
"""Compiling takes them seconds: what stands in front of a call is the same for all."""


@pytest.fixture(autouse=True)
def installed(request: pytest.FixtureRequest) -> None:
    """Backends that are missing here are left out."""
    backend = request.node.callspec.params.get("backend") if hasattr(request.node, "callspec") else None
    if backend is not None and backend != "reference":
        status = registry.get(backend).status()
        if isinstance(status, Missing):
            pytest.skip(status.reason)


def drawn(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@dataclass(frozen=True)
class Indexed:
    """An operator that reads indices `i`, and the least and the largest that it may take."""

    op_type: str
    given: Mapping[str, Any]
    """Constants by name in order; `c` is an input as well; of `i` the shape and type."""
    least: int
    most: int
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def model(self) -> onnx.ModelProto:
        inputs = [h.make_tensor_value_info("c", T.FLOAT, self.given["c"].shape)]
        shape, kind = self.given["i"]
        inputs.append(h.make_tensor_value_info("i", h.np_dtype_to_tensor_dtype(np.dtype(kind)), shape))
        constants = [nh.from_array(a, n) for n, a in self.given.items() if n not in ("c", "i", "")]
        node = h.make_node(
            self.op_type, list(self.given), ["y", "j"][: 1 + (self.op_type == "TopK")], name="reads", **self.attributes
        )
        graph = h.make_graph([node], "g", inputs, [h.make_tensor_value_info("y", T.FLOAT, None)], constants)
        opset = h.make_opsetid("", 24 if self.op_type == "TensorScatter" else 18)
        return onnx.shape_inference.infer_shapes(h.make_model(graph, opset_imports=[opset], ir_version=10))

    def inputs(self, index: int) -> dict[str, np.ndarray]:
        shape, kind = self.given["i"]
        i = np.full(shape, self.most, kind)
        i.flat[-1] = index
        return {"c": self.given["c"], "i": i}


INDEXED = {
    "Gather": Indexed("Gather", {"c": drawn(5, 6), "i": ((4,), "i8")}, -5, 4),
    "Gather of int32": Indexed("Gather", {"c": drawn(5, 6), "i": ((4,), "i4")}, -6, 5, {"axis": 1}),
    "GatherElements": Indexed("GatherElements", {"c": drawn(5, 6), "i": ((5, 2), "i8")}, -6, 5, {"axis": 1}),
    "GatherND": Indexed("GatherND", {"c": drawn(5, 6), "i": ((3, 1), "i8")}, -5, 4),
    "ScatterElements": Indexed("ScatterElements", {"c": drawn(5, 6), "i": ((1, 6), "i8"), "u": drawn(1, 6)}, -5, 4),
    "ScatterND": Indexed("ScatterND", {"c": drawn(5, 6), "i": ((1, 1), "i8"), "u": drawn(1, 6)}, -5, 4),
    "ReverseSequence": Indexed(
        "ReverseSequence", {"c": drawn(5, 6), "i": ((6,), "i8")}, 0, 5, {"batch_axis": 1, "time_axis": 0}
    ),
    "LSTM": Indexed(
        "LSTM",
        {"c": drawn(5, 2, 4), "w": drawn(1, 12, 4), "r": drawn(1, 12, 3), "": None, "i": ((2,), "i4")},
        0,
        5,
        {"hidden_size": 3},
    ),
    "MaxUnpool": Indexed(
        "MaxUnpool",
        {"c": drawn(1, 1, 2, 2), "i": ((1, 1, 2, 2), "i8")},
        0,
        15,
        {"kernel_shape": [2, 2], "strides": [2, 2]},
    ),
    "TensorScatter": Indexed(
        "TensorScatter", {"c": drawn(2, 6, 3), "u": drawn(2, 2, 3), "i": ((2,), "i8")}, 0, 4, {"axis": 1}
    ),
    "TopK": Indexed("TopK", {"c": drawn(5, 6), "i": ((1,), "i8")}, 0, 6),
}


def compiled(model: onnx.ModelProto, backend: str, folder: Path) -> tuple[Kernel, RegionModel]:
    path = folder / "region.onnx"
    onnx.save(model, path)
    try:
        return compile_step(Step(Implementation(backend), path), Resources(1), caching=False)
    except (Refused, MissingBackend) as error:
        pytest.skip(error.sentence)


@pytest.mark.apart
@pytest.mark.parametrize(
    ("name", "backend"),
    [*((name, one) for name in INDEXED for one in QUICK), *(("GatherND", one) for one in COMPILERS)],
)
def test_an_index_outside_is_an_error(name: str, backend: str, tmp_path: Path) -> None:
    case = INDEXED[name]
    kernel, region = compiled(case.model(), backend, tmp_path)
    infos = region.inputs
    for index in (case.most, case.least):
        kernel.run([case.inputs(index)[info.name] for info in infos])
    static = all(info.static for info in (*region.inputs, *region.outputs))
    for index in (case.most + 1, case.least - 1, 10**6):
        given = case.inputs(index)
        with pytest.raises(IndexBeyond, match=f"{index} lies outside"):
            kernel.run([given[info.name] for info in infos])
        if static:
            bound = {name: in_buffer(array.copy()) for name, array in given.items()}
            outputs = [in_buffer(np.zeros(info.sizes, info.numpy)) for info in region.outputs]
            call = kernel.bind([bound[info.name] for info in infos], outputs)
            with pytest.raises(IndexBeyond):
                call()
            bound["i"][...] = case.inputs(case.most)["i"]
            call()
            wanted = kernel.run([bound[info.name] for info in infos])
            np.testing.assert_array_equal(outputs[0], wanted[0])


@pytest.mark.apart
@pytest.mark.parametrize("backend", [*QUICK, "native"])
def test_an_index_that_no_input_shows_is_left_to_who_checks_it(backend: str, tmp_path: Path) -> None:
    nodes = [h.make_node("Cast", ["x"], ["j"], to=T.INT64), h.make_node("Gather", ["t", "e"], ["y"])]
    nodes.insert(0, h.make_node("Exp", ["z"], ["x"]))
    nodes[2] = h.make_node("Gather", ["t", "j"], ["y"])
    graph = h.make_graph(
        nodes,
        "g",
        [h.make_tensor_value_info("z", T.FLOAT, [3])],
        [h.make_tensor_value_info("y", T.FLOAT, [3, 2])],
        [nh.from_array(drawn(5, 2), "t")],
    )
    model = onnx.shape_inference.infer_shapes(h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=8))
    if not isinstance(registry.get(backend).status(), Available):
        pytest.skip(f"{backend} is not installed")
    path = tmp_path / "region.onnx"
    onnx.save(model, path)
    step = Step(Implementation(backend), path)
    if registry.get(backend).checks_indices == "none":
        with pytest.raises(Refused, match="does not check what operator"):
            compile_step(step, Resources(1), caching=False)
        return
    kernel, _ = compile_step(step, Resources(1), caching=False)
    kernel.run([np.zeros(3, np.float32)])
    with pytest.raises(Exception, match="") as caught:
        kernel.run([np.full(3, 3.0, np.float32)])
    assert type(caught.value).__module__.startswith("bricolage")


def rows() -> onnx.ModelProto:
    """Keeps the rows that are large, which may be none, and pools them: OpenVINO fails at none."""
    constants = {"one": np.array([1]), "limit": np.array(2, np.float32), "sh": np.array([-1, 2, 4])}
    nodes = [
        h.make_node("ReduceMax", ["x", "one"], ["m"], keepdims=0),
        h.make_node("Greater", ["m", "limit"], ["p"]),
        h.make_node("Compress", ["x", "p"], ["r"], axis=0),
        h.make_node("Reshape", ["r", "sh"], ["u"]),
        h.make_node("MaxPool", ["u"], ["y"], kernel_shape=[2]),
    ]
    graph = h.make_graph(
        nodes,
        "g",
        [h.make_tensor_value_info("x", T.FLOAT, [5, 8])],
        [h.make_tensor_value_info("y", T.FLOAT, ["k", 2, "l"])],
        [nh.from_array(a, n) for n, a in constants.items()],
    )
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 18)], ir_version=8)


@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "torch", "reference"])
def test_a_failure_leaves_later_calls_as_they_were(backend: str, tmp_path: Path) -> None:
    kernel, _ = compiled(rows(), backend, tmp_path)
    some, none = drawn(5, 8) + 3, np.zeros((5, 8), np.float32)
    (before,) = kernel.run([some])
    for _ in range(2):
        try:
            (answer,) = kernel.run([none])
            assert np.shape(answer) == (0, 2, 3)
        except RunFailed as error:
            assert registry.get(backend).title in error.sentence and "\n" not in error.sentence
        (after,) = kernel.run([some])
        np.testing.assert_array_equal(before, after)


SIZES = {
    "Compress": ("p = Equal (i, three) r = Compress <axis = 0> (x, p)", np.array([1, 2, 0, 1, 0])),
    "NonZero": (
        "p = Equal (i, three) z = NonZero (p) s = Squeeze (z, zero) r = Gather (x, s)",
        np.array([1, 2, 0, 1, 0]),
    ),
    "Slice": (
        "n = ReduceMin <keepdims = 0> (i) m = Unsqueeze (n, zero) r = Slice (x, zero, m)",
        np.array([0, 1, 2, 3, 4]),
    ),
    "TopK": (
        "n = ReduceMin <keepdims = 0> (i) m = Unsqueeze (n, zero) r, j = TopK <axis = 0> (x, m)",
        np.array([0, 3, 3, 3, 3]),
    ),
}
READERS = {
    "LSTM": "u = Unsqueeze (r, zero) y = LSTM <hidden_size = 3> (u, w4, r4)",
    "GRU": "u = Unsqueeze (r, zero) y = GRU <hidden_size = 3> (u, w3, r3)",
    "MaxPool": "u = Reshape (r, shape) y = MaxPool <kernel_shape = [2]> (u)",
    "Softmax": "y = Softmax (r)",
    "MatMul": "y = MatMul (r, square)",
    "ReduceSum": "y = ReduceSum <keepdims = 1> (r, zero)",
    "LayerNormalization": "y = LayerNormalization (r, ones)",
}
CONSTANTS = {
    "three": np.array(3),
    "zero": np.array([0]),
    "w4": drawn(1, 12, 8),
    "r4": drawn(1, 12, 3),
    "w3": drawn(1, 9, 8),
    "r3": drawn(1, 9, 3),
    "shape": np.array([-1, 2, 4]),
    "square": drawn(8, 8),
    "ones": np.ones(8, np.float32),
}


@pytest.mark.apart
@pytest.mark.parametrize("backend", ["onnxruntime", "openvino", "torch"])
@pytest.mark.parametrize("reader", READERS)
def test_sizes_from_data_may_be_nothing(reader: str, backend: str, tmp_path: Path) -> None:
    ran = 0
    for source, (text, nothing) in SIZES.items():
        text = f'<ir_version: 8, opset_import: ["" : 18]> g (float[5,8] x, int64[5] i) => (float y) {{ {text} {READERS[reader]} }}'
        model = onnx.parser.parse_model(text)
        model.graph.initializer.extend(nh.from_array(a, n) for n, a in CONSTANTS.items() if n in text)
        model.graph.output[0].type.tensor_type.ClearField("shape")
        path = tmp_path / f"{source}.onnx"
        onnx.save(onnx.shape_inference.infer_shapes(model), path)
        try:
            kernel, region = compile_step(Step(Implementation(backend), path), Resources(1), caching=False)
        except Refused as error:
            assert backend == "openvino" or reader in ("LSTM", "GRU"), error.sentence
            continue
        names, x = [info.name for info in region.inputs], drawn(5, 8)
        some, none = ({"x": x, "i": i} for i in (np.array([3, 3, 3, 3, 3]), nothing))
        (before,) = kernel.run([some[name] for name in names])
        (empty,) = kernel.run([none[name] for name in names])
        assert reader == "ReduceSum" or 0 in np.shape(empty), source
        (after,) = kernel.run([some[name] for name in names])
        np.testing.assert_array_equal(before, after)
        ran += 1
    assert ran == len(SIZES) or backend == "openvino" or reader in ("LSTM", "GRU")
