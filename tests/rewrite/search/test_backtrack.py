"""Backtracking: as good as enumeration where it may go everywhere, no graph looked at twice, limits kept."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.costs.models.roofline import OperatorRoofline
from bricolage.rewrite.catalogue import choose_rules, written_rules
from bricolage.rewrite.rule import Example
from bricolage.rewrite.search.backtrack import backtrack
from tests.rewrite.search.models import FANNED, KERNELS, STARTED, odd, pricing, reachable, square_models


@settings(max_examples=20, deadline=None)
@given(square_models(most=5), st.integers(0, 1000))
def test_as_good_as_enumeration(model: ir.Model, seed: int) -> None:
    used = choose_rules(skip=["activation", "normalization", "generated"])
    expected = reachable(model, used, odd(seed), most=150)
    if expected is None:
        return
    found = backtrack(model, used, pricing(odd(seed), model), alpha=float("inf"), graphs=10_000, seconds=100.0)
    assert found.best[0].cost == pytest.approx(expected[0])
    assert found.stop == "exhausted"
    assert found.counts.seen == found.counts.taken == expected[1]


def test_alpha_decides_how_much_worse_a_graph_may_be() -> None:
    """Doubling the transpose costs a sixth of the graph."""
    narrow = backtrack(FANNED.model(), written_rules(), pricing(STARTED, FANNED.model()), alpha=1.0)
    wide = backtrack(FANNED.model(), written_rules(), pricing(STARTED, FANNED.model()), alpha=1.3)
    assert narrow.best[0].cost > wide.best[0].cost
    assert narrow.counts.pruned > 0


def test_two_orders_of_independent_steps_are_one_graph() -> None:
    model = Example(
        "float[2,3] x, float[2,3] z", "a = Neg(x) b = Neg(a) c = Neg(z) d = Neg(c) y = Concat<axis=0>(b, d)"
    ).model()
    found = backtrack(model, choose_rules(["undo"]), pricing(STARTED, model), alpha=float("inf"))
    assert found.counts.seen == 4 and found.counts.duplicates > 0
    assert found.best[0].cost == pytest.approx(0.1)


def test_limits_are_kept() -> None:
    found = backtrack(KERNELS.model(), written_rules(), pricing(odd(1), KERNELS.model()), alpha=float("inf"), graphs=2)
    assert found.counts.taken == 2 and found.stop == "graphs"
    found = backtrack(
        KERNELS.model(), written_rules(), pricing(odd(1), KERNELS.model()), alpha=float("inf"), seconds=0.0
    )
    assert found.counts.taken == 1 and found.stop == "seconds"


def test_the_best_are_distinct_and_in_order() -> None:
    found = backtrack(FANNED.model(), written_rules(), pricing(odd(2), FANNED.model()), alpha=float("inf"), keep=4)
    costs = [one.cost for one in found.best]
    assert len(costs) == 4 and costs == sorted(costs) and len({one.steps for one in found.best}) == 4


def test_the_model_is_not_changed() -> None:
    model = KERNELS.model()
    before = ir.to_proto(model).SerializeToString()
    backtrack(model, written_rules(), pricing(OperatorRoofline(), model), alpha=2.0)
    assert ir.to_proto(model).SerializeToString() == before
