"""Devices, links and machines as values: what buffers, costs, resources and plans name."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, TypeAlias

from bricolage.base.codec import Matching, Within
from bricolage.base.options import ISAS
from bricolage.device.arm_cores import ARM64
from bricolage.device.caches import Caches
from bricolage.errors import BadOption

Kind = Literal["cpu", "gpu", "npu", "accelerator"]
DESCRIBED = "described"
"""The model of a device that a file describes."""
Name: TypeAlias = Annotated[str, Matching(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,39}", "name of a device")]
"""Of a device in a description, or an end of a link."""
DeviceKind: TypeAlias = Annotated[str, Matching(r"[A-Za-z0-9][A-Za-z0-9_.+ -]{0,63}", "kind of device")]
"""As a cluster names it."""
_BEYOND: Mapping[str, tuple[str, ...]] = {"avx512": ("amx",), "avx2": ("amx", "avx512")}
"""How the names of processor flags begin that an instruction set leaves out."""
_VECTORS: Mapping[str, str] = {"avx512": "avx512f", "avx2": "avx2"}
"""The processor flag without which there is no such instruction set."""
_BFLOAT16 = {"avx512_bf16": 2.0, "amx_bf16": 16.0, "bf16": 4.0}
"""Processor flags with native products of bfloat16, and how many of these at best take the time of one of float32: dot products of
pairs; tiles of AMX against AVX-512 (1,024 and 64 a cycle); Arm's BFMMLA."""
_BYTES = {"avx512_vnni": 4.0, "avx_vnni": 4.0, "amx_int8": 32.0, "asimddp": 4.0, "i8mm": 8.0}
"""Processor flags with instructions that sum products of bytes into int32, and how many of these at best take the time of one of
float32. Without them pairs are summed into int16 first, and two take that time."""
GENERAL_FLAGS = frozenset(
    ["ssse3", "sse4_1", "sse4_2", "popcnt", "cx16", "lahf_lm", "avx", "bmi1", "bmi2", "movbe", "abm", "avx512cd"]
)
"""Processor flags that compilers are told of and that no kernel of ours is chosen by: costs do not depend on them by themselves."""
GIB = 1 << 30


@dataclass(frozen=True)
class Peaks:
    """What a device can do at best."""

    gflops: float
    """Products and sums in float32, 10⁹ a second, all cores together."""
    gbytes: float
    """Reading from memory, 10⁹ bytes a second."""

    def floor_ms(self, flops: float, bytes_: float) -> float:
        """The roofline: the larger of operations over peak and bytes over bandwidth, milliseconds."""
        return max(flops / self.gflops, bytes_ / self.gbytes) / 1e6


@dataclass(frozen=True)
class Device:
    """Something with memory and units that compute: a processor, a group of its cores, or a device that a file describes."""

    name: str
    """Within its machine: "cpu" is the whole processor, "cpu:0-1" a group of its cores."""
    kind: Kind
    model: str
    """The processor's name; `DESCRIBED` where a file describes the device."""
    instructions: frozenset[str]
    """Processor flags, as Linux names them, that backends may use."""
    cores: tuple[int, ...]
    """Numbers of the logical processors that belong to it; of anything but a processor, what runs side by side on it."""
    physical_cores: int
    """Of the whole processor."""
    memory_bytes: int
    """0 where a description does not say."""
    peaks: Peaks
    """Nominal, from instruction set and clock, unless they were measured; infinite where nothing is known."""
    caches: Caches = Caches()
    """Of one core."""
    system: str = "Linux"
    architecture: str = "x86_64"
    isa: str = ""
    """Instruction set that it is kept to, one of `options.ISAS`; empty where everything may be used."""

    @property
    def threads(self) -> int:
        """Threads that can run at a time."""
        return len(self.cores)

    @property
    def is_group(self) -> bool:
        """Whether it is only some of the processor's cores, so that threads have to be kept to them."""
        return self.name != self.kind

    @property
    def bfloat16(self) -> bool:
        """Whether it multiplies bfloat16 natively; emulated, that is slower than float32."""
        return bool(self.instructions & _BFLOAT16.keys())

    @property
    def bfloat16_products(self) -> float:
        """Products of bfloat16 that at best take the time of one of float32; 1 where they are emulated."""
        return max((times for flag, times in _BFLOAT16.items() if flag in self.instructions), default=1.0)

    @property
    def byte_products(self) -> float:
        """Products of bytes that at best take the time of one of float32: by the instruction that multiplies them."""
        return max((times for flag, times in _BYTES.items() if flag in self.instructions), default=2.0)

    def has(self, isa: str) -> bool:
        """Whether it has an instruction set, one of `options.ISAS`, and is not kept to less."""
        return _VECTORS[isa] in self.instructions

    def fingerprint(self) -> str:
        """Short hash of what changes times: costs measured under another one are not comparable. Threads are a part
        of a cost's key of their own, and a memory of another size (as containers have) changes no time."""
        facts = [
            self.kind,
            self.model,
            sorted(self.instructions - GENERAL_FLAGS),
            self.physical_cores,
            self.system,
            self.architecture,
            self.isa,
            self.caches.l2_bytes,
        ]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]

    def kept_to(self, isa: str) -> Device:
        """The same processor without the instructions beyond `isa`; itself where that is empty, or where it is kept to
        no more already.

        Raises:
            BadOption: there is no such instruction set, or the processor is of another kind.
        """
        if not isa:
            return self
        if isa not in _BEYOND:
            raise BadOption(
                option="--isa", value=isa, advice=f"Use {' or '.join(ISAS)}, or leave it out for everything"
            )
        if self.architecture in ARM64:
            raise BadOption(
                option="--isa", value=isa, advice="It is of x86-64, and this processor is Arm's: leave it out"
            )
        if self.isa and set(_BEYOND[isa]) <= set(_BEYOND[self.isa]):
            return self
        left = frozenset(flag for flag in self.instructions if not flag.startswith(_BEYOND[isa]))
        gflops = self.peaks.gflops * lanes(left) / lanes(self.instructions)
        return replace(self, instructions=left, isa=isa, peaks=replace(self.peaks, gflops=gflops))

    def group(self, cores: Sequence[int]) -> Device:
        """A device of some of its cores, for work that shares the machine with other work.

        Raises:
            BadOption: one is not among them.
        """
        chosen = tuple(sorted(set(cores)))
        if not chosen or not set(chosen) <= set(self.cores):
            available = ",".join(map(str, self.cores))
            raise BadOption(option="--cores", value=",".join(map(str, cores)), advice=f"Use cores among {available}")
        return self if chosen == self.cores else replace(self, name=f"{self.kind}:{_ranges(chosen)}", cores=chosen)

    @property
    def processor(self) -> str:
        """The processor with its widest instructions, in words."""
        telling = ("amx_bf16", "avx512_bf16", "avx512f", "avx2", "i8mm", "asimddp", "asimd")
        widest = [name for name in telling if name in self.instructions]
        extra = f" with {', '.join(widest[:2])}" if widest else ""
        return f"{self.model}{extra}{f', kept to {self.isa}' if self.isa else ''}"

    def __str__(self) -> str:
        cores = f"{self.physical_cores} core{'s' * (self.physical_cores != 1)} ({self.threads} usable)"
        memory = f"{round(self.memory_bytes / GIB)} GB, " if self.memory_bytes else ""
        assumption = f"; {self.caches.assumption}" if self.caches.assumption else ""
        return f"{self.processor}, {cores}, {memory}{self.system} {self.architecture}{assumption}"


def lanes(instructions: frozenset[str]) -> int:
    """Numbers in float32 that one vector instruction takes."""
    return 16 if "avx512f" in instructions else 8 if "avx2" in instructions else 4


@dataclass(frozen=True)
class Link:
    """Between two memories. Its directions do not slow each other."""

    between: tuple[Name, Name]
    """Names of devices, or of workers."""
    gbytes: Annotated[float, Within(1e-6, 1e9)]
    """Bandwidth in either direction, 10⁹ bytes a second."""
    latency_us: Annotated[float, Within(0.0, 1e9)] = 0.0

    def ms(self, size: float) -> float:
        """Time to move a number of bytes, milliseconds."""
        return self.latency_us / 1e3 + size / self.gbytes / 1e6


@dataclass(frozen=True)
class Machine:
    """Devices and the links between them. Devices without a link share one memory: nothing needs to be moved.

    Raises ValueError where there is no device, two have one name, or a link does not join two of them that no other link joins.
    """

    devices: tuple[Device, ...]
    links: tuple[Link, ...] = ()

    def __post_init__(self) -> None:
        names = Counter(device.name for device in self.devices)
        if not names:
            raise ValueError("there is no device")
        for name, count in names.items():
            if count > 1:
                raise ValueError(f"there are several devices '{name}'")
        for connection in self.links:
            for end in connection.between:
                if end not in names:
                    raise ValueError(f"a link ends at '{end}', and there is no such device, only {', '.join(names)}")
            if len(set(connection.between)) != 2:
                raise ValueError(f"a link joins '{connection.between[0]}' to itself")
        joined = Counter(frozenset(link.between) for link in self.links)
        for connection in self.links:
            if joined[frozenset(connection.between)] > 1:
                raise ValueError(
                    f"there are several links between '{connection.between[0]}' and '{connection.between[1]}'"
                )

    def move_ms(self, source: str, target: str, size: int) -> float:
        """Time to bring a number of bytes from one device's memory to another's, milliseconds."""
        link = next(
            (candidate for candidate in self.links if candidate.between in ((source, target), (target, source))), None
        )
        return 0.0 if link is None else link.ms(size)


def _ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as "0-3,8"."""
    parts: list[str] = []
    start = previous = numbers[0]
    for number in (*numbers[1:], -1):
        if number == previous + 1:
            previous = number
            continue
        parts.append(str(start) if start == previous else f"{start}-{previous}")
        start = previous = number
    return ",".join(parts)
