"""The roofline as a cost: what work takes at best on a device, from its peaks alone."""

from __future__ import annotations

from dataclasses import dataclass

from bricolage.device.device import Peaks

_START_US = 5.0


@dataclass(frozen=True)
class Roofline:
    """Times of regions by their operations and bytes. The two are added rather than the larger taken: half of what
    real kernels reach, and never zero for either. For ranking what nobody has measured."""

    peaks: Peaks
    start_us: float = _START_US
    """For one region, whatever its size: entering a backend."""

    def ms(self, flops: float, bytes_: float) -> float:
        """Milliseconds for a region of so many operations and bytes."""
        return flops / self.peaks.gflops / 1e6 + bytes_ / self.peaks.gbytes / 1e6 + self.start_us / 1e3
