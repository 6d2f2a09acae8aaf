"""Saturation of a part: at least as good as everything that applications lead to, with a bound, by rules that are named."""

from __future__ import annotations

import onnx_ir as ir
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.egraph.extraction.methods import ExtractionLimits
from bricolage.egraph.saturate import SaturationLimits
from bricolage.rewrite.catalogue import choose_rules, written_rules
from bricolage.rewrite.engine.index import RuleIndex
from bricolage.rewrite.rule import Example, Rule
from bricolage.rewrite.search.saturation.part import SaturatedPart, saturate_part
from bricolage.work.cost import CostModel
from tests.rewrite.search.models import (
    BRANCHES,
    FANNED,
    KERNELS,
    PRODUCTS,
    STARTED,
    by_type,
    odd,
    pricing,
    reachable,
    square_models,
)


def saturated(model: ir.Model, used: list[Rule], cost: CostModel, **limits: int) -> SaturatedPart:
    opsets = model.graph.opset_imports
    bounded = SaturationLimits(**{"rounds": 6, "nodes": 1_000, "multi_rounds": 2} | limits, seconds=20.0)  # type: ignore[arg-type]
    index = RuleIndex(used, opsets[""])
    return saturate_part(model.clone(), index, pricing(cost, model), bounded, ExtractionLimits())


@settings(max_examples=15, deadline=None)
@given(square_models(most=5), st.integers(0, 1000))
def test_at_least_as_good_as_enumeration(model: ir.Model, seed: int) -> None:
    used = choose_rules(skip=["activation", "normalization", "generated"])
    expected = reachable(model, used, odd(seed), most=60)
    found = saturated(model, used, odd(seed), rounds=12, nodes=3_000, multi_rounds=12)
    assert found.extraction.lower_bound <= found.extraction.cost <= found.before * (1 + 1e-9)
    if expected is not None and found.saturation.stop == "saturated":
        assert found.extraction.cost <= expected[0] * (1 + 1e-9)


def test_limits_are_kept() -> None:
    found = saturated(KERNELS.model(), list(written_rules()), STARTED, rounds=1)
    assert len(found.saturation.rounds) == 1 and found.extraction.cost == found.before
    assert saturated(KERNELS.model(), list(written_rules()), STARTED, nodes=3).saturation.stop == "nodes"


def test_the_rules_that_made_the_graph_are_named() -> None:
    def names(example: Example) -> set[str]:
        used = choose_rules(skip=["layout", "generated"])
        return {one.rule.name for one in saturated(example.model(), used, STARTED).applied}

    assert "merge-products" in names(PRODUCTS)
    assert names(FANNED) >= {"move-transpose-behind-function", "compose-transposes"}
    assert not names(Example("float[3] x", "y = Tanh(x)"))


MOVING = by_type({"Transpose": 1.0, "MatMul": 0.5}, 0.01)
"""Transposes are dear, starting a product costs something."""


def test_rules_that_go_over_the_graph_themselves_are_seen() -> None:
    """Grouped and batched forms, and layouts, are found in the part as it was given; the graph is there to be scanned."""

    def names(example: Example, cost: CostModel) -> set[str]:
        used = choose_rules(["grouping", "layout", "merging"])
        return {one.rule.name for one in saturated(example.model(), used, cost).applied}

    assert names(BRANCHES, STARTED) == {"group-convolutions"}
    two = "float[2,3] x, float[2,3] z"
    products = Example(two, "a = MatMul(x, v) b = MatMul(z, w) y = Add(a, b)", {"v": (3, 4), "w": (3, 4)})
    assert names(products, MOVING) == {"batch-products"}
    (around,) = [example for rule in choose_rules(["move-layout-border"]) for example in rule.examples[:1]]
    assert names(around, MOVING) == {"move-layout-border"}


def test_partners_do_not_multiply() -> None:
    """Sixteen equal operators are joined in one way, not in one for each pair: the e-graph grows with the part."""
    sizes = []
    for count in (4, 8, 16):
        inputs = ", ".join(f"float[1,2,6] x{i}" for i in range(count))
        body = " ".join(f"y{i} = Conv(x{i}, w{i})" for i in range(count))
        outputs = ", ".join(f"y{i}" for i in range(count))
        example = Example(inputs, body, {f"w{i}": (4, 2, 3) for i in range(count)}, outputs=outputs)
        sizes.append(saturated(example.model(), choose_rules(["grouping"]), STARTED).saturation.rounds[-1].nodes)
    assert sizes[2] - sizes[1] == 2 * (sizes[1] - sizes[0]), sizes


def test_a_look_at_weights_is_noticed() -> None:
    example = Example("float[4] x", "t = Add(x, b) y = Tanh(t)", {"b": [0.0, 0.0, 0.0, 0.0]})
    found = saturated(example.model(), list(written_rules()), STARTED)
    assert found.extraction.cost < found.before
    by_values = [found.by_values, saturated(PRODUCTS.model(), list(written_rules()), STARTED, rounds=3).by_values]
    assert by_values == [True, False]
