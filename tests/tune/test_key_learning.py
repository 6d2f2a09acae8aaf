"""Learning where keys are drawn: on graphs whose gain lies behind rules that no greedy step takes, a policy draws them sooner."""

from __future__ import annotations

import numpy as np
import pytest

from bricolage.rewrite.catalogue import choose_rules
from bricolage.rewrite.rule import Example, Rule
from bricolage.rewrite.search.graph_search import search_graphs
from bricolage.rewrite.search.search_options import SearchOptions
from bricolage.search.key_policy import load_policy
from bricolage.tune.key_learning import KeyLearningOptions, LearningPart, collect_parts, compare_traces, learn_keys
from tests.rewrite.search.models import FIRE, KERNELS, STARTED, pricing

FEW = KeyLearningOptions(rounds=12, samples=4, evaluations=6, graphs=20, hidden=4)


@pytest.fixture(scope="module")
def rules() -> list[Rule]:
    return list(choose_rules(["merging", "concat", "splitting"]))


@pytest.fixture(scope="module")
def parts(rules: list[Rule]) -> list[LearningPart]:
    return collect_parts(KERNELS.model(), rules, STARTED, FEW)


def test_the_same_seed_learns_the_same(rules: list[Rule]) -> None:
    pytest.importorskip("torch")
    afresh = (
        collect_parts(KERNELS.model(), rules, STARTED, FEW) for _ in range(2)
    )  # parts keep the graphs that were met
    first, second = (learn_keys({"kernels": each}, FEW) for each in afresh)
    assert first.rounds == FEW.rounds and first.parts == 1
    for name, weight in first.policy.weights.items():
        assert np.array_equal(weight, second.policy.weights[name]), name
    assert "enlarge-kernel" in first.policy.names


def test_a_search_of_a_part_never_forgets_and_its_start_counts(parts: list[LearningPart]) -> None:
    part = parts[0]
    for from_starts in (True, False):
        trace = part.trace_costs(None, 6, 0, from_starts=from_starts)
        assert trace.shape == (6,) and np.all(np.diff(trace) <= 0.0) and trace[0] <= part.decoder.first_ms
    greedy = part.decoder.decode(part.decoder.greedy_keys)
    assert part.trace_costs(None, 6, 0, from_starts=True)[0] == greedy
    assert compare_traces(trace, trace) == 0.0 < compare_traces(2.0 * trace, trace)


def test_where_no_rule_applies_nothing_is_learned(rules: list[Rule]) -> None:
    pytest.importorskip("torch")
    plain = Example("float[3] x", "y = Erf(x)").model()
    assert collect_parts(plain, rules, STARTED, FEW) == []
    with pytest.raises(ValueError, match="no rule applies"):
        learn_keys({"plain": []}, FEW)
    with pytest.raises(ValueError, match="two samples"):
        KeyLearningOptions(samples=1)


def test_a_search_with_the_policy_gives_an_equal_graph_and_is_repeatable(rules: list[Rule]) -> None:
    model = FIRE.model()
    options = SearchOptions(method="learned-keys", policy=load_policy())
    first, second = (search_graphs(model, rules, STARTED, options) for _ in range(2))
    assert first.best.steps == second.best.steps and len(first.best.steps) == len(first.best.applications)
    assert first.best.cost <= pricing(STARTED, model).total(model.graph) * (1.0 + 1e-9)
