"""Which sets of instructions an exported library has, and how it asks a processor for each."""

from __future__ import annotations

from dataclasses import dataclass

from bricolage.native.cpu.isa import (
    ARM_SETS,
    Isa,
    available_isas,
    described_instructions,
    described_isas,
    needed_instructions,
)
from bricolage.runtime.c_library.targets import ExportTarget

_AVX2 = frozenset(["avx2", "fma", "f16c"])
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
_VNNI = _AVX512 | {"avx512_vnni"}
_LEVELS: tuple[tuple[str, frozenset[str]], ...] = (
    ("amx", _VNNI | {"avx512_bf16", "amx_tile", "amx_bf16", "amx_int8"}),
    ("avx512_vnni", _VNNI),
    ("avx512", _AVX512),
    ("avx2", _AVX2),
    ("x86_64", frozenset()),
)
"""Sets of a portable library for x86-64, best first, by the processor flags that each has."""

_EAX, _EBX, _ECX, _EDX = range(4)
_CPUID = {
    "fma": (1, 0, _ECX, 12),
    "f16c": (1, 0, _ECX, 29),
    "avx2": (7, 0, _EBX, 5),
    "avx512f": (7, 0, _EBX, 16),
    "avx512dq": (7, 0, _EBX, 17),
    "avx512bw": (7, 0, _EBX, 30),
    "avx512vl": (7, 0, _EBX, 31),
    "avx512_vnni": (7, 0, _ECX, 11),
    "amx_bf16": (7, 0, _EDX, 22),
    "amx_tile": (7, 0, _EDX, 24),
    "amx_int8": (7, 0, _EDX, 25),
    "avx_vnni": (7, 1, _EAX, 4),
    "avx512_bf16": (7, 1, _EAX, 5),
}
"""Leaf, subleaf, register and bit of processor flags (Intel, "Architecture Instruction Set Extensions", CPUID)."""
_HWCAP = {"asimddp": (16, 20), "i8mm": (26, 13), "bf16": (26, 14)}
"""The word of the auxiliary vector, AT_HWCAP or AT_HWCAP2, and its bit (Linux, `asm/hwcap.h` of arm64). All 64-bit Arm processors
have `asimd`."""
_VECTORS, _LONG_VECTORS, _TILES = 0x6, 0xE6, 0x60000
"""Bits of XCR0: what the system keeps for a process."""


@dataclass(frozen=True)
class LibrarySet:
    """A set of instructions of a library."""

    name: str
    isa: Isa
    own: bool
    """Whether it is that of this machine, for which the plan was decided."""

    @property
    def runs(self) -> str:
        """C of whether a processor has it."""
        needs = needed_instructions(self.isa)
        if "asimd" in needs:
            words = (_HWCAP[flag] for flag in sorted(needs - {"asimd"}))
            return " && ".join(f"LIBRARY(hwcap_bit)({word}, {bit})" for word, bit in words) or "1"
        mask = _VECTORS * bool(needs) | _LONG_VECTORS * ("avx512f" in needs) | _TILES * ("amx_tile" in needs)
        tests = [f"LIBRARY(kept_registers)({mask:#x})"] if mask else []
        for flag in sorted(needs):
            leaf, subleaf, register, bit = _CPUID[flag]
            tests.append(f"LIBRARY(cpuid_bit)({leaf}, {subleaf}, {register}, {bit})")
        if "amx_tile" in needs:
            tests.append("LIBRARY(tiles_granted)()")
        return " && ".join(tests) or "1"


def library_sets(target: ExportTarget, *, portable: bool) -> tuple[LibrarySet, ...]:
    """That of this machine alone; or, of a portable library, those of all processors of its kind, best first; or those of another
    kind."""
    if target.isas:
        return tuple(LibrarySet(isa.name, isa, own=False) for isa in target.isas)
    here = available_isas()[0]
    if not portable:
        return (LibrarySet(here.name, here, own=True),)
    if here.name in ARM_SETS:
        everything = described_isas(described_instructions(ARM_SETS[0]))
        arm = (isa for isa in everything if isa.name in ARM_SETS)
        return tuple(LibrarySet(isa.name, isa, own=isa == here) for isa in arm)
    sets = [LibrarySet(name, described_isas(flags)[0], own=False) for name, flags in _LEVELS]
    machine_set = LibrarySet("own", here, own=True)
    alike = next((number for number, each in enumerate(sets) if each.isa == here), None)
    if alike is not None:
        sets[alike] = LibrarySet(sets[alike].name, here, own=True)
        return tuple(sets)
    # What the machine has and no level says, such as a processor whose gathers are slow: before the level below it.
    below = next(number for number, each in enumerate(sets) if each.isa.needs <= here.needs)
    return (*sets[:below], machine_set, *sets[below:])
