"""What C is generated for: an instruction set, the caches of a core, and a number of threads."""

from __future__ import annotations

from dataclasses import dataclass, field

from bricolage.device.caches import Caches, host_caches
from bricolage.native.cpu.isa import EMULATED_AMX, ISAS, Isa
from bricolage.native.cpu.matrix_unit import TILE_ROWS
from bricolage.native.fuse.fusion_target import Target

MOST_TAPS = 11
"""Taps in a row that a grouped convolution keeps in registers."""
VECTOR_DTYPES = frozenset(["float32", "bfloat16", "uint8"])
"""Types that its vectors are loaded from."""


@dataclass(frozen=True)
class CpuTarget:
    """A processor as far as generated code depends on it. It may be described by hand, for one that is not this one."""

    isa: Isa
    threads: int
    caches: Caches = field(default_factory=host_caches)

    @property
    def lanes(self) -> int:
        """float32 elements of a vector."""
        return self.isa.lanes

    @property
    def l2_bytes(self) -> int:
        """A core's second-level cache."""
        return self.caches.l2_bytes

    @property
    def fusion(self) -> Target:
        """The limits that fusion goes by: the same for all instruction sets, so that a region has one plan on a machine."""
        return fusion_target(self.caches)


def fusion_target(caches: Caches) -> Target:
    """The limits of a processor with these caches, whichever instruction set it has."""
    isas = (*ISAS, EMULATED_AMX)
    lanes = [isa.lanes for isa in isas]
    return Target(
        l2_bytes=caches.l2_bytes,
        tile_rows=max(TILE_ROWS if isa.matrix_unit else isa.rows for isa in isas),
        vector_lanes=(min(lanes), max(lanes)),
        vector_dtypes=VECTOR_DTYPES,
        grouped_taps=MOST_TAPS,
    )
