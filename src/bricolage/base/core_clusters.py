"""Clusters of unequal cores, as phones and small boards have them: how many threads share a kernel.

Linux gives each processor a capacity, of which the fastest has 1024 (Documentation/ABI/testing/sysfs-devices-system-cpu). A thread
on a core of a third of the speed holds up all others at the end of each kernel.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

_CPUS = Path("/sys/devices/system/cpu")
_FAST = 0.5
"""Part of the fastest core's capacity from which on a core helps more than it holds up."""


def count_fast_cores(cores: Collection[int], cpus: Path = _CPUS) -> int:
    """How many of a processor's cores are of its fast clusters: all where Linux states no capacities, or equal ones.

    Args:
        cores: numbers of logical processors.
        cpus: folder of the processors in sysfs.
    """
    capacities = [capacity for core in cores if (capacity := _capacity(cpus / f"cpu{core}")) is not None]
    if len(capacities) < len(cores):
        return len(cores)
    return sum(capacity >= _FAST * max(capacities) for capacity in capacities)


def _capacity(cpu: Path) -> int | None:
    try:
        return int((cpu / "cpu_capacity").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
