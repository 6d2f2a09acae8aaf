"""The running set of an order is what a walk through all jobs gives."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings

from bricolage.cluster.estimates import ExactLengths
from bricolage.cluster.event_loop import EventLoop
from bricolage.cluster.jobs import JobState, TrainingJob
from bricolage.cluster.machines import ClusterSpec
from bricolage.cluster.order_policies import OrderPolicy, OrderScheduler
from bricolage.cluster.policies.queue_orders import (
    EarliestDeadline,
    EasyBackfill,
    Fifo,
    ShortestJob,
    ShortestRemaining,
)
from bricolage.cluster.policies.tiresias import LeastAttained, gittins_index
from bricolage.cluster.scheduler import Changes
from tests.cluster.making import job, one_kind, replay, workloads


def walked(policy: OrderPolicy, states: Sequence[JobState], free: int, now: float) -> set[int]:
    """Jobs of one kind in order, each taken that fits."""
    taken = set()
    for state in sorted(states, key=lambda one: policy.rank(one, now)):
        if state.job.devices <= free:
            free -= state.job.devices
            taken.add(state.number)
    return taken


class Compared(OrderScheduler):
    """The scheduler with a walk beside it, at each event."""

    def begin(self, cluster: ClusterSpec) -> None:
        super().begin(cluster)
        self.devices = sum(cluster.capacity.values())

    def decide(self, now: float) -> Changes:
        found = super().decide(now)
        for state in self._states.values():
            state.advance(now)
        if self.policy.preemptive:
            assert set(self._on) == walked(self.policy, list(self._states.values()), self.devices, now)
        return found


@pytest.mark.parametrize("policy", [ShortestRemaining, LeastAttained, EarliestDeadline])
@settings(max_examples=120, deadline=None)
@given(workload=workloads(most=20))
def test_the_running_set_is_that_of_a_walk(
    policy: type[OrderPolicy], workload: tuple[list[TrainingJob], ClusterSpec]
) -> None:
    jobs, cluster = workload
    jobs = [job(n, one.submit_s, one.steps, one.devices, deadline_s=one.deadline_s) for n, one in enumerate(jobs)]
    cluster = ClusterSpec(cluster.group[:1])  # one kind and no restarts: there a walk says all
    made = LeastAttained((20.0, 60.0)) if policy is LeastAttained else policy()
    EventLoop(jobs, cluster, Compared(made), ExactLengths()).run()


def starts(policy: str, jobs: list[TrainingJob], cluster: ClusterSpec) -> list[float]:
    return [state.first_start_s for state in replay(policy, jobs, cluster).states]


def test_fifo_blocks_and_easy_fills_without_delay() -> None:
    jobs = [job(0, 0, 100, 3), job(1, 1, 50, 4), job(2, 2, 90, 1), job(3, 3, 200, 1), job(4, 4, 96, 1)]
    cluster = one_kind(4)
    assert starts("fifo", jobs, cluster) == [0, 100, 150, 150, 150]
    # 2 ends at 92, before 1 can start at 100; 3 would delay it; 4 fits when 2 has ended no more.
    assert starts("easy", jobs, cluster) == [0, 100, 2, 150, 150]


def test_easy_uses_devices_that_the_first_one_will_not_need() -> None:
    jobs = [job(0, 0, 100, 3), job(1, 1, 50, 2), job(2, 2, 500, 1)]
    assert starts("easy", jobs, one_kind(4)) == [0, 100, 2]


@settings(max_examples=60, deadline=None)
@given(workload=workloads(most=20))
def test_easy_never_delays_the_first_one(workload: tuple[list[TrainingJob], ClusterSpec]) -> None:
    """With exact estimates, whoever stands first in the queue starts by the time that was reserved for it."""
    jobs, cluster = workload
    promised: dict[int, float] = {}

    class Watched(OrderScheduler):
        def decide(self, now: float) -> Changes:
            from bricolage.cluster.backfill import reservation

            found = super().decide(now)
            head = self._head()
            if head is not None:
                running = {kind: [state for _, state in some] for kind, some in self._running.items()}
                if all(state.held for some in running.values() for state in some):
                    at = reservation(head, running, self._free, now)[0]
                    assert at <= promised.setdefault(head.number, at) + 1e-6
            return found

    jobs = [job(n, one.submit_s, one.steps, one.devices) for n, one in enumerate(jobs)]
    found = EventLoop(jobs, ClusterSpec(cluster.group[:1]), Watched(EasyBackfill()), ExactLengths()).run()
    for number, at in promised.items():
        assert found.states[number].first_start_s <= at + 1e-6


def test_shortest_remaining_is_best_on_one_device() -> None:
    jobs = [job(0, 0, 10), job(1, 1, 2), job(2, 2, 4)]
    found = replay("srtf", jobs, one_kind(1))
    assert [state.finish_s for state in found.states] == [16, 3, 7]
    assert [state.restarts for state in found.states] == [1, 0, 0]


@settings(max_examples=40, deadline=None)
@given(workload=workloads(most=10))
def test_shortest_remaining_beats_others_on_one_device(workload: tuple[list[TrainingJob], ClusterSpec]) -> None:
    jobs = [job(n, one.submit_s, one.steps) for n, one in enumerate(workload[0])]

    def mean(policy: OrderPolicy) -> float:
        found = EventLoop(jobs, one_kind(1), OrderScheduler(policy), ExactLengths()).run()
        return sum(state.finish_s for state in found.states)

    best = mean(ShortestRemaining())
    assert all(best <= mean(other) + 1e-6 for other in (Fifo(), ShortestJob(), LeastAttained()))


def test_service_demotes() -> None:
    """Two devices a job: 3,250 device-seconds are 1,625 s, then the newcomer comes first."""
    jobs = [job(0, 0, 3000, 2), job(1, 100, 500, 2)]
    found = replay("las-2d", jobs, one_kind(2))
    assert [state.first_start_s for state in found.states] == [0, 1625]
    assert [state.finish_s for state in found.states] == [3500, 2125]


def test_who_waits_long_is_promoted() -> None:
    jobs = [job(0, 0, 200), *(job(n, 100 + 50 * n, 100) for n in range(1, 40))]
    policy = LeastAttained((100.0,), knob=2.0)
    found = EventLoop(jobs, one_kind(1), OrderScheduler(policy), ExactLengths()).run()
    without = EventLoop(jobs, one_kind(1), OrderScheduler(LeastAttained((100.0,))), ExactLengths()).run()
    assert found.states[0].finish_s < without.states[0].finish_s


def test_gittins_index() -> None:
    services = [1000.0, 2000.0, 2500.0, 4000.0, 8000.0, 20000.0]
    found = [round(1e6 * gittins_index(services, attained, 3250.0), 2) for attained in (0.0, 1500.0, 3000.0, 5000.0)]
    assert found == [196.72, 285.71, 133.33, 160.00]
