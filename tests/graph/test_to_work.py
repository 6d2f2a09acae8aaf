from __future__ import annotations

import numpy as np

from bricolage.graph.to_work import to_work
from bricolage.work.work_graph import GRAPH_INPUT
from tests.graph.models import graph


def test_operators_keep_their_numbers_and_their_work() -> None:
    g = graph(
        "a=MatMul(x,w) b=Relu(a) y=Add(b,a)",
        "float[2,8] x",
        "float[2,8] y, float[2,8] b",
        w=np.ones((8, 8), np.float32),
    )
    found = to_work(g)
    assert [operator.op_type for operator in found.operators] == [operator.op_type for operator in g.operators]
    assert found.operators[0].flops == 2 * 2 * 8 * 8
    assert found.operators[0].bytes == 4 * (16 + 64 + 16), "the weight is read"
    assert found.predecessors == g.predecessors and found.everything == g.everything.bits


def test_tensors_between_operators_and_at_the_ends() -> None:
    g = graph(
        "a=MatMul(x,w) b=Relu(a) y=Add(b,a)",
        "float[2,8] x",
        "float[2,8] y, float[2,8] b",
        w=np.ones((8, 8), np.float32),
    )
    tensors = {tensor.name: tensor for tensor in to_work(g).tensors}
    assert tensors.keys() == {"a", "b", "y", "x"}, "constants are handed over by nobody"
    assert all(tensor.bytes == 64 for tensor in tensors.values())
    assert (tensors["x"].producer, tensors["x"].consumers) == (GRAPH_INPUT, (0,))
    assert (tensors["a"].producer, tensors["a"].consumers) == (0, (1, 2))
    assert {name for name, tensor in tensors.items() if tensor.is_output} == {"b", "y"}


def test_an_input_that_several_read_is_one_tensor() -> None:
    (entering,) = (t for t in to_work(graph("a=Relu(x) b=Abs(x) y=Add(a,b)")).tensors if t.producer == GRAPH_INPUT)
    assert entering.name == "x" and entering.consumers == (0, 1)
