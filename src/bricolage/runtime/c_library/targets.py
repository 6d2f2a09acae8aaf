"""For what a library is exported: this machine's kind, or another one that a compiler is told."""

from __future__ import annotations

import platform
import re
from dataclasses import dataclass, replace

from bricolage.device.arm_cores import core_named
from bricolage.device.caches import Cache, Caches, host_caches
from bricolage.errors import BadOption
from bricolage.native.cpu.isa import ISAS, Isa, described_instructions
from bricolage.plan.pack import PackTarget

_MACROS = re.compile(r"__(x86_64|i386|AVX\w*|FMA|F16C|aarch64|wasi|linux|unix|APPLE)__")
"""Those that say what a compiler compiles for."""
_VECTORS_OF_FOUR = ISAS[-1]


@dataclass(frozen=True)
class ExportTarget:
    """What the compiler compiles for."""

    name: str
    """As compilers name it; empty: this machine's kind."""
    macros: frozenset[str]
    """That its compilers define, of those that say what they compile for."""
    caches: Caches
    isas: tuple[Isa, ...] = ()
    """The sets of instructions of its processors, best first, the last of which all have; none: those that this machine has."""
    has_threads: bool = True
    address_bytes: int = 1 << 48
    """Of a process."""
    link_options: tuple[str, ...] = ()

    def defines(self, macro: str) -> bool | None:
        """Whether its compilers define a macro; None where that is not known."""
        if not _MACROS.fullmatch(macro):
            return None
        if not self.isas and macro not in _OTHERS:
            return None
        return macro in self.macros


_PAGES = ("-Wl,-z,max-page-size=65536",)
"""Kernels for 64-bit Arm have pages of 4, 16 or 64 KiB, and load what is laid out for their own or larger ones."""
_X86 = platform.machine() in ("x86_64", "AMD64")
_OTHERS = frozenset(["__aarch64__", "__wasi__"]) if _X86 else frozenset()
"""What no compiler for this machine's kind defines."""

TARGETS = {
    "aarch64-linux": ExportTarget(
        "aarch64-linux",
        frozenset(["__aarch64__", "__linux__", "__unix__"]),
        # The smallest of the cores that such systems are built of.
        Caches((Cache(1, 32 << 10), Cache(2, 256 << 10))),
        tuple(isa for isa in ISAS if "asimd" in isa.needs),
        link_options=_PAGES,
    ),
    "wasm32-wasi": ExportTarget(
        "wasm32-wasi",
        frozenset(["__wasi__"]),
        Caches((Cache(1, 32 << 10), Cache(2, 256 << 10))),
        (replace(_VECTORS_OF_FOUR, name="simd128", flags=("-msimd128",)),),
        has_threads=False,
        address_bytes=1 << 32,
    ),
}
"""Other kinds of processors and systems, by name."""


def describe_target(target: PackTarget) -> ExportTarget:
    """The Arm device that a file describes: the best instructions that its cores have, and its caches.

    Raises:
        BadOption: it describes no Arm device.
    """
    core = core_named(target.core)
    arm = TARGETS["aarch64-linux"]
    instructions = (
        described_instructions(target.isa) if target.isa else frozenset() if core is None else core.instructions
    )
    sets = tuple(isa for isa in arm.isas if isa.needs <= instructions)
    if not sets:
        advice = f"Its file describes no Arm device: give core, or isa = {', '.join(isa.name for isa in arm.isas)}"
        raise BadOption(option="--target", value=target.name, advice=advice)
    return replace(arm, caches=target.caches, isas=sets[:1])


def own_target() -> ExportTarget:
    """This machine's kind."""
    arm = platform.system() == "Linux" and platform.machine() == "aarch64"
    return ExportTarget("", frozenset(), host_caches(), link_options=_PAGES if arm else ())
