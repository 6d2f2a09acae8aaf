"""Every way to compute products on this machine: instruction sets, configurations, and how exact each configuration is."""

from __future__ import annotations

import pytest

from bricolage.backends.native.engine import Native
from bricolage.device.host import host
from bricolage.native.cpu.isa import EMULATED_AMX, available_isas, find_isa
from bricolage.work.implementation import KernelConfig

_EMULATED = (
    pytest.param(EMULATED_AMX, marks=pytest.mark.slow)
    if "amx" in {isa.name for isa in available_isas()}
    else EMULATED_AMX
)
ISAS = [*available_isas(), *([_EMULATED] if find_isa(EMULATED_AMX.name) else [])]
"""Where the processor has the unit itself, what emulates it is for `make test-all`."""
BOUNDS = {
    KernelConfig("f32"): 2e-6,
    KernelConfig("bf16"): 2e-2,
    KernelConfig("bf16x3"): 5e-5,
    KernelConfig("bf16x6"): 2e-6,
}
"""Relative errors of chains of two products."""


def configs() -> list[KernelConfig]:
    """Those of `BOUNDS` that the instruction set has which is forced now."""
    found = {one for precision in ("highest", "high", "medium") for one in Native().configs(precision, host())}
    return sorted(found & BOUNDS.keys())
