"""The benchmark of recurrences compares programs of one cell."""

from benchmarks.engine.strands import cell, compare


def test_a_cell_is_compared() -> None:
    found = compare(cell("RNN", 16, 1), threads=2, rounds=3)
    slices, planned = found.gains
    assert slices is None and planned is not None and planned.low <= planned.value <= planned.high
    assert found.meetings[2] < found.meetings[0] and found.ms > 0.0


def test_where_none_pay_there_is_one_program() -> None:
    assert compare(cell("RNN", 16, 1), threads=1, rounds=3).gains == (None, None)
