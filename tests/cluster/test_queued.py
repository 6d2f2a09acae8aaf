"""Another scheduler's queue: nobody is stopped, futures come from past runs, and what waits is told why."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.cluster.estimates import Rolling
from bricolage.cluster.machines import ClusterSpec, NodeGroup
from bricolage.cluster.policy_catalogue import find_policy
from bricolage.cluster.queued import QueuedJob, outlook


@settings(max_examples=40, deadline=None)
@given(
    held=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 500)), max_size=2),
    waits=st.lists(st.tuples(st.integers(1, 4), st.integers(-900, 0)), max_size=6),
    policy=st.sampled_from(
        ["srtf", "las-2d", "gittins-2d", "slices", "max-min", "gavel-ftf", "themis", "allox", "shockwave"]
    ),
)
def test_nobody_is_stopped(held: list[tuple[int, int]], waits: list[tuple[int, int]], policy: str) -> None:
    jobs = [
        QueuedJob(f"r{n}", "u", "p", d, ("a",), -float(s) - 5, math.inf, 2000.0, -float(s))
        for n, (d, s) in enumerate(held)
    ]
    jobs += [QueuedJob(f"w{n}", "u", "p", d, ("a",), float(s), math.inf, 2000.0) for n, (d, s) in enumerate(waits)]
    if not jobs:
        return
    rolling = Rolling()
    for seconds in (50.0, 100.0, 400.0):
        rolling.learn("u", "p", 1, seconds)
    found = outlook(jobs, ClusterSpec((NodeGroup("a", 2, 3),)), find_policy(policy), rolling, 0, 0)
    busy = sum(devices for devices, _ in held)
    for one, seen in zip(jobs, found, strict=True):
        assert (seen.place == 0) == (one.since_s is not None)
        assert seen.expected.end_s > max(seen.expected.start_s, 0.0)
        if one.since_s is not None:
            assert seen.expected.end_s == pytest.approx(seen.time.seconds + one.since_s, rel=1e-3, abs=0.1), "it ran on"
        busy += one.devices * seen.starts_now
    assert busy <= 6


def test_jobs_on_other_kinds_do_not_wait_for_each_other() -> None:
    cluster = ClusterSpec((NodeGroup("a", 1, 1), NodeGroup("b", 1, 1)))
    jobs = [
        QueuedJob(name, "u", "p", 1, (kind,), 0.0, math.inf, math.inf)
        for name, kind in (("x", "a"), ("y", "a"), ("z", "b"))
    ]
    found = outlook(jobs, cluster, find_policy("fifo"), Rolling(), 0, 0)
    assert [one.starts_now for one in found] == [True, False, True]
    second = found[1].prospect
    assert second.reason == "its turn: 1 a are free, and x come first" and second.change == "the place of x"


def test_futures_draw_past_runs_that_are_longer_than_what_has_run() -> None:
    """The policy goes on believing the mean, 200 s; ends lie between the shortest and the longest run of more than 60 s."""
    rolling = Rolling()
    for seconds in (50.0, 100.0, 200.0, 300.0):
        rolling.learn("u", "p", 1, seconds)
    jobs = [
        QueuedJob("r", "u", "p", 1, ("a",), -70.0, math.inf, math.inf, -60.0),
        QueuedJob("w", "u", "p", 1, ("a",), 0.0, math.inf, math.inf),
    ]
    running, waiting = outlook(jobs, ClusterSpec((NodeGroup("a", 1, 1),)), find_policy("easy"), rolling, 60, 0)
    assert running.expected.end_interval_s == pytest.approx((40.0, 240.0))
    assert waiting.expected.start_interval_s == pytest.approx((40.0, 240.0))
    assert waiting.prospect.change == "1 more a, or the end of r"


def test_who_is_far_behind_is_told_what_is_read_off() -> None:
    jobs = [QueuedJob(f"w{n}", "u", "p", 1, ("a",), -1.0, math.inf, math.inf) for n in range(80)]
    found = outlook(jobs, ClusterSpec((NodeGroup("a", 1, 2),)), find_policy("fifo"), Rolling(), 0, 0)
    assert found[40].prospect.change and not found[79].prospect.change
    assert found[79].prospect.waits_for == "order" and "79 jobs before it came first" in found[79].prospect.reason
