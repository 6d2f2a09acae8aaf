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
_FLOAT32 = KernelConfig()
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


def least_ms(workload: Workload, on: Setting) -> float:
    """What a region would take in float32 if its backend reached what the device can do at best, and moved nothing twice: what is
    computed and what is moved are added. For ranking; `floor_ms` is the bound."""
    return added_ms(on.device.peaks, workload.flops / _share_of_threads(on), workload.bytes)


def floor_ms(workload: Workload, on: Setting, config: KernelConfig = _FLOAT32) -> float:
    """The longer of computing and moving at the device's peaks, in milliseconds: a backend that reaches both takes no less. It
    counts the products that the configuration's arithmetic needs: those of bfloat16, of bytes or of slices of bytes are faster,
    and a tile of Winograd's has fewer (Lavin and Gray, CVPR 2016). What the last cache holds is not read from memory."""
    flops = sum(operator.flops / _fewer_products(operator, config.tile) for operator in workload.operators)
    faster, share = _compare_products(config, on.device)
    from_memory = max(0.0, workload.bytes * share - (on.device.caches.l3_bytes or 0))
    return on.device.peaks.floor_ms(flops / faster / _share_of_threads(on), from_memory)


def _compare_products(config: KernelConfig, device: Device) -> tuple[float, float]:
    """How many times as fast as those of float32 its products are, and the bytes of its operands over those of float32. One of
    parts of bfloat16 is as many products as its name says, of operands as many times two bytes long as it has parts."""
    if config.in_bytes:
        return device.byte_products, 1 / 4
    if config.slice_products:  # a weight has three or four slices
        return max(1.0, device.byte_products / config.slice_products), 3 / 4
    if config.part_products:
        return max(1.0, device.bfloat16_products / config.part_products), _PARTS[config.part_products] / 2
    if config.bfloat16:
        return device.bfloat16_products, 1 / 2
    return 1.0, 1.0


def _share_of_threads(on: Setting) -> float:
    return min(1.0, on.threads / max(1, on.device.threads))


def _fewer_products(operator: OperatorWork, tile: int) -> float:
    """How many times fewer products tiles of `tile` × `tile` results take; 1 where the operator has none."""
    plain = operator.kind == "Conv" and operator.groups == 1 and set(operator.strides) <= {1}
    if not tile or not plain or operator.kernel[-2:] != (3, 3):
        return 1.0
    return 9 * tile**2 / (tile + 2) ** 2


def least_config_ms(workload: Workload, on: Setting, config: KernelConfig) -> float:
    """As `least_ms`, in the arithmetic of a configuration."""
    faster, share = _compare_products(config, on.device)
    return added_ms(on.device.peaks, workload.flops / faster / _share_of_threads(on), workload.bytes * share)


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
