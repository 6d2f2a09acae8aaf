"""What is asked to be measured, as values: candidates, the regions that they compete for, their workers, limits and rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bricolage.device.device import Device
from bricolage.measure.closed_loop import Serving
from bricolage.plan.plan import Plan
from bricolage.plan.program_step import Step
from bricolage.verify.variations import Variation
from bricolage.work.implementation import AS_IT_COMES
from bricolage.work.workload import Workload

Stop = Callable[[], bool]


def never() -> bool:
    """The `should_stop` of a run without a deadline."""
    return False


@dataclass(frozen=True)
class Regime:
    """What a worker process hosts and how. Programs of equal regimes share one worker."""

    backends: tuple[str, ...]
    """Sorted names."""
    threads: int
    alone: bool
    device: Device
    owner: str = ""
    """Distinguishes workers that must not be shared, such as those of a race."""
    fresh: bool = False
    """An interpreter of its own, whose memory lies otherwise than that of other workers."""


@dataclass(frozen=True)
class PlannedCall:
    """An executable: its plan, and the folder with the plan's graphs and weights."""

    plan: Plan
    directory: Path


@dataclass(frozen=True)
class CandidateSpec:
    """What is measured: a region (one step) or a whole placement (several, in executable order, wired by tensor
    names)."""

    region_key: str
    """Canonical identity of the region. For several steps it must identify how the region is divided, too."""
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]
    threads: int
    alone: bool
    device: Device
    """Where it runs, and with it its worker."""
    cores: tuple[tuple[int, ...], ...] = ()
    """Of each step, where they run side by side; `region_key` must identify them, too."""
    serving: Serving | None = None
    """How it answers several requests at a time, where its throughput is measured: `threads` are then those of a stream, and its
    times those of a request, which are shorter than any request takes."""
    kept: bool = field(default=False, compare=False)
    """Whether its compiled code is kept in the cache however quickly it compiles: the race's processes and the artifact load it
    again."""

    call: PlannedCall | None = field(default=None, compare=False)
    """What a user would call to run it, where that is to be timed and not the bare program."""
    in_place: tuple[tuple[str, str], ...] = ()
    """(result, input) pairs that share memory, such as a cache that a program goes on writing; each call then finds what the last
    one left."""

    @property
    def regime(self) -> Regime:
        """The kind of worker process that it runs in."""
        backends = {step.implementation.backend for step in self.steps}
        config = self.steps[0].implementation.config
        owner = AS_IT_COMES if config.as_it_comes else config.team if len(self.steps) == 1 else ""
        threads = 1 if owner == "one-thread" else self.threads
        return Regime(tuple(sorted(backends)), threads, self.alone and owner != "waiting", self.device, owner)

    @property
    def is_file(self) -> bool:
        """Whether it is a user's file as it comes, in a tool that sets itself up: it has a process of its own."""
        return self.steps[0].implementation.config.as_it_comes

    @property
    def is_region(self) -> bool:
        """Whether it is a part of a model among others, rather than something that may ship as it is."""
        return len(self.steps) == 1 and not self.alone and not self.cores and self.serving is None

    @property
    def title(self) -> str:
        """`backend` or `backend+backend`, for people."""
        return "+".join(self.regime.backends)


@dataclass(frozen=True)
class Limits:
    """Seconds that one command may take before its worker is ended."""

    compile_s: float = 60.0
    run_s: float = 60.0


@dataclass(frozen=True)
class TimingPolicy:
    """How many rounds, and when enough is known."""

    rounds: int = 7
    most_rounds: int = 28
    """Cap for near-ties."""
    warm_s: float = 0.01
    """Untimed running before the first turn."""
    probe: int = 3
    """Rounds after which the hopeless retire."""
    hopeless: float = 2.0
    """A candidate retires when all its rounds took longer than this times the best one's slowest."""
    seconds: float = 10.0
    """Upper bound on the rounds of one comparison; `probe` rounds are made in any case."""
    run_s: float = 60.0
    """Limit of one turn."""


@dataclass(frozen=True)
class RegionTask:
    """A region with all the candidates that compete for it."""

    inputs: Path
    """.npz with the region's inputs, by name (see `bricolage.verify.named_arrays`)."""
    expected: Path
    """.npz with the float64 outputs, by name."""
    bound: float
    """Relative error accepted."""
    candidates: tuple[CandidateSpec, ...]
    data: str
    """Digest of the weights and inputs: errors belong to these (see `bricolage.verify.oracle`)."""
    limits: Callable[[], Mapping[str, float]] | None = None
    """Gives the error of each output that is still float32's own, where `expected` does not hold it (see `Job`)."""
    workload: Callable[[], Workload] | None = None
    """Says what the region computes, where that is of use later; asked where the database does not know it yet."""
    variations: Callable[[], tuple[Variation, ...]] | None = None
    """Gives other inputs on which candidates must be right; asked only where one has to be compared."""
