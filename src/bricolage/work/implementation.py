"""Who runs what: configurations, implementations, and the assignment of a region to one. Values, from candidates to plans."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal, TypeAlias

from bricolage.base.codec import Matching

Word: TypeAlias = Annotated[
    str, Matching(r"[A-Za-z0-9_][A-Za-z0-9 ._+-]{0,99}", "name of a backend or a configuration")
]
"""Compiled code is kept under such names: none of them is a path."""
DeviceName: TypeAlias = Annotated[str, Matching(r"[A-Za-z0-9][A-Za-z0-9 ._+:,-]{0,999}", "name of a device")]
Scalar: TypeAlias = bool | int | float | str
Team: TypeAlias = Literal["", "one-thread", "waiting"]
"""Who computes: all threads that there are, which spin while they wait where they may; the caller's alone; or all of them, and none
spins."""
HOST = "cpu"
"""Name of the device that is the whole processor of this machine."""
OWN_ENGINE = "native"
"""Name of the backend that is bricolage's own engine."""
AS_IT_COMES = "as-it-comes"
"""How the names of configurations begin in which a tool reads the user's own file, untouched, with the tool's own defaults."""


@dataclass(frozen=True, order=True)
class KernelConfig:
    """How a backend compiles a region: a base configuration by name ("f32", "bf16": arithmetic and layout), and the
    parameters of its kernels where a tuner has chosen others than the backend's rules of thumb. Data: hashable,
    round-trips through JSON, and compiling it twice gives the same kernels."""

    name: Word = "f32"
    parameters: tuple[tuple[str, Scalar], ...] = ()
    """By name, ascending; the backend says which there are."""
    team: Team = ""
    """Worth a choice for small models, and on busy machines. Backends get it as resources."""

    def __post_init__(self) -> None:
        names = [name for name, _ in self.parameters]
        if names != sorted(set(names)):
            raise ValueError(f"the parameters of '{self.name}' are not in ascending order of distinct names")

    def tuned(self, parameters: Mapping[str, Scalar]) -> KernelConfig:
        """The same base with these parameters."""
        return KernelConfig(self.name, tuple(sorted(parameters.items())))

    @property
    def base(self) -> KernelConfig:
        """Without parameters."""
        return KernelConfig(self.name)

    @property
    def of_all(self) -> KernelConfig:
        """The same of all threads, as backends get it."""
        return replace(self, team="") if self.team else self

    @property
    def bfloat16(self) -> bool:
        """Whether its products are of bfloat16."""
        return self.name.startswith("bf16")

    @property
    def as_it_comes(self) -> bool:
        """Whether it is the user's own file that is run, and no graph of ours."""
        return self.name.startswith(AS_IT_COMES)

    @property
    def in_bytes(self) -> bool:
        """Whether its products are of bytes, rounded to these."""
        return self.name.split("-")[0] == "int8"

    @property
    def tile(self) -> int:
        """Results in a row of the tiles by which 3×3 convolutions are computed, as in "f32-winograd4"; 0 where there are none."""
        _, _, size = self.name.partition("-winograd")
        return int(size) if size.isdigit() else 0

    @property
    def slice_products(self) -> int:
        """Products of slices of 8 bits that make one of float32, as in "int8x9"; 0 where it is none of those."""
        name = self.name.removeprefix("int8x")
        return int(name) if name != self.name and name.isdigit() else 0

    @property
    def part_products(self) -> int:
        """Products of parts in bfloat16 that make one of float32, as in "bf16x6"; 0 where it is none of those."""
        name = self.name.removeprefix("bf16x")
        return int(name) if name != self.name and name.isdigit() else 0

    @property
    def text(self) -> str:
        """Canonical and whole, for keys: equal texts mean equal configurations."""
        parameters = json.dumps(dict(self.parameters), sort_keys=True) if self.parameters else ""
        return self.name + parameters + (f" {self.team}" if self.team else "")

    def __str__(self) -> str:
        tuned = f" tuned {hashlib.sha256(self.text.encode()).hexdigest()[:4]}" if self.parameters else ""
        return self.name + tuned + (f" {self.team}" if self.team else "")


def named(*names: str) -> tuple[KernelConfig, ...]:
    """Configurations without parameters."""
    return tuple(KernelConfig(name) for name in names)


@dataclass(frozen=True, order=True)
class Endpoint:
    """Where a tensor is handed over: what a transfer depends on."""

    backend: Word
    device: DeviceName = HOST

    def __str__(self) -> str:
        return self.backend + ("" if self.device == HOST else f" on {self.device}")


@dataclass(frozen=True, order=True)
class Implementation:
    """Who can run a region, and how: a backend, its configuration, and the device."""

    backend: Word
    config: KernelConfig = KernelConfig()
    device: DeviceName = HOST

    @property
    def endpoint(self) -> Endpoint:
        """What transfers to and from it depend on."""
        return Endpoint(self.backend, self.device)

    @property
    def tuned(self) -> bool:
        """Whether a tuner chose its kernels, and not the backend's rules of thumb."""
        return bool(self.config.parameters)

    def __str__(self) -> str:
        return f"{self.backend} {self.config}" + ("" if self.device == HOST else f" on {self.device}")


@dataclass(frozen=True, order=True)
class Assignment:
    """A region (bit-set over operator numbers) and who runs it."""

    region: int
    implementation: Implementation


Placement: TypeAlias = tuple[Assignment, ...]
"""Assignments that cover a graph exactly once, in an executable order."""
