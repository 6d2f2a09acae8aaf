"""Models that are too large, too deep or described wrongly are refused by name at once; unknown dimensions are each their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from bricolage.errors import BadExternalData, InvalidGraph, NotAModel, TooLarge, UnknownOperator
from bricolage.frontends import checks, contributed, model_limits, to_model
from bricolage.frontends.clean import PASSES
from bricolage.graph.prepare import prepare, symbolic_dimensions
from bricolage.verify.reference import evaluate
from tests.graph.models import parse

F = TensorProto.FLOAT


def relu(shape: list[int | str | None]) -> onnx.ModelProto:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    infos = [helper.make_tensor_value_info("x", F, shape)], [helper.make_tensor_value_info("y", F, None)]
    return helper.make_model(
        helper.make_graph(nodes, "g", *infos), opset_imports=[helper.make_opsetid("", 18)], ir_version=8
    )


@pytest.mark.parametrize(
    ("shape", "kind", "words"),
    [
        ([-3], InvalidGraph, "'x' has the negative dimension -3"),
        ([1 << 40], TooLarge, "'x' is too large .* 1099511627776"),
        ([1 << 62], TooLarge, "'x' is too large"),
        ([1] * 400, TooLarge, "400 dimensions"),
    ],
)
def test_shapes_that_no_tensor_has(shape: list[int], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words) as caught:
        to_model(relu(shape))
    assert caught.value.exit_code == 2  # type: ignore[attr-defined]


def test_inputs_beyond_all_memory() -> None:
    with pytest.raises(TooLarge, match="'x' is too large .* GB"):
        prepare(to_model(relu([1 << 20, 1 << 20])), {})


def test_unknown_dimensions_are_each_their_own() -> None:
    """Exporters write `?` or -1 for what they do not know; no two of these are equal for that."""
    model = to_model(relu(["?", 3, "?", -1, "batch"]))
    assert set(symbolic_dimensions(model)) == {"x.0", "x.2", "x.3", "batch"}
    graph = prepare(model, {"x.0": 1, "x.2": 4, "x.3": 8, "batch": 2})
    assert graph.outputs[0].sizes == (1, 3, 4, 8, 2)


def test_functions_are_counted_before_they_are_copied() -> None:
    """Twenty-five functions that call the one before twice each: thirty million operators from a kilobyte."""
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("f", 1)]
    functions = [helper.make_function("f", "f0", ["x"], ["y"], [helper.make_node("Relu", ["x"], ["y"])], imports)]
    for i in range(1, 26):
        calls = [helper.make_node(f"f{i - 1}", [a], [b], domain="f") for a, b in (("x", "t"), ("t", "y"))]
        functions.append(helper.make_function("f", f"f{i}", ["x"], ["y"], calls, imports))
    graph = relu([2]).graph
    graph.node[0].CopyFrom(helper.make_node("f25", ["x"], ["y"], domain="f"))
    with pytest.raises(TooLarge, match="33554432 operators"):
        to_model(helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=8))
    graph.node[0].op_type = "f3"
    few = helper.make_model(graph, opset_imports=imports, functions=functions[:4], ir_version=8)
    assert len(to_model(few).graph) == 8


def test_operators_are_counted_before_anything_is_made_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_limits, "MOST_OPERATORS", 50)
    nodes = [helper.make_node("Relu", [f"t{i}"], [f"t{i + 1}"]) for i in range(51)]
    infos = [helper.make_tensor_value_info(name, F, [2]) for name in ("t0", "t51")]
    proto = helper.make_model(helper.make_graph(nodes, "g", infos[:1], infos[1:]), ir_version=8)
    with pytest.raises(TooLarge, match="more than 50 operators"):
        to_model(proto)
    del proto.graph.node[-1]
    proto.graph.output[0].name = "t50"
    assert len(to_model(proto).graph) == 50


def _field(number: int, payload: bytes) -> bytes:
    """A length-delimited field of protobuf's wire format."""
    length, size = bytearray(), len(payload)
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    return bytes([number << 3 | 2, *length, size]) + payload


def test_deep_nesting_is_not_called_damage(tmp_path: Path) -> None:
    """Written by hand: the protobuf package does not make what it cannot read."""
    out = helper.make_tensor_value_info("o", F, [2]).SerializeToString()
    leaf = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["o"])], "e", [], [helper.make_tensor_value_info("o", F, [2])]
    )
    other = helper.make_attribute("else_branch", leaf).SerializeToString()
    name = onnx.AttributeProto(name="then_branch", type=onnx.AttributeProto.GRAPH).SerializeToString()
    graph = leaf.SerializeToString()
    for _ in range(60):
        node = helper.make_node("If", ["c"], ["o"]).SerializeToString()
        node += _field(5, name + _field(6, graph)) + _field(5, other)
        graph = _field(1, node) + _field(2, b"b") + _field(12, out)
    path = tmp_path / "deep.onnx"
    path.write_bytes(_field(7, graph))
    with pytest.raises(NotAModel, match="nested too deeply.*100 levels") as caught:
        to_model(path)
    assert "damaged" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"), [("offset", "-4"), ("offset", "abc"), ("length", "-1"), ("length", "9" * 30), ("location", "")]
)
def test_external_data_described_wrongly(tmp_path: Path, key: str, value: str) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(64))
    proto = relu([2])
    weights = proto.graph.initializer.add(name="w", data_type=F, dims=[4], data_location=TensorProto.EXTERNAL)
    for name, text in {"location": "w.bin", "offset": "0", "length": "16", key: value}.items():
        weights.external_data.add(key=name, value=text)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(BadExternalData, match=f"tensor 'w' in an external data file is wrong: .*{key}"):
        to_model(tmp_path / "m.onnx")


def test_an_unknown_operator_of_microsoft() -> None:
    proto = relu([2])
    proto.opset_import.add(domain="com.microsoft", version=1)
    proto.graph.node[0].domain, proto.graph.node[0].name = "com.microsoft", "odd"
    with pytest.raises(UnknownOperator, match="'odd'.*com.microsoft::Relu"):
        to_model(proto)


def test_all_operators_of_the_installed_runtime_are_known() -> None:
    state = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")
    assert {
        one.name for one in state.get_all_operator_schema() if one.domain == "com.microsoft"
    } <= contributed.OPERATORS


def test_a_branch_hands_out_what_lies_around_it() -> None:
    """Both branches of an If return the same outer value through an Identity, which stays: it is the branch's own."""
    model = parse(
        """<ir_version: 8, opset_import: ["" : 18]> t (float[2] x, bool c) => (float[2] y, float[2] z) {
        h = Tanh(x)
        y = If<then_branch = g1 () => (float[2] a) { a = Identity(h) }, else_branch = g2 () => (float[2] b) { b = Identity(h) }>(c)
        i = Identity(h) z = Neg(i) }"""
    )
    graph = prepare(to_model(ir.to_proto(model)), {})
    assert [operator.op_type for operator in graph.operators].count("Identity") == 0
    x = np.array([0.5, -1], np.float32)
    for library in ("torch", "onnx"):
        found = evaluate(graph.model, {"x": x, "c": np.asarray(True)}, library=library)
        np.testing.assert_allclose(found["y"], np.tanh(x.astype(np.float64)))
        np.testing.assert_allclose(found["z"], -np.tanh(x.astype(np.float64)))


def test_checks_of_the_normal_form_are_passes_in_the_same_order() -> None:
    listed = [*checks.AS_WRITTEN, *checks.INLINED]
    assert [step for step in PASSES if step in listed] == listed
