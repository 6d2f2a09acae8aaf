"""Policies side by side: figures, the page, why jobs wait."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.cluster.policy_catalogue import POLICIES, find_policy
from bricolage.cluster.policy_comparison import POINTS, ReplayOptions, _course, compare_policies
from bricolage.cluster.replay_figures import fairness, outcome
from bricolage.cluster.why import explain_waits
from bricolage.errors import ClusterStuck, JobFitsNowhere, PolicyRefuses, UnknownPolicy
from bricolage.report.policies import Whole, cluster_page, span
from tests.cluster.making import job, one_kind, replay


def test_figures_of_two_jobs() -> None:
    cluster = one_kind(1)
    found = outcome("fifo", replay("fifo", [job(0, 0, 100, deadline_s=90.0), job(1, 20, 50)], cluster), cluster)
    assert (found.makespan_s, found.mean_jct_s, found.mean_queue_s) == (150, 115, 40)
    assert (found.utilisation, found.late, found.tardiness_s, found.deadlines) == (1.0, 1, 10, 1)
    assert found.cost == pytest.approx(150 / 3600)


def test_fairness_compares_with_an_exclusive_part() -> None:
    """Two equal jobs on one device: the first has it for itself, the second waits. Each contends with the other meanwhile."""
    cluster = one_kind(1)
    states = replay("fifo", [job(0, 0, 100), job(1, 0, 100)], cluster).states
    # n is 2 while the first runs, (2 + 1) / 2 over the stay of the second.
    assert fairness(states, cluster) == pytest.approx([100 / 200, 200 / 150])


@settings(max_examples=60, deadline=None)
@given(
    intervals=st.lists(st.tuples(st.floats(0, 90), st.floats(0, 90), st.integers(1, 5)), min_size=1, max_size=8),
)
def test_courses_keep_what_they_add_up_to(intervals: list[tuple[float, float, int]]) -> None:
    given_ = [(min(a, b), max(a, b), count) for a, b, count in intervals]
    held = sum((end - start) * count for start, end, count in given_)
    assert sum(_course(given_, 90.0)) * 90.0 / POINTS == pytest.approx(held, abs=1e-6)


def test_why_a_job_waits() -> None:
    jobs = [job(0, 0, 100, 3), job(1, 10, 50, 4), job(2, 20, 10, 1)]
    cluster = one_kind(4)
    first, second, third = explain_waits(replay("fifo", jobs, cluster), cluster, [0, 1, 2])
    assert first.reason == "nothing"
    assert second.reason == "3 more a: 1 of 4 were free, and its gang needs 4" and second.change == "3 more a"
    assert third.reason == "its turn: 1 a were free, and 1 job before it came first" and third.ahead == 1
    assert explain_waits(replay("easy", jobs, cluster), cluster, [1])[0].overtook == 1


def test_all_policies_but_those_that_refuse() -> None:
    jobs = [job(n, 10.0 * n, 60.0, 1 + n % 2) for n in range(6)]
    found = compare_policies(jobs, one_kind(2, restart_s=5.0, round_s=30.0))
    shown = {one.outcome.policy for one in found.results}
    assert shown | found.refused.keys() == {entry.name for entry in POLICIES} and not shown & found.refused.keys()
    assert found.refused["edf"] == "no job has a deadline"
    for one in found.results:
        assert sum(one.used["a"]) * found.span_s / POINTS == pytest.approx(one.outcome.cost * 3600, rel=1e-6)


def test_errors_of_estimates_have_an_interval() -> None:
    jobs = [job(n, 5.0 * n, 20.0 * (1 + n % 5)) for n in range(20)]
    exact, blurred = (
        compare_policies(jobs, one_kind(1), ReplayOptions(("srtf", "las-2d"), error=error, seeds=4))
        for error in (0.0, 1.0)
    )
    assert [one.mean_jct_interval_s for one in exact.results] == [None, None]
    low, high = blurred.results[0].mean_jct_interval_s or (0, 0)
    assert exact.results[0].outcome.mean_jct_s <= low < high
    assert blurred.results[1].mean_jct_interval_s is None, "it knows nothing of lengths"


def test_what_cannot_be_compared() -> None:
    jobs = [job(0, 0, 10, 4)]
    with pytest.raises(UnknownPolicy, match="there is no policy 'best'"):
        compare_policies(jobs, one_kind(4), ReplayOptions(("best",)))
    with pytest.raises(PolicyRefuses, match="no job has a deadline"):
        compare_policies(jobs, one_kind(4), ReplayOptions(("edf",)))
    with pytest.raises(JobFitsNowhere, match="job j0 needs 4 devices of a at once, and the cluster has 2 a"):
        compare_policies(jobs, one_kind(2), ReplayOptions(("fifo",)))


def test_a_scheduler_that_starts_nobody_is_noticed() -> None:
    from bricolage.cluster.estimates import ExactLengths
    from bricolage.cluster.event_loop import EventLoop
    from bricolage.cluster.order_policies import OrderScheduler
    from bricolage.cluster.policies.queue_orders import Fifo
    from bricolage.cluster.scheduler import Changes

    class Idle(OrderScheduler):
        def decide(self, now: float) -> Changes:
            del now
            return Changes()

    with pytest.raises(ClusterStuck, match="1 jobs wait at 0 s"):
        EventLoop([job(0, 0, 1)], one_kind(1), Idle(Fifo()), ExactLengths()).run()


def test_the_page_holds_everything_and_loads_nothing() -> None:
    jobs = [job(n, 5.0 * n, 60.0, deadline_s=5.0 * n + 100, queue="<script>") for n in range(6)]
    compared = compare_policies(jobs, one_kind(2), ReplayOptions(("fifo", "srtf")))
    page = cluster_page([Whole("As it is", compared)], "jobs <&>.csv")
    assert "jobs &lt;&amp;&gt;.csv" in page and "<script" not in page
    assert not re.search(r"(src|href)=|https?:|url\(", page)
    assert (
        "Devices over time, fifo" in page and "Devices over time, srtf" in page and "prefers-color-scheme:dark" in page
    )
    assert not re.search(r"\bnan\b|\binf\b", page)


@pytest.mark.parametrize(
    ("seconds", "told"), [(42, "42 s"), (150, "2.5 min"), (3000, "50 min"), (9000, "2.5 h"), (864000, "10.0 d")]
)
def test_durations(seconds: float, told: str) -> None:
    assert span(seconds) == told


def test_quantiles_are_those_of_the_jobs() -> None:
    jobs = [job(n, 0, 10.0 * (n + 1)) for n in range(5)]
    (only,) = compare_policies(jobs, one_kind(8), ReplayOptions(("fifo",))).results
    assert np.array(only.jct_s)[[0, 25, 50, 75, 100]] == pytest.approx([10, 20, 30, 40, 50])


def test_wrong_rates_mislead_until_a_job_has_run_there() -> None:
    """Two kinds, one job: with a wrong belief it starts on the slow kind, sees its rate there, and the other is still believed."""
    from bricolage.cluster.estimates import BlurredRates, ExactLengths
    from bricolage.cluster.event_loop import EventLoop
    from bricolage.cluster.machines import ClusterSpec, NodeGroup

    cluster = ClusterSpec((NodeGroup("a", 1, 1), NodeGroup("b", 1, 1)))
    one = job(0, 0, 100, rates={"a": 2.0, "b": 1.0})
    entry = find_policy("fifo")
    ends = set()
    for seed in range(20):
        wrong = BlurredRates(ExactLengths(), 2.0, seed)
        (state,) = EventLoop([one], cluster, entry.make([one], cluster), wrong).run().states
        ends.add(state.finish_s)
        ran = "a" if state.finish_s == 50.0 else "b"
        assert ran not in state.believed and state.kinds[0] in ("a", "b")
        assert fairness([state], cluster) == pytest.approx([state.finish_s / 50.0]), "what was believed does not count"
    assert ends == {50.0, 100.0}
