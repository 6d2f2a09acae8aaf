import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bricolage.backends.interface import ANY, Claim, Growth, any_operator, op
from bricolage.backends.matching import Matcher
from bricolage.graph.graph import Graph, Operator
from bricolage.graph.region import Region
from tests.graph.models import graph

W = np.ones((4, 4), np.float32)


def everything(_graph: Graph, _operator: Operator) -> str | None:
    return None


def elementwise(_graph: Graph, operator: Operator) -> str | None:
    return None if operator.op_type in ("Relu", "Add", "Abs") else "not element-wise"


def regions(g: Graph, *claims: Claim) -> list[int]:
    return sorted(Matcher(g).regions(claims))


@pytest.fixture
def residual() -> Graph:
    return graph("m=MatMul(x,w) r=Relu(m) a=Abs(r) y=Add(a,x)", "float[4,4] x", "float[4,4] y", w=W)


def test_a_single_operator(residual: Graph) -> None:
    assert regions(residual, Claim("relu", op("Relu"))) == [0b10]


def test_alternatives(residual: Graph) -> None:
    assert regions(residual, Claim("either", op("Relu|Abs"))) == [0b10, 0b100]


def test_a_tree(residual: Graph) -> None:
    assert regions(residual, Claim("tree", op("Relu", op("MatMul")))) == [0b11]


def test_commutative_operators_match_in_either_order() -> None:
    for body in ("y=Add(m,x)", "y=Add(x,m)"):
        g = graph("m=MatMul(x,w) " + body, "float[4,4] x", "float[4,4] y", w=W)
        assert regions(g, Claim("bias", op("Add", op("MatMul"), ANY))) == [0b11]


def test_order_counts_elsewhere() -> None:
    g = graph("m=MatMul(x,w) y=Sub(x,m)", "float[4,4] x", "float[4,4] y", w=W)
    assert regions(g, Claim("sub", op("Sub", op("MatMul"), ANY))) == []


def test_a_match_that_is_not_convex_is_dropped() -> None:
    g = graph("m=MatMul(x,w) t=Tanh(m) y=Add(t,m)", "float[4,4] x", "float[4,4] y", w=W)
    assert regions(g, Claim("add", op("Add", ANY, op("MatMul")))) == []


def test_constraints_decline(residual: Graph) -> None:
    declined = Claim("relu", op("Relu"), lambda _graph, _operators: "no")
    assert regions(residual, declined) == []


def test_growth_gives_nested_prefixes(residual: Graph) -> None:
    grown = Claim("conv", op("MatMul"), growth=Growth(elementwise))
    assert regions(residual, grown) == [0b1, 0b11, 0b111, 0b1111]


def test_growth_stops_at_its_limit(residual: Graph) -> None:
    assert regions(residual, Claim("conv", op("MatMul"), growth=Growth(elementwise, limit=2))) == [0b1, 0b11]


def test_growth_takes_both_branches_up_to_their_join() -> None:
    g = graph("m=MatMul(x,w) a=Relu(m) b=Abs(m) y=Add(a,b)", "float[4,4] x", "float[4,4] y", w=W)
    assert regions(g, Claim("m", op("MatMul"), growth=Growth(elementwise))) == [0b1, 0b1111]


def test_growth_stops_where_an_operator_is_not_accepted() -> None:
    g = graph("m=MatMul(x,w) a=Relu(m) y=Softmax(a)", "float[4,4] x", "float[4,4] y", w=W)
    assert regions(g, Claim("m", op("MatMul"), growth=Growth(elementwise))) == [0b1, 0b11]


def test_maximal_regions_are_of_accepted_operators(residual: Graph) -> None:
    claim = Claim("all", any_operator(), growth=Growth(elementwise, maximal=True))
    assert Matcher(residual).accepted([claim]) == 0b1110


def test_maximal_regions_are_disjoint_and_convex_however_they_were_joined() -> None:
    g = graph("a=Relu(x) b=MatMul(a,w) c=Abs(a) d=Add(b,c) y=Add(c,d)", "float[4,4] x", "float[4,4] y", w=W)
    matcher = Matcher(g)
    accepted = matcher.accepted([Claim("all", any_operator(), growth=Growth(elementwise, maximal=True))])
    assert accepted == 0b11011
    assert matcher.maximal(accepted) == [0b00011, 0b11000]
    assert matcher.maximal(g.everything.bits) == [g.everything.bits]
    assert matcher.maximal(0) == []


@given(st.data())
def test_maximal_regions_of_random_graphs(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 9))
    lines = []
    for n in range(count):
        first, second = (data.draw(st.sampled_from(["x", *(f"t{i}" for i in range(n))])) for _ in range(2))
        lines.append(f"t{n}=Add({first},{second})")
    g = graph(" ".join(lines), outputs=", ".join(f"float[4] t{n}" for n in range(count)))
    accepted = data.draw(st.integers(0, (1 << count) - 1))
    found = Matcher(g).maximal(accepted)
    assert sum(found) == accepted and all(a & b == 0 for a, b in itertools.combinations(found, 2))
    assert all(Region(g, region).convex and Region(g, region).connected for region in found)
    for a, b in itertools.combinations(found, 2):
        joined = Region(g, a | b)
        assert not (joined.connected and joined.convex)


def test_post_dominators() -> None:
    g = graph("a=Relu(x) b=Abs(a) c=Neg(a) y=Add(b,c)")
    assert Matcher(g).post_dominators == (3, 3, 3, None)


def test_an_output_inside_has_no_post_dominator() -> None:
    g = graph("a=Relu(x) y=Abs(a)", outputs="float[4] a, float[4] y")
    assert Matcher(g).post_dominators == (None, None)
