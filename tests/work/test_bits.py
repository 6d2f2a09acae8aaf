from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bricolage.work.bits import lowest, members
from bricolage.work.bits import of as bitset


@given(st.sets(st.integers(0, 2000)))
def test_members_gives_back_the_set_in_order(numbers: set[int]) -> None:
    assert members(bitset(numbers)) == sorted(numbers)
    assert lowest(bitset(numbers)) == min(numbers, default=-1)
