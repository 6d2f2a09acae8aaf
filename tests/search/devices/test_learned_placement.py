"""Placements that are learned, against what is proven: on a small problem both ways of learning come to the best."""

from __future__ import annotations

from typing import Literal

import pytest

from benchmarks.placement.run_searches import place
from bricolage.search.devices.device_problem import max_load
from tests.search.devices.problems import made

pytest.importorskip("torch")

from bricolage.search.devices.learned_placement import LEARNED, LearningOptions, learn_placement

CHAIN = made(
    [[one + 1] for one in range(9)] + [[]],
    [1.0, 2.0, 1.0, 3.0, 1.0, 2.0, 2.0, 1.0, 1.0, 2.0],
    [9.0] * 10,
    [0.1] * 10,
    [1.0] * 10,
    accelerators=2,
    memory_bytes=6.0,
)


@pytest.mark.parametrize("method", ["reinforce", "ppo"])
def test_learning_comes_to_the_best(method: Literal["reinforce", "ppo"]) -> None:
    options = LearningOptions(method, groups=10, hidden=16, rounds=80)
    more = {method: lambda problem, _known, limit: learn_placement(problem, options, limit_s=limit)}
    assert set(LEARNED) == {"reinforce", "ppo"}
    proven, found = place(CHAIN, ("ip", method), limit_s=60.0, more=more)
    assert proven.proven and found.max_load == max_load(CHAIN, found.devices)
    assert found.max_load <= 1.05 * proven.max_load and found.bound <= found.max_load


def test_more_rounds_find_no_worse_and_the_seed_decides() -> None:
    few, again, more = (learn_placement(CHAIN, LearningOptions("ppo", rounds=rounds)) for rounds in (3, 3, 30))
    assert few.devices == again.devices and more.max_load <= few.max_load


def test_what_cannot_be_learned_from_is_refused() -> None:
    with pytest.raises(ValueError, match="two samples"):
        LearningOptions(samples=1)
