"""Kernels in waves: all that depend on nothing but earlier waves run as one parallel section, after which threads meet once.

So waves are cut in Rammer (Ma et al., OSDI 2020). Its persistent blocks and their waits correspond to the team's threads, which run
from one loop into the next; what is ours to decide is the order of the kernels, and that those of a wave share no memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from bricolage.native.fuse.buffer_layout import arena
from bricolage.native.fuse.kernel_plan import Buffer, FusionPlan, kernel_reads


def in_waves(plan: FusionPlan) -> FusionPlan:
    """The plan with its kernels in waves, by the longest way to each, and an arena for that order. The kernels keep their
    numbers."""
    written = _Touched()
    read = _Touched()
    wave: list[int] = []
    for kernel in plan.kernels:
        targets, reads = kernel.targets, kernel_reads(kernel, plan)
        level = max(written.last(reads), read.last(targets)) + 1
        written.add(targets, level)
        read.add(reads, level)
        wave.append(level)
    wave_kernels: list[list[int]] = [[] for _ in range(max(wave, default=-1) + 1)]
    for number, level in enumerate(wave):
        wave_kernels[level].append(number)
    ordered = replace(plan, waves=tuple(map(tuple, wave_kernels)), strands={})
    arena(ordered)
    return ordered


class _Touched:
    """In which wave memory was touched last."""

    def __init__(self) -> None:
        self._waves: dict[tuple[str, int], dict[tuple[int, int], int]] = defaultdict(dict)

    def add(self, buffers: Iterable[Buffer], wave: int) -> None:
        for buffer in buffers:
            last_waves = self._waves[buffer.storage]
            last_waves[buffer.extent] = max(wave, last_waves.get(buffer.extent, wave))

    def last(self, buffers: Iterable[Buffer]) -> int:
        """The last wave that touched any element of these; -1 where none did."""
        last_wave = -1
        for buffer in buffers:
            first, end = buffer.extent
            for (begin, behind), wave in self._waves.get(buffer.storage, {}).items():
                if first < behind and begin < end:
                    last_wave = max(last_wave, wave)
        return last_wave
