"""Random models, random subsets and orders of rules: the graph stays valid, the answer stays, and nothing is left to do."""

from __future__ import annotations

import random

import pytest

from bricolage.rewrite.apply import rewrite
from bricolage.rewrite.catalogue import rules
from tests.rewrite.checking import check_equal
from tests.rewrite.random_models import random_model

FAST, SLOW, PART = 150, 5_000, 25


def check(seed: int) -> int:
    """Rewrites one model; the number of applications."""
    chance = random.Random(seed)
    chosen = [rule for rule in rules() if not rule.exploring]
    if chance.random() < 0.7:
        chance.shuffle(chosen)
    if chance.random() < 0.5:
        chosen = chosen[: chance.randint(1, len(chosen))]
    before, after = random_model(seed), random_model(seed)
    applied = rewrite(after, chosen)
    check_equal(before, after, seed=seed, attempts=1, own_error=True)
    assert not rewrite(after, chosen), "a second run finds something to do"
    assert [a.number for a in applied] == list(range(1, len(applied) + 1))
    return len(applied)


@pytest.mark.parametrize("start", range(0, FAST, PART))
def test_random_models(start: int) -> None:
    assert sum(check(seed) for seed in range(start, start + PART)) > PART


@pytest.mark.slow
@pytest.mark.parametrize("start", range(FAST, SLOW, PART))
def test_many_random_models(start: int) -> None:
    for seed in range(start, start + PART):
        check(seed)


def test_the_first_applications_are_the_same_in_every_run() -> None:
    for seed in range(20):
        whole = rewrite(random_model(seed), rules())
        for limit in {0, 1, len(whole) // 2, len(whole)}:
            part = rewrite(random_model(seed), rules(), limit=limit)
            assert part == whole[:limit]
