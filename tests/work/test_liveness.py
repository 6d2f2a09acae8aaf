"""Memory over time, against counting what is alive at every moment."""

from __future__ import annotations

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from bricolage.work.liveness import Lifetime, alive, curve, peak

ends = st.integers(0, 9) | st.just(math.inf)
lifetimes = st.lists(
    st.tuples(st.integers(0, 99), st.integers(0, 9), ends).map(lambda t: Lifetime(t[0], min(t[1:]), max(t[1:])))
)


def counted(some: list[Lifetime], at: float) -> int:
    return sum(one.bytes for one in some if one.start <= at < one.end)


@given(lifetimes)
def test_the_curve_is_what_is_alive_at_each_moment(some: list[Lifetime]) -> None:
    found = curve(some)
    assert all(a[0] < b[0] and a[1] != b[1] for a, b in itertools.pairwise([(-1.0, 0), *found]))
    for at in range(11):
        assert max((one for one in found if one[0] <= at), default=(0, 0))[1] == counted(some, at)
    assert peak(some) == max(counted(some, at) for at in range(11))


@given(lifetimes, st.lists(st.integers(0, 10)))
def test_the_peak_at_some_moments(some: list[Lifetime], at: list[int]) -> None:
    assert peak(some, at) == max((counted(some, one) for one in at), default=0)


@given(lifetimes, st.integers(0, 10))
def test_what_is_alive_by_label_adds_up(some: list[Lifetime], at: int) -> None:
    found = alive([("even" if one.bytes % 2 == 0 else "odd", one) for one in some], at)
    assert sum(found.values()) == counted(some, at)
    assert set(found) <= {"even", "odd"} and all(one % 2 == 0 for label, one in found.items() if label == "even")


def test_what_ends_makes_room_for_what_begins() -> None:
    assert curve([Lifetime(5, 0.0, 1.0), Lifetime(5, 1.0, 2.0)]) == [(0.0, 5), (2.0, 0)]
    assert peak([Lifetime(7, 1.0, 1.0)]) == 0 and curve([]) == []
    assert not Lifetime(1, 0, 1).overlaps(Lifetime(1, 1, 2)) and Lifetime(1, 0).overlaps(Lifetime(1, 5, 6))
