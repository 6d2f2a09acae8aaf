"""What holds of every policy: no device twice, gangs whole, steps conserved, same seed same schedule, and no idle device where one
was promised."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings

from bricolage.cluster.event_loop import Replayed
from bricolage.cluster.jobs import TrainingJob
from bricolage.cluster.machines import ClusterSpec
from bricolage.cluster.policy_catalogue import POLICIES
from tests.cluster.making import replay, workloads

Workload = tuple[list[TrainingJob], ClusterSpec]
CHEAP = [entry.name for entry in POLICIES if not entry.slow]
DEAR = [entry.name for entry in POLICIES if entry.slow]


PACKED = [name for name in DEAR if name.endswith("-packed") or name in ("harmony", "horus")]


def serves(name: str, workload: Workload) -> bool:
    return not next(entry for entry in POLICIES if entry.name == name).refuses(*workload)


def check(found: Replayed, cluster: ClusterSpec) -> None:
    """All invariants of a replay."""
    assert all(not math.isnan(state.finish_s) for state in found.states)
    by_node: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for stay in found.stays:
        state = found.states[stay.number]
        allowed = {count for count, _ in state.job.scaling} | {state.job.devices}
        assert stay.devices in allowed, "a gang is whole"
        assert stay.start_s >= state.job.submit_s and stay.end_s <= state.finish_s
        for node, count in stay.nodes:
            held = count * stay.part
            by_node.setdefault((stay.kind, node), []).extend([(stay.start_s, held), (stay.end_s, -held)])
    for (kind, node), changes in by_node.items():
        taken = 0.0
        for _, held in sorted(changes):
            taken += held
            assert taken <= cluster.nodes(kind)[node] + 1e-9, "no device twice, but by two that share it"
    for state in found.states:
        mine = sorted((stay for stay in found.stays if stay.number == state.number), key=lambda one: one.start_s)
        assert all(a.end_s <= b.start_s for a, b in pairwise(mine)), "never in two places"


def steps_held(found: Replayed, cluster: ClusterSpec) -> None:
    """Without failures: what each stay did adds up to the job's steps."""
    for state in found.states:
        work = [phase.steps for phase in state.job.phases]
        phase = 0
        mine = sorted((stay for stay in found.stays if stay.number == state.number), key=lambda one: one.start_s)
        for number, stay in enumerate(mine):
            seconds = stay.end_s - stay.start_s - (cluster.restart_s if number else 0.0)
            while seconds > 1e-9 and phase < len(work):
                rate = state.job.phases[phase].rates[stay.kind] * state.job.speed(stay.devices)
                did = min(work[phase], seconds * rate)
                work[phase] -= did
                seconds -= did / rate
                if work[phase] > 1e-6:
                    break
                phase += 1
            assert seconds < 1e-4, "a job leaves as soon as it is done"
        assert sum(work) < 1e-4


@pytest.mark.parametrize("name", CHEAP)
@settings(max_examples=40, deadline=None)
@given(workload=workloads())
def test_orders_hold_the_invariants(name: str, workload: Workload) -> None:
    if serves(name, workload):
        found = replay(name, *workload)
        check(found, workload[1])
        steps_held(found, workload[1])


@pytest.mark.parametrize("name", DEAR)
@settings(max_examples=6, deadline=None)
@given(workload=workloads(most=6))
def test_plans_hold_the_invariants(name: str, workload: Workload) -> None:
    if serves(name, workload):
        found = replay(name, *workload)
        check(found, workload[1])
        if name not in PACKED:  # their rates depend on who shares
            steps_held(found, workload[1])


@pytest.mark.parametrize("name", PACKED)
@settings(max_examples=25, deadline=None)
@given(workload=workloads(most=10, failures=True))
def test_who_shares_devices_does_so_on_the_same_ones(name: str, workload: Workload) -> None:
    jobs, cluster = workload
    if not serves(name, workload):
        return
    found = replay(name, jobs, cluster)
    check(found, cluster)
    for stay in found.stays:
        if stay.part < 1.0:
            mates = [
                one
                for one in found.stays
                if one.number != stay.number and (one.start_s, one.end_s, one.nodes) == (stay.start_s, stay.end_s, stay.nodes)
                and one.kind == stay.kind and one.part == stay.part
            ]  # fmt: skip
            assert len(mates) == 1 and jobs[stay.number].together, "two share, as long and on the same nodes"


@pytest.mark.parametrize("name", ["fifo", "easy", "srtf", "las-2d", "slices", "themis"])
@settings(max_examples=25, deadline=None)
@given(workload=workloads(failures=True))
def test_failures_lose_no_job(name: str, workload: Workload) -> None:
    jobs, cluster = workload
    found = replay(name, jobs, cluster)
    check(found, cluster)
    one = cluster.failure[0]
    for stay in found.stays:
        if stay.kind == one.kind and any(node == one.node for node, _ in stay.nodes):
            assert stay.end_s <= one.at_s or stay.start_s >= one.until_s, "nobody runs on a node that is away"
    done = sum(state.job.steps for state in found.states)
    # A job loses at most one checkpoint's time at its rate, of its present phase.
    assert found.lost_steps <= min(cluster.checkpoint_s * 4.0 * len(jobs), done)


@pytest.mark.parametrize("name", ["srtf", "las-2d", "least-laxity"])
@settings(max_examples=40, deadline=None)
@given(workload=workloads())
def test_no_device_is_idle_while_a_job_fits(name: str, workload: Workload) -> None:
    jobs, cluster = workload
    found = replay(name, jobs, cluster)
    times = sorted({stay.start_s for stay in found.stays} | {stay.end_s for stay in found.stays})
    for now in times:
        held = dict.fromkeys(cluster.kinds, 0)
        for stay in found.stays:
            if stay.start_s <= now < stay.end_s:
                held[stay.kind] += stay.devices
        running = {stay.number for stay in found.stays if stay.start_s <= now < stay.end_s}
        for state in found.states:
            if state.job.submit_s <= now < state.finish_s and state.number not in running:
                assert all(cluster.capacity[kind] - held[kind] < state.job.devices for kind in state.kinds)


@pytest.mark.parametrize("name", ["srtf", "qssf", "max-min", "themis"])
@settings(max_examples=5, deadline=None)
@given(workload=workloads(most=6))
def test_same_seed_same_schedule(name: str, workload: Workload) -> None:
    first, again = replay(name, *workload, error=0.5), replay(name, *workload, error=0.5)
    assert first.stays == again.stays
