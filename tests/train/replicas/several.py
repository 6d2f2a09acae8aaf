"""A group that does several jobs one after another, so that PyTorch is imported once for all of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bricolage.train.replicas import replica_worker
from bricolage.train.replicas.replica_worker import STATE, ReplicaAnswer, ReplicaJob
from bricolage.train.run.rank import Rank


@dataclass(frozen=True)
class Several:
    """Jobs of one process."""

    jobs: tuple[ReplicaJob, ...]


@dataclass(frozen=True)
class Answers:
    """Of each job."""

    each: tuple[ReplicaAnswer, ...]


def work(job: Several, rank: Rank) -> Answers:
    """One after another; the weights of job n are left in `n.pt`."""
    found = []
    for number, one in enumerate(job.jobs):
        found.append(replica_worker.work(one, rank))
        if rank.number == 0:
            Path(rank.folder, STATE).rename(Path(rank.folder, f"{number}.pt"))
    return Answers(tuple(found))
