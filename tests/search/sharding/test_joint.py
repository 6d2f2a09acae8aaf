"""Conversions that readers share, against all sets of tensors of small problems, and against what sharing means."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings

from bricolage.device.collective import Ring
from bricolage.device.device import Link
from bricolage.errors import NoShardingPlan
from bricolage.search.sharding.joint import RELAY, shared_conversions, with_relays
from bricolage.search.sharding.layout_programme import best_sharding
from bricolage.search.sharding.layouts import conversion_ms
from bricolage.search.sharding.sharding_problem import DividedOperator, DividedTensor, ShardingProblem, Signature
from tests.search.sharding.problems import problems


def one_for_three() -> ShardingProblem:
    """A tensor that is made divided, and that three readers want whole."""
    made = DividedOperator("made", (), (0,), (Signature((), ("S(0)",), 1.0),))
    readers = [DividedOperator("read", (0,), (), (Signature(("R",), (), 1.0),)) for _ in range(3)]
    ring = Ring.described(4, Link(("0", "1"), 1.0, 100.0))
    return ShardingProblem((made, *readers), (DividedTensor("x", 4e6),), ring)


def test_what_three_readers_want_is_made_once() -> None:
    problem = one_for_three()
    gathered = conversion_ms("S(0)", "R", 4e6, problem.ring)
    assert best_sharding(problem).ms == pytest.approx(4.0 + 3 * gathered)
    found, plan = shared_conversions(problem, best_sharding(problem), best_sharding)
    assert plan.ms == pytest.approx(4.0 + gathered)
    assert [one.name for one in found.operators] == ["made", RELAY, "read", "read", "read"]


@settings(max_examples=60, deadline=None)
@given(problems())
def test_the_best_of_all_sets(problem: ShardingProblem) -> None:
    problem = replace(problem, memory_bytes=math.inf)
    try:
        alone = best_sharding(problem)
    except NoShardingPlan:
        return
    readings = [t for one in problem.operators for n, t in enumerate(one.reads) if n not in one.in_place]
    read = sorted({one for one in readings if readings.count(one) > 1})
    sets = itertools.chain.from_iterable(itertools.combinations(read, count) for count in range(len(read) + 1))
    least = min(best_sharding(with_relays(problem, some)).ms for some in sets)
    found = shared_conversions(problem, alone, best_sharding, alpha=math.inf, most=200)[1]
    assert found.ms == pytest.approx(least) and found.ms <= alone.ms * (1 + 1e-9)
    assert found.ms == pytest.approx(min(alone.ms, least))
