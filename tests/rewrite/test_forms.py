from __future__ import annotations

import numpy as np
import pytest

from bricolage.graph.graph import Graph, Operator
from bricolage.graph.prepare import simplify
from bricolage.graph.work import VIEWS
from bricolage.plan.plan import ORIGINAL
from bricolage.rewrite.forms import REWRITTEN, TAILORED, Form, again, rewritten, searched, tailored
from bricolage.rewrite.proposal import Step
from bricolage.rewrite.recipe import Exploration, Recipe
from bricolage.rewrite.search.options import SearchOptions
from bricolage.verify.compare import relative_error
from bricolage.verify.reference import evaluate
from tests.graph.models import parse

PARALLEL = """<ir_version: 8, opset_import: ["" : 18]> net (float[4,16] x) => (float[4,8] y, float[4,8] z) {
    a = MatMul(x, u) b = MatMul(x, v) y = Relu(a) z = Tanh(b) }"""
TRANSPOSED = """<ir_version: 8, opset_import: ["" : 18]> net (float[4,16] x) => (float[4,16] y) {
    a = Transpose(x) b = Relu(a) y = Transpose(b) }"""


def prepared(text: str) -> Graph:
    rng = np.random.default_rng(0)
    return simplify(
        parse(text, **{name: rng.normal(size=(16, 8)).astype(np.float32) for name in "uv" if f"{name})" in text})
    )


PRODUCTS = ("MatMul", "Conv")


def one_each(operator: Operator) -> float:
    """Products are dear to start, all else is cheap."""
    return 1.0 if operator.op_type in PRODUCTS else 0.0 if operator.op_type in VIEWS else 0.1


def same(graph: Graph, form: Form) -> bool:
    inputs = {info.name: np.random.default_rng(1).normal(size=info.sizes).astype(np.float32) for info in graph.inputs}
    expected, found = (evaluate(one.model, inputs, dtype=np.float64) for one in (graph, form.graph))
    names = [info.name for info in graph.outputs]
    return relative_error([found[name] for name in names], [expected[name] for name in names]) < 1e-12


def test_rewritten_is_a_form_where_a_rule_gains() -> None:
    graph = prepared(TRANSPOSED)
    (form,) = rewritten(graph)
    assert form.name == REWRITTEN and sum(form.rules.values()) > 0
    assert [operator.op_type for operator in form.graph.operators] == ["Relu"]
    assert same(graph, form) and form.key != Form(ORIGINAL, graph).key
    assert len(graph) == 3, "the original stays"
    assert rewritten(form.graph) == ()


def test_a_search_finds_what_is_cheaper_and_can_be_repeated() -> None:
    graph = prepared(PARALLEL)
    assert rewritten(graph) == ()
    original = Form(ORIGINAL, graph)
    found = searched(graph, one_each, SearchOptions(seconds=20.0), [original])
    best = found[0]
    assert sum(operator.op_type in PRODUCTS for operator in best.graph.operators) == 1
    assert best.predicted_ms == pytest.approx(sum(map(one_each, best.graph.operators)))
    assert best.predicted_ms < sum(map(one_each, graph.operators))
    assert same(graph, best)
    repeated = again(graph, best.name, best.steps)
    assert repeated is not None and repeated.key == best.key and same(graph, repeated)
    assert searched(graph, one_each, SearchOptions(seconds=20.0), [original, *found]) == ()


def test_nothing_is_found_where_nothing_is_cheaper() -> None:
    graph = prepared(PARALLEL)
    assert searched(graph, lambda _: 1.0, SearchOptions(seconds=20.0), [Form(ORIGINAL, graph)]) == ()


def test_steps_that_no_longer_apply_make_nothing() -> None:
    graph = prepared(PARALLEL)
    assert again(graph, "searched-1", [Step("no-such-rule", 0, ("y",), ())]) is None
    (best, *_) = searched(graph, one_each, SearchOptions(seconds=20.0), [Form(ORIGINAL, graph)])
    assert again(prepared(TRANSPOSED), best.name, best.steps) is None
    assert again(graph, REWRITTEN, ()) is None
    original = again(graph, ORIGINAL, ())
    assert original is not None and original.graph is graph


def test_a_tailored_form_is_made_again_from_its_recipe() -> None:
    graph = prepared(PARALLEL)
    recipe = Recipe(exploring=(Exploration("merge-products"),))
    form = tailored(graph, recipe)
    assert form.recipe == recipe and form.rules["merge-products"] == 1 and same(graph, form)
    repeated = again(graph, TAILORED, (), recipe)
    assert repeated is not None and repeated.key == form.key
    assert again(graph, TAILORED, (), Recipe(exploring=(Exploration("no-such-rule"),))) is None
    assert again(graph, TAILORED, (), Recipe(opset=999)) is None
