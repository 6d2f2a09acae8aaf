"""The benchmark of strands compares two programs of one cell."""

from benchmarks.strands import cell, compare


def test_a_cell_is_compared() -> None:
    gain, before, now = compare(cell("RNN", 16, 1), threads=2, rounds=3)
    assert gain is not None and gain.low <= gain.value <= gain.high
    assert now < before


def test_where_none_pay_nothing_is_timed() -> None:
    assert compare(cell("RNN", 16, 1), threads=1, rounds=3) == (None, 0, 0)
