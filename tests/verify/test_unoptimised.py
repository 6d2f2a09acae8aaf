"""Values of types that numpy lacks, as ONNX Runtime holds them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from bricolage.verify.unoptimised import from_value, to_value

pytest.importorskip("onnxruntime")


@pytest.mark.parametrize("kind", ["INT4", "UINT4", "BFLOAT16", "FLOAT8E4M3FN"])
def test_values_survive_the_runtime(kind: str) -> None:
    """Integers of four bits are packed two to a byte there, and one to a byte in numpy."""
    dtype = ir.DataType[kind]
    array = np.arange(-8 if kind == "INT4" else 0, 7).astype(dtype.numpy())[None]
    value = to_value(dtype, array)
    assert value.shape() == list(array.shape) and value.element_type() == int(dtype)
    found = from_value(value)
    assert found.dtype == array.dtype and found.astype(np.float32).tolist() == array.astype(np.float32).tolist()


def test_a_runtime_reads_integers_of_four_bits() -> None:
    from onnx import helper

    from bricolage.verify.unoptimised import Unoptimised

    node = helper.make_node("Cast", ["x"], ["y"], to=1)
    inputs = [helper.make_tensor_value_info("x", int(ir.DataType.INT4), [5])]
    graph = helper.make_graph([node], "cast", inputs, [helper.make_tensor_value_info("y", 1, [5])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.INT4), shape=ir.Shape([5]))
    given = np.asarray([-8, 7, 0, -1, 3]).astype(ir.DataType.INT4.numpy())
    assert Unoptimised(model, {"x": x})({"x": given})["y"].tolist() == [-8, 7, 0, -1, 3]
