from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bricolage.costs.models.roofline import added_ms
from bricolage.device.device import Peaks

PEAKS = Peaks(gflops=200.0, gbytes=20.0)
amounts = st.floats(0, 1e12)


def test_operations_bytes_and_a_start_add_up() -> None:
    assert added_ms(PEAKS, 4e8, 1e7, start_us=3.0) == pytest.approx(2.0 + 0.5 + 0.003)
    assert added_ms(PEAKS, 0, 0) > 0.0


@given(amounts, amounts)
def test_between_the_floor_and_twice_the_floor_after_the_start(flops: float, size: float) -> None:
    """The larger of the two is the least there can be; their sum is at most twice that."""
    floor = PEAKS.floor_ms(flops, size)
    work = added_ms(PEAKS, flops, size) - added_ms(PEAKS, 0, 0)
    assert floor * (1 - 1e-9) - 1e-9 <= work <= 2 * floor * (1 + 1e-9) + 1e-9


@given(amounts, amounts, amounts)
def test_more_work_is_never_cheaper(flops: float, size: float, more: float) -> None:
    assert added_ms(PEAKS, flops + more, size) >= added_ms(PEAKS, flops, size)
    assert added_ms(PEAKS, flops, size + more) >= added_ms(PEAKS, flops, size)
