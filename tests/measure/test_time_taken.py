"""Time that others took of a decision, by made-up counters and by those of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bricolage.base.deadline import Deadline
from bricolage.measure.disturbance import MachineReading
from bricolage.measure.time_taken import FamilyReading, TimeTaken, read_family, share_taken, taken_s


def reading(
    wall: float, busy: float | None, own: float, stolen: float = 0.0, pressure: float | None = None
) -> FamilyReading:
    return FamilyReading(MachineReading(wall, busy, stolen, pressure), own)


START = reading(100.0, 50.0, 7.0, 1.0, 3.0)


@pytest.mark.parametrize(
    ("after", "taken"),
    [
        (reading(110.0, 70.0, 27.0, 1.0, 13.0), 0.0),  # both processors were ours
        (reading(110.0, 70.0, 17.0, 1.0, 13.0), 5.0),  # we had one of them
        (reading(110.0, 70.0, 17.0, 1.0, 5.0), 2.0),  # and wanted the other for two seconds
        (reading(110.0, 70.0, 17.0, 1.0, None), 5.0),  # who waits is not counted
        (reading(110.0, 60.0, 17.0, 9.0, 3.0), 4.0),  # the hypervisor took it
        (reading(110.0, None, 17.0), 0.0),  # nothing is counted
        (reading(110.0, 60.4, 17.0, 1.0, 13.0), 0.0),  # as on any machine
        (reading(110.0, 70.0, 2.0, 1.0, 13.0), 10.0),  # a compiler was ended, and its time is lost
    ],
)
def test_what_others_took_is_their_part_of_the_processors(after: FamilyReading, taken: float) -> None:
    assert taken_s(START, after, 2) == pytest.approx(taken)


class Neighbour:
    """One that takes a part of two processors from now on; the clock goes on when the test says so."""

    def __init__(self) -> None:
        self.now = self.busy = self.own = 0.0
        self.read = 0

    def pass_by(self, seconds: float, share: float) -> None:
        self.now += seconds
        self.busy += 2 * seconds
        self.own += 2 * seconds * (1.0 - share)

    def clock(self) -> float:
        return self.now

    def __call__(self) -> FamilyReading:
        self.read += 1
        return reading(self.now, self.busy, self.own)

    def deadline(self, seconds: float) -> Deadline:
        return Deadline(seconds, self.clock, TimeTaken((0, 1), self, self.clock))


def test_time_that_a_neighbour_took_is_given_back() -> None:
    beside = Neighbour()
    deadline = beside.deadline(30.0)
    beside.pass_by(10.0, 0.0)
    assert deadline.left == 20.0 and deadline.given_back == 0.0
    beside.pass_by(10.0, 0.5)
    assert deadline.left == pytest.approx(15.0) and deadline.given_back == pytest.approx(5.0)
    part = deadline.reserve(4.0)
    assert part.left == pytest.approx(11.0) and part.given_back == deadline.given_back
    beside.pass_by(15.0, 0.0)
    assert deadline() and part()


def test_beside_one_process_a_decision_on_two_processors_takes_twice_as_long() -> None:
    beside = Neighbour()
    deadline, seconds = beside.deadline(30.0), 0
    while not deadline():
        beside.pass_by(1.0, 0.5)
        seconds += 1
    assert seconds == 60 and deadline.given_back == pytest.approx(30.0)


@example(2.0, [(0.5, 1.0), (1.0, 1.0)])
@given(st.floats(0.5, 100.0), st.lists(st.tuples(st.floats(0.0, 30.0), st.floats(0.0, 1.0)), max_size=20))
def test_no_more_than_the_budget_is_given_back(budget: float, passed: list[tuple[float, float]]) -> None:
    beside = Neighbour()
    deadline, before, unread = beside.deadline(budget), 0.0, 0.0
    for seconds, share in passed:
        left, read = deadline.left, beside.read
        beside.pass_by(seconds, share)
        assert before <= deadline.given_back <= budget
        assert deadline.left <= left + unread + 1e-6, "time does not run backwards, but by what was not read yet"
        before, unread = deadline.given_back, 0.0 if beside.read > read else unread + seconds
        assert unread < 1.0
    assert beside.now < 2.0 * budget or deadline()


def test_the_counters_are_read_once_a_second() -> None:
    beside = Neighbour()
    deadline = beside.deadline(30.0)
    for _ in range(100):
        beside.pass_by(0.1, 0.5)
        deadline()
    assert 9 <= beside.read <= 12


def test_after_an_interruption_nothing_is_left_whatever_was_taken() -> None:
    beside = Neighbour()
    deadline = beside.deadline(30.0)
    beside.pass_by(10.0, 0.5)
    deadline.interrupted = True
    assert deadline.left == 0.0


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[bytes]]:
    """A process of ours that computes."""
    code = "import sys\nwhile True:\n  for _ in range(10**6): pass\n  print(flush=True)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()


def test_time_of_workers_is_our_own_while_they_live_and_when_they_have_ended(
    worker: subprocess.Popen[bytes],
) -> None:
    assert worker.stdout is not None
    cores = tuple(range(os.cpu_count() or 1))
    before = read_family(cores)
    for _ in range(3):
        worker.stdout.readline()
    alive = read_family(cores)
    assert alive.own_s > before.own_s
    worker.kill()
    worker.wait()
    assert read_family(cores).own_s >= alive.own_s
    assert 0.0 <= share_taken(cores, 0.02) <= 1.0
