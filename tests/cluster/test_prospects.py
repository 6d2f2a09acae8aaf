"""Predicted starts and ends, what jobs wait for, and what would let them start now."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from bricolage.cluster.event_loop import EventLoop
from bricolage.cluster.jobs import TrainingJob
from bricolage.cluster.machines import ClusterSpec, QueueQuota
from bricolage.cluster.policy_catalogue import POLICIES, find_policy
from bricolage.cluster.prospects import Doubt, Scene, prospects, scene_of
from bricolage.cluster.standing import Standing
from bricolage.errors import JobFitsNowhere
from tests.cluster.making import job, one_kind, replay, workloads

SURE = Doubt(0.0, 0.0)


def scene(policy: str, jobs: list[TrainingJob], cluster: ClusterSpec, now: float) -> Scene:
    entry = find_policy(policy)
    return scene_of(EventLoop(jobs, cluster, entry.make(jobs, cluster), entry.estimator(0.0, 0)), entry, now)


def test_where_jobs_stand_and_what_would_change_it() -> None:
    """Four devices, three held: the second lacks three, the third and the fourth fit and wait behind it."""
    jobs = [job(0, 0, 100, 3), job(1, 10, 50, 4), job(2, 20, 10, 1), job(3, 20, 10, 1)]
    first, second, third, fourth = prospects(scene("fifo", jobs, one_kind(4), 30.0), SURE, draws=3)
    assert (first.kind, first.waits_for, first.expected.place) == ("a", "nothing", 0)
    assert first.expected.start_s == 0.0 and first.expected.end_s == pytest.approx(100.0)
    assert second.waits_for == "gang" and second.expected.place == 1
    assert second.reason == "3 more a: 1 of 4 are free, and its gang needs 4"
    assert second.change == "3 more a, or the end of j0"
    assert second.expected.start_s == pytest.approx(100.0) and second.expected.end_s == pytest.approx(150.0)
    assert (third.waits_for, third.reason) == ("order", "its turn: 1 a are free, and j1 come first")
    assert third.change == "the place of j1" and third.expected.place == 2
    assert fourth.change == "the place of j1, j2" and fourth.expected.start_s == pytest.approx(150.0)


def test_devices_that_others_would_take_are_not_enough() -> None:
    jobs = [job(0, 0, 100, 2), job(1, 1, 50, 2), job(2, 2, 10, 2)]
    _, second, third = prospects(scene("fifo", jobs, one_kind(2), 5.0), SURE, draws=1)
    assert second.waits_for == third.waits_for == "devices"
    assert second.change == "2 more a, or the end of j0" and third.change == "4 more a, or the end of j0"


def test_doubt_widens_intervals_around_what_is_believed() -> None:
    jobs = [job(0, 0, 100, 1), job(1, 0, 100, 1)]
    _, sure = prospects(scene("fifo", jobs, one_kind(1), 0.0), SURE, draws=5)
    running, unsure = prospects(scene("fifo", jobs, one_kind(1), 50.0), Doubt(0.5, 0.0), draws=40)
    assert sure.expected.start_interval_s == (100.0, 100.0)
    low, high = unsure.expected.start_interval_s
    assert 50.0 < low < unsure.expected.start_s < high and high - low > 30.0
    assert running.expected.end_interval_s[0] > 50.0, "it has run for so long already"
    busy = [job(n, 10.0 * n, 200, 1) for n in range(6)]
    alone = prospects(scene("srtf", busy, one_kind(2), 55.0), SURE, draws=5)
    shorter = [job(9, 0.0, 20, 1)] * 8
    crowded = prospects(scene("srtf", busy, one_kind(2), 55.0), SURE, draws=5, past=shorter)
    assert crowded[-1].expected.end_s > alone[-1].expected.end_s, "who comes later may come first"


EXACT = [one.name for one in POLICIES if not one.slow and one.name != "qssf"]


@pytest.mark.parametrize("name", EXACT)
@settings(max_examples=15, deadline=None)
@given(workload=workloads(most=8))
def test_a_loop_begun_in_the_middle_goes_on_as_the_whole_one(
    name: str, workload: tuple[list[TrainingJob], ClusterSpec]
) -> None:
    """Once nobody else comes, exact beliefs give the replay's own starts and ends."""
    jobs, cluster = workload
    if find_policy(name).refuses(jobs, cluster):
        return
    whole, now = replay(name, jobs, cluster), jobs[-1].submit_s
    there = [state for state in whole.states if state.finish_s > now]
    found = prospects(scene(name, jobs, cluster, now), SURE, draws=1)
    assert [one.job for one in found] == [state.job.name for state in there]
    if name in ("fifo", "sjf", "easy", "edf"):  # orders that restarts do not change
        for one, state in zip(found, there, strict=True):
            assert one.expected.end_s == pytest.approx(state.finish_s, rel=1e-6)
    for one in found:
        assert one.kind or one.waits_for == "nothing" or one.change


def test_standing_jobs_hold_their_nodes() -> None:
    jobs = [job(0, 0, 100, 2), job(1, 0, 100, 2)]
    there = {0: Standing(40.0, "a", ((1, 2),), 2, since_s=-40.0, first_start_s=-40.0)}
    loop = Scene(jobs, there, one_kind(2, nodes=2), find_policy("fifo"), 0.0).loop()
    first, second = loop.run().states
    assert first.finish_s == pytest.approx(60.0) and second.finish_s == pytest.approx(100.0)
    assert {stay.nodes for stay in loop.stays} == {((1, 2),), ((0, 2),)}
    clash = {n: Standing(0.0, "a", ((0, 2),), 2) for n in range(2)}
    with pytest.raises(ValueError, match="held by another job"):
        Scene(jobs, clash, one_kind(2, nodes=2), find_policy("fifo"), 0.0).loop().run()


def test_a_quota_holds_jobs_back_and_is_named() -> None:
    """Four devices, of which jobs of queue q may have two: its second job waits, one of another queue does not."""
    cluster = one_kind(4, quota=(QueueQuota("q", 2),), round_s=5.0)
    jobs = [job(0, 0, 100, 2, queue="q"), job(1, 10, 50, 1, queue="q"), job(2, 20, 10, 1)]
    for policy in ("fifo", "srtf", "max-min"):
        first, second, third = replay(policy, jobs, cluster).states
        assert third.finish_s < first.finish_s <= second.first_start_s
    _, second, third = prospects(scene("fifo", jobs, cluster, 25.0), SURE, draws=1)
    assert second.waits_for == "quota" and second.change == "a quota of 3" and third.waits_for == "nothing"
    assert second.reason == "its queue's quota: jobs of 'q' hold 2 of 2 devices, and its gang needs 1"
    assert second.expected.start_s == pytest.approx(100.0)
    with pytest.raises(JobFitsNowhere, match="a quota of 2 for queue 'q'"):
        replay("fifo", [job(0, 0, 1, 3, queue="q")], cluster)
    with pytest.raises(ValueError, match="two quotas"):
        one_kind(4, quota=(QueueQuota("q", 2), QueueQuota("q", 3)))


def test_jobs_that_share_a_device_go_on_together() -> None:
    jobs = [replace(job(n, 0, 100), kind="x", together={"a": {"x": 0.8}}) for n in range(3)]
    found = prospects(scene("harmony", jobs, one_kind(1), 25.0), SURE, draws=1)
    assert [one.kind for one in found] == ["a", "a", ""] and found[2].waits_for == "devices"
    ends = [one.expected.end_s for one in found]
    assert ends == pytest.approx([125.0, 125.0, 225.0])
