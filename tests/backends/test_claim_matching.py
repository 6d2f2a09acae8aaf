import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bricolage.backends.claim_matching import Matcher
from bricolage.backends.interface import ANY, Claim, Growth, Shared, any_operator, op
from bricolage.graph.graph import Graph, Operator, Region
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


# --- several roots, and operators that are shared -------------------------------------------------------------------


@pytest.fixture
def siblings() -> Graph:
    """Three products of one value and one of another, and a diamond."""
    body = "a=MatMul(x,w) b=MatMul(x,w) c=MatMul(x,w) d=MatMul(a,w) s=Sigmoid(b) m=Mul(b,s) e=Add(c,d) y=Add(e,m)"
    return graph(body, "float[4,4] x", "float[4,4] y", w=W)


def by_names(g: Graph, regions: list[int]) -> set[frozenset[str]]:
    return {frozenset(str(o.outputs[0].name) for o in Region(g, bits).operators) for bits in regions}


def test_roots_that_read_one_value(siblings: Graph) -> None:
    product = op("MatMul", Shared("x"), ANY)
    found = by_names(siblings, regions(siblings, Claim("pair", (product, product))))
    assert found == {frozenset(pair) for pair in itertools.combinations("abc", 2)}
    assert by_names(siblings, regions(siblings, Claim("three", (product,) * 3))) == {frozenset("abc")}


def test_a_shared_value_is_the_same_in_one_tree(siblings: Graph) -> None:
    squares = graph("a=Mul(x,x) y=Mul(a,x)", "float[4,4] x", "float[4,4] y")
    assert by_names(squares, regions(squares, Claim("square", op("Mul", Shared("x"), Shared("x"))))) == {frozenset("a")}


def test_a_shared_operator_makes_a_diamond(siblings: Graph) -> None:
    shared = op("Mul", op("MatMul", label="p"), op("Sigmoid", op("MatMul", label="p")))
    assert by_names(siblings, regions(siblings, Claim("swish", shared))) == {frozenset("bsm")}
    apart = graph("a=MatMul(x,w) b=MatMul(x,w) s=Sigmoid(b) y=Mul(a,s)", "float[4,4] x", "float[4,4] y", w=W)
    assert regions(apart, Claim("swish", shared)) == []


def test_roots_may_lie_deeper_than_what_they_share(siblings: Graph) -> None:
    roots = (op("MatMul", op("MatMul", Shared("x"), ANY), ANY), op("Sigmoid", op("MatMul", Shared("x"), ANY)))
    assert by_names(siblings, regions(siblings, Claim("both", roots))) == {frozenset("adbs")}


def test_a_value_that_the_region_computes_is_not_outside() -> None:
    chain = graph("a=Relu(x) b=Abs(a) y=Add(a,b)", "float[4] x", "float[4] y")
    inside = (op("Abs", op("Relu", label="r")), op("Add", Shared("r"), ANY))
    assert regions(chain, Claim("inside", (op("Abs", Shared("v")), op("Add", Shared("v"), ANY)))) == [0b110]
    assert regions(chain, Claim("named twice", inside)) == []


def test_roots_that_share_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="shares nothing"):
        Claim("chain", (op("MatMul", op("MatMul"), ANY), op("MatMul", Shared("v"), ANY)))


def test_several_roots_do_not_grow() -> None:
    product = op("MatMul", Shared("x"), ANY)
    with pytest.raises(ValueError, match="several roots"):
        Claim("pair", (product, product), growth=Growth(elementwise))


@given(st.data())
def test_pairs_are_those_that_trying_all_finds(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 7))
    body, values = [], ["x"]
    for number in range(count):
        kind = data.draw(st.sampled_from(["Relu", "Abs", "Neg"]))
        body.append(f"v{number}={kind}({data.draw(st.sampled_from(values))})")
        values.append(f"v{number}")
    outputs = ", ".join(f"float[4] {value}" for value in values[1:])
    g = graph(" ".join(body), "float[4] x", outputs)
    claim = Claim("pair", (op("Relu", Shared("v")), op("Abs", Shared("v"))))
    expected = {
        1 << one.number | 1 << other.number
        for one, other in itertools.permutations(g.operators, 2)
        if (one.op_type, other.op_type) == ("Relu", "Abs") and one.node.inputs[0] is other.node.inputs[0]
    }
    assert set(regions(g, claim)) == {bits for bits in expected if Region(g, bits).convex}
