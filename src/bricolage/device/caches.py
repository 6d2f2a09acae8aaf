"""The data caches of a processor, as Linux describes them; what code is cut into blocks by."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bricolage.device.arm_cores import ARM64

_CPU = Path("/sys/devices/system/cpu/cpu0")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_UNKNOWN_L1_BYTES, _UNKNOWN_L2_BYTES = 32 << 10, 1 << 20
_UNKNOWN_ARM_L2_BYTES = 256 << 10
"""Those of Arm range from 128 KiB to 2 MiB, and are often shared: blocks that fit a small one fit a large one."""


@dataclass(frozen=True)
class Cache:
    """One cache that holds data."""

    level: int
    """1 is nearest to the core."""
    bytes: int
    line_bytes: int = 64
    shared_by: int = 1
    """Physical cores that share it."""

    @property
    def core_bytes(self) -> int:
        """One core's part of it."""
        return self.bytes // self.shared_by


@dataclass(frozen=True)
class Caches:
    """The data caches that one core reaches, the nearest first. May be described by hand, for a machine that is not this one."""

    levels: tuple[Cache, ...] = ()
    unknown_l2_bytes: int = _UNKNOWN_L2_BYTES
    """What is taken for a core's second-level cache where it is not stated."""

    @property
    def assumption(self) -> str:
        """In words, what is taken for the caches that are not stated; empty where both are."""
        taken = {1: self.l1_bytes, 2: self.l2_bytes}
        missing = [f"{taken[n] >> 10} KiB for L{n}" for n in taken if self.level(n) is None]
        return f"caches are not stated, taken are {' and '.join(missing)}" if missing else ""

    def level(self, number: int) -> Cache | None:
        """The cache of a level; None where there is none, or nothing is known of it."""
        return next((cache for cache in self.levels if cache.level == number), None)

    @property
    def l1_bytes(self) -> int:
        """A core's first-level cache; 32 KiB where unknown."""
        cache = self.level(1)
        return cache.core_bytes if cache is not None else _UNKNOWN_L1_BYTES

    @property
    def l2_bytes(self) -> int:
        """A core's part of the second-level cache; what is taken for it where unknown."""
        cache = self.level(2)
        return cache.core_bytes if cache is not None else self.unknown_l2_bytes

    @property
    def l3_bytes(self) -> int | None:
        """All of the third-level cache; None where there is none, or nothing is known of it."""
        cache = self.level(3)
        return cache.bytes if cache is not None else None


@cache
def host_caches() -> Caches:
    """Those of this machine's first processor, read once."""
    return caches_of(read_caches(_CPU).levels, platform.machine())


def caches_of(levels: tuple[Cache, ...], architecture: str) -> Caches:
    """Caches of a processor, and what is taken for those that are not stated, by its architecture."""
    return Caches(levels, _UNKNOWN_ARM_L2_BYTES if architecture in ARM64 else _UNKNOWN_L2_BYTES)


def read_caches(cpu: Path) -> Caches:
    """What Linux says in a processor's folder of sysfs (Documentation/ABI/testing/sysfs-devices-system-cpu). What is missing or
    makes no sense is left out."""
    threads = max(1, _count_processors(_text(cpu / "topology" / "thread_siblings_list")))
    caches = []
    for folder in sorted((cpu / "cache").glob("index*")):
        level, size = _text(folder / "level"), _bytes(_text(folder / "size"))
        if _text(folder / "type") not in ("Data", "Unified") or not level.isdecimal() or not size:
            continue
        line = _text(folder / "coherency_line_size")
        cores = max(1, _count_processors(_text(folder / "shared_cpu_list")) // threads)
        caches.append(Cache(int(level), size, int(line) if line.isdecimal() else 64, cores))
    return Caches(tuple(sorted(caches, key=lambda cache: cache.level)))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _bytes(size: str) -> int:
    """Of "512K"; 0 where it is none."""
    number, unit = (size[:-1], _UNITS[size[-1]]) if size[-1:] in _UNITS else (size, 1)
    return int(number) * unit if number.isdecimal() else 0


def _count_processors(processors: str) -> int:
    """How many "0-3,8" are; 0 where it is no list."""
    count = 0
    for part in processors.split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()):
            return 0
        count += int(last or first) - int(first) + 1
    return count
