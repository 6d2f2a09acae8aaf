"""What the machine is, as far as it changes costs: part of every key of the cost database."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import psutil

from bricolage.device.isa import isa_limit, within_limit
from bricolage.options import available_cores

INSTRUCTION_SETS = (
    "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16",
    "amx_tile", "amx_bf16", "amx_int8", "amx_fp16", "asimd", "asimddp", "bf16", "i8mm", "sve", "sve2",
)  # fmt: skip
"""The instruction sets that kernels are chosen by, as Linux names them (x86-64 and 64-bit ARM)."""


@dataclass(frozen=True)
class Hardware:
    """A machine as seen from this process."""

    processor: str
    """Model name."""
    instructions: tuple[str, ...]
    """Those of `INSTRUCTION_SETS` that the processor has and backends may use, in that order."""
    cores: int
    """Physical cores of the machine (logical ones where that is unknown)."""
    threads: int
    """Logical processors that this process may use."""
    memory_gb: int
    system: str
    """Operating system."""
    machine: str
    """Architecture, for example x86_64."""
    limit: str = ""
    """The instruction set that backends are kept to (`BRICOLAGE_ISA`)."""

    def fingerprint(self) -> str:
        """Short hash of everything above: costs measured under another one are not comparable."""
        facts = asdict(self)
        if not self.limit:
            del facts["limit"]  # what was measured before there were limits stays known
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]

    def __str__(self) -> str:
        telling = ("amx_bf16", "avx512_bf16", "avx512f", "avx2", "sve2", "sve", "asimd")
        widest = [name for name in telling if name in self.instructions]
        extra = f" with {', '.join(widest[:2])}" if widest else ""
        kept = f", kept to {self.limit}" if self.limit else ""
        return (
            f"{self.processor}{extra}{kept}, {self.cores} core{'s' * (self.cores != 1)} ({self.threads} usable), "
            f"{self.memory_gb} GB, {self.system} {self.machine}"
        )


@cache
def this_machine() -> Hardware:
    """The machine that this process runs on. Affinity and memory are those of the first call."""
    facts = _cpuinfo()
    flags = set(facts.get("flags", facts.get("features", "")).split()) or _sysctl_flags()
    return Hardware(
        processor=_processor_name(facts),
        instructions=tuple(name for name in INSTRUCTION_SETS if name in flags and within_limit(name)),
        cores=psutil.cpu_count(logical=False) or os.cpu_count() or 1,
        threads=available_cores(),
        memory_gb=round(psutil.virtual_memory().total / 2**30),
        system=platform.system(),
        machine=platform.machine(),
        limit=isa_limit() or "",
    )


def _cpuinfo(path: Path = Path("/proc/cpuinfo")) -> dict[str, str]:
    """Fields of the first processor in Linux's cpuinfo, names in lower case; empty elsewhere."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return {}
    facts: dict[str, str] = {}
    for line in text.split("\n\n", 1)[0].splitlines():
        name, _, value = line.partition(":")
        facts[name.strip().lower()] = value.strip()
    return facts


def _processor_name(facts: dict[str, str]) -> str:
    """Model name; where the system gives a brand only (virtual machines do), family and model tell it apart."""
    name = facts.get("model name") or _sysctl("machdep.cpu.brand_string") or platform.processor() or platform.machine()
    numbers = [facts[field] for field in ("cpu family", "model", "stepping") if field in facts]
    return f"{name} (family {'/'.join(numbers)})" if numbers else name


def _sysctl(name: str) -> str:
    """A value of macOS's sysctl; empty elsewhere."""
    if platform.system() != "Darwin":
        return ""
    found = subprocess.run(["/usr/sbin/sysctl", "-n", name], capture_output=True, text=True, check=False, timeout=5)
    return found.stdout.strip()


def _sysctl_flags() -> set[str]:
    """Instruction sets on macOS; every 64-bit ARM processor has asimd."""
    words = f"{_sysctl('machdep.cpu.features')} {_sysctl('machdep.cpu.leaf7_features')}".lower().split()
    return {*words, *(["asimd"] if platform.machine() in ("arm64", "aarch64") else [])}
