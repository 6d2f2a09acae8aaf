"""Hierarchies, parts, Pollux, Chronus, Cynthia, the side-car, sleeping nodes: vectors, and brute force on small cases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.cluster.completion import complete_speeds
from bricolage.cluster.history.rates import read_rates
from bricolage.cluster.jobs import JobState, TrainingJob
from bricolage.cluster.machines import ClusterSpec, NodeGroup
from bricolage.cluster.policies import gavel
from bricolage.cluster.policies.chronus import packed_leases
from bricolage.cluster.policies.elastic import Sia
from bricolage.cluster.policies.elastic_spirit import SideCar, cheapest_mix
from bricolage.cluster.policies.hierarchy import water_filled
from bricolage.cluster.policies.partitioned import dealt
from bricolage.cluster.policies.pollux import Pollux
from bricolage.cluster.policies.space_sharing import packed_max_min
from bricolage.cluster.sleeping import slept
from bricolage.cluster.target_policies import ClusterView
from tests.cluster.making import job, one_kind, replay
from tests.cluster.test_policies import problem, rate


def test_entities_share_by_weight_and_then_inside() -> None:
    """One and a half devices: entity a of weight 1 has two jobs, b of weight 2 one. A job uses one device at most."""
    given_ = problem([[1.0], [1.0], [1.0]], [1.5], [1, 1, 1], weights=np.array([1.0, 1.0, 2.0]))
    given_ = replace(given_, entities=("a", "a", "b"))
    assert rate(given_, water_filled(given_, "fairness")) == pytest.approx([0.25, 0.25, 1.0], abs=1e-6)
    assert rate(given_, water_filled(given_, "fifo")) == pytest.approx([0.5, 0.0, 1.0], abs=1e-6)


def test_who_alone_can_rise_goes_on() -> None:
    """Entity a has half its points on each of two kinds; b has all on the first. The second kind is left to a's first job."""
    given_ = problem([[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]], [1.0, 1.0], [1, 1, 1])
    given_ = replace(given_, entities=("a", "a", "b"))
    assert rate(given_, water_filled(given_, "fairness")) == pytest.approx([1.0, 1 / 3, 2 / 3], abs=1e-6)
    assert rate(given_, water_filled(given_, "fifo")) == pytest.approx([1.0, 0.0, 1.0], abs=1e-6)


def test_one_job_of_each_entity_is_water_filling() -> None:
    given_ = problem([[4, 2], [3, 1], [2, 1]], [1, 1], [100, 60, 40])
    alone = replace(given_, entities=("a", "b", "c"))
    assert rate(given_, water_filled(alone, "fairness")) == pytest.approx(
        rate(given_, gavel.water_filling(given_)), rel=1e-5
    )


def test_parts_lose_little_and_one_part_nothing() -> None:
    draw = np.random.default_rng(0)
    rates = draw.uniform(1.0, 8.0, size=(240, 3)).tolist()
    given_ = problem(rates, [40, 40, 40], [1.0] * 240)
    equal = (given_.rates / 3).sum(axis=1)
    whole = float((rate(given_, gavel.max_min(given_)) / equal).min())
    parts = float((rate(given_, dealt(given_, gavel.max_min, 4)) / equal).min())
    assert (dealt(given_, gavel.max_min, 1) == gavel.max_min(given_)).all()
    assert 0.97 * whole <= parts <= whole * (1 + 1e-6)


def state(number: int, one: TrainingJob, done: float = 0.0) -> JobState:
    return JobState(number, one, one.steps, one.kinds, done=done)


ELASTIC = {"scaling": ((1, 1.0), (2, 1.8), (4, 3.0))}


@settings(max_examples=25, deadline=None)
@given(
    drawn=st.lists(
        st.tuples(st.floats(0.3, 1.0), st.sampled_from((0.0, 0.5, 3.0)), st.booleans()), min_size=1, max_size=4
    ),
    devices=st.integers(1, 6),
    name=st.sampled_from(("pollux", "sia")),
)
def test_configurations_are_the_best_of_all(drawn: list[tuple[float, float, bool]], devices: int, name: str) -> None:
    """Of all allocations on one or two kinds, some jobs already running: Pollux has the largest mean of speed-ups, Sia the least
    sum of costs, within a thousandth."""
    cluster = ClusterSpec((NodeGroup("a", 1, devices), NodeGroup("b", 1, 2)), restart_s=30.0)
    states, left = list[JobState](), devices
    for number, (power, other, runs) in enumerate(drawn):
        scaling = tuple((count, count**power) for count in (1, 2, 4))
        rates = {"a": 1.0} | ({"b": other} if other else {})
        states.append(state(number, job(number, 0.0, 100.0, 1, rates=rates, scaling=scaling)))
        if runs and left:
            states[-1].held, states[-1].held_kind, left = 1, "a", left - 1
    view = ClusterView(600.0, states, cluster.capacity, cluster)
    policy: Pollux | Sia = Pollux() if name == "pollux" else Sia()
    if isinstance(policy, Pollux):
        waiting = 0.05**policy.power
        costs = [[(k, n, v**policy.power) for k, n, v in policy.speed_ups(one, view)] for one in states]
    else:
        waiting, costs = policy.waiting, [policy.configurations(one, view) for one in states]
    target = policy.target(view)

    def total(choice: Sequence[tuple[str, int, float]]) -> float:
        used = {kind: sum(count for one, count, _ in choice if one == kind) for kind in ("a", "b")}
        return sum(cost for *_, cost in choice) if all(used[k] <= cluster.capacity[k] for k in used) else np.inf

    best = min(total(choice) for choice in product(*([("", 0, waiting), *some] for some in costs)))
    chosen = [
        next((one for one in some if one[:2] == target.get(s.number)), ("", 0, waiting))
        for s, some in zip(states, costs, strict=True)
    ]
    assert all(s.number not in target or one[0] for s, one in zip(states, chosen, strict=True))
    assert best - 1e-9 <= total(chosen) <= best + 2e-3 * abs(best - waiting * len(states)) + 1e-9


@settings(max_examples=30, deadline=None)
@given(
    jobs=st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(0, 4)), min_size=1, max_size=4),
)
def test_leases_keep_as_many_deadlines_as_can_be(jobs: list[tuple[int, int, int]]) -> None:
    gangs, needed, before = (list(column) for column in zip(*jobs, strict=True))
    found = packed_leases(gangs, needed, before, 3)
    for lease in range(4):
        assert sum(gang for gang, mine in zip(gangs, found, strict=True) if lease in mine) <= 3
    for mine, want, most in zip(found, needed, before, strict=True):
        assert not mine or (len(mine) == want and max(mine) < most)

    def fits(kept: tuple[int, ...]) -> bool:
        choices = [list(combinations(range(before[n]), needed[n])) for n in kept]
        return any(
            all(sum(gangs[n] for n, mine in zip(kept, some, strict=True) if lease in mine) <= 3 for lease in range(4))
            for some in product(*choices)
        )

    most_kept = max(
        size for size in range(len(jobs) + 1) for kept in combinations(range(len(jobs)), size) if fits(kept)
    )
    assert sum(bool(mine) for mine in found) == most_kept


def test_chronus_keeps_a_deadline_that_shortest_first_misses() -> None:
    cluster = one_kind(1)
    jobs = [job(0, 0, 3000, deadline_s=3600.0), *(job(n, 0, 1000) for n in range(1, 4))]
    assert (
        replay("chronus", jobs, cluster).states[0].finish_s <= 3600.0 < replay("srtf", jobs, cluster).states[0].finish_s
    )


def test_the_cheapest_mix_in_time_else_the_fastest() -> None:
    cluster = ClusterSpec((NodeGroup("a", 1, 4, price=3.0), NodeGroup("b", 1, 4, price=1.0)))
    rates = {"a": 2.0, "b": 1.0}

    def mix(deadline: float) -> tuple[str, int] | None:
        one = state(0, job(0, 0, 100, 1, rates, deadline_s=deadline, **ELASTIC))
        return cheapest_mix(one, ClusterView(0.0, [one], cluster.capacity, cluster), dict(cluster.capacity))

    assert mix(math.inf) == ("b", 1) and mix(60.0) == ("b", 2) and mix(30.0) == ("a", 2) and mix(5.0) == ("a", 4)
    one = state(0, job(0, 0, 100, 1, rates))
    assert cheapest_mix(one, ClusterView(0.0, [one], cluster.capacity, cluster), {"a": 0, "b": 0}) is None


def test_the_side_car_gives_what_is_left_to_the_most_advanced() -> None:
    jobs = [state(n, job(n, 0, 100, 1, **ELASTIC), done) for n, done in enumerate((10.0, 60.0, 30.0))]
    view = ClusterView(0.0, jobs, {"a": 6}, one_kind(6))
    assert SideCar().target(view) == {0: ("a", 1), 1: ("a", 4), 2: ("a", 1)}


def test_nodes_sleep_after_their_work_and_are_woken_for_more() -> None:
    """Ten nodes busy for an hour, then one for a day, then all again."""
    cluster = ClusterSpec((NodeGroup("a", 10, 1),))
    hour = 3600.0
    jobs = (
        [job(n, 0, hour) for n in range(9)] + [job(9, 0, 26 * hour)] + [job(n, 25 * hour, hour) for n in range(10, 19)]
    )
    found = slept(replay("fifo", jobs, cluster), cluster)
    assert found.idle_node_hours == pytest.approx(9 * 24, abs=2.0)
    # Three hours long it is not known that they stay idle; before the same time of the next day some are woken.
    assert 7 * 19 <= found.slept_node_hours <= 7 * 22 and found.woken <= 1
    assert slept(replay("fifo", jobs[:10], cluster), cluster, margin=10).slept_node_hours == 0.0


def packable(number: int, submit: float, seconds: float, kind: str, beside: dict[str, float]) -> TrainingJob:
    return replace(job(number, submit, seconds), kind=kind, together={"a": beside})


def test_two_that_share_a_device_and_gain() -> None:
    """One device, two jobs, each at 0.8 beside the other: both are done after 125 s instead of 200 s."""
    jobs = [packable(n, 0, 100, "x", {"x": 0.8}) for n in range(2)]
    cluster = one_kind(1, round_s=1000.0)
    for policy in ("gavel-packed", "gandiva-packed"):
        found = replay(policy, jobs, cluster)
        assert [one.finish_s for one in found.states] == pytest.approx([125.0, 125.0])
        assert all(stay.part == 0.5 for stay in found.stays) and sum(one.attained_s for one in found.states) == 125.0
    longer = [jobs[0], packable(1, 0, 200, "x", {"x": 0.8})]
    found = replay("gandiva-packed", longer, cluster)
    assert found.states[1].finish_s == pytest.approx(125.0 + 100.0), "alone once the other is over"
    lossy = [packable(n, 0, 100, "x", {"x": 0.4}) for n in range(2)]
    ends = [one.finish_s for one in replay("gavel-packed", lossy, one_kind(1, round_s=50.0)).states]
    assert max(ends) == pytest.approx(200.0), "together they would be slower"


def test_sorts_give_the_value_of_single_jobs() -> None:
    """The programme over sorts of jobs has the value of that over jobs and pairs of jobs, here by brute force on its dual: all
    jobs as sorts of their own."""
    jobs = [packable(n, 0, 100, "xxy"[n % 3], {"x": 0.7, "y": 0.55}) for n in range(6)]
    states = [state(n, one) for n, one in enumerate(jobs)]
    view = ClusterView(0.0, states, {"a": 2}, one_kind(2))

    def value(first: list[JobState], counts: list[int]) -> float:
        found = packed_max_min(first, counts, view)
        rates = np.zeros(len(first))
        for combination, gangs in found:
            for row, rate_ in zip(combination.sorts, combination.rates, strict=True):
                rates[row] += gangs * rate_
        return float((rates / np.array(counts)).min())

    assert value([states[0], states[2]], [4, 2]) == pytest.approx(value(states, [1] * 6), rel=1e-6)


def test_speeds_of_pairs_are_completed_from_those_that_ran() -> None:
    """How much a job suffers times how much the other one takes: rank one, beyond the means."""
    draw = np.random.default_rng(0)
    whole = 0.9 - np.outer(draw.uniform(0.2, 1.0, 20), draw.uniform(0.1, 0.5, 20))
    hidden = draw.random(whole.shape) < 0.5
    found = complete_speeds(np.where(hidden, np.nan, whole))
    assert (found[~hidden] == whole[~hidden]).all()
    assert np.abs(found - whole)[hidden].mean() < 0.25 * np.abs(whole - whole[~hidden].mean())[hidden].mean()
    assert (complete_speeds(whole) == whole).all() and np.isnan(complete_speeds(np.full((2, 2), np.nan))).all()


def test_a_table_of_rates_with_pairs(tmp_path: Path) -> None:
    lines = ["kind,device,devices,steps_per_s,partner"]
    lines += [f"{kind},a,1,10," for kind in "xyz"]
    lines += ["x,a,1,8,x", "x,a,1,6,y", "y,a,1,5,x", "y,a,1,5,y", "z,a,1,0,z"]
    (tmp_path / "rates.csv").write_text("\n".join(lines))
    table = read_rates(tmp_path / "rates.csv", ["a"])
    beside = table.together("x", 1)["a"]
    assert (beside["x"], beside["y"]) == (8.0, 6.0) and 0.0 <= beside["z"] <= 10.0
    assert table.together("z", 1)["a"]["z"] == 0.0 and table.of("x", 1) == {"a": 10.0}


def test_a_job_joins_the_one_that_it_suits_best() -> None:
    """Two devices, held by x and y; z suits y better. Another x suits nobody, and waits."""
    suits = {"x": {"z": 0.6}, "y": {"z": 0.9}, "z": {"x": 0.6, "y": 0.9}}
    jobs = [packable(n, n, 100, kind, suits[kind]) for n, kind in enumerate("xyzx")]
    for policy in ("harmony", "horus"):
        found = replay(policy, jobs, one_kind(2))
        first = {stay.number: stay for stay in reversed(found.stays)}
        assert first[2].start_s == 2.0 and first[2].nodes == first[1].nodes
        assert found.states[1].finish_s == pytest.approx(2.0 + 99.0 / 0.9)
        assert found.states[3].first_start_s == found.states[0].finish_s == 100.0
