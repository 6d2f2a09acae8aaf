"""Classifiers of scikit-learn's converters return maps; the graph has the tensor that they are made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from bricolage.errors import UnsupportedType, WrongType
from bricolage.frontends import to_model
from bricolage.frontends.maps import KEYS, restore, without_maps
from bricolage.graph.extract import write_whole
from bricolage.graph.model_interface import externalise_model
from bricolage.plan.planned_interface import input_specs, output_specs
from bricolage.runtime.signature import by_position_and_name, collect, convert_to_maps
from bricolage.verify.reference import evaluate

KINDS = {"classlabels_int64s": [3, 7], "classlabels_strings": ["no", "yes"]}


def classifier(attribute: str, *behind: onnx.NodeProto) -> onnx.ModelProto:
    """A ZipMap behind a linear classifier."""
    learnt = helper.make_node(
        "LinearClassifier",
        ["x"],
        ["label", "p"],
        domain="ai.onnx.ml",
        coefficients=[1.0, -1.0],
        intercepts=[0.5, -0.5],
        classlabels_ints=[3, 7],
    )
    zipped = helper.make_node("ZipMap", ["p"], ["zm"], domain="ai.onnx.ml", **{attribute: KINDS[attribute]})
    key = TensorProto.INT64 if attribute.endswith("int64s") else TensorProto.STRING
    maps = helper.make_sequence_type_proto(
        helper.make_map_type_proto(key, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    )
    graph = helper.make_graph(
        [learnt, zipped, *behind],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 1])],
        [helper.make_tensor_value_info("label", TensorProto.INT64, [4]), helper.make_value_info("zm", maps)],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize("attribute", KINDS)
def test_the_model_returns_the_tensor_and_keeps_the_keys(attribute: str) -> None:
    given = classifier(attribute)
    model = to_model(given)
    label, zipped = output_specs(model)
    assert (zipped.name, zipped.dtype, zipped.keys) == ("zm", "float32", tuple(KINDS[attribute]))
    assert not label.keys
    assert given.graph.node[1].op_type == "ZipMap", "the caller's model stays as it was"


def test_rows_become_maps() -> None:
    model = to_model(classifier("classlabels_strings"))
    label, zipped = convert_to_maps(output_specs(model), [np.int64([3]), np.float32([[0.25, 0.75]])])
    assert zipped == [{"no": 0.25, "yes": 0.75}]
    assert label.tolist() == [3]


def test_metadata_of_the_model_stay() -> None:
    given = classifier("classlabels_int64s")
    helper.set_model_props(given, {"author": "somebody"})
    props = {entry.key: entry.value for entry in without_maps(given).metadata_props}
    assert props["author"] == "somebody"
    assert json.loads(props[KEYS]) == {"zm": [3, 7]}


def test_a_model_without_maps_is_itself() -> None:
    given = classifier("classlabels_int64s")
    del given.graph.node[1:], given.graph.output[1:]
    assert without_maps(given) is given


def test_a_map_that_nobody_reads_goes() -> None:
    given = classifier("classlabels_int64s")
    del given.graph.output[1:]
    assert [node.op_type for node in without_maps(given).graph.node] == ["LinearClassifier"]


def reader(op_type: str, key: int, value: int, **attributes: Any) -> onnx.ModelProto:
    """An operator that reads a map."""
    node = helper.make_node(op_type, ["x"], ["y"], domain="ai.onnx.ml", **attributes)
    kind = helper.make_map_type_proto(key, helper.make_tensor_type_proto(value, []))
    result = TensorProto.INT64 if attributes.get("cast_to") == "TO_INT64" else value
    graph = helper.make_graph(
        [node], "g", [helper.make_value_info("x", kind)], [helper.make_tensor_value_info("y", result, None)]
    )
    opsets = [helper.make_opsetid("", 15), helper.make_opsetid("ai.onnx.ml", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize(
    ("model", "value"),
    [
        (
            reader("DictVectorizer", TensorProto.STRING, TensorProto.FLOAT, string_vocabulary=["a", "b", "c"]),
            {"b": 1.5, "elsewhere": 3.0},
        ),
        (reader("DictVectorizer", TensorProto.INT64, TensorProto.FLOAT, int64_vocabulary=[3, 1]), {1: 2.0}),
        (
            reader("CastMap", TensorProto.INT64, TensorProto.FLOAT, cast_to="TO_INT64", map_form="SPARSE", max_map=5),
            {3: 2.5, 1: 1.25},
        ),
        (reader("CastMap", TensorProto.INT64, TensorProto.FLOAT, cast_to="TO_FLOAT"), {9: 2.5, -1: 1.25, 4: 0.5}),
    ],
    ids=["words", "numbers", "sparse", "dense"],
)
def test_an_input_that_is_a_map_is_the_row_that_it_stands_for(model: onnx.ModelProto, value: dict[Any, float]) -> None:
    """As ONNX Runtime makes it."""
    runtime = pytest.importorskip("onnxruntime")
    (wanted,) = runtime.InferenceSession(model.SerializeToString()).run(None, {"x": value})
    made = to_model(model)
    specs = input_specs(made)
    for args, named in [((value,), {}), ((), {"x": value}), (({"x": value},), {})]:
        arrays = collect(specs, *by_position_and_name(specs, args, named))
        assert evaluate(made, arrays)["y"].tolist() == wanted.tolist()
    assert collect(specs, (np.zeros(wanted.shape, np.float32),), {})["x"].shape == wanted.shape


@pytest.mark.parametrize("attribute", KINDS)
def test_a_file_for_other_runtimes_returns_maps_again(attribute: str, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    given, x = classifier(attribute), {"x": np.float32([[1], [-2], [0.5], [0]])}
    write_whole(externalise_model(to_model(given)), tmp_path / "model.onnx")
    restore(tmp_path / "model.onnx")
    written = onnx.load(tmp_path / "model.onnx")
    assert list(written.graph.output) == list(given.graph.output) and not written.metadata_props
    first, second = (runtime.InferenceSession(one.SerializeToString()).run(None, x) for one in (given, written))
    assert first[1] == second[1] and len(second[1]) == 4


@pytest.mark.parametrize(
    ("model", "value"),
    [
        (reader("DictVectorizer", TensorProto.STRING, TensorProto.FLOAT, string_vocabulary=["a", "b"]), {"b": 1.5}),
        (reader("CastMap", TensorProto.INT64, TensorProto.FLOAT, map_form="SPARSE", max_map=4), {3: 2.5, 1: 1.25}),
        (reader("CastMap", TensorProto.INT64, TensorProto.FLOAT, cast_to="TO_FLOAT"), {9: 2.5, 4: 0.5}),
    ],
    ids=["words", "sparse", "dense"],
)
def test_a_file_for_other_runtimes_takes_maps_again(
    model: onnx.ModelProto, value: dict[Any, float], tmp_path: Path
) -> None:
    runtime = pytest.importorskip("onnxruntime")
    write_whole(externalise_model(to_model(model)), tmp_path / "model.onnx")
    restore(tmp_path / "model.onnx")
    written = onnx.load(tmp_path / "model.onnx")
    first, second = (
        runtime.InferenceSession(one.SerializeToString()).run(None, {"x": value}) for one in (model, written)
    )
    assert first[0].tolist() == second[0].tolist()


def test_what_is_no_number_is_refused_by_name() -> None:
    specs = input_specs(to_model(reader("DictVectorizer", TensorProto.INT64, TensorProto.FLOAT, int64_vocabulary=[3])))
    with pytest.raises(WrongType, match="'x'.*other values than numbers"):
        collect(specs, ({3: "three"},), {})


def test_a_map_that_becomes_text_is_refused() -> None:
    with pytest.raises(UnsupportedType, match="'x' has the type map"):
        to_model(reader("CastMap", TensorProto.INT64, TensorProto.FLOAT, cast_to="TO_STRING"))


def test_a_map_is_made_in_a_function_of_the_model() -> None:
    given = classifier("classlabels_int64s")
    opsets = [helper.make_opsetid("ai.onnx.ml", 3)]
    function = helper.make_function("own", "Named", ["p"], ["zm"], [given.graph.node[1]], opsets)
    given.functions.append(function)
    given.graph.node[1].CopyFrom(helper.make_node("Named", ["p"], ["zm"], domain="own"))
    given.opset_import.append(helper.make_opsetid("own", 1))
    assert output_specs(to_model(given))[1].keys == (3, 7)
