"""Instruction sets: what the generated C is compiled for, and the tile sizes that suit it."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

from bricolage.device.device import DESCRIBED, Device
from bricolage.device.host import host

ByteDot = Literal[
    "tdpbusd", "vpdpbusd", "vpmaddubsw", "vpmaddwd", "usmmla", "usdot", "sdot", "smull", "smull_wide", "plain"
]
"""What multiplies bytes and sums in int32: a matrix unit, one instruction, several of which the first sums in int16, or plain C."""

_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _TILE_DATA = 158, 0x1023, 18
"""Linux on x86-64: a system call, its request for an extended register state, and that of AMX's tiles."""

_GATHERING = Path("/sys/devices/system/cpu/vulnerabilities/gather_data_sampling")
"""What Linux does about it."""


@dataclass(frozen=True)
class Isa:
    """An instruction set: compiler flags, floats in a vector, and the largest tile of a matrix product in registers."""

    name: str
    flags: tuple[str, ...]
    needs: frozenset[str]
    """Processor flags (`/proc/cpuinfo`) without which it cannot run."""
    lanes: int
    rows: int
    """Rows of a tile in vector registers, which is two vectors wide."""
    bfloat16_flags: tuple[str, ...] = ()
    """More compiler flags, for code that multiplies bfloat16."""
    bfloat16_needs: frozenset[str] = frozenset(["no such instruction"])
    """Processor flags of instructions that multiply bfloat16 and sum in float32."""
    matrix_unit: Literal["", "amx", "emulated"] = ""
    """What multiplies tiles of bfloat16; an emulated one is plain C, for tests."""
    byte_dot: ByteDot = "plain"
    byte_flags: tuple[str, ...] = ()
    """More compiler flags, for code that multiplies bytes."""
    vector_dot: ByteDot = "plain"
    """What multiplies bytes in vectors, of a few rows that fill no tile."""
    reads_halves: bool = False
    """Whether an instruction makes a vector of float32 of float16."""
    looks_up: bool = False
    """Whether an instruction reads a vector of a table's elements, and is faster than a dozen others."""
    by_lane: bool = False
    """Whether an instruction multiplies a vector by one element of another."""

    def multiplies_bfloat16(self, device: Device) -> bool:
        """Whether bfloat16 is multiplied here."""
        return self.bfloat16_needs <= device.instructions


_AVX2_FLAGS = ("-mavx2", "-mfma")
_AVX2 = frozenset(["avx2", "fma"])
_AVX512_FLAGS = (*_AVX2_FLAGS, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512")
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
_BFLOAT16 = frozenset(["avx512_bf16"])
_AMX = frozenset(["amx_tile", "amx_bf16"])
_NEON = Isa(
    "neon",
    # What all 64-bit Arm processors have. Compilers then call functions for atomics, which ask whether there are instructions.
    ("-march=armv8-a",),
    frozenset(["asimd"]),
    lanes=4,
    rows=8,
    byte_dot="smull",
    vector_dot="smull",
    reads_halves=True,
    by_lane=True,
)
_DOTPROD, _I8MM = ("-march=armv8.2-a+dotprod",), ("-march=armv8.2-a+dotprod+i8mm+bf16",)
"""The compiler takes the last of such flags."""

ISAS = (
    Isa(
        "amx",
        _AVX512_FLAGS,
        _AVX512 | _BFLOAT16 | _AMX,
        lanes=16,
        rows=14,
        bfloat16_flags=("-mavx512bf16", "-mamx-tile", "-mamx-bf16"),
        bfloat16_needs=_BFLOAT16 | _AMX,
        matrix_unit="amx",
        byte_dot="vpmaddubsw",
        vector_dot="vpmaddubsw",
    ),
    Isa(
        "avx512",
        _AVX512_FLAGS,
        _AVX512,
        lanes=16,
        rows=14,
        bfloat16_flags=("-mavx512bf16",),
        bfloat16_needs=_BFLOAT16,
        byte_dot="vpmaddubsw",
        vector_dot="vpmaddubsw",
    ),
    Isa("avx2", _AVX2_FLAGS, _AVX2, lanes=8, rows=6, byte_dot="vpmaddubsw", vector_dot="vpmaddubsw"),
    replace(
        _NEON,
        name="i8mm",
        needs=_NEON.needs | {"asimddp", "i8mm", "bf16"},
        bfloat16_flags=_I8MM,
        bfloat16_needs=frozenset(["bf16"]),
        byte_dot="usmmla",
        byte_flags=_I8MM,
        vector_dot="usdot",
    ),
    replace(
        _NEON,
        name="dotprod",
        needs=_NEON.needs | {"asimddp"},
        byte_dot="sdot",
        byte_flags=_DOTPROD,
        vector_dot="sdot",
    ),
    _NEON,
    Isa("generic", (), frozenset(), lanes=4, rows=4),
)
"""From the best to what runs everywhere (the compiler splits its vectors as it must); those of each kind of processor together."""

EMULATED_AMX = replace(
    ISAS[0],
    name="emulated-amx",
    needs=_AVX512 | _BFLOAT16,
    bfloat16_needs=_BFLOAT16,
    matrix_unit="emulated",
    byte_dot="tdpbusd",
)
"""The code for a matrix unit where there is none; slow, and never chosen unless asked for."""
SPLIT_AVX512 = replace(
    ISAS[1],
    name="split-avx512",
    flags=_AVX2_FLAGS,
    needs=_AVX2,
    bfloat16_flags=(),
    bfloat16_needs=frozenset(["no such instruction"]),
    byte_dot="plain",
    vector_dot="plain",
)
SPLIT_AMX = replace(
    EMULATED_AMX,
    name="split-amx",
    flags=_AVX2_FLAGS,
    needs=_AVX2,
    bfloat16_flags=(),
    bfloat16_needs=_AVX2,
    vector_dot="plain",
)
"""The code for vectors of 16 numbers, and for a matrix unit, on processors whose vectors have 8: the compiler splits each vector
in two. They test what is generated, not the compiler's AVX-512."""
PAIRS_AVX2, PAIRS_AVX512 = (replace(isa, name=f"pairs-{isa.name}", looks_up=True) for isa in (ISAS[2], ISAS[1]))
"""Bytes by vpmaddubsw on processors that have a better instruction."""
SPLIT_NEON = replace(ISAS[-1], name="split-neon", rows=_NEON.rows)
"""The code for Arm's vectors of four numbers, in plain C. Products of bytes are exact there, so plain C has the same integers."""
_BYTE_DOTS: tuple[tuple[frozenset[str], int, ByteDot, tuple[str, ...]], ...] = (
    (_AMX | {"amx_int8"}, 16, "tdpbusd", ("-mamx-tile", "-mamx-int8")),
    (_AVX512 | {"avx512_vnni"}, 16, "vpdpbusd", ("-mavx512vnni",)),
    (_AVX2 | {"avx_vnni"}, 8, "vpdpbusd", ("-mavxvnni",)),
)
"""What multiplies bytes faster than what an instruction set always has, best first: processor flags, lanes, what it is, and
compiler flags."""
_HALVES_LANES = 8
"""Floats of the vectors that are made of float16."""
ARM_SETS: tuple[str, ...] = ("i8mm", "dotprod", "neon")
"""Of 64-bit Arm, best first."""
_EMULATORS: Mapping[str, tuple[Isa, ...]] = {
    "amx": (EMULATED_AMX, SPLIT_AMX),
    "avx512": (SPLIT_AVX512,),
    **dict.fromkeys(ARM_SETS, (SPLIT_NEON,)),
}
_DESCRIBED: Mapping[str, frozenset[str]] = {
    "amx": _AVX512 | _BFLOAT16 | _AMX | {"f16c", "avx512_vnni", "amx_int8"},
    "avx512": _AVX512 | {"f16c"},
    "i8mm": frozenset(["asimd", "asimddp", "i8mm", "bf16"]),
    "dotprod": frozenset(["asimd", "asimddp"]),
    "neon": frozenset(["asimd"]),
}
FOR_TESTS = (EMULATED_AMX, SPLIT_AVX512, SPLIT_AMX, PAIRS_AVX2, PAIRS_AVX512, SPLIT_NEON)
"""Never chosen unless asked for."""


@cache
def tiles_permitted() -> bool:
    """Asks the kernel for the matrix unit's registers, which a process may use only then; whether it has agreed."""
    try:
        asked = ctypes.CDLL(None, use_errno=True).syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _TILE_DATA)
    except (OSError, AttributeError):
        return False
    return bool(asked == 0)


@cache
def gathers_fast() -> bool:
    """Whether instructions that read from many places are as fast as they were made: a processor that leaks what they read
    ("Downfall") is told to wait behind each of them."""
    try:
        return not _GATHERING.read_text(encoding="ascii").startswith("Mitigation")
    except (OSError, ValueError):
        return True


def available_isas(device: Device | None = None) -> tuple[Isa, ...]:
    """Instruction sets that run on a device, by default the whole processor here; best first. A described one has its registers."""
    device = device or host()
    sets = described_isas(device.instructions)
    return tuple(isa for isa in sets if isa.matrix_unit != "amx" or device.model == DESCRIBED or tiles_permitted())


def find_emulator(isa: str) -> str:
    """The instruction set for tests that computes here what one of the product's (`described_instructions`) computes where it is
    there: the same code, with every vector or tile emulated. Empty where this processor has none."""
    here = host().instructions
    return next((emulator.name for emulator in _EMULATORS.get(isa, ()) if emulator.needs <= here), "")


def described_instructions(isa: str) -> frozenset[str]:
    """Processor flags of the first processors with an instruction set: `amx` (Sapphire Rapids), `avx512` (Skylake-X), `i8mm`
    (Neoverse V1), `dotprod` (Cortex-A76) or `neon` (all of 64-bit Arm)."""
    return _DESCRIBED[isa]


def described_isas(instructions: frozenset[str]) -> tuple[Isa, ...]:
    """Instruction sets of a processor with these flags, of which the system keeps all registers; best first."""
    return tuple(_with_bytes(isa, instructions) for isa in ISAS if isa.needs <= instructions)


def needed_instructions(isa: Isa) -> frozenset[str]:
    """Processor flags without which code for an instruction set, with products of all kinds, cannot run."""
    bytes_ = {flag for needs, _, _, flags in _BYTE_DOTS if set(flags) & set(isa.byte_flags) for flag in needs}
    products = isa.bfloat16_needs if isa.bfloat16_flags and isa.matrix_unit else frozenset()
    return isa.needs | products | bytes_ | ({"f16c"} if isa.reads_halves and isa.lanes >= _HALVES_LANES else set())


def _with_bytes(isa: Isa, instructions: frozenset[str]) -> Isa:
    """An instruction set with the fastest products of bytes that a processor has in it, in tiles and in vectors."""
    wide = isa.lanes >= _HALVES_LANES
    if not wide:
        return isa
    extended_isa = replace(isa, reads_halves="f16c" in instructions, looks_up=gathers_fast())
    for needs, lanes, dot, flags in reversed(_BYTE_DOTS):
        fits = isa.lanes == lanes and (dot != "tdpbusd" or isa.matrix_unit == "amx")
        if fits and isa.byte_dot != "plain" and needs <= instructions:
            vectors = extended_isa.vector_dot if dot == "tdpbusd" else dot
            extended_isa = replace(
                extended_isa, byte_dot=dot, byte_flags=(*extended_isa.byte_flags, *flags), vector_dot=vectors
            )
    return extended_isa


def find_isa(name: str, device: Device | None = None) -> Isa | None:
    """An instruction set that runs on a device, by name; those for tests too."""
    for_tests = (isa for isa in FOR_TESTS if isa.needs <= (device or host()).instructions)
    return next((isa for isa in (*available_isas(device), *for_tests) if isa.name == name), None)
