"""A model that rounds where kernels in bfloat16 do: the yardstick for what such a kernel may be away from float64."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper

from bricolage.graph.inference import infer
from bricolage.graph.operator_kinds import CONVOLUTIONS, PRODUCTS, RECURRENT

_PRODUCTS = CONVOLUTIONS | PRODUCTS | RECURRENT
_FLOAT, _BFLOAT16 = onnx.TensorProto.FLOAT, onnx.TensorProto.BFLOAT16


def in_bfloat16(model: onnx.ModelProto) -> ir.Model:
    """A copy with the operands of its products rounded to bfloat16, for evaluation in the model's own types."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model)
    constants = {constant.name: constant for constant in proto.graph.initializer}
    nodes, rounded = list[onnx.NodeProto](), set[str]()
    for node in proto.graph.node:
        if node.op_type in _PRODUCTS:
            for position, name in enumerate(node.input[:3] if node.op_type == "Attention" else node.input[:2]):
                if name not in rounded and name not in constants:
                    nodes.append(helper.make_node("Cast", [name], [f"{name}_half"], to=_BFLOAT16))
                    nodes.append(helper.make_node("Cast", [f"{name}_half"], [f"{name}_rounded"], to=_FLOAT))
                if name in constants and name not in rounded:
                    half = numpy_helper.to_array(constants[name]).astype(ml_dtypes.bfloat16).astype(np.float32)
                    proto.graph.initializer.append(numpy_helper.from_array(half, f"{name}_rounded"))
                rounded.add(name)
                node.input[position] = f"{name}_rounded"
        nodes.append(node)
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    copy: ir.Model = ir.from_proto(proto)
    infer(copy)
    return copy
