"""Bytes of conversions: against elements that are counted one by one, and the corrected table of OneFlow's paper."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from bricolage.device.collective import Ring
from bricolage.device.device import Link
from bricolage.search.sharding.layouts import conversion_ms, moved_between, moved_bytes, packed_bytes, split_axis


def owned(layout: str, device: int, devices: int, shape: tuple[int, ...]) -> np.ndarray:
    """Which elements a device has, or needs."""
    found = np.zeros(shape, bool)
    axis = split_axis(layout)
    part = [slice(None)] * len(shape)
    if axis is not None:
        step = shape[axis] // devices
        part[axis] = slice(device * step, device * step + step)
    found[tuple(part)] = True
    return found


@pytest.mark.parametrize("devices", [2, 4])
def test_what_is_divided_or_whole_by_its_elements(devices: int) -> None:
    shape = (8, 4)
    for source, target in itertools.product(("S(0)", "S(1)", "R"), repeat=2):
        missing = sum(
            int((owned(target, one, devices, shape) & ~owned(source, one, devices, shape)).sum())
            for one in range(devices)
        )
        assert moved_bytes(source, target, 32.0, devices) == missing, (source, target)


def test_summands_and_their_corrections() -> None:
    table = {("P", "S(0)"): 3.0, ("P", "R"): 6.0, ("S(0)", "P"): 0.0, ("R", "P"): 0.0, ("P", "P"): 0.0}
    assert {pair: moved_bytes(*pair, 1.0, 4) for pair in table} == table


def test_between_devices_of_two_groups() -> None:
    rows = {"S(0)": (1.0, 3.0, 1.0), "R": (1.0, 3.0, 1.0), "P": (2.0, 4.0, 2.0)}
    for source, row in rows.items():
        assert tuple(moved_between(source, target, 1.0, 2, 3) for target in ("S(0)", "R", "P")) == row


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
