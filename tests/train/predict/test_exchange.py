"""Buckets of gradients, and two queues that slow each other."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bricolage.device.collective import Ring
from bricolage.device.device import Link
from bricolage.train.predict.exchange import GradientBucket, gradient_buckets, simulate_overlap
from bricolage.work.training_step import Gradient

MIB = 1 << 20
LINK = Link(("0", "1"), 1.0)


@given(st.lists(st.integers(1, 8 * MIB), max_size=20), st.floats(0.1, 30.0))
def test_every_gradient_travels_once_in_order(sizes: list[int], megabytes: float) -> None:
    gradients = [Gradient(str(number), size, 2 * number) for number, size in enumerate(sizes)]
    found = gradient_buckets(gradients, megabytes)
    assert sum(one.bytes for one in found) == sum(sizes)
    assert [one.ready for one in found] == sorted(one.ready for one in found)
    if found:
        assert found[-1].ready == 2 * (len(sizes) - 1)
    for place, one in enumerate(found[:-1]):
        assert one.bytes >= (min(1.0, megabytes) if place == 0 else megabytes) * MIB


def test_pytorchs_first_bucket_is_small() -> None:
    gradients = [Gradient(str(number), MIB // 2, number) for number in range(8)]
    assert gradient_buckets(gradients, 25) == [GradientBucket(MIB, 1), GradientBucket(3 * MIB, 7)]


def by_small_steps(operators: list[float], sending: list[GradientBucket], ring: Ring, by: float) -> float:
    """The same by brute force: time in little steps."""
    now, done, number = 0.0, 0, 0
    left = operators[0] if operators else 0.0
    moving: float | None = None
    while done < len(operators) or number < len(sending):
        computing = done < len(operators)
        if moving is None and number < len(sending) and sending[number].ready < done:
            moving = ring.all_reduce_ms(sending[number].bytes)
        exchanging = moving is not None
        both = computing and exchanging
        if computing:
            left -= by / (ring.slows_computing if both else 1.0)
        if moving is not None:
            moving -= by / (ring.slowed if both else 1.0)
        now += by
        if computing and left <= 0:
            done += 1
            left = operators[done] if done < len(operators) else 0.0
        if moving is not None and moving <= 0:
            number, moving = number + 1, None
    return now


@given(
    st.lists(st.floats(0.1, 2.0), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 20)), max_size=3),
    st.floats(1.0, 3.0),
    st.floats(1.0, 3.0),
)
def test_against_time_in_little_steps(
    operators: list[float], some: list[tuple[int, int]], slow: float, slowed: float
) -> None:
    sending = [GradientBucket(size, min(ready, len(operators) - 1)) for ready, size in sorted(some)]
    ring = Ring(2, LINK, 0.05, 0.1, slows_computing=slow, slowed=slowed)
    ends, sent = simulate_overlap(operators, sending, ring)
    found = max([ends[-1], *(one.end_ms for one in sent)])
    assert found == pytest.approx(by_small_steps(operators, sending, ring, 0.0005), abs=0.02)
    assert ends == sorted(ends)
    assert all(a.end_ms <= b.start_ms + 1e-9 for a, b in itertools.pairwise(sent))


def test_what_is_hidden_and_what_is_not() -> None:
    ring = Ring(2, LINK, 0.0, 1.0)
    ends, sent = simulate_overlap([1.0, 1.0, 1.0, 1.0], [GradientBucket(2, 0), GradientBucket(3, 3)], ring)
    assert ends == [1.0, 2.0, 3.0, 4.0]
    assert [(one.start_ms, one.end_ms) for one in sent] == [(1.0, 3.0), (4.0, 7.0)]


def test_without_workers_operators_run_one_after_another() -> None:
    assert simulate_overlap([1.0, 0.0, 2.0], [], None) == ([1.0, 1.0, 3.0], [])
