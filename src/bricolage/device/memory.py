"""How much memory is left, and how much a process with its children holds."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")


def total_bytes() -> int:
    """Memory of the machine."""
    return _read_meminfo("MemTotal") or _ask_psutil("total")


def available_bytes() -> int:
    """Memory that can still be used: what the machine has left, or what the container's limit leaves (control groups,
    version 2)."""
    free = _read_meminfo("MemAvailable") or _ask_psutil("available")
    try:
        limit = (_CGROUP / "memory.max").read_text(encoding="utf-8").strip()
        if limit == "max":
            return free
        used = int((_CGROUP / "memory.current").read_text(encoding="utf-8"))
        facts = dict(line.split() for line in (_CGROUP / "memory.stat").read_text(encoding="utf-8").splitlines())
    except (OSError, ValueError):
        return free
    return max(0, min(free, int(limit) - used + int(facts.get("inactive_file", 0))))


def _read_meminfo(field: str) -> int:
    """A field of Linux's table of memory in bytes; 0 elsewhere."""
    try:
        lines = _MEMINFO.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(f"{field}:")), 0)


def _ask_psutil(field: str) -> int:
    """The same where there is no such table."""
    import psutil  # here: what runs artifacts on Linux does without

    return int(getattr(psutil.virtual_memory(), field))


def resident_bytes(pid: int, children: bool = True) -> int:
    """Resident memory of a process, with its descendants unless told otherwise; 0 when it has ended."""
    import psutil

    try:
        process = psutil.Process(pid)
        total = int(process.memory_info().rss)
        family = process.children(recursive=True) if children else []
    except psutil.Error:
        return 0
    for child in family:
        try:
            total += int(child.memory_info().rss)
        except psutil.Error:  # ended between the listing and the look: it holds nothing any more
            continue
    return total


def kills() -> int:
    """How many processes the kernel has killed because memory ran out: in our control group where it says so (version 2
    or 1), else on the whole machine. Only a change of it means anything; 0 where nothing is told."""
    total = 0
    for path in _group_files() or (Path("/proc/vmstat"),):
        try:
            facts = dict(line.split() for line in path.read_text(encoding="utf-8").splitlines())
            total += int(facts.get("oom_kill", 0))
        except (OSError, ValueError):
            continue
    return total


@cache
def _group_files() -> tuple[Path, ...]:
    """Where our control groups count kills: each line of /proc/self/cgroup is "number:controllers:path"."""
    files: list[Path] = []
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2; in a container its root is mounted
            files += [_CGROUP / path.lstrip("/") / "memory.events", _CGROUP / "memory.events"]
        elif "memory" in controllers.split(","):
            folder = _CGROUP / "memory"
            files += [folder / path.lstrip("/") / "memory.oom_control", folder / "memory.oom_control"]
    return tuple(dict.fromkeys(path for path in files if path.exists()))


def default_limit() -> int:
    """Memory one worker may hold when the user set no limit: 80 % of what is free now."""
    return int(available_bytes() * 0.8)


def reserve_bytes() -> int:
    """Free memory below which the largest worker is ended, so that the machine does not start to swap or kill."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(256 << 20, total // 50)
