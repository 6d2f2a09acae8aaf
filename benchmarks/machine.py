"""What the machine could do at best: the floors that results are held against."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

_SIZE = 2048
_BYTES = 512 << 20
_REPEATS = 7


@dataclass(frozen=True)
class Machine:
    """Best of several runs on all usable cores: float32 matrix product in GFLOP/s, reading memory in GB/s."""

    gflops: float
    gbytes: float

    def floor_ms(self, flops: int, bytes_: int) -> float:
        """The larger of operations over peak and bytes over bandwidth, milliseconds."""
        return max(flops / self.gflops, bytes_ / self.gbytes) / 1e6


def measure() -> Machine:
    """Measures both; takes a few seconds. Uses PyTorch for the product, as the libraries that compete do."""
    import torch

    a, b = torch.randn(_SIZE, _SIZE), torch.randn(_SIZE, _SIZE)
    product = _best(lambda: torch.mm(a, b))
    data = torch.zeros(_BYTES // 4)
    reading = _best(lambda: data.sum())
    return Machine(2 * _SIZE**3 / product / 1e9, _BYTES / reading / 1e9)


def _best(call: Callable[[], object]) -> float:
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.min(times))
