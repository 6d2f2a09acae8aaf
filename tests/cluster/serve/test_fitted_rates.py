"""What jobs report of their progress on several numbers of devices becomes what policies know of them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bricolage.cluster.event_loop import EventLoop
from bricolage.cluster.fitted import learnt_scaling
from bricolage.cluster.job_engine import Gang, JobFinished, JobProgressed, JobRunning, JobStopped, Report
from bricolage.cluster.jobs import TrainingJob
from bricolage.cluster.policy_catalogue import find_policy
from tests.cluster.making import job, one_kind

DECLARED = ((1, 1.0), (2, 2.0), (4, 4.0), (8, 8.0))
TRUE = {1: 1.0, 2: 1.5, 4: 2.0}


class Reporting:
    """Machines on which gangs do `TRUE` steps a second and say every ten seconds how far they are."""

    observes = True

    def __init__(self, jobs: Sequence[TrainingJob]) -> None:
        self.jobs, self.now = jobs, 0.0
        self.done = [0.0] * len(jobs)
        self.on: dict[int, int] = {}
        self.coming: list[Report] = []

    def wait(self, until: float) -> tuple[float, Sequence[Report]]:
        if self.coming:
            found, self.coming = self.coming, []
            return self.now, found
        past = min(until - self.now, 10.0) if self.on else until - self.now
        self.now += past
        reports: list[Report] = []
        for number, devices in list(self.on.items()):
            self.done[number] += past * TRUE[devices]
            if self.done[number] >= self.jobs[number].steps:
                del self.on[number]
                reports.append(JobFinished(number))
            else:
                reports.append(JobProgressed(number, self.done[number]))
        return self.now, reports

    def carry_out(self, now: float, stops: Sequence[int], starts: Sequence[Gang]) -> None:
        del now
        for number in stops:
            if number in self.on:
                del self.on[number]
                self.coming.append(JobStopped(number, self.done[number]))
        for gang in starts:
            self.on[gang.number] = gang.devices
            self.coming.append(JobRunning(gang.number, self.done[gang.number]))


@pytest.mark.parametrize("policy", ["pollux", "sia"])
def test_scaling_is_learnt_from_progress(policy: str) -> None:
    """A job that says it scales without loss runs on four devices, then on fewer since another one came. Both rates were seen then,
    and the policy knows of both; how it gets on with eight devices it still believes in part."""
    jobs = [job(0, 0.0, 3000.0, scaling=DECLARED[:3]), job(1, 500.0, 600.0, scaling=DECLARED[:3])]
    cluster, entry, engine = one_kind(4, round_s=60.0), find_policy(policy), Reporting(jobs)
    loop = EventLoop(jobs, cluster, entry.make(jobs, cluster), entry.estimator(0.0, 0), engine=engine)
    loop.run()
    first = loop.states[0]
    seen = {stay.devices for stay in loop.stays if stay.number == 0}
    assert len(seen) > 1 and engine.done[0] >= 3000.0
    for devices in seen:
        assert first.true_rate_on("a", devices) == pytest.approx(TRUE[devices], rel=0.05)


def test_what_was_not_seen_goes_on_as_declared() -> None:
    own, scaling = learnt_scaling(DECLARED, 1, {1: 1.0, 2: 1.5})
    speeds = dict(scaling)
    assert own == 1.0 and speeds[1] == 1.0 and speeds[2] == 1.5
    assert 1.5 < speeds[4] < 3.0, "fitted up to twice what was seen"
    assert speeds[8] == pytest.approx(2 * speeds[4]), "then as declared"
    own, scaling = learnt_scaling(DECLARED, 8, {1: 1.0, 2: 1.5})
    assert dict(scaling)[8] == pytest.approx(1.0) and own == pytest.approx(2 * speeds[4], rel=1e-6)
