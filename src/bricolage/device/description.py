"""Devices that a file describes: what a schedule is predicted for when the devices themselves are not there.

The file is TOML, or JSON of the same structure:

    [[device]]
    name = "cpu"           # the first device holds the model's inputs, and gets its outputs
    kind = "cpu"
    cores = 2
    memory_gb = 16.0       # 10⁹ bytes, where they are known

    [[device]]
    name = "gpu"
    kind = "gpu"
    gflops = 19500.0       # peak in float32, 10⁹ operations a second ...
    gbytes = 1555.0        # ... and bandwidth, 10⁹ bytes a second: times are those measured here, by the ratio of the rooflines ...
    scale = 0.2            # ... or, where it is known, times this ...
    operators.Conv = 0.1   # ... or this, for some types of operators
    ms.7 = 0.35            # milliseconds of the seventh sub-graph, where they are known
    without = ["NonMaxSuppression"]

    [[link]]
    between = ["cpu", "gpu"]
    gbytes = 12.0          # 10⁹ bytes a second, in either direction
    latency_us = 10.0

Devices without a link between them share their memory.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, TypeAlias

from bricolage.base.codec import DecodeError, Length, Matching, Within, decode, read_file
from bricolage.device.device import DESCRIBED, Device, Kind, Link, Machine, Name, Peaks
from bricolage.errors import BadDevices, MissingFile

Scale: TypeAlias = Annotated[float, Within(1e-9, 1e9)]
SubGraphNumber: TypeAlias = Annotated[str, Matching(r"[1-9][0-9]{0,7}", "number of a sub-graph, from 1")]


@dataclass(frozen=True)
class ScaledTimes:
    """Times on a device that is described: measured ones, scaled, unless they are given."""

    scale: Scale | None = None
    """Its time of an operator by the time here; None: by the peaks of both, or the same where they are not known."""
    operators: Mapping[str, Scale] = field(default_factory=dict)
    """The same for types of operators, where it differs."""
    ms: Mapping[SubGraphNumber, Annotated[float, Within(0.0, 1e12)]] = field(default_factory=dict)
    """Milliseconds of sub-graphs by their number, from 1, on all of the device."""
    without: frozenset[str] = frozenset()
    """Types of operators that it does not run."""

    def factor(self, op_type: str) -> float | None:
        """Its time of an operator of this type by the time here; None where the description does not say."""
        return self.operators.get(op_type, self.scale)


@dataclass(frozen=True)
class DescribedDevices:
    """What a file describes: devices with their links, and for each device, by name, its times."""

    machine: Machine
    times: Mapping[str, ScaledTimes]


@dataclass(frozen=True)
class EqualDevices:
    """A number of equal devices, as workers of one job have them."""

    kind: str
    devices: DescribedDevices
    """The first one is what each worker has."""
    workers: int = 1
    link: Link | None = None
    """From each to the next; needed for several."""
    least_ms: float = 0.0
    """What an operator takes at least: to start it."""
    price: float = 0.0
    """For a device and hour."""
    unknown: str = ""
    """Why nothing can be predicted there; empty where something can."""

    @property
    def device(self) -> Device:
        """That each worker has."""
        return self.devices.machine.devices[0]


@dataclass(frozen=True)
class _DeviceTable(ScaledTimes):
    """A device as the file has it. Raises ValueError where it has no memory, or one peak of two."""

    name: Name = field(kw_only=True)
    kind: Kind = field(kw_only=True)
    cores: Annotated[int, Within(1, 1024)] = 1
    memory_gb: Annotated[float, Within(-1e9, 1e9)] | None = None
    gflops: Annotated[float, Within(1e-3, 1e12)] | None = None
    gbytes: Annotated[float, Within(1e-3, 1e12)] | None = None

    def __post_init__(self) -> None:
        if self.memory_gb is not None and not self.device.memory_bytes > 0:
            statement = f"memory_gb = {self.memory_gb:g}"
            raise ValueError(f"device '{self.name}' has no memory ({statement}); leave it out where it is not known")
        if (self.gflops is None) != (self.gbytes is None):
            raise ValueError(f"device '{self.name}' has only one of gflops and gbytes; give both, or neither")

    @property
    def device(self) -> Device:
        return Device(
            self.name,
            self.kind,
            model=DESCRIBED,
            instructions=frozenset(),
            cores=tuple(range(self.cores)),
            physical_cores=self.cores,
            memory_bytes=int((self.memory_gb or 0.0) * 1e9),
            peaks=Peaks(self.gflops or math.inf, self.gbytes or math.inf),
            system="",
            architecture="",
        )

    @property
    def times(self) -> ScaledTimes:
        return ScaledTimes(self.scale, self.operators, self.ms, self.without)


@dataclass(frozen=True)
class DeviceTables:
    """The devices of one job: processes of this machine, or described devices.

    Raises ValueError where it names both or neither, or describes no machine.
    """

    here: Annotated[int, Within(1, 256)] | None = None
    """Processes on this machine, which share its cores."""
    gbytes: Annotated[float, Within(1e-6, 1e9)] | None = None
    """10⁹ bytes a second between processes here, where something holds their links to less than was measured."""
    host: Annotated[int, Within(1, 256)] | None = None
    """Processes here that count as one host: `gbytes` then holds what leaves a host, for all of its processes together."""
    count: Annotated[int, Within(1, 4096)] = 1
    """Of each described device as many, "name.0", "name.1" ...; a link from "name" to "name" is between any two of them."""
    device: Annotated[tuple[_DeviceTable, ...], Length(0, 8)] = ()
    link: Annotated[tuple[Link, ...], Length(0, 36)] = ()

    def __post_init__(self) -> None:
        if (self.here is None) != bool(self.device):
            raise ValueError("devices are either `here = N` processes, or tables [[devices.device]]")
        if self.here is None and self.gbytes is not None:
            raise ValueError("gbytes is of processes here; a described link has its own")
        if self.host is not None and (self.here is None or self.gbytes is None or self.here % self.host):
            raise ValueError(
                "host divides the processes of `here` into equal parts, between which `gbytes` holds links"
            )
        if self.here is not None and (self.link or self.count != 1):
            raise ValueError("links and counts are of described devices; those of processes here are measured")
        if self.device:
            self.described()

    def described(self) -> DescribedDevices:
        """All devices by their names, and all links."""
        if self.count == 1:
            return _File(self.device, self.link).described()
        groups = {
            description.name: [f"{description.name}.{number}" for number in range(self.count)]
            for description in self.device
        }
        for link in self.link:
            for end in link.between:
                if end not in groups:
                    raise ValueError(f"a link ends at '{end}', and there is no such device, only {', '.join(groups)}")
        devices = [
            replace(description.device, name=name) for description in self.device for name in groups[description.name]
        ]
        links = [
            replace(link, between=pair) for link in self.link for pair in _pairs(*(groups[end] for end in link.between))
        ]
        times = {name: description.times for description in self.device for name in groups[description.name]}
        return DescribedDevices(Machine(tuple(devices), tuple(links)), times)


def _pairs(some: Sequence[str], others: Sequence[str]) -> Iterable[tuple[str, str]]:
    """Any two of a group, or one of either group."""
    return itertools.combinations(some, 2) if some == others else itertools.product(some, others)


@dataclass(frozen=True)
class _File:
    device: Annotated[tuple[_DeviceTable, ...], Length(1, 8)]
    link: Annotated[tuple[Link, ...], Length(0, 28)] = ()

    def __post_init__(self) -> None:
        self.described()

    def described(self) -> DescribedDevices:
        machine = Machine(tuple(description.device for description in self.device), self.link)
        return DescribedDevices(machine, {description.name: description.times for description in self.device})


def read_devices(path: Path) -> DescribedDevices:
    """What a file describes.

    Raises:
        MissingFile: there is no such file.
        BadDevices: it cannot be read, or describes no devices.
    """
    if not path.is_file():
        raise MissingFile(path=path)
    try:
        return decode(_File, read_file(path), "it").described()
    except DecodeError as error:
        raise BadDevices(path=path, reason=str(error)) from error
