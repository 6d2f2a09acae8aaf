from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bricolage.native.cpu.sharing import MOST, ParallelRange


@given(st.integers(1, 10**7), st.integers(0, 10**9), st.integers(1, 10**4), st.integers(1, 1024))
def test_pieces_are_equal_shares_and_few_enough_to_be_counted(count: int, work: int, block: int, threads: int) -> None:
    pieces = ParallelRange(count, work, block).pieces(threads)
    assert 1 <= pieces <= count
    if count > threads:
        assert pieces % threads == 0, "so that a thread's share is what it would have in one piece"
        assert pieces // threads <= MOST < 256, "a share's pieces are counted in a byte"
        own = count // threads
        assert own // (pieces // threads) >= min(block, own), "blocks are not cut"


def test_small_loops_are_not_cut_and_long_ones_are() -> None:
    assert ParallelRange(1000, 10).pieces(2) == 2
    assert ParallelRange(1000, 1000).pieces(2) == 4, "of some 10 µs"
    assert ParallelRange(1000, 10**6).pieces(2) == 2 * MOST
    assert ParallelRange(3, 10**9).pieces(8) == 3


def test_a_share_is_cut_between_blocks() -> None:
    assert ParallelRange(120, 10**6, block=10).pieces(2) == 2 * 6, "6 blocks of 10 each"
    assert ParallelRange(120, 10**6, block=25).pieces(2) == 2, "30 and 30 would be 4 blocks instead of 3"
    assert ParallelRange(120, 10**6, block=60).pieces(2) == 2
