"""What the processor can do, as far as backends choose variants by it, and how all of them are kept to less."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from bricolage.errors import BadOption

ISA_VARIABLE = "BRICOLAGE_ISA"
"""Environment variable that keeps backends to an instruction set of x86-64, for comparisons: "avx512" (no AMX) or "avx2". It
changes the fingerprint of the hardware, so that costs measured under it are not taken for others. How far each backend
can be kept to it: benchmarks/README.md."""
_BEYOND: Mapping[str, tuple[str, ...]] = {"avx512": ("amx",), "avx2": ("amx", "avx512")}
"""How the names of processor flags begin that are left out."""
_CPUINFO = Path("/proc/cpuinfo")


def isa_limit() -> str | None:
    """The instruction set that backends are kept to; None where they may use everything.

    Raises:
        BadOption: it has no name known here.
    """
    limit = os.environ.get(ISA_VARIABLE) or None
    if limit is not None and limit not in _BEYOND:
        advice = f"Use {' or '.join(_BEYOND)}, or leave it unset for everything that the processor has"
        raise BadOption(option=ISA_VARIABLE, value=limit, advice=advice)
    return limit


def within_limit(flag: str) -> bool:
    """Whether a processor flag, as Linux names it, may be used."""
    limit = isa_limit()
    return limit is None or not flag.startswith(_BEYOND[limit])


def beyond_limit() -> bool:
    """Whether the processor has instructions beyond the limit, so that it matters."""
    return not all(within_limit(flag) for flag in processor_flags())


def library_limits() -> dict[str, str]:
    """Environment variables that keep PyTorch's own kernels and oneDNN to the limit."""
    match isa_limit():
        case "avx2":
            return {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
        case "avx512":
            return {"ATEN_CPU_CAPABILITY": "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
    return {}


def llvm_features() -> str:
    """What LLVM is told to leave out of this very processor ("-avx512f": and all that needs it); empty without a limit."""
    return {"avx2": "-amx-tile,-avx512f", "avx512": "-amx-tile"}.get(isa_limit() or "", "")


def has_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16 natively, and may; emulated, it is slower than float32."""
    return any(flag in processor_flags() and within_limit(flag) for flag in ("avx512_bf16", "amx_bf16", "bf16"))


@cache
def processor_flags() -> frozenset[str]:
    """What the processor and the kernel offer, in Linux's names; empty where it does not say."""
    if not _CPUINFO.exists():
        return frozenset()
    lines = _CPUINFO.read_text().splitlines()
    return frozenset(next((line.split() for line in lines if line.lower().startswith(("flags", "features"))), []))
