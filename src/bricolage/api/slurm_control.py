"""A policy for a Slurm cluster that runs already: `bricolage cluster slurm`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bricolage.cluster.slurm.advice import AdviceOptions, JobAdvice, SlurmAdvice
from bricolage.cluster.slurm.commands import SlurmClient
from bricolage.cluster.slurm.job_changes import AppliedChanges, Levers, SlurmChange
from bricolage.cluster.slurm.watch import SlurmWatch, past_jobs
from bricolage.errors import BadOption

__all__ = [
    "AppliedChanges",
    "SlurmOptions",
    "SlurmStep",
    "advise_slurm",
    "apply_to_slurm",
    "restore_slurm",
    "watch_slurm",
]


@dataclass(frozen=True)
class SlurmOptions:
    """Which policy orders the jobs that wait, what it goes by, and what of its advice is carried out."""

    policy: str = "easy"
    history: Path | None = None
    """Past jobs, as `sacct` prints them; None: `sacct` is asked."""
    days: int = 30
    """Of past jobs that `sacct` is asked for."""
    risk: float = 0.05
    """Share of jobs that may reach a lowered limit."""
    limits: bool = True
    """Lower time limits to what history allows."""
    order: bool = True
    """Set nice values in the policy's order."""
    hold: bool = False
    """Instead of nice values: hold jobs that are not to start, release those that are."""


@dataclass(frozen=True)
class SlurmStep:
    """One look at a Slurm, and what follows from it."""

    advice: SlurmAdvice
    changes: tuple[SlurmChange, ...]
    """That were made, or would be."""
    applied: AppliedChanges | None = None
    """None where nothing was changed."""
    explained: tuple[JobAdvice, ...] = ()
    """The jobs that were asked about."""


def advise_slurm(
    options: SlurmOptions = SlurmOptions(),
    *,
    why: Sequence[str] = (),
    note: Callable[[str], None] = lambda _: None,
) -> SlurmStep:
    """When jobs start and end, in which order, and which limits would do. Changes nothing.

    Args:
        options: the policy, and what it goes by.
        why: numbers of jobs that are asked about.
        note: called with what a person should know.

    Raises:
        BadOption: a job of `why` neither runs nor waits.
        UnknownPolicy, PolicyRefuses: the policy does not exist, or cannot serve these jobs.
        MissingFile, UnknownHistory, BadHistory: the file of past jobs cannot be used.
        SlurmUnavailable, SlurmTooOld, SlurmAnswer, SlurmEmpty: Slurm does not answer, or has no nodes with GPUs.
    """
    _, advice, changes = _open_watch(options, note).look()
    there = {job.job: job for job in advice.jobs}
    for name in why:
        if name not in there:
            raise BadOption(option="--why", value=name, advice="Give the number of a job that runs or waits")
    return SlurmStep(advice, tuple(changes), explained=tuple(there[name] for name in why))


def apply_to_slurm(
    options: SlurmOptions = SlurmOptions(), *, note: Callable[[str], None] = lambda _: None
) -> SlurmStep:
    """Sets time limits and nice values once, as advised.

    Args:
        options: the policy, what it goes by, and what is carried out.
        note: called with what a person should know.

    Raises:
        SlurmRefused: Slurm refuses a change; those before it stand.
        And as `advise_slurm`.
    """
    advice, applied = _open_watch(options, note).step()
    return SlurmStep(advice, applied.made, applied)


def watch_slurm(
    options: SlurmOptions = SlurmOptions(),
    *,
    every_s: float = 60.0,
    looks: int = 0,
    show: Callable[[SlurmStep], None] = lambda _: None,
    note: Callable[[str], None] = lambda _: None,
) -> None:
    """Looks and carries out what is advised, again and again; jobs that outrun what history says get their own limit back, and in
    the end those that are held are released.

    Args:
        options: the policy, what it goes by, and what is carried out.
        every_s: seconds between two looks.
        looks: how many; 0: until the process is ended.
        show: called after each look.
        note: called with what a person should know.

    Raises:
        As `apply_to_slurm`; but a Slurm that has answered once is asked again.
    """
    watch = _open_watch(options, note)
    done = 0

    def wait_for_next() -> bool:
        nonlocal done
        done += 1
        if looks and done >= looks:
            return False
        time.sleep(every_s)
        return True

    watch.watch(wait_for_next, lambda advice, applied: show(SlurmStep(advice, applied.made, applied)))


def restore_slurm() -> AppliedChanges:
    """Gives all jobs the limits and nice values back that they had, and releases those that were held.

    Raises:
        SlurmRefused: Slurm refuses a change; those before it stand.
        SlurmUnavailable, SlurmTooOld, SlurmAnswer: Slurm does not answer.
    """
    return SlurmWatch(SlurmClient(), "easy").restore()


def _open_watch(options: SlurmOptions, note: Callable[[str], None]) -> SlurmWatch:
    client = SlurmClient()
    watch = SlurmWatch(
        client,
        options.policy,
        AdviceOptions(options.risk, options.limits),
        Levers(options.limits, options.order, options.hold),
        told=note,
    )
    client.version()
    watch.history = past_jobs(client, options.history, options.days, note)
    return watch
