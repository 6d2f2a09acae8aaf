"""Conversions of layouts: times of their messages and of packing; what is no layout."""

from __future__ import annotations

import pytest

from bricolage.device.collective import Ring
from bricolage.device.device import Link
from bricolage.search.sharding.layouts import conversion_ms, packed_bytes, split_axis


def test_times_are_messages_and_packing() -> None:
    link, size = Link(("0", "1"), 2.0, 50.0), 8e6
    ring = Ring.described(4, link, 4.0)
    copy = size / 4e6
    assert conversion_ms("P", "R", size, ring) == pytest.approx(6 * link.ms(size / 4))
    assert conversion_ms("P", "S(1)", size, ring) == pytest.approx(3 * link.ms(size / 4) + copy)
    assert conversion_ms("S(0)", "R", size, ring) == pytest.approx(3 * link.ms(size / 4))
    assert conversion_ms("S(1)", "R", size, ring) == pytest.approx(3 * link.ms(size / 4) + copy)
    assert conversion_ms("S(0)", "S(1)", size, ring) == pytest.approx(3 * link.ms(size / 16) + copy / 4)
    assert conversion_ms("R", "S(1)", size, ring) == conversion_ms("P", "P", size, ring) == 0.0
    assert packed_bytes("S(1)", "S(2)", size, 4) == size / 2
    with pytest.raises(ValueError, match="no layout"):
        split_axis("S(x)")
