"""bricolage as an ONNX backend: its interface, what it chooses, and what it does where a backend fails."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.backend.base import Backend, BackendRep

import bricolage.onnx_backend as backend
from bricolage.backends import registry
from bricolage.backends.interface import Available
from bricolage.base.options import Options
from bricolage.conformance.suite import suite_cases
from bricolage.errors import BackendFailed, BadOption, MissingInput, Unclaimed, UnsupportedOpset, WrongShape

pytestmark = pytest.mark.skipif(
    not isinstance(registry.get("native").status(), Available), reason="the native engine needs a C compiler"
)
NATIVE = Options(backends=("native",), threads=1)


def model(
    *nodes: onnx.NodeProto, shape: tuple[int | str, ...] = (2, 3), opset: int = 18, **outputs: int
) -> onnx.ModelProto:
    """A model of one float input `x` with the outputs `name=element type`, whose shapes are inferred."""
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return onnx.shape_inference.infer_shapes(made)


TWO = (
    helper.make_node("Relu", ["x"], ["y"]),
    helper.make_node("Tanh", ["y"], ["z"]),
)
X = np.float32([[-1, 0, 0.5], [2, -0.25, 1]])


def test_is_an_onnx_backend() -> None:
    assert issubclass(backend.BricolageBackend, Backend)
    assert isinstance(backend.prepare(model(*TWO, z=1), options=NATIVE), BackendRep)
    assert backend.supports_device("CPU")
    assert not backend.supports_device("CUDA")
    with pytest.raises(BadOption, match="CUDA"):
        backend.prepare(model(*TWO, z=1), "CUDA")


def test_inputs_in_order_by_name_or_alone_and_outputs_in_order_and_by_name() -> None:
    made = backend.prepare(model(*TWO, z=1, y=1), options=NATIVE)
    for inputs in ([X], (X,), {"x": X}, X):
        found = made.run(inputs)
        assert isinstance(found, tuple)
        np.testing.assert_allclose(found[0], np.tanh(np.maximum(X, 0)), rtol=1e-6)
        np.testing.assert_array_equal(found[1], np.maximum(X, 0))


def test_what_does_not_fit_is_told() -> None:
    made = backend.prepare(model(*TWO, z=1), options=NATIVE)
    with pytest.raises(MissingInput, match="'x'"):
        made.run([])
    with pytest.raises(WrongShape, match="2×3"):
        made.run([X[:1]])
    with pytest.raises(UnsupportedOpset, match="3"):
        backend.prepare(model(helper.make_node("Relu", ["x"], ["y"]), opset=3, y=1))


def test_symbolic_dimensions_are_those_of_the_inputs() -> None:
    made = backend.prepare(model(*TWO, shape=("n", 3), z=1), options=NATIVE)
    for rows in (1, 4, 1):
        x = np.full((rows, 3), 0.5, np.float32)
        np.testing.assert_allclose(made.run([x])[0], np.tanh(x), rtol=1e-6)


def test_one_node() -> None:
    node = helper.make_node("Concat", ["a", "b"], ["c"], axis=0)
    (found,) = backend.run_node(node, [X, X[:1]], options=NATIVE)
    np.testing.assert_array_equal(found, np.concatenate([X, X[:1]]))
    (found,) = backend.run_node(node, {"b": X[:1], "a": X}, opset_version=18, options=NATIVE)
    np.testing.assert_array_equal(found, np.concatenate([X, X[:1]]))
    (found,) = backend.run_node(node, [X, X], outputs_info=[(np.float32, (4, 3))], options=NATIVE)
    assert found.shape == (4, 3)


def test_what_no_backend_claims_is_refused_with_the_reason() -> None:
    unknown = model(
        helper.make_node("Relu", ["x"], ["y"]),
        helper.make_node("NonZero", ["y"], ["z"], name="where"),
        z=TensorProto.INT64,
    )
    with pytest.raises(Unclaimed, match=r"'where' \(NonZero\): native: "):
        backend.prepare(unknown, options=NATIVE)
    assert not backend.is_compatible(unknown, options=NATIVE)
    assert backend.is_compatible(model(*TWO, z=1), options=NATIVE)


def test_regions_are_mixed_where_no_backend_takes_all() -> None:
    """Each of the two lacks an operator that the other has."""
    pytest.importorskip("onnxruntime")
    mixed = model(
        helper.make_node("Relu", ["x"], ["y"]),
        helper.make_node("NonZero", ["y"], ["i"]),
        helper.make_node("Tanh", ["y"], ["z"]),
        z=1,
        i=TensorProto.INT64,
    )
    made = backend.prepare(mixed, options=Options(backends=("native", "onnxruntime"), threads=1))
    z, i = made.run([X])
    np.testing.assert_allclose(z, np.tanh(np.maximum(X, 0)), rtol=1e-6)
    np.testing.assert_array_equal(i, np.stack(np.nonzero(np.maximum(X, 0))))


def test_earlier_backends_are_preferred() -> None:
    pytest.importorskip("onnxruntime")
    for first, second in (("native", "onnxruntime"), ("onnxruntime", "native")):
        made = backend.prepare(model(*TWO, z=1), options=Options(backends=(first, second), threads=1))
        assert {one.implementation.backend for one in made.placement({})} == {first}


def test_a_backend_that_fails_when_it_runs_loses_its_part_to_another() -> None:
    """ONNX Runtime claims and compiles this padded ConvInteger, and fails when it runs."""
    pytest.importorskip("onnxruntime")
    case = next(case for case in suite_cases({"ConvInteger"}) if case.name == "test_convinteger_with_padding")
    try:
        backend.run_model(case.model, list(case.inputs), options=Options(backends=("onnxruntime",), threads=1))
    except BackendFailed as error:
        assert "to run" in str(error)
    else:
        pytest.skip("this ONNX Runtime computes it")
    made = backend.prepare(case.model, options=Options(backends=("onnxruntime", "torch"), threads=1))
    np.testing.assert_array_equal(made.run(list(case.inputs))[0], case.outputs[0])
    assert {one.implementation.backend for one in made.placement({})} == {"torch"}


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="it counts descriptors in /proc")
def test_what_is_no_longer_used_leaves_neither_folders_nor_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRICOLAGE_CACHE", str(tmp_path))
    prepared = model(*TWO, shape=("n",), z=1)

    def used() -> int:
        backend.prepare(prepared, options=NATIVE)
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir()))

    before = used()
    assert [used() for _ in range(6)] == [before] * 6
    assert not list((tmp_path / "work").iterdir())
