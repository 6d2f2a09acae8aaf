"""What threads idle at the ends of loops, by hand."""

import pytest

from benchmarks.fusion.granularity import capacity_shares, equal_shares, idle, idle_unequal
from bricolage.native.cpu.sharing import ParallelRange


def test_idle_time_is_that_of_the_last_piece() -> None:
    loop = ParallelRange(count=5, work=10)
    assert idle(loop, 1, 2) == 50.0, "one thread does all five, and the other could have"
    assert idle(loop, 5, 2) == 10.0, "three against two"
    assert idle(ParallelRange(count=4, work=10), 4, 2) == 0.0


def test_equal_pieces_idle_on_unequal_cores_until_the_slow_one_ends() -> None:
    loop, cores = ParallelRange(count=6, work=10), (1.0, 0.5)
    assert equal_shares(loop, 2, 2) == [[3], [3]] and capacity_shares(loop, 2, cores) == [[4], [2]]
    # Three iterations take the slow core six, in which both could do nine.
    assert idle_unequal(loop, [[3], [3]], cores) == pytest.approx(30.0)
    assert idle_unequal(loop, [[4], [2]], cores) == pytest.approx(0.0)
    # The slow core does two of six pieces, and the fast one takes its last.
    assert idle_unequal(loop, [[1, 1, 1], [1, 1, 1]], cores) == pytest.approx(0.0)
    # A share for a core on which its thread is not: the slow one does four in eight.
    assert idle_unequal(loop, [[4], [2]], cores[::-1]) == pytest.approx(60.0)
