"""The least time of layouts, against all choices of small problems."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings

from bricolage.errors import NoShardingPlan
from bricolage.search.sharding.layout_programme import best_sharding, solve_layouts, without_limit
from bricolage.search.sharding.sharding_problem import ShardingProblem
from tests.search.sharding.problems import cost, least, problems


@settings(max_examples=80, deadline=None)
@given(problems())
def test_the_least_of_all_choices(problem: ShardingProblem) -> None:
    best = least(problem)
    if math.isinf(best):
        with pytest.raises(NoShardingPlan):
            best_sharding(problem)
        return
    found = best_sharding(problem)
    assert found.ms == pytest.approx(best, rel=1e-6)
    assert found.ms == pytest.approx(cost(problem, found.choices))
    assert best * (1 - 1e-5) <= found.bound_ms * (1 + 1e-9) <= best * (1 + 1e-6)


@settings(max_examples=40, deadline=None)
@given(problems())
def test_the_programme_alone_finds_what_elimination_finds(problem: ShardingProblem) -> None:
    problem = replace(problem, memory_bytes=math.inf)
    if math.isinf(least(problem)):
        return
    free, found = without_limit(problem), solve_layouts(problem)
    assert free is not None and found is not None and found.ms == pytest.approx(free.ms)
