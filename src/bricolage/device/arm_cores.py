"""Arm's cores: what Linux says of those that a process runs on, and what is known of some by name.

Rates are nominal: they are in the cores' optimisation guides, and none was measured by us.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ARM64 = ("aarch64", "arm64")
"""64-bit Arm, as systems name it."""
LANES = 4
"""Floats of a vector."""
_AT_HWCAP, _AT_HWCAP2 = 16, 26
"""Entries of the auxiliary vector (Linux, uapi/linux/auxvec.h)."""
_FEATURES: Mapping[int, Mapping[str, int]] = {
    _AT_HWCAP: {"asimd": 1, "atomics": 8, "asimdhp": 10, "asimddp": 20, "sve": 22},
    _AT_HWCAP2: {"sve2": 1, "svei8mm": 9, "i8mm": 13, "bf16": 14},
}
"""Bits of processor flags, as `/proc/cpuinfo` names them (Linux, arch/arm64/include/uapi/asm/hwcap.h)."""
_PART_SHIFT, _PART_MASK, _IMPLEMENTER_SHIFT = 4, 0xFFF, 24
"""Fields of the register MIDR_EL1 (Arm ARM)."""
_ARM, _APPLE = 0x41, 0x61
_BASE = frozenset(["asimd"])
_V82 = _BASE | {"asimddp"}
_V86 = _V82 | {"i8mm", "bf16"}


@dataclass(frozen=True)
class ArmCore:
    """A core by name."""

    name: str
    implementer: int
    part: int
    """Its number, and that of who made it, in the register MIDR_EL1 (Linux, arch/arm64/include/asm/cputype.h)."""
    products_a_cycle: int
    """Fused multiply-adds of vectors of four floats that it starts in a cycle."""
    instructions: frozenset[str]
    """Processor flags that kernels are chosen by."""


CORES = (
    ArmCore("cortex-a53", _ARM, 0xD03, 1, _BASE),
    ArmCore("cortex-a55", _ARM, 0xD05, 1, _V82),
    ArmCore("cortex-a72", _ARM, 0xD08, 1, _BASE),
    ArmCore("cortex-a76", _ARM, 0xD0B, 2, _V82),
    ArmCore("neoverse-n1", _ARM, 0xD0C, 2, _V82),
    ArmCore("neoverse-v1", _ARM, 0xD40, 4, _V86 | {"sve"}),
    ArmCore("cortex-a710", _ARM, 0xD47, 2, _V86 | {"sve", "sve2"}),
    ArmCore("neoverse-n2", _ARM, 0xD49, 2, _V86 | {"sve", "sve2"}),
    ArmCore("neoverse-v2", _ARM, 0xD4F, 4, _V86 | {"sve", "sve2"}),
    ArmCore("apple-m1", _APPLE, 0x023, 4, _V82),
)
"""Those whose rates are known; the Cortex-A72 may start two where it finds them, and counts with one."""


def core_named(name: str) -> ArmCore | None:
    """A core by its name; None where none is known by it."""
    return next((core for core in CORES if core.name == name), None)


def read_features(getauxval: Callable[[int], int] | None = None) -> frozenset[str]:
    """Processor flags that Linux gives this process in the auxiliary vector. In an emulator they are the emulated processor's,
    while `/proc/cpuinfo` is that of the machine under it.

    Args:
        getauxval: the function of the C library; by default this process's. Another system has none, hence no flags.
    """
    ask = getauxval or _getauxval()
    if ask is None:
        return frozenset()
    return frozenset(flag for vector, bits in _FEATURES.items() for flag, bit in bits.items() if ask(vector) >> bit & 1)


@cache
def _getauxval() -> Callable[[int], int] | None:
    function = getattr(ctypes.CDLL(None), "getauxval", None)
    if function is None:
        return None
    function.restype, function.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
    return lambda vector: int(function(vector))


def read_cores(cpus: Path, cpuinfo: str) -> tuple[tuple[int, int], ...]:
    """Implementer and part of each of Linux's processors, by number: of the register MIDR_EL1, else of `/proc/cpuinfo`. Empty where
    neither says, as in an emulator.

    Args:
        cpus: folder of the processors in sysfs.
        cpuinfo: the text of `/proc/cpuinfo`.
    """
    registers = sorted(
        cpus.glob("cpu[0-9]*/regs/identification/midr_el1"), key=lambda path: int(path.parents[2].name[3:])
    )
    try:
        numbers = [int(path.read_text(encoding="ascii"), 16) for path in registers]
    except (OSError, ValueError):
        numbers = []
    if numbers:
        return tuple((number >> _IMPLEMENTER_SHIFT, number >> _PART_SHIFT & _PART_MASK) for number in numbers)
    cores = []
    for section in cpuinfo.split("\n\n"):
        facts = {name.strip().lower(): value for name, _, value in (s.partition(":") for s in section.splitlines())}
        try:
            cores.append((int(facts["cpu implementer"], 16), int(facts["cpu part"], 16)))
        except (KeyError, ValueError):
            continue
    return tuple(cores)


def name_cores(cores: Sequence[tuple[int, int]]) -> str:
    """In words: "4 × cortex-a76"; of unequal ones each kind, "4 × cortex-a76, 4 × cortex-a55". Those that are not known by name
    keep their numbers. Empty of none."""
    counts: dict[tuple[int, int], int] = {}
    for core in sorted(cores, reverse=True):
        counts[core] = counts.get(core, 0) + 1
    return ", ".join(f"{count} × {_name_of(*core)}" for core, count in counts.items())


def fastest_core(cores: Sequence[tuple[int, int]]) -> ArmCore | None:
    """Of a processor's cores that which starts most products in a cycle; None where none is known by name."""
    rated = [core for numbers in cores for core in CORES if (core.implementer, core.part) == numbers]
    return max(rated, key=lambda core: core.products_a_cycle, default=None)


def _name_of(implementer: int, part: int) -> str:
    name = next((core.name for core in CORES if (core.implementer, core.part) == (implementer, part)), "")
    return name or f"core {implementer:#x}/{part:#x}"
