"""The roofline of fused kernels as SVG text: what each reaches, under what its arithmetic and its bytes allow.

Williams, Waterman, Patterson: "Roofline: an insightful visual performance model", CACM 52(4), 2009.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from bricolage.backends.interface import Anatomy, FusedKernel
from bricolage.device.device import Peaks
from bricolage.plan.shipped_program import PlannedRegion
from bricolage.report import words
from bricolage.report.charts import svg

_LEFT, _TOP = 80, 16
_WIDE, _HIGH = 980, 400
_LARGEST = 18.0
"""Radius in pixels of a kernel that takes all the time."""


@dataclass(frozen=True)
class Timed:
    """A kernel that took time, in its region."""

    region: int
    backend: str
    kernel: FusedKernel
    ms: float
    share: float
    """Of the time of all kernels."""
    reached: float | None
    """The least time that its operations and bytes could take, over its own."""

    @property
    def name(self) -> str:
        """Number of the region and of the kernel in it."""
        return f"{self.region}.{self.kernel.name.removeprefix('kernel_')}"


def timed_kernels(regions: Mapping[int, PlannedRegion], insides: Mapping[int, Anatomy]) -> list[Timed]:
    """All kernels with a time, the slowest first. Both arguments go by the regions' numbers."""
    total = sum(kernel.ms or 0.0 for inside in insides.values() for kernel in inside.kernels)
    timed = [
        Timed(
            number,
            regions[number].implementation.backend,
            kernel,
            kernel.ms,
            kernel.ms / total,
            anatomy.of_roofline(kernel),
        )
        for number, anatomy in insides.items()
        for kernel in anatomy.kernels
        if kernel.ms
    ]
    return sorted(timed, key=lambda entry: -entry.ms)


def roofs(regions: Mapping[int, PlannedRegion], insides: Mapping[int, Anatomy]) -> dict[str, Peaks]:
    """What was measured as the best possible, once for each configuration."""
    return {
        str(regions[n].implementation.config): anatomy.peaks
        for n, anatomy in insides.items()
        if anatomy.peaks is not None
    }


def roofline(kernels: Sequence[Timed], peaks: Mapping[str, Peaks], slots: Mapping[str, int]) -> str:
    """Kernels as dots, as large as their time, at operations per byte and operations per second; roofs as lines. Empty where
    nothing computes or no roof is known."""
    dots = [
        (kernel, kernel.kernel.flops / kernel.kernel.bytes, kernel.kernel.flops / kernel.ms / 1e6)
        for kernel in kernels
        if kernel.kernel.flops and kernel.kernel.bytes
    ]
    if not dots or not peaks:
        return ""
    ridges = [roof.gflops / roof.gbytes for roof in peaks.values()]
    across = _Axis.over([x for _, x, _ in dots] + ridges)
    up = _Axis.over([y for _, _, y in dots] + [roof.gflops for roof in peaks.values()])
    parts = [svg(_LEFT + _WIDE + 20, _TOP + _HIGH + 46, "Roofline of the kernels")]
    for power in across.powers:
        x = _LEFT + across.at(10.0**power) * _WIDE
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_TOP + _HIGH}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{_TOP + _HIGH + 18}">{_power(power)}</text>')
    for power in up.powers:
        y = _TOP + (1 - up.at(10.0**power)) * _HIGH
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_LEFT + _WIDE}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text class="tick" style="text-anchor:end" x="{_LEFT - 8}" y="{y + 4:.1f}">{_power(power)}</text>'
        )
    parts.append(f'<text class="tick" x="{_LEFT + _WIDE / 2}" y="{_TOP + _HIGH + 38}">operations per byte</text>')
    parts.append(f'<text class="tick" style="text-anchor:start" x="{_LEFT + 6}" y="{_TOP + 14}">GFLOP/s</text>')
    for config, roof in peaks.items():
        parts.append(_roof(config, roof, across, up))
    for kernel, x, y in dots:
        left, top = _LEFT + across.at(x) * _WIDE, _TOP + (1 - up.at(y)) * _HIGH
        radius = max(3.0, _LARGEST * math.sqrt(kernel.share))
        tooltip = f"{kernel.name} {kernel.kernel.kind}: {', '.join(kernel.kernel.operators[:6])}"
        tooltip += f"; {words.milliseconds(kernel.ms)}, {words.flop_rate(kernel.kernel.flops, kernel.ms)}"
        tooltip += f", {words.percent(kernel.reached)} of the roofline" if kernel.reached is not None else ""
        parts.append(
            f'<circle class="dot c{slots[kernel.backend]}" cx="{left:.1f}" cy="{top:.1f}" r="{radius:.1f}">'
            f"<title>{escape(tooltip)}</title></circle>"
        )
    return "".join((*parts, "</svg>"))


def _roof(config: str, roof: Peaks, across: _Axis, up: _Axis) -> str:
    ridge = roof.gflops / roof.gbytes
    low, high = 10.0 ** across.powers[0], 10.0 ** across.powers[-1]
    points = [(low, roof.gbytes * low), (ridge, roof.gflops), (high, roof.gflops)]
    start = 10.0 ** up.powers[0]
    if points[0][1] < start:  # the slope enters the figure through its floor
        points[0] = (start / roof.gbytes, start)
    line = " ".join(f"{_LEFT + across.at(x) * _WIDE:.1f},{_TOP + (1 - up.at(y)) * _HIGH:.1f}" for x, y in points)
    label = f"{config}: {words.flop_rate(round(roof.gflops * 1e6), 1.0)}, {roof.gbytes:.3g} GB/s"
    x, y = _LEFT + across.at(ridge) * _WIDE - 8, _TOP + (1 - up.at(roof.gflops)) * _HIGH + 4
    return (
        f'<polyline class="roof" points="{line}"/>'
        f'<text class="tick" style="text-anchor:end" x="{x:.1f}" y="{y:.1f}">{escape(label)}</text>'
    )


@dataclass(frozen=True)
class _Axis:
    """A logarithmic axis from one power of ten to another."""

    powers: tuple[int, ...]

    @staticmethod
    def over(values: Sequence[float]) -> _Axis:
        low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        return _Axis(tuple(range(low, max(high, low + 1) + 1)))

    def at(self, value: float) -> float:
        """From 0 to 1."""
        return (math.log10(value) - self.powers[0]) / (self.powers[-1] - self.powers[0])


def _power(exponent: int) -> str:
    return f"{10.0**exponent:g}"
