"""Processes of this machine as slower devices on slower links: what computing and messages take longer really passes.

A device that takes three times as long sleeps two thirds of the time, as a control group's quota would have it. A message carries
the moment at which it was sent; its receiver does not use it before the link's time has passed. Clocks are those of one machine.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from bricolage.base.options import available_cores
from bricolage.device.description import DescribedDevices
from bricolage.device.device import Device, Link
from bricolage.errors import BadDevices

STAMP_BYTES = 8
"""Of a moment, float64 seconds."""
_SHORTEST_S = 2e-4
"""Sleeps shorter than that are saved up: the kernel would make them longer."""


@dataclass(frozen=True)
class PacedDevice:
    """A process in the place of a described device."""

    name: str
    threads: int
    scale: float = 1.0
    """What an operator takes there by what it takes here."""
    operators: Mapping[str, float] = field(default_factory=dict)
    """The same for types of operators, where it differs."""

    def factor(self, op_type: str) -> float:
        """Of one type of operators."""
        return self.operators.get(op_type, self.scale)


@dataclass(frozen=True)
class PacedMachine:
    """Processes by rank, and the links between them."""

    devices: tuple[PacedDevice, ...]
    links: tuple[Link, ...]
    """Their ends are names of devices."""

    def link_s(self, source: int, target: int, size: int) -> float:
        """Seconds that a message takes from one rank to another."""
        ends = {self.devices[source].name, self.devices[target].name}
        return next((link.ms(size) / 1e3 for link in self.links if set(link.between) == ends), 0.0)


def paced_machine(described: DescribedDevices) -> PacedMachine:
    """Described devices as processes of this machine.

    Raises:
        BadDevices: processes of this machine cannot be these devices: they are faster than it, of another kind, or take more cores
            than there are.
    """
    devices = tuple(_paced_device(device, described) for device in described.machine.devices)
    cores = sum(device.threads for device in devices)
    if cores > available_cores():
        raise BadDevices(
            path="[devices]",
            reason=f"they take {cores} cores together, and processes of this machine have {available_cores()}",
        )
    return PacedMachine(devices, described.machine.links)


def _paced_device(device: Device, described: DescribedDevices) -> PacedDevice:
    times = described.times[device.name]
    scale, reason = times.scale or 1.0, ""
    if device.kind not in ("cpu", "accelerator"):
        reason = f"is a {device.kind}: processes of this machine are of the kind cpu or accelerator"
    elif math.isfinite(device.peaks.gflops):
        reason = "has peaks (gflops, gbytes): what runs here has a scale"
    elif times.ms:
        reason = "has times of sub-graphs (ms): what runs here has a scale"
    elif min([scale, *times.operators.values()]) < 1.0:
        reason = "is described as faster than this machine (a scale below 1)"
    if reason:
        raise BadDevices(path="[devices]", reason=f"'{device.name}' cannot run here: it {reason}")
    return PacedDevice(device.name, device.threads, scale, times.operators)


class Pace:
    """Of one process: the time that it owes, because its device is slower."""

    def __init__(self, device: PacedDevice) -> None:
        self.device = device
        self._owed_s = 0.0

    def owe(self, op_type: str, seconds: float) -> None:
        """An operator has taken `seconds`."""
        self._owed_s += (self.device.factor(op_type) - 1.0) * seconds

    def pay(self, *, at_least_s: float = _SHORTEST_S) -> None:
        """Sleeps for what is owed, unless that is short."""
        if self._owed_s > at_least_s:
            begun = time.perf_counter()
            time.sleep(self._owed_s)
            self._owed_s -= time.perf_counter() - begun

    @contextlib.contextmanager
    def slowed(self) -> Iterator[None]:
        """What runs within takes as long as it would on the device."""
        begun = time.perf_counter()
        yield
        self.owe("", time.perf_counter() - begun)
        self.pay()


def wait_until(moment: float) -> None:
    """Sleeps until the clock `time.perf_counter`, which all processes of a machine share, shows a moment."""
    left = moment - time.perf_counter()
    if left > 0.0:
        time.sleep(left)
