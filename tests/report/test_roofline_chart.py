"""The roofline figure and the table of kernels."""

from __future__ import annotations

import re

import pytest
import report_samples as samples

from bricolage.backends.interface import Anatomy, FusedKernel
from bricolage.device.device import Peaks
from bricolage.report.html import render
from bricolage.report.roofline_chart import roofline, roofs, timed_kernels

PEAKS = Peaks(gflops=500.0, gbytes=50.0)


def kernel(number: int, flops: int, bytes_: int, ms: float | None, operators: tuple[str, ...] = ("op",)) -> FusedKernel:
    return FusedKernel(f"kernel_{number}", "conv", operators, (1, 8), flops, bytes_, ms)


MADE = Anatomy(
    (
        kernel(0, 10**9, 10**6, 4.0),
        kernel(1, 10**6, 10**8, 6.0),
        kernel(2, 0, 10**6, 0.5),
        kernel(3, 1, 1, None),
    ),
    "",
    PEAKS,
)


def test_the_roof_is_the_larger_of_arithmetic_and_bytes() -> None:
    first, second, third, _ = MADE.kernels
    assert MADE.of_roofline(first) == pytest.approx(0.5), "2 ms at 500 GFLOP/s"
    assert MADE.of_roofline(second) == pytest.approx(2.0 / 6.0), "2 ms at 50 GB/s"
    assert MADE.of_roofline(third) == pytest.approx(0.04)
    assert Anatomy(MADE.kernels, "").of_roofline(first) is None


def test_kernels_that_took_time_are_ranked_and_those_that_compute_are_dots() -> None:
    plan, _ = samples.small()
    regions = {1: plan.buckets[0].program.regions[0]}
    found = timed_kernels(regions, {1: MADE})
    assert [one.name for one in found] == ["1.1", "1.0", "1.2"]
    assert sum(one.share for one in found) == pytest.approx(1.0)
    figure = roofline(found, roofs(regions, {1: MADE}), {regions[1].implementation.backend: 0})
    assert figure.count("<circle") == 2 and figure.count("<polyline") == 1
    assert not re.search(r"\b(nan|inf)\b", figure)


def test_without_roof_or_arithmetic_there_is_no_figure() -> None:
    plan, _ = samples.small()
    regions = {1: plan.buckets[0].program.regions[0]}
    assert (
        roofline(timed_kernels(regions, {1: Anatomy(MADE.kernels, "")}), {}, {regions[1].implementation.backend: 0})
        == ""
    )
    idle = Anatomy((kernel(0, 0, 100, 1.0),), "", PEAKS)
    assert (
        roofline(timed_kernels(regions, {1: idle}), roofs(regions, {1: idle}), {regions[1].implementation.backend: 0})
        == ""
    )


def test_the_page_shows_kernels_only_where_they_are_known_and_escapes_names() -> None:
    plan, graphs = samples.small()
    evil = Anatomy((kernel(0, 10**9, 10**6, 4.0, ("<script>alert(1)</script>",)),), "", PEAKS)
    page = render(plan, graphs, "", [{1: evil}])
    assert "Fused kernels" in page and "Roofline of the kernels" in page and "<script>alert" not in page
    assert "Fused kernels" not in render(plan, graphs)
