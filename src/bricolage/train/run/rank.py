"""What a process of a training's group does (`measure.group`): it imports PyTorch, meets the others by gloo, and works.

A piece of work is a function of a module, given a job (a dataclass, which comes as JSON) and the process's `Rank`; what it returns,
another dataclass, is the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from bricolage.base.codec import decode, encode
from bricolage.base.torch_library import load_torch
from bricolage.device.device import Device
from bricolage.measure.launch import EntryPoint
from bricolage.measure.worker_loop import Commands, Tell, import_function

# What the first optimiser of each process would import, and what the first module that it traces would.
_LATE = ("torch._dynamo", "torch._functorch.aot_autograd", "torch.distributed.pipelining")
MODULES = ("torch", *_LATE, "bricolage.train.run.rank")
ENTRY = EntryPoint("bricolage.train.run.rank:commands", MODULES)


class NumberStore(Protocol):
    """Of `torch.distributed.Store` what is used here: numbers by name, that are common to all."""

    def add(self, key: str, amount: int, /) -> int:
        """Adds to a number, zero at first; what it is then."""


@dataclass(frozen=True)
class Rank:
    """One process of a group."""

    number: int
    size: int
    folder: Path
    """Of all; it is deleted with the group."""
    store: NumberStore | None = None
    """None where they have not met."""
    device: str = "cpu"
    """Of PyTorch, where its modules and batches lie."""

    @property
    def dist(self) -> Any:
        """`torch.distributed`, whose default group has all processes where they have met."""
        return load_torch().distributed

    def add(self, name: str, number: int) -> int:
        """Adds to a number that is common to all, zero at first; what it is then."""
        assert self.store is not None
        return int(self.store.add(name, number))


class _Process:
    """The commands."""

    def __init__(self) -> None:
        self._rank: Rank | None = None

    def join(self, rank: int, size: int, store: str, timeout_s: float) -> dict[str, object]:
        """Meets the others. Later, too, one that waits for another fails after `timeout_s` seconds."""
        torch = load_torch()
        file_store = torch.distributed.FileStore(store, size)
        limit = timedelta(seconds=timeout_s)
        torch.distributed.init_process_group("gloo", store=file_store, rank=rank, world_size=size, timeout=limit)
        self._rank = Rank(rank, size, Path(store).parent, file_store)
        return {}

    def work(self, work: str, kind: str, job: object, folder: str) -> dict[str, object]:
        """Does a piece of work on a job."""
        rank = self._rank or Rank(0, 1, Path(folder))
        return {"answer": encode(import_function(work)(decode(import_function(kind), job, "job"), rank))}  # type: ignore[arg-type]


def ready(threads: int) -> Mapping[str, object]:
    """Imports PyTorch, and limits it to a number of threads."""
    load_torch().set_num_threads(threads)
    return {}


def commands(_device: Device, _tell: Tell) -> Commands:
    """By name (`measure.worker_loop`)."""
    process = _Process()
    return {"ready": ready, "join": process.join, "work": process.work}
