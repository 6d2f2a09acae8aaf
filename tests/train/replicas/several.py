"""A team that does several jobs one after another, so that PyTorch is imported once for all of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bricolage.train.replicas.worker import STATE, ReplicaAnswer, ReplicaJob, take
from bricolage.train.team import meet


@dataclass(frozen=True)
class Several:
    """Jobs of one process."""

    jobs: tuple[ReplicaJob, ...]
    size: int
    """Processes in all."""


@dataclass(frozen=True)
class Answers:
    """Of each job."""

    each: tuple[ReplicaAnswer, ...]


def work(job: Several, folder: Path) -> Answers:
    """One after another; the weights of job n are left in `n.pt`."""
    meeting = meet(folder, job.jobs[0].rank, job.size, 1)
    found = []
    for number, one in enumerate(job.jobs):
        found.append(take(one, meeting, folder))
        if one.rank == 0:
            Path(folder, STATE).rename(Path(folder, f"{number}.pt"))
    return Answers(tuple(found))
