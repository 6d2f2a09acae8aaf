"""Costs on devices that a file describes: what is known of this machine, scaled as the file says."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bricolage.device.description import ScaledTimes
from bricolage.device.device import Device, Peaks
from bricolage.work.cost import CostModel, Estimate, Setting, Work
from bricolage.work.workload import OperatorWork


@dataclass(frozen=True)
class Scaled:
    """What a model says of this machine, brought to described devices. A processor's time on some cores is compared with the time
    here on as many, any other device's with the shortest time here."""

    model: CostModel
    times: Mapping[str, ScaledTimes]
    """By device."""
    here: Device
    counts: tuple[int, ...]
    """Threads among which the shortest time here is looked for."""

    def estimate(self, works: Sequence[Work], on: Setting) -> Sequence[Estimate | None]:
        """As the description gives it by a work's key; else scaled by the types of its operators, or where the description has no
        scale, by the peaks of both devices. None for what the device does not run, and for what the model does not know."""
        counts = (on.threads,) if on.device.kind == "cpu" else self.counts
        estimates = [self.model.estimate(works, Setting(self.here, count)) for count in counts]
        times = self.times[on.device.name]
        peaks = self._peaks(on, max(counts))
        return [
            self._one(work, times, peaks, alternatives) for work, *alternatives in zip(works, *estimates, strict=True)
        ]

    def _peaks(self, on: Setting, count: int) -> tuple[Peaks, Peaks] | None:
        """Of the cores that are compared, here and there; None where they are not known there."""
        here, there = self.here.peaks, on.device.peaks
        if math.isinf(there.gflops):
            return None
        used = min(1.0, on.threads / on.device.threads) if on.device.kind == "cpu" else 1.0
        return replace(here, gflops=here.gflops * min(1.0, count / self.here.threads)), replace(
            there, gflops=there.gflops * used
        )

    def _one(
        self, work: Work, times: ScaledTimes, peaks: tuple[Peaks, Peaks] | None, found: Sequence[Estimate | None]
    ) -> Estimate | None:
        if not times.without.isdisjoint(operator.kind for operator in work.operators):
            return None
        if work.key in times.ms:
            return Estimate.of(times.ms[work.key], "described")
        best = min(
            (estimate for estimate in found if estimate is not None), key=lambda estimate: estimate.ms, default=None
        )
        if best is None:
            return None
        scales = [_scale(operator, times.factor(operator.kind), peaks) for operator in work.operators]
        if not scales:
            scales = [Estimate.of(times.scale or 1.0, "described")]
        if len(set(scales)) == 1:
            scale = scales[0]
        else:
            # Each operator counts by what it takes at least here (the roofline).
            weights = [self.here.peaks.floor_ms(operator.flops, operator.bytes) for operator in work.operators]
            weights = weights if sum(weights) else [1.0] * len(scales)
            low, ms, high = (
                sum(w * value for w, value in zip(weights, column, strict=True)) / sum(weights)
                for column in zip(*((scale.low_ms, scale.ms, scale.high_ms) for scale in scales), strict=True)
            )
            guessed = any(scale.source == "roofline" for scale in scales)
            scale = Estimate(ms, low, high, "roofline" if guessed else "described")
        return Estimate(best.ms * scale.ms, best.low_ms * scale.low_ms, best.high_ms * scale.high_ms, scale.source)


@dataclass(frozen=True)
class AtLeast:
    """What a model says, but no work takes less than it takes to start it."""

    model: CostModel
    ms: float

    def estimate(self, works: Sequence[Work], on: Setting) -> Sequence[Estimate | None]:
        """Both ends of the interval, too."""
        return [
            None
            if estimate is None
            else Estimate(
                max(estimate.ms, self.ms),
                max(estimate.low_ms, self.ms),
                max(estimate.high_ms, self.ms),
                estimate.source,
            )
            for estimate in self.model.estimate(works, on)
        ]


def _scale(one: OperatorWork, given: float | None, peaks: tuple[Peaks, Peaks] | None) -> Estimate:
    """A factor of an operator's time: as it is given; by the rooflines, between the ratios of computing and of moving; or 1."""
    if given is not None or peaks is None:
        return Estimate.of(1.0 if given is None else given, "described")
    here, there = peaks
    computing, moving = here.gflops / there.gflops, here.gbytes / there.gbytes
    least = here.floor_ms(one.flops, one.bytes)
    ratio = there.floor_ms(one.flops, one.bytes) / least if least else moving
    return Estimate(ratio, min(computing, moving), max(computing, moving), "roofline")
