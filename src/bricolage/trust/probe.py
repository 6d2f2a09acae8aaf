"""Trying a program in a worker process: right, wrong, or how else it failed."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bricolage.costs.entries import Outcome
from bricolage.device.device import Device
from bricolage.measure.candidate_job import Job
from bricolage.measure.loading import Loader
from bricolage.measure.pool import Pool
from bricolage.measure.specs import CandidateSpec, Limits
from bricolage.plan.program_step import Step

_ATTEMPTS = 2
_SIGNAL = re.compile(r"the process ended with (.+?)(?::|$)")


@dataclass(frozen=True)
class Verdict:
    """What came of a program."""

    outcome: Outcome
    error: float | None
    """Largest relative error of an output, see `bricolage.verify.compare`; infinite where an output is not finite or has
    another shape, None where there was nothing to compare."""
    bound: float
    reason: str = ""

    @property
    def right(self) -> bool:
        """Whether it ran, with an answer within the bound."""
        return self.outcome == "ok"

    @property
    def symptom(self) -> str:
        """How it fails, in a few words that are equal for what fails in the same way; empty where it is right."""
        match self.outcome:
            case "ok":
                return ""
            case "wrong":
                return "wrong" if self.error is not None and math.isfinite(self.error) else "not finite"
            case "crashed":
                signal_match = _SIGNAL.search(self.reason)
                return f"crashed with {signal_match.group(1)}" if signal_match else "crashed"
            case "failed":
                kind, _, message = self.reason.partition(": ")
                return f"failed with {kind} {re.sub(r'[^A-Za-z ]', '', message)[:40].strip()}".strip()
        return self.outcome

    def __str__(self) -> str:
        if self.error is not None and self.outcome in ("ok", "wrong"):
            return f"error {self.error:.2e}, bound {self.bound:.2e}"
        return f"{self.outcome}: {self.reason}" if self.reason else self.outcome


class Prober:
    """Runs programs, one at a time, in workers that may crash or hang."""

    def __init__(self, pool: Pool, scratch: Path, threads: int, device: Device, limits: Limits) -> None:
        """`scratch`: an existing folder; `limits`: of one program."""
        self._pool, self.threads, self.device = pool, threads, device
        self._loader = Loader(pool, scratch, 1, limits)
        self.count = 0
        """Of programs that were run."""

    def run(
        self, steps: Sequence[Step], outputs: Sequence[str], files: tuple[Path, Path, float], *, fresh: bool = False
    ) -> Verdict:
        """What comes of the steps, in executable order. `files`: inputs and expected outputs (.npz), and the relative error that
        is accepted (see `bricolage.verify.oracle`). A `fresh` worker has run nothing before."""
        alone = len({step.implementation.backend for step in steps}) == 1
        spec = CandidateSpec("", tuple(steps), tuple(outputs), self.threads, alone, self.device)
        inputs, expected, bound = files
        regime = replace(spec.regime, owner="trust")
        if fresh:
            self._pool.end(regime)
        self.count += 1
        for _ in range(_ATTEMPTS):
            job = Job(spec, inputs, expected, bound, regime)
            self._loader.load([job])
            self._loader.drop([job])
            if job.outcome != "out-of-memory":  # another process may be the cause
                break
        return Verdict(job.outcome or "ok", job.deviation.error if job.deviation else None, bound, job.reason)
