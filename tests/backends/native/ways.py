"""Every way to compute products on this machine: instruction sets, variants, and how exact each variant is."""

from __future__ import annotations

from bricolage.backends.native.cpu.isa import EMULATED_AMX, available, named
from bricolage.backends.native.engine import Native

ISAS = [*available(), *([EMULATED_AMX] if named(EMULATED_AMX.name) else [])]
BOUNDS = {"f32": 2e-6, "bf16": 2e-2, "bf16x3": 5e-5, "bf16x6": 2e-6}
"""Relative errors of chains of two products."""


def variants() -> list[str]:
    """Those of `BOUNDS` that the instruction set has which is forced now."""
    found = {name for precision in ("highest", "high", "medium") for name in Native().variants(precision)}
    return sorted(found & BOUNDS.keys())
