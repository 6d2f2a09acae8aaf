"""What a job's speed depends on apart from its devices: its batch size (Pollux, Sia) and its share of a node's processors and
memory (Synergy). Both come from a file of profiles (`history/profiles.py`); jobs without one run as their history says.

Goodput is throughput times statistical efficiency (Qiao et al., Pollux, OSDI'21; formulas as in `petuum/adaptdl`, Apache-2.0).
With M samples a step on K devices, m = M / (K (s + 1)) of them at once and s steps that only accumulate gradients:

    T_grad = a + b m,  T_sync = a' + b' max(K - 2, 0), 0 on one device,  T = s T_grad + (T_grad^g + T_sync^g)^(1/g)
    efficiency = (r + 1) / (r + M / M0),  r = variance over squared norm of the gradient at the initial batch size M0

The second is adaptdl's (var + sqr) / (var / scale + sqr) / scale with r = var / sqr.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Annotated

import numpy as np
import numpy.typing as npt

from bricolage.base.codec import Length, Within

_SATURATED = 0.999
"""Of the largest speed of a profile: more processors or memory than that takes are no use."""
_SIZES = 50
"""Batch sizes that are tried, at equal ratios, as adaptdl does; and as many that fill the devices."""
Matrix = npt.NDArray[np.float64]
Seconds = Annotated[float, Within(0.0, 1e6)]
Amounts = Annotated[tuple[Annotated[float, Within(1e-6, 1e9)], ...], Length(1, 64)]


@dataclass(frozen=True)
class RunSetting:
    """How a job runs on its devices. Changing it takes no restart."""

    batch: float = 1.0
    """Of its initial batch size."""
    cpus: float | None = None
    """Processors for each of its devices; None: its devices' part of the node's."""
    host_gb: float | None = None
    """Host memory for each of its devices, 10⁹ bytes; likewise."""


@dataclass(frozen=True)
class HostProfile:
    """Speed of a job with a number of processors and an amount of host memory for each of its devices (Synergy's sensitivity
    profile). Any unit: ratios count. Raises ValueError where it contradicts itself."""

    cpus: Amounts
    gb: Amounts
    speed: Annotated[tuple[tuple[Annotated[float, Within(1e-9, 1e9)], ...], ...], Length(1, 64)]
    """A row for each number of processors, a column for each amount of memory; more of either never makes a job slower."""

    def __post_init__(self) -> None:
        for what, amounts in (("cpus", self.cpus), ("gb", self.gb)):
            if any(a >= b for a, b in pairwise(amounts)):
                raise ValueError(f"{what} does not rise")
        if len(self.speed) != len(self.cpus) or any(len(row) != len(self.gb) for row in self.speed):
            raise ValueError(f"speed is not {len(self.cpus)} rows (cpus) of {len(self.gb)} (gb)")
        columns = list(zip(*self.speed, strict=True))
        if any(a > b for row in [*self.speed, *columns] for a, b in pairwise(row)):
            raise ValueError("speed falls where processors or memory grow")

    def at(self, cpus: float, gb: float) -> float:
        """With what is between two entries counted as the smaller, and less than the least as that much slower."""
        row, short = _below(self.cpus, cpus)
        column, poor = _below(self.gb, gb)
        return self.speed[row][column] * short * poor

    @property
    def demand(self) -> tuple[float, float]:
        """The least processors that saturate it, and the least memory with them."""
        enough = _SATURATED * self.speed[-1][-1]
        row = next(n for n, speeds in enumerate(self.speed) if speeds[-1] >= enough)
        column = next(n for n, value in enumerate(self.speed[row]) if value >= enough)
        return self.cpus[row], self.gb[column]


def _below(entries: Sequence[float], amount: float) -> tuple[int, float]:
    """The last entry that is not above an amount, and 1; below the least one that one, and the part of it that is there."""
    index = next((n for n in reversed(range(len(entries))) if entries[n] <= amount * (1.0 + 1e-9)), None)
    return (0, amount / entries[0]) if index is None else (index, 1.0)


def step_s(grad: float | Matrix, sync: float | Matrix, overlap: float) -> Matrix:
    """(T_grad^g + T_sync^g)^(1/g), the larger of the two taken out of the power."""
    most, least = np.maximum(grad, sync), np.minimum(grad, sync)
    step_seconds: Matrix = most * (1.0 + (least / most) ** overlap) ** (1.0 / overlap)
    return step_seconds


@dataclass(frozen=True)
class StepTimes:
    """Seconds of a step on devices of one kind; letters as above."""

    grad_s: Seconds
    """a"""
    sample_s: Annotated[float, Within(1e-12, 1e6)]
    """b: for each sample that a device takes at once."""
    sync_s: Seconds = 0.0
    """a' inside a node."""
    sync_device_s: Seconds = 0.0
    """b' inside a node."""
    network_s: Seconds = 0.0
    """a' between nodes."""
    network_device_s: Seconds = 0.0
    """b' between nodes."""
    overlap: Annotated[float, Within(1.0, 10.0)] = 1.0
    """g; 1: exchanges wait for computing, 10: they are hidden behind it."""

    def throughput(
        self, devices: int, spread: bool, local: float | Matrix, accumulated: float | Matrix = 0.0
    ) -> Matrix:
        """Samples a second; of several batch sizes where arrays are given.

        Args:
            devices: K.
            spread: whether they are of more than one node.
            local: m.
            accumulated: s.
        """
        grad, sync = self.grad_s + self.sample_s * local, self.exchange_s(devices, spread)
        step = step_s(grad, sync, self.overlap)
        rate: Matrix = devices * local * (accumulated + 1) / (accumulated * grad + step)
        return rate

    def exchange_s(self, devices: int, spread: bool) -> float:
        """T_sync."""
        if devices <= 1:
            return 0.0
        base, more = (self.network_s, self.network_device_s) if spread else (self.sync_s, self.sync_device_s)
        return base + more * max(devices - 2, 0)


@dataclass(frozen=True)
class BatchProfile:
    """What a job does at other batch sizes. Raises ValueError where it contradicts itself."""

    batch: Annotated[int, Within(1, 1 << 30)]
    """M0, of all devices."""
    most_batch: Annotated[int, Within(1, 1 << 30)]
    most_local: Annotated[int, Within(1, 1 << 30)]
    """That fits into a device at once."""
    noise: Annotated[tuple[tuple[float, float], ...], Length(1, 1024)]
    """(share of the work that is done, r from there on)."""
    times: Mapping[str, StepTimes]
    """By kind of device."""
    most_devices: Annotated[int, Within(1, 1 << 20)] = 64

    def __post_init__(self) -> None:
        if self.most_batch < self.batch:
            raise ValueError("most_batch is below batch")
        shares = [share for share, _ in self.noise]
        if shares[0] != 0.0 or sorted(set(shares)) != shares or shares[-1] >= 1.0:
            raise ValueError("noise has to begin at 0 of the work, rise, and stay below 1")
        if any(not 0.0 <= r < 1e12 for _, r in self.noise):
            raise ValueError("noise has a ratio that is negative or too large")
        if not self.times:
            raise ValueError("times names no kind of device")

    def noise_at(self, share: float) -> float:
        """r once this share of the work is done."""
        return next(r for begin, r in reversed(self.noise) if begin <= max(share, 0.0))

    def goodput(self, kind: str, devices: int, spread: bool, scale: float, noise: float) -> float:
        """Samples a second that count as much as those of the initial batch size.

        Args:
            kind: of device.
            devices: K.
            spread: whether they are of more than one node.
            scale: M / M0.
            noise: r.
        """
        return float(self.goodputs(self.times[kind], devices, spread, np.array(scale), noise))

    def goodputs(self, times: StepTimes, devices: int, spread: bool, scales: Matrix, noise: float) -> Matrix:
        """The same at several batch sizes, with times that may be others than the profile's."""
        local = self.batch * scales / devices
        accumulated = np.maximum(np.ceil(local / self.most_local - 1e-8) - 1, 0)
        throughput = times.throughput(devices, spread, local / (accumulated + 1), accumulated)
        rates: Matrix = throughput * (noise + 1.0) / (noise + scales)
        return rates

    def at_once(self, scale: float, devices: int) -> tuple[float, int]:
        """m and s at a batch size, by the initial one."""
        local = self.batch * scale / devices
        accumulated = max(math.ceil(local / self.most_local - 1e-8) - 1, 0)
        return local / (accumulated + 1), accumulated

    def speed(self, kind: str, devices: int, spread: bool, scale: float, noise: float, own: tuple[int, bool]) -> float:
        """Goodput relative to that at the initial batch size on the devices that the job asks for.

        Args:
            own: these devices, and whether they are of more than one node.
        """
        return self.goodput(kind, devices, spread, scale, noise) / self.goodput(kind, *own, 1.0, noise)

    def best(self, kind: str, devices: int, spread: bool, noise: float) -> tuple[float, float]:
        """The largest goodput over batch sizes, and M / M0 there."""
        return _best(self.times[kind], self.batch, self.most_batch, self.most_local, devices, spread, noise)

    def scaling(self, own: int, node: int, kind: str) -> tuple[tuple[int, float], ...]:
        """Speeds at the initial batch size on one, two, four ... devices, and on its own number, cut at the peak.

        Args:
            own: devices that the job asks for.
            node: devices of the largest node.
            kind: of device.
        """
        counts = sorted({own, *(1 << n for n in range(self.most_devices.bit_length()))})
        speeds = [(n, self.speed(kind, n, n > node, 1.0, 0.0, (own, own > node))) for n in counts]
        return tuple((n, value) for n, value in speeds if n <= max(self.most_devices, own))


@lru_cache(maxsize=1 << 16)
def _best(
    times: StepTimes, batch: int, most_batch: int, most_local: int, devices: int, spread: bool, noise: float
) -> tuple[float, float]:
    profile = BatchProfile(batch, most_batch, most_local, ((0.0, noise),), {"": times})
    scales = _tried_scales(most_batch / batch, devices * most_local / batch)
    goodputs = profile.goodputs(times, devices, spread, scales, noise)
    best = int(goodputs.argmax())
    return float(goodputs[best]), float(scales[best])


@lru_cache(maxsize=1 << 12)
def _tried_scales(ratio: float, full: float) -> Matrix:
    """Batch sizes by the initial one: up to `ratio`, and those at which devices are exactly full, since one sample more takes
    another step of accumulation."""
    filled = full * np.arange(1, _SIZES)
    even = ratio ** (np.arange(_SIZES) / (_SIZES - 1))
    return np.concatenate([even, filled[(filled >= 1.0) & (filled <= ratio)]])
