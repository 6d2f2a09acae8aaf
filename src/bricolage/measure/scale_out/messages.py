"""What is asked of a node, and what it answers: values that go over the wire as plain structures (`codec`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bricolage.backends.kernel_trials import Trial
from bricolage.costs.entries import Cost, Outcome
from bricolage.device.device import Device
from bricolage.measure.specs import Limits, TimingPolicy
from bricolage.work.config_space import Choice
from bricolage.work.implementation import Implementation


@dataclass(frozen=True)
class Setup:
    """How a node is set up for a decision."""

    isa: str
    """Instruction set to which every backend is kept; empty for all."""
    slots: int
    """Compilations at a time."""
    memory_limit: int | None
    """Resident bytes of one worker process."""
    registered: Mapping[str, str]
    """Backends that the process at the other end has registered, "module:Class" by name."""


@dataclass(frozen=True)
class NodeDescription:
    """What a node says of itself."""

    host: str
    pid: int
    machine: str
    """Under which its costs are kept (`cache.machine_id`)."""
    device: Device
    bricolage: str
    versions: Mapping[str, str]
    """Of the backends that are installed there, by name."""


@dataclass(frozen=True)
class Code:
    """A sealed folder of compiled code."""

    backend: str
    folder: str
    files: Mapping[str, str]
    """Names of their contents on the way, by relative path."""


@dataclass(frozen=True)
class CompileItem:
    """A region to be compiled, for a device that need not be the node's."""

    implementation: Implementation
    model: str
    """Name of a file on its way (`parcels`), as are all in `needs`."""
    needs: tuple[str, ...]
    threads: int
    device: Device
    limit_s: float


@dataclass(frozen=True)
class Compiled:
    """What came of it. Contents of `code` travel separately."""

    outcome: Outcome
    reason: str = ""
    seconds: float = 0.0
    code: tuple[Code, ...] = ()


@dataclass(frozen=True)
class MeasureItem:
    """A region with all implementations that compete for it: they are timed against each other."""

    region_key: str
    implementations: tuple[Implementation, ...]
    outputs: tuple[str, ...]
    threads: int
    cores: int
    """How many of the device's."""
    model: str
    inputs: str
    expected: str
    needs: tuple[str, ...]
    bound: float
    data: str
    limits: Mapping[str, float] | None
    """Error of each output that is still float32's own, once it was asked for."""
    may_ask: bool
    """Whether it can be asked for; otherwise it stands in the file `expected`."""
    policy: TimingPolicy
    run: Limits
    retrying: bool
    code: tuple[Code, ...] = ()
    """What has been compiled for it elsewhere."""


@dataclass(frozen=True)
class TrialItem:
    """Choices for kernels of a region, to be timed in turns with the usual ones."""

    implementation: Implementation
    model: str
    needs: tuple[str, ...]
    threads: int
    builds: tuple[Mapping[str, Choice], ...]
    rounds: int
    limit_s: float


@dataclass(frozen=True)
class TriedBuilds:
    """What came of it."""

    machine: str
    trials: tuple[Mapping[str, Trial], ...] = ()
    """By build; none where the worker ended, or refused the region."""
    reason: str = ""


@dataclass(frozen=True)
class Measured:
    """What came of it."""

    machine: str
    costs: tuple[Cost | None, ...] = ()
    """By implementation, with the errors of their answers; None where nothing was found out."""
    wants_limits: bool = False
    """An answer is farther off than every precision accepts: nothing was timed, and `MeasureItem.limits` have to be known."""
