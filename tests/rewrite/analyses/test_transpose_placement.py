"""Layouts of whole networks: what a converter wraps in transposes ends with transposes at its borders only."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from bricolage.graph.inference import infer
from bricolage.rewrite.analyses.transpose_placement import components, moved_operators
from bricolage.rewrite.catalogue import rules
from bricolage.rewrite.engine.apply import rewrite
from bricolage.rewrite.rule import Example
from tests.rewrite.checking import check_equal


class ChannelsLast:
    """A network on [batch, height, width, channels] as a converter writes it for operators that want channels first: every
    convolution and pooling between two transposes, all else on the last axis."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self._numbers = np.random.default_rng(0)

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, [name], f"{op_type}_{len(self.nodes)}", **attributes))
        return name

    def constant(self, value: Any) -> str:
        array = np.asarray(value)
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array.astype(np.float32) if array.dtype == float else array, name))
        return name

    def weight(self, *shape: int) -> str:
        return self.constant(self._numbers.normal(size=shape) / np.sqrt(max(np.prod(shape[1:]), 1)))

    def first(self, x: str, op_type: str, *weights: str, **attributes: Any) -> str:
        y = self.op(op_type, self.op("Transpose", x, perm=[0, 3, 1, 2]), *weights, **attributes)
        return self.op("Transpose", y, perm=[0, 2, 3, 1])

    def conv(self, x: str, inputs: int, outputs: int, kernel: int, **attributes: Any) -> str:
        pads = [kernel // 2] * 4
        y = self.first(x, "Conv", self.weight(outputs, inputs, kernel, kernel), pads=pads, **attributes)
        return self.op("Add", y, self.weight(outputs))

    def squeeze_and_excite(self, x: str, channels: int) -> str:
        pooled = self.op("ReduceMean", x, self.constant([1, 2]), keepdims=0)
        hidden = self.op("Relu", self.op("MatMul", pooled, self.weight(channels, 4)))
        gate = self.op("Sigmoid", self.op("MatMul", hidden, self.weight(4, channels)))
        return self.op("Mul", x, self.op("Reshape", gate, self.constant([-1, 1, 1, channels])))

    def model(self, shape: list[int | str], output: str) -> ir.Model:
        info = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes, "g", [info("x", 1, shape)], [info(output, 1, None)], initializer=self.weights
        )
        model = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8))
        infer(model)
        return model


def network(batch: int | str = 2) -> ir.Model:
    """Convolutions, batch normalisation, two residual blocks, one with squeeze and excite, a pre-activated one, a branch that is
    padded, pooled, resized and concatenated, and a classifier."""
    n = ChannelsLast()
    x = n.op("Relu", n.conv("x", 3, 8, 3))
    x = n.op("Add", n.op("Mul", x, n.weight(8)), n.weight(8))
    y = n.op("Relu", n.conv(x, 8, 8, 3))
    x = n.op("Relu", n.op("Add", x, n.squeeze_and_excite(n.conv(y, 8, 8, 1), 8)))
    y = n.op("Relu", n.op("Mul", x, n.weight(8)))
    x = n.op("Add", x, n.conv(y, 8, 8, 3))
    padded = n.op("Pad", x, n.constant([0, 1, 1, 0, 0, 1, 1, 0]))
    pooled = n.first(padded, "MaxPool", kernel_shape=[3, 3], strides=[2, 2])
    small = n.op("Tanh", n.conv(pooled, 8, 4, 1))
    large = n.op("Resize", small, "", n.constant([1.0, 2.0, 2.0, 1.0]), mode="nearest")
    x = n.op("Concat", x, large, axis=3)
    x = n.op("Relu", n.conv(x, 12, 6, 3))
    return n.model([batch, 8, 8, 3], n.op("ReduceMean", x, n.constant([1, 2]), keepdims=0))


def transposes(model: ir.Model) -> list[str]:
    return [node.inputs[0].name or "" for node in model.graph if node.op_type == "Transpose" and node.inputs[0]]


@pytest.mark.parametrize("batch", [2, "N"])
def test_a_network_keeps_transposes_at_its_borders_only(batch: int | str) -> None:
    before, after = network(batch), network(batch)
    assert len(transposes(before)) == 14
    rewrite(after, rules())
    assert transposes(after) == ["x"]
    check_equal(before, after, own_error=True)


def test_the_layout_alone_does_it_in_one_step_a_part() -> None:
    model = network()
    applied = rewrite(model, [rule for rule in rules() if rule.family == "layout"])
    assert [a.rule for a in applied].count("move-layout-border") == 3  # convolutions separate the parts
    rewrite(model, [rule for rule in rules() if rule.family in ("layout", "transpose")])
    # At the border, and the operand of the gate: a view, which is a reshape for another rule.
    assert len(transposes(model)) == 2
    check_equal(network(), model, own_error=True)


def test_the_cut_takes_the_smaller_side() -> None:
    """A reduction makes the value small: the transpose that must remain stands behind it, whatever comes first."""
    model = Example(
        "float[2,3,4,5] x",
        "t = Transpose<perm=[0,2,3,1]>(x) u = Relu(t) m = ReduceMean(u, a) y = Mul(m, c)",
        {"a": [1, 2], "c": (3,)},
    ).model()
    ((_, component),) = components(model.graph)
    assert {node.op_type for node in moved_operators(component)} >= {"Relu", "ReduceMean"}
    rewrite(model, rules())
    assert [node.op_type for node in model.graph][:2] == ["Relu", "ReduceMean"]


def test_two_readers_share_one_transpose() -> None:
    """A fork costs one conversion, not one for each reader."""
    body = "t = Transpose<perm=[0,2,3,1]>(x) r = Relu(t) a = Reshape(r, s) b = Reshape(r, q)"
    weights = {"s": [-1], "q": [6, -1], "w": (3, 3, 1, 1)}
    conv = "u = Transpose<perm=[0,3,1,2]>(r) y = Conv(u, w)"
    example = Example("float[2,3,4,5] x", f"{body} {conv}", weights, outputs="a, b, y")
    before, after = example.model(), example.model()
    rewrite(after, rules())
    assert len(transposes(after)) == 1
    check_equal(before, after)


def test_a_long_chain_is_one_part() -> None:
    """Every operator belongs to one component, which is cut once."""
    body = "t0 = Transpose<perm=[0,2,3,1]>(x) " + " ".join(f"t{i + 1} = Relu(t{i})" for i in range(800))
    model = Example("float[2,3,4,5] x", f"{body} y = Transpose<perm=[0,3,1,2]>(t800)").model()
    applied = rewrite(model, [rule for rule in rules() if rule.family == "layout"])
    assert len(applied) == 1 and not transposes(model)


def test_a_transpose_that_stands_later_is_used() -> None:
    """What could be read anew stands behind what is replaced: the graph stays in order."""
    example = Example("float[2,3] x", "r = Relu(x) t = Transpose(r) a = Transpose(x)", outputs="t, a")
    before, after = example.model(), example.model()
    applied = rewrite(after, [rule for rule in rules() if rule.family == "layout"])
    assert applied and transposes(after) == ["x"]
    check_equal(before, after)
