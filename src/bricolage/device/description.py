"""Devices that a file describes: what a schedule is predicted for when the devices themselves are not there.

The file is TOML, or JSON of the same structure:

    [[device]]
    name = "cpu"           # the first device holds the model's inputs, and gets its outputs
    kind = "cpu"
    cores = 2

    [[device]]
    name = "gpu"
    kind = "gpu"
    scale = 0.2            # times are those measured here on all cores, times this ...
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

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from bricolage.codec import DecodeError, Length, Matching, Within, decode, parse
from bricolage.device.device import Link, Machine
from bricolage.errors import BadDevices, MissingFile

_MOST_BYTES = 1 << 24
"""Of a file."""

Name: TypeAlias = Annotated[str, Matching(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,39}", "name of a device")]
Scale: TypeAlias = Annotated[float, Within(1e-9, 1e9)]
SubGraphNumber: TypeAlias = Annotated[str, Matching(r"[1-9][0-9]{0,7}", "number of a sub-graph, from 1")]


@dataclass(frozen=True)
class DescribedDevice:
    """One device. Times on it are measured ones, scaled, unless they are given."""

    name: Name
    kind: Literal["cpu", "gpu", "npu", "accelerator"]
    cores: Annotated[int, Within(1, 1024)] = 1
    """Of a processor; of anything else, how many sub-graphs it runs side by side."""
    scale: Scale = 1.0
    """Its time of an operator by the time here."""
    operators: Mapping[str, Scale] = field(default_factory=dict)
    """The same for types of operators, where it differs."""
    ms: Mapping[SubGraphNumber, Annotated[float, Within(0.0, 1e12)]] = field(default_factory=dict)
    """Milliseconds of sub-graphs by their number, from 1, on all of the device."""
    without: frozenset[str] = frozenset()
    """Types of operators that it does not run."""


@dataclass(frozen=True)
class DescribedLink:
    """Between the memories of two devices, in either direction."""

    between: tuple[Name, Name]
    gbytes: Annotated[float, Within(1e-6, 1e9)]
    """Bandwidth, 10⁹ bytes a second."""
    latency_us: Annotated[float, Within(0.0, 1e9)] = 0.0


@dataclass(frozen=True)
class DescribedMachine:
    """All devices of a file, and the links between them.

    Raises ValueError where two devices have one name, or a link joins something else than two of them.
    """

    device: Annotated[tuple[DescribedDevice, ...], Length(1, 8)]
    link: Annotated[tuple[DescribedLink, ...], Length(0, 28)] = ()

    def __post_init__(self) -> None:
        names = [one.name for one in self.device]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"there are several devices '{name}'")
        joined = [frozenset(one.between) for one in self.link]
        for some, one in zip(joined, self.link, strict=True):
            if len(some) != 2 or not some <= set(names):
                raise ValueError(f"a link joins '{one.between[0]}' and '{one.between[1]}', not two of the devices")
            if joined.count(some) > 1:
                raise ValueError(f"there are several links between '{one.between[0]}' and '{one.between[1]}'")

    @property
    def machine(self) -> Machine:
        """The links, for what prices transfers."""
        ways = [(one, *pair) for one in self.link for pair in (one.between, one.between[::-1])]
        return Machine((), tuple(Link(source, target, one.gbytes, one.latency_us) for one, source, target in ways))


def read_devices(path: Path) -> DescribedMachine:
    """What a file describes.

    Raises:
        MissingFile: there is no such file.
        BadDevices: it cannot be read, or describes no devices.
    """
    if not path.is_file():
        raise MissingFile(path=path)
    try:
        return decode(DescribedMachine, _data(path), "it")
    except DecodeError as error:
        raise BadDevices(path=path, reason=str(error)) from error


def _data(path: Path) -> Any:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise DecodeError("it is too large")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DecodeError(f"it cannot be read ({error})") from error
    if path.suffix.lower() == ".json":
        return parse(text)
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise DecodeError(f"it is not TOML ({error})") from error
