"""What carries out a loop's decisions and says what became of them: a simulation whose clock jumps, or real machines.

The loop (`cluster/event_loop.py`) is the same for both. It asks an engine to wait until the next time that it knows of, takes what
the engine reports, asks the scheduler, and hands the engine who stops and who starts. A simulation reports nothing: the loop
computes when jobs end. Real machines report what they see, and the loop believes them.

What a real engine promises:

- `wait` returns at `until`, or earlier with at least one report. Times never go back.
- `carry_out` does not block. Devices of a job that stops may be given to another at once: the engine starts that one as soon as
  the first has saved and let go. A job that stops and starts in one call moves: it is saved, and goes on elsewhere.
- Of each gang that it was told to start it reports in the end `JobFinished`, `JobFailed` or `JobEvicted`; or `JobStopped` where it
  was told to stop it. All processes of a gang run, or none.
- Before a node is reported as gone, every gang on it is reported as evicted.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from bricolage.cluster.jobs import JobState, TrainingJob


@dataclass(frozen=True, slots=True)
class Earlier:
    """What a job had before a loop began: of an earlier policy, or of a cluster that was another."""

    done: float = 0.0
    attained_s: float = 0.0
    run_s: float = 0.0
    first_start_s: float | None = None
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class JobArrived:
    """A job was submitted. It becomes the loop's next number."""

    job: TrainingJob
    earlier: Earlier = Earlier()


@dataclass(frozen=True, slots=True)
class JobWithdrawn:
    """A job is not wanted any more, whether it runs or waits. Where it runs, the loop has the engine stop it."""

    number: int
    reason: str = "cancelled"


@dataclass(frozen=True, slots=True)
class JobRunning:
    """All processes of a gang work from now on; `steps` are done, as its checkpoint has it."""

    number: int
    steps: float


@dataclass(frozen=True, slots=True)
class JobProgressed:
    """A running job has done `steps` steps in all, saved or not."""

    number: int
    steps: float


@dataclass(frozen=True, slots=True)
class JobStopped:
    """A job that was told to stop has saved `steps` steps and let its devices go."""

    number: int
    steps: float


@dataclass(frozen=True, slots=True)
class JobFinished:
    """A job has done all that it wanted; its devices are free."""

    number: int


@dataclass(frozen=True, slots=True)
class JobFailed:
    """A job ended by itself with an error, `steps` steps being saved. Its devices are free."""

    number: int
    steps: float
    reason: str


@dataclass(frozen=True, slots=True)
class JobEvicted:
    """A job lost its devices by no fault of its own, or could not be started on them; `steps` steps are saved."""

    number: int
    steps: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class NodeGone:
    """A node of a kind is away."""

    kind: str
    node: int


@dataclass(frozen=True, slots=True)
class NodeBack:
    """A node of a kind is there, with all its devices free."""

    kind: str
    node: int


Report: TypeAlias = (
    JobArrived
    | JobWithdrawn
    | JobRunning
    | JobProgressed
    | JobStopped
    | JobFinished
    | JobFailed
    | JobEvicted
    | NodeGone
    | NodeBack
)


@dataclass(frozen=True, slots=True)
class Gang:
    """A job's place: devices of one kind on some nodes."""

    number: int
    kind: str
    nodes: tuple[tuple[int, int], ...]
    """(node, devices on it)."""

    @property
    def devices(self) -> int:
        """Of all nodes."""
        return sum(count for _, count in self.nodes)


def gang_of(state: JobState) -> Gang:
    """Where a running job is."""
    return Gang(state.number, state.held_kind, state.nodes)


class Engine(Protocol):
    """What carries out decisions."""

    observes: bool
    """Whether ends, progress and failures are reported. Where they are not, the loop computes them."""

    def wait(self, until: float) -> tuple[float, Sequence[Report]]:
        """Waits for reports, or for a time (infinite: for reports alone). Returns the time and what is new, in order."""
        ...

    def carry_out(self, now: float, stops: Sequence[int], starts: Sequence[Gang]) -> None:
        """First the stops (numbers of jobs), then the starts. Called once after each `wait`, also where nothing changes."""
        ...


class ReplayEngine:
    """Nothing really runs: time jumps to the next event."""

    observes = False

    def wait(self, until: float) -> tuple[float, Sequence[Report]]:
        """At once."""
        return until, ()

    def carry_out(self, now: float, stops: Sequence[int], starts: Sequence[Gang]) -> None:
        """The loop computes what comes of it."""


class RealClock:
    """Seconds since a cluster was first served. It goes on over ends of the process, and never goes back: within a process it
    follows a clock that is never set, and it begins no earlier than the last time that is known.

    Args:
        began: when the cluster was first served, by `time.time`.
        last: seconds that have passed at least.
    """

    def __init__(self, began: float, last: float = 0.0) -> None:
        self._ahead = max(time.time() - began, last) - time.monotonic()

    def now(self) -> float:
        """Seconds."""
        return time.monotonic() + self._ahead
