"""The roofline as a cost: what work takes at best on a device, from its peaks alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bricolage.device.device import Device, Peaks
from bricolage.graph.operator_kinds import VIEWS
from bricolage.work.cost import Estimate, Setting, Work
from bricolage.work.implementation import KernelConfig
from bricolage.work.workload import OperatorWork, Workload

_START_US = 5.0
_PRIOR = 3.0
"""Times the roofline that a region typically takes ..."""
_UNSURE = 10.0
"""... give or take this factor."""
_PARTS: Mapping[int, int] = {3: 2, 6: 3}
"""Parts of a float32, by the products of parts that make one of float32."""
NOMINAL = Setting(
    Device(
        "nominal", "cpu", "nominal", frozenset(), cores=(0,), physical_cores=1, memory_bytes=0, peaks=Peaks(200.0, 20.0)
    ),
    threads=1,
)
"""No machine in particular, so that what a search finds by its roofline is the same everywhere."""


def added_ms(peaks: Peaks, flops: float, bytes_: float, start_us: float = _START_US) -> float:
    """Milliseconds of a region by its operations and bytes. The two are added rather than the larger taken: half of what
    real kernels reach, and never zero for either. For ranking what was never measured. `start_us`: entering a backend."""
    return flops / peaks.gflops / 1e6 + bytes_ / peaks.gbytes / 1e6 + start_us / 1e3


def least_ms(
    workload: Workload, on: Setting, *, bfloat16: bool = False, in_bytes: bool = False, slice_products: int = 0
) -> float:
    """What a region would take if its backend reached what the device can do at best, in float32, in bfloat16, in bytes, or in
    `slice_products` products of slices of 8 bits for one of float32, and moved nothing twice."""
    device = on.device
    flops = workload.flops / min(1.0, on.threads / max(1, device.threads))
    if in_bytes:
        return added_ms(device.peaks, flops / device.byte_products, workload.bytes / 4)
    if slice_products:  # a weight has three or four slices
        factor = max(1.0, device.byte_products / slice_products)
        return added_ms(device.peaks, flops / factor, workload.bytes * 3 / 4)
    if bfloat16:
        return added_ms(device.peaks, flops / device.bfloat16_products, workload.bytes / 2)
    return added_ms(device.peaks, flops, workload.bytes)


def least_config_ms(workload: Workload, on: Setting, config: KernelConfig) -> float:
    """The same by the name of a configuration. A product of parts of bfloat16 is as many products as that says, of operands that
    are as many times two bytes long as it has parts."""
    if config.part_products:
        flops = workload.flops / min(1.0, on.threads / max(1, on.device.threads))
        factor = max(1.0, on.device.bfloat16_products / config.part_products)
        return added_ms(on.device.peaks, flops / factor, workload.bytes * _PARTS[config.part_products] / 2)
    return least_ms(
        workload, on, bfloat16=config.bfloat16, in_bytes=config.in_bytes, slice_products=config.slice_products
    )


def moved_bytes(one: OperatorWork) -> int:
    """Bytes of one operator on its own; 0 for views."""
    return 0 if one.kind in VIEWS else one.bytes


@dataclass(frozen=True)
class Roofline:
    """The cost where no model knows the implementation: a few times the roofline, with a wide interval."""

    def estimate(self, works: Sequence[Work], on: Setting) -> Sequence[Estimate | None]:
        """Of regions of which it is known what they compute."""
        return [None if work.workload is None else self._one(work.workload, on) for work in works]

    @staticmethod
    def _one(workload: Workload, on: Setting) -> Estimate:
        ms = _PRIOR * least_ms(workload, on)
        return Estimate(ms, ms / _UNSURE, ms * _UNSURE, "roofline")


@dataclass(frozen=True)
class OperatorRoofline:
    """For each operator the longer of computing and moving, after a start: what can be said of it without measuring."""

    start_us: float = 2.0
    """That every operator takes, views too."""

    def estimate(self, works: Sequence[Work], on: Setting) -> Sequence[Estimate | None]:
        """Of operators one after another."""
        peaks, start_ms = on.device.peaks, self.start_us / 1e3
        return [
            None
            if work.workload is None
            else Estimate.of(
                sum(start_ms + peaks.floor_ms(operator.flops, moved_bytes(operator)) for operator in work.operators),
                "roofline",
            )
            for work in works
        ]
