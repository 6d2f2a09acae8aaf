"""What the processor can do, as far as backends choose variants by it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")


@cache
def has_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16 natively; emulated, it is slower than float32."""
    if not _CPUINFO.exists():
        return False
    lines = _CPUINFO.read_text().splitlines()
    flags = next((line.split() for line in lines if line.lower().startswith(("flags", "features"))), [])
    return any(flag in flags for flag in ("avx512_bf16", "amx_bf16", "bf16"))
