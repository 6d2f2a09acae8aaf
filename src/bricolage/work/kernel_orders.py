"""What the kernels of a region take on several threads, by the order in which threads go through them."""

from __future__ import annotations

from dataclasses import dataclass

from bricolage.work.implementation import KernelConfig


@dataclass(frozen=True)
class KernelOrders:
    """Simulated milliseconds of a region on some threads. A task is a piece of a kernel's loop."""

    threads: int
    kernels: int
    tasks: int
    barriers_ms: float
    """Threads meet behind every loop."""
    usual_ms: float
    """Threads meet where a kernel touches what was touched since they last met: as the engine runs kernels."""
    waves_ms: float
    """Kernels that depend on earlier waves only run together, behind one meeting."""
    lists_ms: float
    """Each thread has a list of tasks, which wait for the kernels that they read; the longest way to the end goes first."""
    lower_ms: float
    """No order of these tasks takes less: all of them over the threads, or the longest way."""
    shared_memory: bool = False
    """Whether tasks that run at once share the bandwidth of memory."""


@dataclass(frozen=True)
class OverlapEstimate:
    """What it would bring to run kernels at the same time that do not depend on each other."""

    config: KernelConfig
    """With which they do."""
    usual_ms: float
    """As they run now."""
    overlapped_ms: float
    lower_ms: float
    """No order of their tasks takes less."""
    together: int
    """Kernels that would run with another one."""
