"""What was measured among two workers, for more of them and over other links."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bricolage.device.collective import CallTimes, Ring
from bricolage.device.device import Link


def test_collectives_as_they_were_measured_count_instead_of_messages() -> None:
    plain = Ring.described(4, Link(("0", "1"), gbytes=1.0, latency_us=100.0))
    assert plain.all_gather_ms(4e6) == plain.reduce_scatter_ms(4e6) == pytest.approx(plain.all_reduce_ms(4e6) / 2)
    seen = replace(plain, gather=CallTimes(2.0, 1e-6), scatter=CallTimes(3.0, 2e-6), exchange=CallTimes(4.0, 0.0))
    assert (seen.all_gather_ms(1e6), seen.reduce_scatter_ms(1e6), seen.all_to_all_ms(1e6)) == (3.0, 5.0, 4.0)
    assert seen.among(2, None).gather is None, "measured among others"


def test_a_ring_of_more_workers() -> None:
    two = Ring(2, Link(("0", "1"), gbytes=1 / 3, latency_us=200.0), 0.1, 2e-6, slows_computing=1.5)
    four = two.among(4, None)
    assert four.ms_per_byte == pytest.approx(2e-6 * 1.5) and four.latency_ms == pytest.approx(0.3)
    assert (four.workers, four.slows_computing) == (4, 1.5)
    other = two.among(2, 10.0)
    assert other.all_reduce_ms(10**7) - other.latency_ms == pytest.approx(1.0), "10 MB each way at 10 GB/s"
    assert four.send_ms(10**6) == pytest.approx(3.2)
    assert two.among(4, 1.0).send_ms(10**6) == pytest.approx(1.2)
