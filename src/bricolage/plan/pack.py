"""Packs: several plans of one model over one file of weights, each for a kind of device, and what a device must have to run each.

A pack is an artifact with more plans: `plan.json` is the first target's; the others and the index `pack.json` lie with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

from bricolage.base.codec import Length, Matching, Within
from bricolage.base.options import BOUNDS, MOST_THREADS, Precision, Weights
from bricolage.device.arm_cores import CORES, LANES, core_named
from bricolage.device.caches import Cache, Caches, caches_of
from bricolage.device.device import Peaks
from bricolage.plan.field_types import Amount, Duration, ErrorNumber

MOST_TARGETS = 64
INDEX = "pack.json"
TargetName: TypeAlias = Annotated[str, Matching(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}", "name of a target")]
PlanFile: TypeAlias = Annotated[str, Matching(r"plan(-[A-Za-z0-9][A-Za-z0-9_-]{0,39})?\.json", "file of a plan")]
_ISA_RANK: Mapping[str, int] = {"": 3, "amx": 2, "avx512": 1, "avx2": 0, "i8mm": 2, "dotprod": 1, "neon": 0}
_WEIGHTS_RANK: Mapping[Weights | None, int] = {"int4": 2, "int8": 1, None: 0}


@dataclass(frozen=True)
class PackTarget:
    """A kind of device that a plan is for, as the user describes it: this machine, another one of a Ray cluster, or a
    part of it."""

    name: TargetName
    precision: Precision = "highest"
    """The loosest that will do. With a limit of latency the tightest that keeps it is taken."""
    threads: Annotated[int, Within(1, MOST_THREADS)] | None = None
    """None: all that this process may use."""
    isa: Annotated[str, Matching(r"(amx|avx512|avx2|i8mm|dotprod|neon)?", "instruction set")] = ""
    """Empty: all instructions of this machine, or of the core. One that this machine has not needs `gflops`."""
    memory_mb: Annotated[int, Within(64, 2**40)] | None = None
    """The most that a process may hold that loads and runs the plan; None: no limit."""
    latency_ms: Annotated[float, Within(1e-6, 1e9)] | None = None
    """The most that a call may take, the median, summed over the shape buckets; None: no limit."""
    weights: Weights | None = None
    """Weights in blocks of 8 or 4 bits take part, too, and are accepted as precision `low` says."""
    accuracy: Annotated[str, Length(1, 300)] = "relative"
    """What answers to samples held back must reach as well, as `--accuracy` has it."""
    scale: Annotated[float, Within(1e-6, 1e6)] | None = None
    """Of a device that is not here: its times by those here, where they are known."""
    gflops: Annotated[float, Within(1e-3, 1e12)] | None = None
    """Of a device that is not here: its peak in float32, 10⁹ operations a second, of the threads that the plan has; with
    `gbytes`, or neither. Its times are predicted."""
    gbytes: Annotated[float, Within(1e-3, 1e12)] | None = None
    """The bandwidth of its memory, 10⁹ bytes a second."""
    core: Annotated[str, Matching(r"[a-z0-9-]{0,40}", "name of a core")] = ""
    """Of a device that is not here, the name of its Arm cores (`device.arm_cores`): they give its instructions, and with `ghz` its
    peak."""
    ghz: Annotated[float, Within(1e-3, 100.0)] | None = None
    """The clock of its cores."""
    l2_kb: Annotated[int, Within(16, 1 << 20)] | None = None
    """A core's part of the second-level cache, 1,024 bytes; None: what is taken where nothing is known."""
    ray: Annotated[str, Matching(r"[A-Za-z0-9_:.-]{0,80}", "name of a resource")] = ""
    """Of a device that is another machine: the resource of a Ray cluster whose nodes decide on the target. Empty: this machine."""

    def __post_init__(self) -> None:
        self._check_core()
        if not self.core and (self.gflops is None) != (self.gbytes is None):
            raise ValueError(f"target '{self.name}' has only one of gflops and gbytes; give both, or neither")
        if self.gflops is not None and self.scale is not None:
            raise ValueError(f"target '{self.name}' has both scale and gflops; give one of them")
        if self.ray and (self.scale is not None or self.gflops is not None):
            raise ValueError(
                f"target '{self.name}' is measured on a node: it takes ray alone, without scale and gflops"
            )

    def _check_core(self) -> None:
        """Whether what describes cores is whole."""
        if not self.core:
            if self.ghz is not None or self.l2_kb is not None:
                raise ValueError(f"target '{self.name}' has ghz or l2_kb, and no core that they are of; give core too")
            return
        if core_named(self.core) is None:
            names = ", ".join(core.name for core in CORES)
            raise ValueError(f"target '{self.name}' has the core '{self.core}', which is none of {names}")
        if self.threads is None or self.gbytes is None or (self.ghz is None) == (self.gflops is None):
            raise ValueError(
                f"target '{self.name}' describes cores: it takes threads, gbytes, and either ghz or gflops with them"
            )
        if self.ray or self.scale is not None:
            raise ValueError(f"target '{self.name}' describes cores, and is predicted: leave ray and scale out")

    @property
    def peaks(self) -> Peaks | None:
        """Of a device that is not here, where they are given: of cores by name nominal ones, by their clock."""
        core = core_named(self.core)
        if core is not None and self.ghz is not None and self.gbytes is not None:
            return Peaks(2.0 * LANES * core.products_a_cycle * self.ghz * (self.threads or 1), self.gbytes)
        return None if self.gflops is None or self.gbytes is None else Peaks(self.gflops, self.gbytes)

    @property
    def caches(self) -> Caches:
        """Of a described core."""
        levels = () if self.l2_kb is None else (Cache(1, 32 << 10), Cache(2, self.l2_kb << 10))
        return caches_of(levels, "aarch64")

    def looser(self, other: PackTarget) -> bool:
        """Whether whatever fits the other one fits this one: nothing of it is tighter. Of another machine, or by another measure of
        accuracy, it never is."""
        if self.ray != other.ray or self.accuracy not in ("relative", other.accuracy):
            return False
        mine, theirs = self._limits(), other._limits()
        return all(a >= b for a, b in zip(mine, theirs, strict=True))

    def apart(self, other: PackTarget) -> int:
        """In how many limits two differ."""
        differing = sum(a != b for a, b in zip(self._limits(), other._limits(), strict=True))
        return differing + (self.accuracy != other.accuracy)

    def _limits(self) -> tuple[float, ...]:
        endless = float("inf")
        return (
            BOUNDS[self.precision],
            self.threads or endless,
            _ISA_RANK[self.isa],
            self.memory_mb or endless,
            self.latency_ms or endless,
            _WEIGHTS_RANK[self.weights],
        )


@dataclass(frozen=True)
class TargetList:
    """The targets that a file lists. Raises ValueError where two have one name."""

    target: Annotated[tuple[PackTarget, ...], Length(1, MOST_TARGETS)]

    def __post_init__(self) -> None:
        names = [target.name for target in self.target]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"there are several targets '{name}'")


@dataclass(frozen=True)
class PackEntry:
    """A target with its plan, and what a machine must have to run it as planned."""

    target: PackTarget
    plan: PlanFile
    parent: str
    """The target that it started from; empty of a root."""
    seconds: Duration
    """That its decision took."""
    median_ms: Duration | None
    """Of a run, summed over the shape buckets; as measured here, scaled where the target says so."""
    threads: Annotated[int, Within(1, MOST_THREADS)]
    instructions: tuple[Annotated[str, Matching(r"[a-z0-9_]{1,40}", "processor flag")], ...]
    """That its kernels may use."""
    system: str
    architecture: str
    predicted_ms: tuple[Duration, Duration] | None = None
    """Of a device that is described: `median_ms` is predicted, and lies between these if every operator is bound by computing, or
    every one by moving. None where it was measured."""
    resident_bytes: Amount = 0
    """Of a fresh process that loaded it and ran once."""
    measured_on: str = ""
    """The model of the processor whose times these are; empty where they are predicted for instructions that it has not."""
    ships: str = ""
    """What runs, for people: the name of the contestant that ships, of each shape bucket with another one."""
    error: ErrorNumber | None = None
    """Of what ships, relative to float64: the largest that was seen on the inputs and on samples that are held back. None in packs
    of before this was kept."""
    precision: Precision | None = None
    """With which it was decided, where that is tighter than the target asks for."""

    @property
    def emulated(self) -> bool:
        """Whether it is for instructions that no processor had on which it was decided: its answers are an emulator's."""
        return self.predicted_ms is not None and not self.measured_on

    @property
    def bound(self) -> float:
        """Relative error that was accepted."""
        return BOUNDS[self.precision or self.target.precision]


@dataclass(frozen=True)
class Pack:
    """What is in a pack. Raises ValueError where names are not distinct, or a plan belongs to two targets."""

    entries: Annotated[tuple[PackEntry, ...], Length(1, MOST_TARGETS)]
    seconds: Mapping[str, Duration] = field(default_factory=dict)
    """What was done once for all targets."""

    def __post_init__(self) -> None:
        names = [entry.target.name for entry in self.entries]
        files = [entry.plan for entry in self.entries]
        if len(set(names)) < len(names) or len(set(files)) < len(files):
            raise ValueError("two of its targets have one name, or one plan")
        for entry in self.entries:
            if entry.parent and entry.parent not in names:
                raise ValueError(f"target '{entry.target.name}' starts from '{entry.parent}', which is none of them")

    def entry(self, name: str) -> PackEntry | None:
        """Of a target."""
        return next((entry for entry in self.entries if entry.target.name == name), None)


def tree(targets: tuple[PackTarget, ...]) -> list[tuple[PackTarget, PackTarget | None]]:
    """Targets from loose to tight, each with the tightest one that is looser (the parent), or None of a root. Of targets that are
    equally loose the earlier one is the parent."""
    order = sorted(range(len(targets)), key=lambda n: (sum(_above(targets, m, n) for m in range(len(targets))), n))
    parent_links: list[tuple[PackTarget, PackTarget | None]] = []
    for number in order:
        above = [m for m in order if _above(targets, m, number)]
        # The tightest: no other one that is above this one is below it.
        lowest = [m for m in above if not any(_above(targets, m, other) for other in above)]
        parent = min(lowest, key=lambda m: (targets[m].apart(targets[number]), m), default=None)
        parent_links.append((targets[number], None if parent is None else targets[parent]))
    return parent_links


def _above(targets: tuple[PackTarget, ...], first: int, second: int) -> bool:
    target, other = targets[first], targets[second]
    return first != second and target.looser(other) and (not other.looser(target) or first < second)
