"""What the processes of these tests do."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from bricolage.train.run.rank import Rank


@dataclass(frozen=True)
class Number:
    """Of a rank, or a sum of them."""

    value: int


def add(job: Number, rank: Rank) -> Number:
    """The sum over all processes, by gloo and by the store."""
    tensor = torch.tensor([job.value])
    rank.dist.all_reduce(tensor)
    rank.add("sum", job.value)
    rank.dist.barrier()
    assert rank.add("sum", 0) == int(tensor)
    return Number(int(tensor))


def hang(job: Number, rank: Rank) -> Number:
    """One never comes to the sum."""
    if rank.number == 1:
        time.sleep(600)
    return add(job, rank)
