"""The backend registration interface: what a backend is, what it claims and how it compiles.

A backend claims regions by a *pattern* over operators, a *constraint* on shapes, attributes and types, and a *rule* that
grows what the pattern matched (Collage, section 3: backend pattern, constraint, pattern rule). One class in one file:

    class MyBackend(Backend):
        name, kind = "mine", "kernels"
        def claims(self): return [Claim("conv-relu", op("Relu", op("Conv")), constraint=small)]
        def compile(self, region, config, resources): return MyKernel(...)
"""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal

from bricolage.backends.claims import ANY, Claim, Constraint, Growth, Pattern, Shared, accept, any_operator, op
from bricolage.backends.kernel import Kernel, StaticKernel
from bricolage.backends.kernel_trials import RegionTrials, Trials
from bricolage.backends.request_queue import RequestQueue
from bricolage.base.options import Precision
from bricolage.device.device import Device, Peaks
from bricolage.errors import Refused
from bricolage.extras import install_command, requirements
from bricolage.graph.region_model import RegionEnds, RegionModel, Resources, require_static, values_of
from bricolage.work.config_space import ConfigSpace
from bricolage.work.fused_kernel import FusedKernel, RegionTraffic
from bricolage.work.implementation import KernelConfig, Team, named
from bricolage.work.kernel_orders import KernelOrders, OverlapEstimate

if TYPE_CHECKING:
    from bricolage.graph.graph import Region

__all__ = [
    "ANY",
    "AfterFailure",
    "Anatomy",
    "Available",
    "Backend",
    "Claim",
    "Constraint",
    "FusedKernel",
    "Growth",
    "IndexChecks",
    "Kernel",
    "Kind",
    "Missing",
    "Pattern",
    "Refused",
    "RegionEnds",
    "RegionModel",
    "RequestQueue",
    "Resources",
    "Shared",
    "StaticKernel",
    "Status",
    "Travels",
    "Trials",
    "accept",
    "any_operator",
    "installed",
    "op",
    "require_static",
    "values_of",
]
"""All that a backend needs: `Kernel`, `StaticKernel` and `Refused` too."""

Kind = Literal["kernels", "engine"]
Travels = Literal["no", "alike", "anywhere"]
"""Where compiled code can be reused: on this machine only; on machines of the same device class and versions; or cross-compiled
(`Backend.build`) for any machine of the architecture."""
AfterFailure = Literal["lives", "again"]
"""Kernels that raised an error answer later calls as before; or must be compiled again for that."""
IndexChecks = Literal["all", "most", "none"]
"""All; most, so that the others are looked at before a call where that can be done; or none, so that a region is refused where its
indices cannot be looked at before a call."""
AfterFork = Literal["lives", "again", "ends"]
"""Kernels that were compiled before a fork run on in the new process; or must be compiled again there; or the framework
cannot be used there at all."""


# --- what a backend makes of a region, for those who want to see it ----------------------------------------------


@dataclass(frozen=True)
class Anatomy:
    """What a backend makes of a region."""

    kernels: tuple[FusedKernel, ...]
    """In the order in which they run."""
    source: str
    """All of its code."""
    peaks: Peaks | None = None
    """Where the backend can tell."""

    def of_roofline(self, kernel: FusedKernel) -> float | None:
        """The least time that a kernel's operations and bytes could take, over the time that it takes."""
        return self.peaks.floor_ms(kernel.flops, kernel.bytes) / kernel.ms if self.peaks and kernel.ms else None


# --- whether a backend is there ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Available:
    """The backend can be used here."""

    version: str


@dataclass(frozen=True)
class Missing:
    """The backend cannot be used here, and why."""

    reason: str
    cure: str
    """The command that adds it."""


Status = Available | Missing


@cache
def installed(package: str, module: str, extra: str) -> Status:
    """Status from package metadata alone: nothing heavy is imported. Asked once a process: reading metadata takes milliseconds.

    Args:
        extra: bricolage's own extra that brings the package. Where it has none of this name, the package alone is advised.
    """
    from importlib import metadata  # here: our engine, which needs no package, is there before it is imported

    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        cure = install_command(extra) if requirements(extra) else f"pip install {package}"
        return Missing(f"the package {package} is not installed", cure)
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        return Missing(f"{package} {version} is installed but broken", f"pip install --force-reinstall {package}")
    return Available(version)


OperatorKind = tuple[str, str, str]
"""Operator type, version class, and type key with form, as in a capability table."""
SelfCheck = Mapping[OperatorKind, str]
"""Kinds of operators that were tried on the installed version: "" where they passed, otherwise the reason against them."""


# --- a backend --------------------------------------------------------------------------------------------------


class Backend(ABC):
    """Something that can compile and run regions. Making one must be cheap: import the framework in the methods.

    Kinds: a *kernel library* runs single operators or small fused patterns; an *engine* gains by getting large regions.
    """

    name: ClassVar[str]
    title: ClassVar[str] = ""
    """How reports call it."""
    kind: ClassVar[Kind] = "engine"
    compiles_slowly: ClassVar[bool] = False
    """Compiling a region takes seconds rather than milliseconds, so `quick` tries it on large regions only."""
    always_measured: ClassVar[bool] = False
    """It is one of those that read most models: the whole model has its turn on it in any decision of some seconds, however
    busy the machine is (`Shares.turns_s`)."""
    tunable: ClassVar[bool] = False
    """It states a `space`: a tuner may find better parameters than rules of thumb."""
    overlaps: ClassVar[bool] = False
    """It has configurations whose kernels run at the same time (`estimate_overlap`)."""
    structural: ClassVar[frozenset[str]] = frozenset()
    """Names of the parameters that make one of its `structures`."""
    gains_by_tuning: ClassVar[float] = 1.1
    """By which factor tuning may make a whole model faster, at most: who is further behind the best is not tuned."""
    dynamic: ClassVar[bool] = False
    """Runs models whose shapes are known only at run time (`Kernel.run`)."""
    queues: ClassVar[bool] = False
    """Answers several requests at a time in a way of its own (`queue`); for throughput, copies of any backend do."""
    travels: ClassVar[Travels] = "no"
    """Where folders of compiled code serve that `compile` keeps in `Resources.cache`."""
    after_fork: ClassVar[AfterFork] = "ends"
    """What becomes of kernels in a forked process, where none of the threads is that the framework had."""
    after_failure: ClassVar[AfterFailure] = "again"
    """What becomes of kernels after a call that raised an error."""
    checks_indices: ClassVar[IndexChecks] = "none"
    """Which indices beyond what they index raise an error when a region runs."""
    tries_whole: ClassVar[bool] = False
    """A graph that it does not claim may still be measured and checked on it as a whole: its claims are as narrow as the tests that
    they come from, and it refuses, when it compiles, what it cannot run."""
    teams: ClassVar[tuple[Team, ...]] = ()
    """Teams of threads other than the usual one that make a difference to it, and that `compile` decides by its resources."""
    optimiser_refuses: ClassVar[bool] = False
    """Its own optimisations may make of a graph what it then refuses. Where it refuses a whole graph, its `unoptimised`
    configuration is tried, under that name."""
    self_check: SelfCheck | None = None
    """What a self-check of the installed version found (`measure.selfcheck`); None where none was made."""

    @abstractmethod
    def status(self) -> Status:
        """Version, or why it is missing and the command that adds it."""

    def table_version(self) -> str | None:
        """The version that a capability table holds for: the installed one; None where the backend is missing."""
        status = self.status()
        return status.version if isinstance(status, Available) else None

    @abstractmethod
    def claims(self) -> Iterable[Claim]:
        """Regions that the backend offers to run. What it got wrong in its capability table is never claimed."""

    @abstractmethod
    def compile(self, region: RegionModel, config: KernelConfig, resources: Resources) -> Kernel:
        """A kernel for the region.

        Raises:
            Refused: the backend declines, with the reason. Any other exception counts as a failed compilation.
        """

    def build(self, region: RegionModel, config: KernelConfig, resources: Resources) -> None:
        """Keeps in `resources.cache` what `compile` would keep there, for a device that need not be this machine's: nothing of it
        is run or loaded. Asked only of backends whose code `travels` "anywhere".

        Raises:
            Refused: the backend declines, with the reason. Any other exception counts as a failed compilation.
        """
        del region, config, resources
        raise Refused(backend=self.title or self.name, reason="it compiles for its own machine only")

    def reopen(self, region: RegionEnds, name: str, resources: Resources) -> Kernel | None:
        """A kernel of what `compile` kept in the folder `name` (`Kernel.kept`) of `resources.cache`, for the same region,
        configuration and resources; None where the folder is not as it was left.
        """
        del region, name, resources
        return None

    def configs(self, precision: Precision, device: Device) -> Sequence[KernelConfig]:
        """Configurations that may reach a precision, without parameters; each is measured. Example: named("f32", "bf16")."""
        del precision, device
        return named("f32")

    def file_configs(self, precision: Precision, device: Device) -> Sequence[KernelConfig]:
        """Configurations in which it reads a user's ONNX file itself and sets itself up as it does for any user; their names begin
        with `AS_IT_COMES`. `compile` gets the file as the region then, and its kernel has an `own_call`. None by default: it reads
        no files. `precision`: float32 is asked for by name where the tool would take less and it accepts no less."""
        del precision, device
        return ()

    def file_loop_configs(self) -> Sequence[KernelConfig]:
        """The same of a file whose outputs are the next call's inputs: how a user may hand them over."""
        return ()

    def suits(self, config: KernelConfig, region: Region) -> bool:
        """Whether a configuration may compute a region otherwise than another one does: it is no candidate for others. What it says
        costs next to nothing; `compile` may refuse what it allowed. The first of `configs` suits every region."""
        del config, region
        return True

    def fails_at_nothing(self, region: RegionModel) -> str:
        """Why a region must not run here whose sizes come from data, and may be 0 in a call: it would end the process, or leave a
        state in which later answers are wrong. Empty where there is no such reason."""
        del region
        return ""

    def suited_configs(self, precision: Precision, device: Device, region: Region) -> list[KernelConfig]:
        """Those of `configs` that may compute a region each in another way: what is offered for it."""
        return [config for config in self.configs(precision, device) if self.suits(config, region)]

    def unoptimised(self, config: KernelConfig) -> KernelConfig | None:
        """A configuration of the same arithmetic in which operators are computed one by one, as the model has them: what is right
        in it and wrong in `config` is a fault of the backend's own optimisations. None where the backend has no such switch."""
        del config
        return None

    def queue(self, region: RegionModel, config: KernelConfig, resources: Resources, streams: int) -> RequestQueue:
        """Asked only of backends that have `queues`: several requests at a time on all of `resources`, as the backend does that
        best. `streams` of them run at the same time; 0: as many as it chooses.

        Raises:
            Refused: the backend declines, with the reason. Any other exception counts as a failed compilation.
        """
        del region, config, resources, streams
        raise Refused(backend=self.title or self.name, reason="it has no queue of its own")

    def space(self, region: RegionModel, config: KernelConfig, resources: Resources) -> ConfigSpace:
        """What may be chosen of a configuration's kernels for this region; asked only of backends that are `tunable`. What a plan
        or the cost database names and is not in it was found by another version, and is searched again.

        Raises:
            Refused: the backend declines, with the reason.
        """
        del region, resources
        return ConfigSpace(config.base)

    def structures(self, region: RegionModel, config: KernelConfig, resources: Resources) -> Sequence[KernelConfig]:
        """Other configurations of this base that lead to other kernels: what passes before the choice of each kernel may decide
        otherwise, such as fusion. A tuner carries them through: `space` and `trials` are asked for each. None by default.

        Raises:
            Refused: the backend declines, with the reason.
        """
        del region, config, resources
        return ()

    def trials(self, region: RegionModel, config: KernelConfig, resources: Resources) -> Trials:
        """What times choices from the `space` of this region, here and now. By default a choice is compiled with the whole region.

        Raises:
            Refused: the backend declines, with the reason.
        """
        return RegionTrials(self, self.space(region, config, resources), region, resources)

    def environment(self, resources: Resources) -> dict[str, str]:
        """Environment variables that must stand before the framework is imported in a fresh process."""
        del resources
        return {}

    def kernel_report(
        self, region: RegionModel, config: KernelConfig, resources: Resources, *, timed: bool = True
    ) -> Anatomy | None:
        """The kernels that the region becomes; None where the backend does not show them. They are compiled and run for their
        times, but where not `timed`: then nothing of the region's is run.

        Raises:
            Refused: the backend declines, with the reason.
        """
        del region, config, resources, timed
        return None

    def measure_peaks(self, resources: Resources) -> Peaks | None:
        """What products of float32 and reading from memory reach here at best, by its own loops; None where it has none."""
        del resources
        return None

    def traffic_report(self, region: RegionModel, config: KernelConfig, resources: Resources) -> RegionTraffic | None:
        """What the kernels that the region becomes move, what its operators would one by one, and other groups of its layers; None
        where the backend does not show them. Nothing is compiled or run.

        Raises:
            Refused: the backend declines, with the reason.
        """
        del region, config, resources
        return None

    def simulate_orders(
        self, region: RegionModel, config: KernelConfig, resources: Resources, threads: Sequence[int]
    ) -> tuple[KernelOrders, ...] | None:
        """What the region would take on numbers of threads, by the order in which threads go through its kernels, with and without
        shared memory. Kernels are compiled and timed here on one thread. None where the backend does not show them.

        Raises:
            Refused: the backend declines, with the reason.
        """
        del region, config, resources, threads
        return None

    def estimate_overlap(
        self, region: RegionModel, config: KernelConfig, resources: Resources, measured_ms: float
    ) -> OverlapEstimate | None:
        """What a configuration would bring whose kernels run at the same time where they do not depend on each other, by
        arithmetic: nothing is compiled. `measured_ms`: of the region as `config` runs it. None where there is no such
        configuration, or all kernels depend on each other.

        Raises:
            Refused: the backend declines, with the reason.
        """
        del region, config, resources, measured_ms
        return None

    def fusing(self, config: KernelConfig, kernels: Collection[int]) -> KernelConfig:
        """A configuration with which only these of the kernels that `kernel_report` shows for `config`, by number, compute several
        operators together, and each other operator is a kernel of its own; `config` itself where the backend has no
        such choice. Parameters of kernels are left out: kernels get other numbers."""
        del kernels
        return config
