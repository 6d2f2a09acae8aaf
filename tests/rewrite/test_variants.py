from __future__ import annotations

import numpy as np
import pytest

from bricolage.costs.models.roofline import NOMINAL
from bricolage.graph.graph import Graph
from bricolage.graph.operator_kinds import VIEWS
from bricolage.graph.prepare import simplify
from bricolage.plan.rewrite_steps import EnabledRule, RewriteConfig, RewriteStep
from bricolage.plan.shipped_program import ORIGINAL
from bricolage.rewrite.search.operator_prices import price_operators
from bricolage.rewrite.search.search_options import SearchOptions
from bricolage.rewrite.variants import (
    REWRITTEN,
    TAILORED,
    GraphVariant,
    recreated_variant,
    rewritten_variants,
    searched_variants,
    tailored_variant,
)
from bricolage.verify.compare import relative_error
from bricolage.verify.reference import evaluate
from tests.graph.models import parse
from tests.rewrite.search.models import by_type

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


ONE_EACH = by_type(dict.fromkeys(PRODUCTS, 1.0) | dict.fromkeys(VIEWS, 0.0), 0.1)
"""Products are dear to start, all else is cheap."""


def same(graph: Graph, variant: GraphVariant) -> bool:
    inputs = {info.name: np.random.default_rng(1).normal(size=info.sizes).astype(np.float32) for info in graph.inputs}
    expected, found = (evaluate(one.model, inputs, dtype=np.float64) for one in (graph, variant.graph))
    names = [info.name for info in graph.outputs]
    return relative_error([found[name] for name in names], [expected[name] for name in names]) < 1e-12


def test_rewritten_is_a_variant_where_a_rule_gains() -> None:
    graph = prepared(TRANSPOSED)
    (variant,) = rewritten_variants(graph)
    assert variant.name == REWRITTEN and sum(variant.rules.values()) > 0
    assert [operator.op_type for operator in variant.graph.operators] == ["Relu"]
    assert same(graph, variant) and variant.key != GraphVariant(ORIGINAL, graph).key
    assert len(graph) == 3, "the original stays"
    assert rewritten_variants(variant.graph) == ()


def test_a_search_finds_what_is_cheaper_and_can_be_repeated() -> None:
    graph = prepared(PARALLEL)
    assert rewritten_variants(graph) == ()
    original = GraphVariant(ORIGINAL, graph)
    found = searched_variants(graph, ONE_EACH, NOMINAL, SearchOptions(seconds=20.0), [original])
    best = found[0]
    assert sum(operator.op_type in PRODUCTS for operator in best.graph.operators) == 1
    assert best.predicted_ms == pytest.approx(price_operators(ONE_EACH, NOMINAL, best.graph.operators))
    assert best.predicted_ms < price_operators(ONE_EACH, NOMINAL, graph.operators)
    assert same(graph, best)
    repeated = recreated_variant(graph, best.name, best.steps)
    assert repeated is not None and repeated.key == best.key and same(graph, repeated)
    assert searched_variants(graph, ONE_EACH, NOMINAL, SearchOptions(seconds=20.0), [original, *found]) == ()


def test_nothing_is_found_where_nothing_is_cheaper() -> None:
    graph = prepared(PARALLEL)
    assert (
        searched_variants(
            graph, by_type({}, 1.0), NOMINAL, SearchOptions(seconds=20.0), [GraphVariant(ORIGINAL, graph)]
        )
        == ()
    )


def test_steps_that_no_longer_apply_make_nothing() -> None:
    graph = prepared(PARALLEL)
    assert recreated_variant(graph, "searched-1", [RewriteStep("no-such-rule", 0, ("y",), ())]) is None
    (best, *_) = searched_variants(
        graph, ONE_EACH, NOMINAL, SearchOptions(seconds=20.0), [GraphVariant(ORIGINAL, graph)]
    )
    assert recreated_variant(prepared(TRANSPOSED), best.name, best.steps) is None
    assert recreated_variant(graph, REWRITTEN, ()) is None
    original = recreated_variant(graph, ORIGINAL, ())
    assert original is not None and original.graph is graph


def test_a_tailored_variant_is_made_again_from_its_configuration() -> None:
    graph = prepared(PARALLEL)
    config = RewriteConfig(enabled=(EnabledRule("merge-products"),))
    variant = tailored_variant(graph, config)
    assert variant.rewrite_config == config and variant.rules["merge-products"] == 1 and same(graph, variant)
    repeated = recreated_variant(graph, TAILORED, (), config)
    assert repeated is not None and repeated.key == variant.key
    assert recreated_variant(graph, TAILORED, (), RewriteConfig(enabled=(EnabledRule("no-such-rule"),))) is None
    assert recreated_variant(graph, TAILORED, (), RewriteConfig(opset=999)) is None
