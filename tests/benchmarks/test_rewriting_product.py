"""Figures of two plans against each other: which rows race, and how they are shown."""

from __future__ import annotations

import dataclasses
import math

from benchmarks.rewrites.rewriting_product import Row, table

ROW = Row(
    "a",
    "unoptimised",
    "openvino f32",
    4.0,
    20,
    "native f32 rewritten",
    2.0,
    10,
    2.0,
    (1.9, 2.1),
    2.0,
    {"compose-transposes": 3},
)


def test_means_are_geometric_and_by_export() -> None:
    rows = [
        ROW,
        dataclasses.replace(ROW, workload="b", ratio=0.5),
        dataclasses.replace(ROW, export="exported", ratio=8.0),
    ]
    lines = table(rows).splitlines()
    assert "**2.000** [1.900, 2.100]" in lines[2]
    means = [float(line.split("**")[1]) for line in lines[-3:]]
    assert all(math.isclose(mean, wanted) for mean, wanted in zip(means, (1.0, 8.0, 2.0), strict=True))


def test_room_is_what_the_floor_leaves() -> None:
    faster_than_its_floor = dataclasses.replace(ROW, floor_ms=5.0)
    assert (ROW.room, faster_than_its_floor.room) == (2.0, 1.0)
    *_, last = table([ROW, dataclasses.replace(ROW, without_ms=16.0), faster_than_its_floor]).splitlines()
    assert last.endswith("| 2.52 |"), "the mean of 2, 8 and 1"
