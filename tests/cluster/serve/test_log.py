"""The log: what is torn is cut off, what is changed is found, and what it tells again brings a loop and its policy to where they
were."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.cluster.event_loop import EventLoop
from bricolage.cluster.job_engine import (
    Gang,
    JobEvicted,
    JobFailed,
    JobFinished,
    JobProgressed,
    JobRunning,
    JobStopped,
    JobWithdrawn,
    NodeBack,
    NodeGone,
    RealClock,
    Report,
)
from bricolage.cluster.machines import ClusterSpec
from bricolage.cluster.policy_catalogue import POLICIES, find_policy
from bricolage.cluster.serve.journal import Journal
from bricolage.cluster.serve.submission import JobSpec
from bricolage.cluster.serve.turn_log import JournalledEngine, RecordedEngine, Submission, turns_of
from bricolage.errors import BrokenJournal
from tests.cluster.making import one_kind


def records(path: Path) -> list[object]:
    with Journal(path) as journal:
        return list(journal.records)


def test_what_is_written_is_read_and_a_torn_end_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with Journal(path) as journal:
        for number in range(5):
            journal.append({"number": number, "text": "ä\n"})
    whole = path.read_bytes()
    lines = whole.split(b"\n")
    for cut in range(len(whole) - len(lines[-2]), len(whole)):
        path.write_bytes(whole[:cut])
        with Journal(path) as journal:
            assert len(journal.records) == 4
            journal.append({"number": "again"})
        assert [one["number"] for one in records(path)] == [0, 1, 2, 3, "again"]  # type: ignore[index]


@given(place=st.integers(0, 10_000), letter=st.sampled_from(b'x0"}'))
@settings(max_examples=50, deadline=None)
def test_what_was_changed_is_found_and_left_as_it_is(
    tmp_path_factory: pytest.TempPathFactory, place: int, letter: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "log"
    with Journal(path) as journal:
        for number in range(4):
            journal.append({"number": number})
    raw = bytearray(path.read_bytes())
    before = bytes(raw)
    last = before.rstrip(b"\n").rfind(b"\n")
    raw[place % last] = letter
    path.write_bytes(raw)
    if bytes(raw) == before:
        assert len(records(path)) == 4
        return
    with pytest.raises(BrokenJournal):
        Journal(path)
    assert path.read_bytes() == raw


class Machines:
    """Machines of a time of their own, at random: jobs run at other rates than they say, fail and are evicted."""

    observes = True

    def __init__(self, seed: int, specs: Sequence[JobSpec], nodes: int) -> None:
        self.rng, self.specs, self.nodes = random.Random(seed), specs, nodes
        self.now = 0.0
        self.events: list[tuple[float, int, Report]] = []
        self.saved = dict.fromkeys(range(len(specs)), 0.0)
        self.since: dict[int, float] = {}
        self.rate = [self.rng.uniform(0.5, 1.5) for _ in specs]
        self.on: dict[int, Gang] = {}
        self.down = False

    def later(self, after: float, report: Report) -> None:
        heapq.heappush(self.events, (self.now + after, len(self.events) + self.rng.randrange(1 << 30), report))

    def done(self, number: int) -> float:
        return min(self.saved[number] + (self.now - self.since[number]) * self.rate[number], self.specs[number].steps)

    def leave(self, number: int, save: bool) -> float:
        if save:
            self.saved[number] = self.done(number)
        del self.on[number], self.since[number]
        self.events = [one for one in self.events if getattr(one[2], "number", -1) != number]
        heapq.heapify(self.events)
        return self.saved[number]

    def wait(self, until: float) -> tuple[float, Sequence[Report]]:
        if not self.events or self.events[0][0] > until:
            self.now = until if until < math.inf else self.now
            return self.now, ()
        self.now, _, report = heapq.heappop(self.events)
        if isinstance(report, JobFinished):
            self.leave(report.number, save=True)
        elif isinstance(report, JobFailed | JobEvicted):
            steps = self.leave(report.number, save=False)
            return self.now, [type(report)(report.number, steps, "chance")]
        elif isinstance(report, JobProgressed):
            return self.now, [JobProgressed(report.number, self.done(report.number))]
        elif isinstance(report, NodeGone):
            if self.down:
                return self.now, ()
            self.down = True
            self.later(self.rng.uniform(1, 50), NodeBack("a", 0))
            hit = [number for number, gang in self.on.items() if any(node == 0 for node, _ in gang.nodes)]
            return self.now, [*[JobEvicted(number, self.leave(number, save=False)) for number in hit], report]
        elif isinstance(report, NodeBack):
            self.down = False
        return self.now, [report]

    def carry_out(self, now: float, stops: Sequence[int], starts: Sequence[Gang]) -> None:
        del now
        for number in stops:
            if number in self.on:
                self.later(0.0, JobStopped(number, self.leave(number, save=True)))
        for gang in starts:
            number = gang.number
            assert number not in self.on, "a gang is in one place"
            self.on[number], self.since[number] = gang, self.now
            self.later(0.0, JobRunning(number, self.saved[number]))
            left = (self.specs[number].steps - self.saved[number]) / self.rate[number]
            self.later(left, JobFinished(number))
            for report, limit in (
                (JobProgressed(number, 0.0), 40.0),
                (JobEvicted(number, 0.0), 300.0),
                (JobFailed(number, 0.0, ""), 400.0),
            ):
                if (after := self.rng.uniform(0.0, limit)) < left:
                    self.later(after, report)


def steps_of(loop: EventLoop) -> list[tuple[object, ...]]:
    """All that a policy sees of jobs, and the devices."""
    return [
        (
            one.done,
            one.held_kind,
            one.nodes,
            one.rate,
            one.attained_s,
            one.run_s,
            one.restarts,
            str(one.finish_s),
            one.job,
        )
        for one in loop.states
    ]


@pytest.mark.parametrize("policy", ["fifo", "easy", "srtf", "las-2d", "max-min", "themis", "gandiva"])
@given(seed=st.integers(0, 10_000))
@settings(max_examples=5, deadline=None)
def test_a_log_that_is_told_again_brings_the_policy_to_where_it_was(
    tmp_path_factory: pytest.TempPathFactory, policy: str, seed: int
) -> None:
    rng = random.Random(seed)
    cluster = one_kind(2, nodes=2, round_s=20.0)
    specs = [
        JobSpec(f"j{number}", float(rng.randint(5, 80)), ("true",), devices=rng.choice((1, 1, 2, 4)), rates={"a": 1.0})
        for number in range(rng.randint(2, 9))
    ]
    path = tmp_path_factory.mktemp("log") / "log"
    at = sorted(rng.uniform(0, 100) for _ in specs)
    with Journal(path) as journal:
        loop, taken = served(policy, cluster, specs, at, journal, Machines(seed, specs, 2), rng.random() < 0.3)
        written = list(turns_of(path, list(enumerate(records(path), 1))))  # type: ignore[arg-type]
    assert len(taken) == len(specs) and all(loop.observed.over(state) for state in loop.states)
    entry = find_policy(policy)
    for part in {len(written), rng.randrange(len(written) + 1)}:
        told: list[Submission] = []
        engine = RecordedEngine(written[:part], cluster, told.append)
        again = EventLoop((), cluster, entry.make((), cluster), entry.estimator(0.0, 0), engine=engine)
        again.run(engine.over)  # raises where the policy decides otherwise
        assert told == taken[: len(told)]
        if part == len(written):
            assert steps_of(again) == steps_of(loop)


@pytest.mark.parametrize("name", [entry.name for entry in POLICIES])
def test_every_policy_that_serves_a_job_ends_them_all(tmp_path: Path, name: str) -> None:
    cluster = one_kind(2, nodes=2, round_s=20.0)
    rng = random.Random(name)
    specs = [
        JobSpec(
            f"j{number}",
            float(rng.randint(5, 80)),
            ("true",),
            rates={"a": 1.0},
            deadline=500.0,
            scaling=((1, 1.0), (2, 1.6)),
            user=f"u{number % 2}",
            queue=f"q{number % 3}",
        )
        for number in range(6)
    ]
    reason = find_policy(name).refuses([spec.training_job(0.0, cluster) for spec in specs], cluster)
    if reason:
        pytest.skip(reason)
    with Journal(tmp_path / "log") as journal:
        loop, _ = served(name, cluster, specs, [10.0 * at for at in range(6)], journal, Machines(1, specs, 2), False)
    assert len(loop.states) == 6 and all(
        state.done == state.job.steps or state.number in loop.observed.given_up for state in loop.states
    )


def served(
    policy: str,
    cluster: ClusterSpec,
    specs: Sequence[JobSpec],
    at: Sequence[float],
    journal: Journal,
    machines: Machines,
    withdraw: bool,
) -> tuple[EventLoop, list[Submission]]:
    """Until all jobs are over. Half of the time a job is withdrawn, and a node goes once."""
    taken: list[Submission] = []
    waiting = list(zip(at, specs, strict=True))

    def news(now: float) -> tuple[list[Submission | Report], object]:
        found: list[Submission | Report] = []
        while waiting and waiting[0][0] <= now:
            found.append(Submission("r", waiting.pop(0)[1], now))
        if withdraw and taken and not withdrawn:
            withdrawn.append(0)
            found.append(JobWithdrawn(0))
        return found, lambda: None

    withdrawn: list[int] = []
    machines.later(30.0, NodeGone("a", 0))
    entry = find_policy(policy)
    loop = EventLoop((), cluster, entry.make((), cluster), entry.estimator(0.0, 0))
    engine = JournalledEngine(machines, journal, news, taken.append, cluster)  # type: ignore[arg-type]
    loop.engine = engine
    over = lambda: not waiting and all(loop.observed.over(state) for state in loop.states)  # noqa: E731
    engine.over = over
    loop.run(over)
    return loop, taken


def test_a_clock_that_is_set_back_does_not_turn_time_back(monkeypatch: pytest.MonkeyPatch) -> None:
    began = 1e9
    monkeypatch.setattr("time.time", lambda: began + 50.0)
    assert 50.0 <= RealClock(began).now() < 60.0
    assert 70.0 <= RealClock(began, last=70.0).now() < 80.0, "it was set back since the log's last line"
    clock = RealClock(began)
    before = clock.now()
    monkeypatch.setattr("time.time", lambda: began - 1000.0)
    assert before <= clock.now() < before + 10.0
