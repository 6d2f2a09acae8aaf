"""Test vectors of the policies that decide for all jobs at once."""

from __future__ import annotations

import math
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.cluster.adaptive import Matrix
from bricolage.cluster.jobs import JobState, TrainingJob, WorkPhase
from bricolage.cluster.machines import ClusterSpec, NodeGroup
from bricolage.cluster.policies import gavel
from bricolage.cluster.policies.allox import match_jobs
from bricolage.cluster.policies.elastic import satisfactory_share
from bricolage.cluster.policies.hydra import best_order, order_cost
from bricolage.cluster.policies.shockwave import FairFinish, expected_left_s, past_s, planned_rounds
from bricolage.cluster.shares import ShareProblem
from tests.cluster.making import job, one_kind, replay


def problem(rates: list[list[float]], capacity: list[float], steps: list[float], **more: Matrix) -> ShareProblem:
    ones = np.ones(len(rates))
    given = {
        "gangs": ones,
        "weights": ones,
        "elapsed_s": 0 * ones,
        "isolated_s": 0 * ones,
        "deadline_s": ones * math.inf,
        "price": np.ones(len(capacity)),
    }
    return ShareProblem(
        rates=np.array(rates), capacity=np.array(capacity), steps_left=np.array(steps), **(given | more)
    )


THREE = problem([[4, 2], [3, 1], [2, 1]], [1, 1], [100, 60, 40])


def rate(given: ShareProblem, shares: Matrix) -> Matrix:
    assert (shares >= -1e-9).all() and (shares.sum(axis=1) <= 1 + 1e-9).all()
    assert (given.gangs @ shares <= given.capacity + 1e-9).all()
    found: Matrix = (given.rates * shares).sum(axis=1)
    return found


def test_max_min() -> None:
    """The value counts rates by those of equal shares: N_j / M, each row then divided by its sum."""
    equal = (THREE.rates * 0.5).sum(axis=1)
    assert min(rate(THREE, gavel.max_min(THREE)) / equal) == pytest.approx(9 / 13, abs=1e-6)


def test_makespan_as_one_programme() -> None:
    assert max(THREE.steps_left / rate(THREE, gavel.makespan(THREE))) == pytest.approx(43 + 1 / 3, abs=1e-4)


def test_finish_time_fairness() -> None:
    isolated = THREE.steps_left / THREE.isolated_rates
    found = THREE.steps_left / rate(THREE, gavel.finish_time_fairness(THREE)) / isolated
    assert max(found) == pytest.approx(26 / 27, rel=2e-4)


def test_blind_rules_give_equal_time() -> None:
    assert gavel.max_min_blind(THREE).sum(axis=1) == pytest.approx([2 / 3] * 3, abs=1e-6)


def test_water_filling_is_no_worse_for_the_worst_and_better_for_others() -> None:
    """Job 1 can only use the first kind; the other device is left to job 0 alone, who can use all of it."""
    given = problem([[1, 1], [1, 0], [1, 0]], [1, 1], [1, 1, 1])
    plain, filled = rate(given, gavel.max_min(given)), rate(given, gavel.water_filling(given))
    equal = (given.rates * 0.5).sum(axis=1)
    assert min(filled / equal) == pytest.approx(min(plain / equal), abs=1e-6)
    assert filled == pytest.approx([1.0, 0.5, 0.5], abs=1e-6)


def test_deadlines_are_met_where_they_can_be_and_else_dropped() -> None:
    cheap = problem([[1.0, 2.0]], [1, 1], [100], deadline_s=np.array([100.0]), price=np.array([1.0, 10.0]))
    assert gavel.minimise_price(cheap)[0, 0] == pytest.approx(1.0)
    tight = problem([[1.0, 2.0]], [1, 1], [150], deadline_s=np.array([100.0]), price=np.array([1.0, 10.0]))
    assert rate(tight, gavel.minimise_price(tight))[0] == pytest.approx(1.5)
    none = problem([[1.0, 2.0]], [1, 1], [1000], deadline_s=np.array([100.0]), price=np.array([1.0, 10.0]))
    assert gavel.minimise_price(none)[0, 0] == pytest.approx(1.0)


def test_equal_parts_are_whole_devices_at_most() -> None:
    assert gavel.proportional(problem([[1.0], [1.0]], [8], [1, 1], gangs=np.array([1.0, 4.0]))) == pytest.approx(
        np.array([[1.0], [1.0]])
    )


def test_allox_matches() -> None:
    run = np.array([[2.0, 4.0], [3.0, 3.0], [4.0, 10.0], [6.0, 5.0]])
    queues = match_jobs(run, [0.0, 0.0], 4)
    assert queues == [[0, 2], [1, 3]]
    total = sum(
        sum(run[one, device] for one in queue[: n + 1])
        for device, queue in enumerate(queues)
        for n in range(len(queue))
    )
    assert total == 19


def test_allox_waits_for_a_faster_device() -> None:
    """A device of kind b takes ten times as long: the second job waits for a instead."""
    jobs = [job(n, 0, 100, rates={"a": 1.0, "b": 0.1}) for n in range(2)]
    found = replay("allox", jobs, ClusterSpec((NodeGroup("a"), NodeGroup("b"))))
    assert sorted(state.finish_s for state in found.states) == [100, 200]


@settings(max_examples=60, deadline=None)
@given(
    items=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 60)), min_size=1, max_size=5),
    start=st.integers(0, 10),
)
def test_hydra_finds_the_best_of_all_orders(items: list[tuple[float, float]], start: float) -> None:
    found = order_cost([items[index] for index in best_order(items, start, 10**6)], start)
    assert found == min(order_cost(order, start) for order in permutations(items))
    quick = best_order(items, start, 1)
    assert sorted(quick) == list(range(len(items)))
    by_run = sorted(items)
    assert order_cost([items[index] for index in quick], start) <= order_cost(by_run, start)


def test_hydra_meets_deadlines_on_the_right_kind() -> None:
    """A device of kind a is free first, but only on b, once that is free, the second job is in time."""
    cluster = ClusterSpec((NodeGroup("a"), NodeGroup("b")))
    jobs = [
        job(0, 0, 50, rates={"a": 0.1, "b": 1.0}, deadline_s=60.0),
        job(1, 0, 100, rates={"a": 0.25, "b": 1.0}, deadline_s=160.0),
    ]
    found = replay("hydra", jobs, cluster)
    assert {stay.number: stay.kind for stay in found.stays} == {0: "b", 1: "b"}


def test_the_minimum_satisfactory_share() -> None:
    rates = [(1, 1.0), (2, 1.5), (4, 2.0)]
    assert satisfactory_share(100, rates, [20, 20, 20], [2, 4, 4]) == [2, 4, 4]
    assert satisfactory_share(60, rates, [20, 20, 20], [2, 4, 4]) == [1, 1, 1]
    assert satisfactory_share(111, rates, [20, 20, 20], [2, 4, 4]) is None


def test_elasticflow_meets_a_deadline_by_more_devices() -> None:
    one = job(0, 0, 1000, 1, deadline_s=720.0, scaling=((1, 1.0), (2, 1.8), (4, 3.0)))
    found = replay("elasticflow", [one, job(1, 0, 500)], one_kind(4))
    assert found.states[0].finish_s <= 720.0


def test_optimus_gives_devices_where_they_save_most() -> None:
    flat, steep = ((1, 1.0), (2, 1.1)), ((1, 1.0), (2, 1.9))
    found = replay("optimus", [job(0, 0, 5000, scaling=flat), job(1, 0, 5000, scaling=steep)], one_kind(3))
    assert {stay.number: stay.devices for stay in found.stays if stay.start_s == 0.0} == {0: 1, 1: 2}


def test_the_market_gives_each_some_and_all_what_they_need() -> None:
    """Two jobs on one device: the longer one ends last whatever is done, so that it gets more; the other is not starved."""
    left = np.array([400.0, 100.0])
    plan = planned_rounds(
        [1, 1], np.zeros(2), 10 / left, left, np.zeros(2), np.ones(2), devices=1, window=20, round_s=10.0, k=1e-3
    )
    assert plan is not None and sum(plan) == 20
    assert 0 < plan[1] <= 10 <= plan[0]
    assert (
        planned_rounds(
            [1, 1],
            np.zeros(2),
            10 / left,
            left,
            np.array([15.0, 10.0]),
            np.ones(2),
            devices=1,
            window=20,
            round_s=10.0,
            k=0.0,
        )
        is None
    ), "25 rounds do not fit into 20"


def test_shockwave_expects_batch_sizes_by_what_it_has_seen() -> None:
    """Ten epochs of two batch sizes, five of each expected at first; after two of the first, 7 / 12 of ten are: 3.83 and 4.17 left,
    scaled to the eight that are."""
    phases = (WorkPhase(6.0, {"a": 1.0}), WorkPhase(4.0, {"a": 2.0}))
    one = TrainingJob("x", 0.0, phases)
    state = JobState(0, one, one.steps, ("a",))
    assert expected_left_s(state) == pytest.approx(5 + 5 / 2) and past_s(state) == 0.0
    state.done = 2.0
    assert past_s(state) == 2.0
    assert expected_left_s(state) == pytest.approx(7 / 12 * 10 - 2 + 5 / 12 * 10 / 2)
    state.phase, state.before, state.done = 1, 6.0, 1.0
    assert past_s(state) == 6.5 and 3 / 2 < expected_left_s(state) < 3.0
    plain = job(1, 0.0, 8.0)
    assert expected_left_s(JobState(1, plain, 8.0, ("a",), done=3.0)) == 5.0


def test_of_plans_that_are_as_good_the_one_counts_that_ends_jobs_soonest() -> None:
    """Two jobs of weight nothing, on one device for ten rounds: any split is as good, and the shorter one gets all it needs."""
    left = np.array([100.0, 60.0])
    words: dict[str, Any] = {"devices": 1, "window": 10, "round_s": 10.0, "k": 0.0}
    assert planned_rounds([1, 1], np.zeros(2), 10 / left, left, np.zeros(2), np.zeros(2), **words) == [4, 6]
    left[0], words["devices"] = 200.0, 2  # by what a round of one device is worth: 1 / 200, and 1 / 60 for two of them
    assert planned_rounds([1, 2], np.zeros(2), 10 / left, left, np.zeros(2), np.zeros(2), **words) == [8, 6]


def test_the_fair_finish_is_a_mean_over_the_time_that_estimates_held() -> None:
    """100 for 30 s, then 200 for 10 s: the mean is 125, of which nine tenths count, and a tenth of 200."""
    fair = FairFinish(100.0, since_s=70.0)
    assert fair.expected(70.0, 0.9) == 100.0, "no time has passed"
    fair.estimate(200.0, 100.0)
    assert fair.expected(110.0, 0.9) == pytest.approx(0.9 * 125.0 + 0.1 * 200.0)


def test_shockwave_serves_all() -> None:
    found = replay("shockwave", [job(n, 10.0 * n, 500.0, 1 + n % 2) for n in range(5)], one_kind(2))
    assert all(math.isfinite(state.finish_s) for state in found.states)


def test_time_slices_share_a_device() -> None:
    found = replay("slices", [job(0, 0, 120), job(1, 0, 120)], one_kind(1))
    assert [state.finish_s for state in found.states] == [180, 240]


def test_shares_are_kept_over_rounds() -> None:
    """Three jobs on one device under max-min: after many rounds each has had a third."""
    found = replay("max-min", [job(n, 0, 36000) for n in range(3)], one_kind(1, round_s=360.0))
    had = [
        sum(min(s.end_s, 36000) - s.start_s for s in found.stays if s.number == n and s.start_s < 36000)
        for n in range(3)
    ]
    assert had == pytest.approx([12000] * 3, abs=720)
