"""Random keys over applications: steps that lead there, what greed misses, limits kept."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.rewrite.catalogue import choose_rules, written_rules
from bricolage.rewrite.search.genetic_rewrites import search_by_random_keys
from bricolage.rewrite.search.graph_search import replay, search_graphs
from bricolage.rewrite.search.search_options import SearchOptions
from bricolage.work.random_keys import RandomKeyOptions
from tests.rewrite.search.models import FANNED, KERNELS, STARTED, odd, pricing, reachable, square_models

FEW = RandomKeyOptions(population=8, generations=3)


@settings(max_examples=8, deadline=None)
@given(square_models(most=4), st.integers(0, 1000))
def test_never_below_enumeration_nor_above_the_first(model: ir.Model, seed: int) -> None:
    used = choose_rules(skip=["activation", "normalization", "generated"])
    expected = reachable(model, used, odd(seed), most=60)
    if expected is None:
        return
    price = pricing(odd(seed), model)
    found = search_by_random_keys(model, used, price, options=FEW)
    costs = [one.cost for one in found.best]
    assert expected[0] * (1 - 1e-9) <= costs[0] <= price.total(model.graph) and costs == sorted(costs)


def test_it_finds_what_lies_behind_a_loss_and_the_steps_lead_there() -> None:
    model = KERNELS.model()
    found = search_graphs(model, written_rules(), STARTED, SearchOptions(method="random-keys"))
    exhaustive = search_graphs(model, written_rules(), STARTED, SearchOptions(method="backtrack", alpha=2.0))
    assert found.best.cost == pytest.approx(exhaustive.best.cost)
    made = replay(model, written_rules(), found.best.steps)
    assert pricing(STARTED, model).total(made.graph) == pytest.approx(found.best.cost)


def test_the_same_seed_gives_the_same_graphs_and_limits_are_kept() -> None:
    model = FANNED.model()
    runs = [
        search_by_random_keys(model, written_rules(), pricing(STARTED, model), graphs=3, options=FEW) for _ in range(2)
    ]
    assert [one.steps for one in runs[0].best] == [one.steps for one in runs[1].best]
    assert runs[0].counts.taken <= 3
    assert search_by_random_keys(model, written_rules(), pricing(STARTED, model), seconds=0.0).stop == "seconds"
