"""Sparse tensors become dense, wherever they stand; types that have no word here are refused by name."""

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from bricolage.errors import InvalidGraph, TooLarge, UnsupportedType
from bricolage.frontends import to_model
from bricolage.frontends.sparse_tensors import dense
from bricolage.verify.reference import evaluate

SHAPE = (3, 4)


def sparse(name: str, array: np.ndarray, flat: bool = True) -> onnx.SparseTensorProto:
    where = np.nonzero(array.reshape(-1))[0] if flat else np.argwhere(array)
    values = numpy_helper.from_array(array.reshape(-1)[array.reshape(-1) != 0], name)
    return helper.make_sparse_tensor(values, numpy_helper.from_array(where.astype(np.int64), f"{name}.at"), array.shape)


def info(name: str, shape: tuple[int, ...] = SHAPE) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def model(nodes: list[onnx.NodeProto], **more: object) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", [info("x")], [info("y")], **more)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


@given(st.lists(st.integers(0, 2), min_size=12, max_size=12), st.booleans())
@settings(max_examples=10, deadline=None)
def test_sparse_tensors_are_what_they_say(numbers: list[int], flat: bool) -> None:
    array = np.array(numbers, np.float32).reshape(SHAPE)
    inside = [sparse("s", array, flat)]
    body = helper.make_graph([helper.make_node("Neg", ["s"], ["n"])], "b", [], [info("n")], sparse_initializer=inside)
    other = helper.make_graph([helper.make_node("Identity", ["x"], ["i"])], "o", [], [info("i")])
    nodes = [
        helper.make_node("Constant", [], ["c"], sparse_value=sparse("c", array, flat)),
        helper.make_node("Constant", [], ["yes"], value=numpy_helper.from_array(np.array(True))),
        helper.make_node("If", ["yes"], ["t"], then_branch=body, else_branch=other),
        helper.make_node("Add", ["x", "c"], ["a"]),
        helper.make_node("Mul", ["a", "w"], ["m"]),
        helper.make_node("Add", ["m", "t"], ["y"]),
    ]
    x = np.arange(12, dtype=np.float32).reshape(SHAPE)
    loaded = to_model(model(nodes, sparse_initializer=[sparse("w", array, flat)]))
    np.testing.assert_array_equal(evaluate(loaded, {"x": x})["y"], (x + array) * array - array)


def test_a_model_without_any_is_not_copied() -> None:
    proto = model([helper.make_node("Relu", ["x"], ["y"])])
    assert dense(proto) is proto


def test_sparse_tensors_that_cannot_be() -> None:
    add = helper.make_node("Add", ["x", "w"], ["y"])
    huge = sparse("w", np.ones((1, 1), np.float32))
    huge.dims[:] = [10**6, 10**7]
    with pytest.raises(TooLarge, match="'w'.*GB"):
        to_model(model([add], sparse_initializer=[huge]))
    outside = sparse("w", np.ones((2, 2), np.float32))
    outside.dims[:] = [1, 2]
    with pytest.raises(InvalidGraph, match="'w' has indices"):
        to_model(model([add], sparse_initializer=[outside]))


def test_maps_and_numbers_of_types_are_refused_by_name() -> None:
    scores = helper.make_sequence_type_proto(
        helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    )
    proto = model([helper.make_node("Relu", ["x"], ["y"])])
    proto.graph.output[0].type.CopyFrom(scores)
    with pytest.raises(UnsupportedType, match="'y' has the type sequence of map.*zipmap"):
        to_model(proto)
    proto = model([helper.make_node("Relu", ["x"], ["y"])])
    proto.graph.input[0].type.tensor_type.elem_type = 99
    with pytest.raises(InvalidGraph, match="'x' has the element type 99"):
        to_model(proto)
