"""Parts: every operator in one at most, each convex, equal ones together; what is found for one holds for all, or is left."""

from __future__ import annotations

import onnx.parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.frontends import to_model
from bricolage.graph.graph import Graph
from bricolage.graph.prepare import prepare
from bricolage.rewrite.catalogue import choose_rules, written_rules
from bricolage.rewrite.rule import Example
from bricolage.rewrite.search.backtrack import backtrack
from bricolage.rewrite.search.partition import WholeModel, partition
from bricolage.rewrite.search.workspace import Workspace
from bricolage.testing import random_model
from tests.rewrite.checking import check_equal
from tests.rewrite.search.models import STARTED, layers, pricing


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 12), st.booleans())
def test_parts_are_convex_and_do_not_overlap(seed: int, largest: int, shifted: bool) -> None:
    graph = Graph(random_model(seed, written_rules()))
    seen = 0
    for part in partition(graph, largest=largest, shifted=shifted):
        for region, names in zip(part.regions, part.names, strict=True):
            assert region.convex and 2 <= len(region) <= largest
            assert not region.bits & seen and len(names) == len(part.names[0])
            seen |= region.bits


def test_equal_layers_are_one_part() -> None:
    (part, *rest) = partition(Graph(layers(8)), largest=12, shifted=False)
    assert len(part.regions) > 1 and len(rest) <= 1
    names = part.correspondence(1)
    assert names["v0"].startswith("v") and names["v0"] != "v0" and names["w0"][1:] == names["v0"][1:]


def test_layers_that_share_a_weight_are_no_equals_of_those_that_do_not() -> None:
    def copies(body: str) -> list[int]:
        model = Example("float[3,3] x", body, dict.fromkeys("tuvw", (3, 3))).model()
        return [len(part.regions) for part in partition(Graph(model), largest=4, shifted=False)]

    tail = " e = Relu(d) f = Tanh(e) g = Neg(f) y = Abs(g)"
    assert copies("a = MatMul(x, t) b = MatMul(a, u) c = MatMul(b, v) d = MatMul(c, w)" + tail) == [2, 1]
    assert copies("a = MatMul(x, u) b = MatMul(a, u) c = MatMul(b, v) d = MatMul(c, w)" + tail) == [1, 1, 1]


@pytest.mark.parametrize("plain", [1, 2])
def test_steps_are_carried_to_the_copies_that_allow_them(plain: int) -> None:
    """An addition of zero goes in the first copy; the others have another bias and keep it."""
    model = layers(5, plain=plain)
    part = max(partition(Graph(model), largest=6, shifted=False), key=lambda one: len(one.regions))
    assert len(part.regions) == 4
    rules = choose_rules(["identity"])
    found = backtrack(part.model(), rules, pricing(STARTED, part.model()))
    assert len(found.best[0].steps) == (plain == 1)
    whole = WholeModel(model, rules)
    assert whole.carry(part, found.best[0].steps) == (1 if plain == 1 else 4)
    left = [node.op_type for node in whole.workspace.model.graph].count("Add")
    assert left == (9 if plain == 1 else 10)
    check_equal(layers(5, plain=plain), whole.workspace.model)


def test_steps_are_carried_to_all_copies() -> None:
    model = layers(5)
    part = max(partition(Graph(model), largest=6, shifted=False), key=lambda one: len(one.regions))
    rules = choose_rules(["merging", "product"])
    found = backtrack(part.model(), rules, pricing(STARTED, part.model()), alpha=1.5)
    whole = WholeModel(model, rules)
    assert whole.carry(part, found.best[0].steps) == 4
    assert [node.op_type for node in whole.workspace.model.graph].count("MatMul") == 6
    check_equal(layers(5), whole.workspace.model)


def test_steps_in_bodies_of_control_flow_are_made_again() -> None:
    """Canonicalising rules apply there, too: a search that went on from their steps did not find them."""
    text = """<ir_version: 8, opset_import: ["" : 18]> m (float[2,3] x, bool c) => (float[2,3] y) {
        z = Relu(x)
        y = If(c) < then_branch = a () => (float[2,3] r) { t = Relu(z) u = Relu(t) r = Relu(u) },
                    else_branch = b () => (float[2,3] s) { v = Abs(z) w = Abs(v) s = Neg(w) } > }"""
    model, rules = prepare(to_model(onnx.parser.parse_model(text)), {}).model, choose_rules(stable=True)
    first = Workspace(model.clone(), rules, lazy=False)
    first.canonicalise()
    assert first.steps, "some apply"
    again = Workspace(model.clone(), rules, lazy=False)
    again.repeat(first.steps)
    assert [node.op_type for node in again.model.graph.all_nodes()] == [
        node.op_type for node in first.model.graph.all_nodes()
    ]
