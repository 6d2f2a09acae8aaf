"""Forecasts begun in the middle: they go on as the replay does, and stop nobody."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.cluster.catalogue import named
from bricolage.cluster.estimates import ExactLengths, Rolling
from bricolage.cluster.forecast import QueuedJob, RunningJob, forecast, outlook
from bricolage.cluster.jobs import TrainingJob
from bricolage.cluster.loop import ReplayLoop
from bricolage.cluster.machines import ClusterSpec, NodeGroup
from tests.cluster.making import job, one_kind


@settings(max_examples=60, deadline=None)
@given(
    drawn=st.lists(
        st.tuples(st.integers(0, 60), st.integers(1, 80), st.sampled_from((1, 1, 2, 4))), min_size=1, max_size=10
    ),
    policy=st.sampled_from(["fifo", "easy", "sjf", "qssf"]),
    at=st.integers(1, 80),
)
def test_a_replay_goes_on_from_any_time(drawn: list[tuple[int, int, int]], policy: str, at: int) -> None:
    """What has been submitted until then, begun with who runs then, ends as in the replay of all of it. (Later submissions are left
    out of both; nobody is stopped.)"""
    jobs = [
        job(n, float(min(when, at)), float(seconds), devices)
        for n, (when, seconds, devices) in enumerate(sorted(drawn))
    ]
    cluster, entry = one_kind(4), named(policy)
    whole = ReplayLoop(jobs, cluster, entry.make(jobs, cluster), ExactLengths()).run()
    left = [state for state in whole.states if state.finish_s > at]
    moved = [TrainingJob(s.job.name, s.job.submit_s - at, s.job.phases, s.job.devices, user=s.job.user) for s in left]
    running = {n: RunningJob("a", s.first_start_s - at) for n, s in enumerate(left) if s.first_start_s < at}
    if not left or any(state.first_start_s == at for state in left):
        return  # who starts just then may stand in another order with who ends just then
    found, _ = forecast(moved, running, cluster, entry, [])
    for one, state in zip(found, left, strict=True):
        assert one.end_s == pytest.approx(state.finish_s - at, abs=1e-3)
        assert (
            one.place == 0
            if state.number in running
            else one.start_s == pytest.approx(state.first_start_s - at, abs=1e-3)
        )


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
    found = outlook(jobs, ClusterSpec((NodeGroup("a", 2, 3),)), named(policy), rolling, 2, 0)
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
    found = outlook(jobs, cluster, named("fifo"), Rolling(), 0, 0)
    assert [one.starts_now for one in found] == [True, False, True]
    assert found[1].waits_for == "1 more a: 0 of 1 were free, and its gang needs 1"
