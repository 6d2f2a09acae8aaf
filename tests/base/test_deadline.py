from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bricolage.base.deadline import Deadline


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_time_runs_out(clock: Clock) -> None:
    deadline = Deadline(10.0, clock)
    assert deadline.left == 10.0 and not deadline()
    clock.now += 4
    assert deadline.left == 6.0
    clock.now += 7
    assert deadline.left == 0.0 and deadline()


def test_what_is_reserved_is_left_to_those_who_come_after(clock: Clock) -> None:
    deadline = Deadline(10.0, clock)
    early = deadline.reserve(3.0)
    assert early.left == 7.0
    clock.now += 7
    assert early() and deadline.left == 3.0


def test_what_is_granted_moves_the_end_of_the_whole_and_of_the_part(clock: Clock) -> None:
    deadline = Deadline(10.0, clock)
    part = deadline.reserve(3.0).at_most(5.0)
    part.grant(4.0)
    assert part.left == 9.0 and deadline.left == 14.0
    clock.now += 11
    assert part() and deadline.left == 3.0, "what is reserved stays so"


def test_at_most_begins_when_it_is_asked_for(clock: Clock) -> None:
    deadline = Deadline(10.0, clock)
    clock.now += 2
    part = deadline.at_most(3.0)
    assert part.left == 3.0
    clock.now += 3
    assert part() and deadline.left == 5.0
    last = deadline.at_most(60.0)
    assert last.left == 5.0, "no part is longer than the whole"


@given(st.floats(0, 100), st.floats(0, 100), st.floats(0, 100), st.floats(0, 100))
def test_parts_of_parts_keep_every_bound(whole: float, reserved: float, seconds: float, passed: float) -> None:
    clock = Clock()
    deadline = Deadline(whole, clock)
    for part in (deadline.reserve(reserved).at_most(seconds), deadline.at_most(seconds).reserve(reserved)):
        assert part.left <= deadline.left
    clock.now += passed
    nested = deadline.reserve(reserved).at_most(seconds)
    assert nested.left == pytest.approx(max(0.0, min(whole - passed - reserved, seconds)), abs=1e-6)
    assert nested() == (nested.left <= 0.0)


def test_an_interruption_ends_the_whole_and_all_its_parts(clock: Clock) -> None:
    deadline = Deadline(10.0, clock)
    part = deadline.reserve(1.0)
    nested = part.at_most(5.0)
    with deadline.catching_interrupts():
        raise KeyboardInterrupt
    assert deadline() and part() and nested()
    assert deadline.left == part.left == nested.left == 0.0


def test_parts_and_the_whole_are_interrupted_together(clock: Clock) -> None:
    """Whoever catches it, and whoever asks."""
    for caught in range(3):
        deadline = Deadline(10.0, clock)
        reserved = deadline.reserve(1.0)
        all_three = (deadline, reserved, reserved.at_most(5.0))
        with all_three[caught].catching_interrupts():
            raise KeyboardInterrupt
        assert all(one.interrupted and one() for one in all_three)
        other = deadline.reserve(2.0)
        assert other.interrupted, "so are parts that are made later"


def test_the_second_interruption_gets_through(clock: Clock) -> None:
    deadline = Deadline(10.0, clock)
    with deadline.catching_interrupts():
        raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt), deadline.catching_interrupts():
        raise KeyboardInterrupt


def test_other_errors_and_an_undisturbed_block_pass(clock: Clock) -> None:
    deadline = Deadline(10.0, clock)
    with pytest.raises(ValueError), deadline.catching_interrupts():
        raise ValueError
    with deadline.catching_interrupts():
        pass
    assert not deadline.interrupted and deadline.left == 10.0


def test_some_seconds_in_any_case_but_after_an_interruption() -> None:
    now = [0.0]
    deadline = Deadline(5.0, lambda: now[0])
    given = deadline.at_least(10.0)
    assert given.left == 10.0 and deadline.at_least(2.0).left == 5.0
    now[0] = 7.0
    assert deadline() and not given() and given.left == 3.0
    now[0] = 11.0
    assert given()
    later = deadline.at_least(10.0)
    deadline.interrupted = True
    assert later() and later.interrupted
