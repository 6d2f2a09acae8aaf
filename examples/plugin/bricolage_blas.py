"""A kernel library as a bricolage backend: dense layers by the BLAS inside numpy, bias and ReLU fused in place."""

import numpy as np
import onnx_ir as ir

from bricolage.backends.interface import ANY, Backend, Claim, Kernel, Refused, installed, op


def two_dimensional_f32(graph, operators):
    """The constraint: a float32 activation times a constant matrix, anything else element-wise on the result."""
    first = operators[0].node
    left, right = first.inputs[:2]
    if right is None or not graph.is_constant(right):
        return "the right-hand side is no constant"
    if left.dtype != ir.DataType.FLOAT or len(right.shape) != 2:
        return "only float32 times a matrix"
    for operator in operators[1:]:
        for value in operator.node.inputs:
            if graph.is_constant(value) and value.shape != right.shape[1:]:
                return "the bias is no vector over the columns"
    return None


class Blas(Backend):
    name, title, kind = "blas", "numpy BLAS", "kernels"

    def status(self):
        return installed("numpy", "numpy", "blas")

    def claims(self):
        dense = op("Add", op("MatMul"), ANY)
        yield Claim("dense", op("MatMul"), two_dimensional_f32)
        yield Claim("dense+bias", dense, two_dimensional_f32)
        yield Claim("dense+bias+relu", op("Relu", dense), two_dimensional_f32)  # the new fused pattern

    def compile(self, region, config, resources):
        constants = {name: value.const_value.numpy() for name, value in region.model.graph.initializers.items()}
        matmul, *rest = region.model.graph
        weight = np.ascontiguousarray(constants[matmul.inputs[1].name])
        bias = [constants.get(v.name) for node in rest if node.op_type == "Add" for v in node.inputs]
        bias = [b for b in bias if b is not None]
        if len(region.inputs) != 1 or (any(n.op_type == "Add" for n in rest) and not bias):
            raise Refused(backend=self.name, reason="the bias is computed at run time")
        return Dense(weight, bias[0] if bias else None, any(node.op_type == "Relu" for node in rest))


class Dense(Kernel):
    def __init__(self, weight, bias, relu):
        self.weight, self.bias, self.relu = weight, bias, relu

    def bind(self, inputs, outputs):
        (x,), (y,) = inputs, outputs

        def call():
            np.matmul(x, self.weight, out=y)
            if self.bias is not None:
                np.add(y, self.bias, out=y)
            if self.relu:
                np.maximum(y, 0.0, out=y)

        return call

    def run(self, inputs):
        y = np.empty((*inputs[0].shape[:-1], self.weight.shape[1]), np.float32)
        self.bind(inputs, [y])()
        return [y]
