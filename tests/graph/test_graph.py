import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bricolage.errors import InvalidGraph
from bricolage.graph.graph import Graph, Region, TensorInfo
from bricolage.work import bits as bitset
from tests.graph.models import graph, parse, random_graph


@st.composite
def dags(draw: st.DrawFn, largest: int = 8) -> Graph:
    count = draw(st.integers(2, largest))
    return random_graph(
        [draw(st.lists(st.integers(0, i - 1), max_size=3, unique=True)) if i else [] for i in range(count)]
    )


def reaches(g: Graph, source: int) -> set[int]:
    found: set[int] = set()
    todo = [source]
    while todo:
        for later in g.successors[todo.pop()]:
            if later not in found:
                found.add(later)
                todo.append(later)
    return found


@given(dags())
def test_numbers_are_topological(g: Graph) -> None:
    assert all(before < number for number, befores in enumerate(g.predecessors) for before in befores)


@given(dags(), st.integers(1, 255))
def test_convexity_equals_the_definition(g: Graph, wish: int) -> None:
    bits = wish & g.everything.bits
    if not bits:
        return
    inside = set(bitset.members(bits))
    convex = not any(
        middle not in inside and reaches(g, middle) & inside for number in inside for middle in reaches(g, number)
    )
    assert Region(g, bits).convex == convex


def test_chains_are_numbered_one_after_the_other() -> None:
    g = graph("a=Relu(x) b=Relu(a) c=Abs(x) d=Abs(c) y=Add(b,d)")
    assert [operator.op_type for operator in g.operators] == ["Relu", "Relu", "Abs", "Abs", "Add"]


def test_a_region_knows_its_ends() -> None:
    g = graph("a=Relu(x) b=Mul(a,w) c=Abs(b) y=Add(a,c)", w=np.full(4, 2, np.float32))
    region = g.region(0b0110)
    assert [v.name for v in region.inputs] == ["a"]
    assert [v.name for v in region.outputs] == ["c"]
    assert [v.name for v in region.constants] == ["w"]
    assert region.connected
    assert not g.region(0b1001).convex


def test_an_inner_tensor_that_is_a_graph_output_leaves_the_region() -> None:
    g = graph("a=Relu(x) y=Abs(a)", outputs="float[4] y, float[4] a")
    assert {v.name for v in g.everything.outputs} == {"y", "a"}


def test_operators_that_reach_no_output_are_left_out() -> None:
    assert len(graph("dead=Abs(x) y=Relu(x)")) == 1


def test_values_captured_by_a_branch_are_inputs_of_the_operator() -> None:
    g = graph(
        "a=Relu(x) y=If(c)<then_branch=t () => (float[4] p) {p=Add(a,a)}, else_branch=e () => (float[4] q) {q=Neg(a)}>",
        inputs="float[4] x, bool c",
    )
    assert g.predecessors[1] == (0,)
    assert {v.name for v in g.region(0b10).inputs} == {"a", "c"}


def test_a_cycle_is_refused() -> None:
    model = parse('<ir_version: 8, opset_import: ["" : 18]> t (float[4] x) => (float[4] y) { a=Relu(x) y=Add(a,x) }')
    relu, add = list(model.graph)
    relu.replace_input_with(0, add.outputs[0])
    with pytest.raises(InvalidGraph, match="depends on itself"):
        Graph(model)


@pytest.mark.parametrize(("dtype", "expected"), [("FLOAT", 24), ("INT4", 3), ("BOOL", 6), ("BFLOAT16", 12)])
def test_bytes_of_a_tensor(dtype: str, expected: int) -> None:
    import onnx_ir as ir

    assert TensorInfo("t", ir.DataType[dtype], (2, 3)).bytes == expected


@given(st.sets(st.integers(0, 300)))
def test_bit_sets_hold_their_members(wanted: set[int]) -> None:
    bits = bitset.of(wanted)
    assert list(bitset.members(bits)) == sorted(wanted)
    assert bitset.lowest(bits) == min(wanted, default=-1)
    assert bitset.highest(bits) == max(wanted, default=-1)
