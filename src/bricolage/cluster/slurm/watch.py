"""One look at a Slurm and what follows from it; again and again where it is watched. Nothing is remembered between looks but past
runs: what was changed stands in Slurm itself."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from bricolage.cluster.history.read import read_history
from bricolage.cluster.history.records import NO_HISTORY, JobHistory, OddLines, records
from bricolage.cluster.history.sacct import read_sacct
from bricolage.cluster.machines import ClusterSpec, NodeGroup
from bricolage.cluster.policy_catalogue import PolicyEntry, find_policy
from bricolage.cluster.slurm.advice import AdviceOptions, SlurmAdvice, advise, learn_history
from bricolage.cluster.slurm.commands import SlurmClient
from bricolage.cluster.slurm.job_changes import (
    AppliedChanges,
    Levers,
    SlurmChange,
    apply_changes,
    changes,
    plan_restoration,
)
from bricolage.cluster.slurm.queue import SlurmQueue
from bricolage.errors import BricolageError, SlurmUnavailable, UnknownHistory

_ANY = ClusterSpec((NodeGroup("gpu", 1024, 4096),))
"""For histories: only run times are read, on whatever GPUs."""


@dataclass
class SlurmWatch:
    """A policy at work on a Slurm.

    Raises, in each method: what `SlurmClient` and `advise` raise.
    """

    client: SlurmClient
    policy: str
    options: AdviceOptions = AdviceOptions()
    levers: Levers = Levers()
    history: JobHistory = NO_HISTORY
    """Past jobs."""
    told: Callable[[str], None] = lambda _: None
    """Called with what a person should know."""
    _before: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.entry: PolicyEntry = find_policy(self.policy)

    def look(self) -> tuple[SlurmQueue, SlurmAdvice, list[SlurmChange]]:
        """The queue, the advice, and what would have to change."""
        queue = self.client.queue()
        if queue.now < self._before - 1.0:
            self.told(f"the clock went back by {self._before - queue.now:.0f} s; times from now on go by the new one")
        self._before = queue.now
        advice = advise(queue, self.entry, learn_history(queue, self.history), self.options)
        advice = replace(advice, past_left_out=self.history.no_lengths())
        return queue, advice, changes(queue, advice, self.levers)

    def step(self) -> tuple[SlurmAdvice, AppliedChanges]:
        """Looks, and carries it out."""
        _, advice, wanted = self.look()
        return advice, apply_changes(self.client, wanted)

    def restore(self, holds_only: bool = False) -> AppliedChanges:
        """Gives jobs back what they had before the first change; or releases those that were held, and leaves the rest."""
        return apply_changes(self.client, plan_restoration(self.client.queue(), holds_only))

    def watch(self, sleep: Callable[[], bool], show: Callable[[SlurmAdvice, AppliedChanges], None]) -> None:
        """Steps until `sleep` says that it is enough. A Slurm that does not answer for a while is waited for, once it has
        answered; jobs that are held are released in the end, however it comes."""
        answered = False
        try:
            while True:
                try:
                    show(*self.step())
                    answered = True
                except SlurmUnavailable as error:
                    if not answered:
                        raise
                    self.told(f"{error.sentence}; it is asked again")
                if not sleep():
                    return
        finally:
            if self.levers.hold and answered:
                try:
                    self.restore(holds_only=True)
                except BricolageError as error:
                    self.told(
                        f"held jobs were not released: {error.sentence}; `bricolage cluster slurm restore` does so"
                    )


def past_jobs(client: SlurmClient, path: Path | None, days: int, told: Callable[[str], None]) -> JobHistory:
    """From a file, or from Slurm's accounting; none where that is off.

    Raises:
        MissingFile, UnknownHistory, BadHistory: of the file, as `read_history` has it.
        SlurmUnavailable: accounting does not answer.
    """
    if path is not None:
        return read_history(path, _ANY)
    text = client.history(days)
    if text is None:
        told("Slurm's accounting is off: predictions go by the jobs that its controller remembers (or give --history)")
        return NO_HISTORY
    name, odd = Path("sacct"), OddLines()
    try:
        return read_sacct(name, records(name, io.StringIO(text, newline=""), "|", odd), _ANY, odd)
    except UnknownHistory:  # nothing with a GPU has ended yet
        return NO_HISTORY
