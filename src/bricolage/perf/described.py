"""Costs on devices that a file describes: what is known of this machine, scaled as the file says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bricolage.device.description import ScaledTimes
from bricolage.device.device import Device
from bricolage.work.cost import CostModel, Estimate, Setting, Work


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
        """As the description gives it by a work's key; else scaled by the types of its operators. None for what the device does not
        run, and for what the model does not know."""
        counts = (on.threads,) if on.device.kind == "cpu" else self.counts
        known = [self.model.estimate(works, Setting(self.here, count)) for count in counts]
        return [self._one(work, self.times[on.device.name], found) for work, *found in zip(works, *known, strict=True)]

    def _one(self, work: Work, times: ScaledTimes, found: Sequence[Estimate | None]) -> Estimate | None:
        if not times.without.isdisjoint(one.kind for one in work.operators):
            return None
        if work.key in times.ms:
            return Estimate.of(times.ms[work.key], "described")
        best = min((one for one in found if one is not None), key=lambda one: one.ms, default=None)
        return None if best is None else best.times(self._scale(work, times), "described")

    def _scale(self, work: Work, times: ScaledTimes) -> float:
        """The scales of the operators, weighted by what each takes at least here (the roofline)."""
        scales = [times.factor(one.kind) for one in work.operators] or [times.scale]
        if len(set(scales)) == 1:
            return scales[0]
        weights = [self.here.peaks.floor_ms(one.flops, one.bytes) for one in work.operators]
        if not sum(weights):
            weights = [1.0] * len(scales)
        return sum(weight * scale for weight, scale in zip(weights, scales, strict=True)) / sum(weights)
