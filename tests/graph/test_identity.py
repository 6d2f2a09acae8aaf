import random

import numpy as np
import onnx
import onnx_ir as ir
from hypothesis import given
from hypothesis import strategies as st

from bricolage.graph.graph import Graph
from bricolage.graph.identity import Identities
from tests.graph.models import graph


def key(g: Graph, bits: int | None = None) -> str:
    return Identities(g).key(g.everything if bits is None else g.region(bits))


def test_names_do_not_matter() -> None:
    one = graph("a=Relu(x) y=Mul(a,w)", w=np.ones(4, np.float32))
    two = graph("foo=Relu(z) bar=Mul(foo,v)", "float[4] z", "float[4] bar", v=np.full(4, 7, np.float32))
    assert key(one) == key(two)


def test_equal_regions_of_one_graph_share_a_key() -> None:
    g = graph("a=Relu(x) b=Abs(a) c=Relu(b) d=Abs(c) y=Add(d,a)")
    assert key(g, 0b0011) != key(g, 0b1100), "the first one's inner tensor leaves it"
    g = graph("a=Relu(x) b=Abs(a) c=Relu(b) y=Abs(c)")
    assert key(g, 0b0011) == key(g, 0b1100)


def test_what_changes_the_time_changes_the_key() -> None:
    base = graph("y=Mul(x,s)", s=np.array(2.0, np.float32))
    assert key(base) != key(graph("y=Mul(x,s)", s=np.array(3.0, np.float32))), "scalars count by value"
    assert key(base) != key(graph("y=Add(x,s)", s=np.array(2.0, np.float32)))
    assert key(base) != key(graph("y=Mul(x,s)", "float[5] x", "float[5] y", s=np.array(2.0, np.float32)))
    assert key(graph("y=LeakyRelu<alpha=0.1>(x)")) != key(graph("y=LeakyRelu<alpha=0.2>(x)"))


def test_one_input_twice_is_not_two_inputs() -> None:
    assert key(graph("y=Mul(x,x)")) != key(graph("y=Mul(x,z)", "float[4] x, float[4] z"))


def test_wiring_matters() -> None:
    one = graph("a=Relu(x) b=Abs(z) y=Sub(a,b)", "float[4] x, float[4] z")
    two = graph("a=Abs(x) b=Relu(z) y=Sub(a,b)", "float[4] x, float[4] z")
    assert key(one) != key(two)


@given(st.integers(2, 8), st.randoms(use_true_random=False))
def test_renumbering_keeps_the_key(count: int, rng: random.Random) -> None:
    """The same operators, declared in another order and under other names, are the same region."""
    types = ["Relu", "Abs", "Neg", "Tanh"]
    specs = [(rng.choice(types), rng.randrange(-1, i) if i else -1) for i in range(count)]

    def build(order: list[int], prefix: str) -> Graph:
        position = {old: new for new, old in enumerate(order)}
        nodes = [
            onnx.helper.make_node(kind, [f"{prefix}{source}" if source >= 0 else "x"], [f"{prefix}{i}"])
            for i, (kind, source) in enumerate(specs)
        ]
        used = {source for _, source in specs}
        sinks = sorted((i for i in range(count) if i not in used), key=lambda i: position[i])
        info = onnx.helper.make_tensor_value_info
        proto = onnx.helper.make_graph(nodes, "g", [info("x", 1, [4])], [info(f"{prefix}{i}", 1, [4]) for i in sinks])
        model = ir.from_proto(onnx.helper.make_model(proto, opset_imports=[onnx.helper.make_opsetid("", 18)]))
        for node in model.graph:
            for value in node.outputs:
                value.shape, value.type = ir.Shape([4]), ir.TensorType(ir.DataType.FLOAT)
        return Graph(model)

    shuffled = list(range(count))
    rng.shuffle(shuffled)
    assert key(build(list(range(count)), "a")) == key(build(shuffled, "b"))


def test_string_constants_count_by_value() -> None:
    def key(word: str) -> str:
        body = f'w = Constant <value = string[1] {{"{word}"}}> () y = Concat <axis = 0> (x, w)'
        network = graph(body, "string[3] x", "string[4] y")
        return Identities(network).key(network.everything)

    assert key("a") == key("a") != key("b")
