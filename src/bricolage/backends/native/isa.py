"""Instruction sets: what the generated C is compiled for, and the tile sizes that suit it."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class Isa:
    """An instruction set: compiler flags, floats in a vector, and the largest tile of a matrix product in registers."""

    name: str
    flags: tuple[str, ...]
    needs: frozenset[str]
    """Processor flags (`/proc/cpuinfo`) without which it cannot run."""
    lanes: int
    rows: int
    """Rows of a tile, which is two vectors wide."""
    bfloat16_flag: str = ""
    """Compiler flag of the instruction that multiplies pairs of bfloat16 and sums in float32, where there is one."""
    bfloat16_needs: str = ""
    """Its processor flag."""

    @property
    def multiplies_bfloat16(self) -> bool:
        """Whether that instruction runs here."""
        return self.bfloat16_needs in processor_flags()


ISAS = (
    Isa(
        "avx512",
        ("-mavx2", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512"),
        frozenset(["avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl"]),
        lanes=16,
        rows=14,
        bfloat16_flag="-mavx512bf16",
        bfloat16_needs="avx512_bf16",
    ),
    Isa("avx2", ("-mavx2", "-mfma"), frozenset(["avx2", "fma"]), lanes=8, rows=6),
    Isa("generic", (), frozenset(), lanes=4, rows=4),
)
"""From the best to what runs everywhere (the compiler splits its vectors as it must)."""


@cache
def processor_flags() -> frozenset[str]:
    """What the processor and the kernel offer; empty where `/proc/cpuinfo` does not say."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return frozenset()
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    line = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return frozenset(line.partition(":")[2].split())


def available() -> tuple[Isa, ...]:
    """Instruction sets that run here, best first."""
    return tuple(isa for isa in ISAS if isa.needs <= processor_flags())
