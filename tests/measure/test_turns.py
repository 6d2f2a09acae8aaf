"""Turns: forwards and backwards, until who goes on is nobody."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bricolage.measure.turns import make_turn, take_turns, time_in_turns


@given(st.lists(st.integers(0, 6), min_size=0, max_size=5), st.integers(0, 3))
def test_everyone_has_its_turns_until_it_retires(stays: list[int], first: int) -> None:
    """Contestant n remains for `stays[n]` rounds."""
    taken: list[tuple[int, int]] = []
    entered = 0
    now = first

    def remaining(number: int, running: list[int]) -> Sequence[int]:
        nonlocal now
        now = number
        return [one for one in running if stays[one] > number - first]

    def around() -> nullcontext[None]:
        nonlocal entered
        entered += 1
        return nullcontext()

    end = take_turns(range(len(stays)), lambda one: taken.append((now, one)), remaining, first=first, around=around)
    assert end == first + max(stays, default=0) == first + entered
    wanted = [
        [one for one, stay in enumerate(stays) if stay > number - first][:: 1 if number % 2 == 0 else -1]
        for number in range(first, end)
    ]
    assert taken == [(first + number, one) for number, round_ in enumerate(wanted) for one in round_]


def test_samples_by_round_and_their_ratio() -> None:
    left = [5]

    def short() -> Sequence[float]:
        left[0] -= 1
        return (1.0, 1.0) if left[0] >= 0 else ()

    found = time_in_turns({"long": lambda: (2.0,), "short": short}, 8)
    assert (
        len(found.rounds) == 8 and found.samples("long") == [[2.0]] * 8 and found.samples("short") == [[1.0, 1.0]] * 5
    )
    ratio = found.ratio("short", "long")
    assert ratio is not None and ratio.value == pytest.approx(2.0) and found.latency("long").median_ms == 2.0
    assert found.ratio("short", "nobody") is None


def test_enough_rounds_where_the_time_is_over() -> None:
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1

    assert len(time_in_turns({"it": make_turn(call)}, 50, least=3, seconds=0.0).rounds) == 3 == calls
    assert not time_in_turns({}, 5).rounds
