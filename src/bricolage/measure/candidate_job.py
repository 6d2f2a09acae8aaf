"""A candidate on its way through a worker: the states that it has, and all that changes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from bricolage.costs.entries import Cost, Outcome
from bricolage.measure.specs import CandidateSpec, Regime
from bricolage.measure.worker_process import WorkerProcess
from bricolage.verify.compare import Deviation
from bricolage.verify.variations import Variation

JobState: TypeAlias = Literal["waiting", "loading", "ready", "lost", "failed", "retired"]
"""It waits to be loaded; is compiled and checked; can be timed; was in a worker that was ended from outside; failed, with an
outcome; or nothing more is wanted of it."""


@dataclass
class Job:
    """What is to be measured, and what came of it. Its state and results change by its methods alone."""

    spec: CandidateSpec
    inputs: Path
    expected: Path | None
    """Float64 outputs; None skips the check."""
    bound: float
    regime: Regime
    limits: Callable[[], Mapping[str, float]] | None = None
    """Gives for each output the error that is still float32's own, where `expected` does not say it: costs evaluations of the
    reference, and is asked only for an answer that is off by more than `loading.SURE`."""
    variations: tuple[Variation, ...] = ()
    """Other inputs on which it must be right."""
    known: Cost | None = None
    """Its cost where only the answer has to be compared: the time is known from other weights."""
    id: str = field(default="", init=False)
    attempts: int = field(default=0, init=False)
    worker: WorkerProcess | None = field(default=None, init=False)
    """Where it is loaded; None while it is not."""
    outcome: Outcome | None = field(default=None, init=False)
    """None as long as nothing speaks against it."""
    reason: str = field(default="", init=False)
    deviation: Deviation | None = field(default=None, init=False)
    compile_s: float = field(default=0.0, init=False)
    first_ms: float | None = field(default=None, init=False)
    rounds: list[list[float]] = field(default_factory=list, init=False)
    """Samples in milliseconds a call, one list for each turn."""
    disturbed: list[bool] = field(default_factory=list, init=False)
    """For each turn, whether others disturbed all of its samples."""
    latencies: list[tuple[float, ...]] = field(default_factory=list, init=False)
    """For each turn, milliseconds that single calls took, where several requests are answered at a time."""
    _checked: bool = field(default=False, init=False)
    _retired: bool = field(default=False, init=False)

    @property
    def state(self) -> JobState:
        """What can be done with it now."""
        if self.outcome is not None:
            return "failed"
        if self._retired:
            return "retired"
        if self.worker is None:
            return "waiting"
        if not self.worker.alive:
            return "lost"
        return "ready" if self._checked else "loading"

    @property
    def ready(self) -> bool:
        """Whether it is compiled, checked, and can be timed."""
        return self.state == "ready"

    @property
    def served(self) -> tuple[float, ...]:
        """Latencies of the undisturbed turns together; of all where there are none."""
        clean = [turn for turn, bad in zip(self.latencies, self.disturbed, strict=False) if not bad]
        return tuple(ms for turn in clean or self.latencies for ms in turn)

    # --- what changes it --------------------------------------------------------------------------------------------

    def begin(self, worker: WorkerProcess, id: str) -> None:
        """It is being loaded in a worker, under an id."""
        self.worker, self.id, self._checked = worker, id, False
        self.attempts += 1

    def compiled(self, seconds: float) -> None:
        """Compiling it took so long."""
        self.compile_s = seconds

    def ran(self, first_ms: float) -> None:
        """Its very first run took so long."""
        self.first_ms = first_ms

    def compared(self, found: Deviation) -> None:
        """Its answer, or the worst of several, is so far off."""
        self.deviation = found

    def passed(self) -> None:
        """Its answers are right, unless it has failed."""
        self._checked = True

    def unload(self) -> None:
        """No worker holds it any more: it waits, unless it has failed or retired."""
        self.worker = None

    def fail(self, outcome: Outcome, reason: str) -> None:
        """It ends with a reason."""
        self.outcome, self.reason = outcome, reason

    def retire(self) -> None:
        """What was wanted of it is known."""
        self._retired = True

    def timed(self, samples: Sequence[float], disturbed: bool, served: Sequence[float] | None) -> None:
        """A turn: its samples, whether others disturbed all of them, and the latencies of single calls if there are any."""
        self.rounds.append(list(samples))
        self.disturbed.append(disturbed)
        if served is not None:
            self.latencies.append(tuple(served))

    def untime(self) -> None:
        """Forgets turns that were too few."""
        self.rounds.clear()
        self.disturbed.clear()
        self.latencies.clear()
