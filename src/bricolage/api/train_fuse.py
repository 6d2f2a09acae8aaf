"""A sweep of small models, trained as one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bricolage.base.progress import Progress
from bricolage.train.fuse.fuse import FusedSweep, How, parse_how, train_sweep
from bricolage.train.fuse.sweep import Sweep, read_sweep


@dataclass(frozen=True)
class SweepRequest:
    """A sweep, and the way to train its lanes."""

    sweep: Sweep
    how: How


def open_sweep(path: Path, how: str = "auto") -> SweepRequest:
    """The sweep that a file describes, to be trained in a way that `how` names.

    Raises:
        BadOption: there is no such way.
        MissingFile, BadTrainingSpec: the file cannot be used.
    """
    way = parse_how(how)
    return SweepRequest(read_sweep(path), way)


def fuse_lanes(
    request: SweepRequest,
    *,
    threads: int | None = None,
    memory_bytes: int | None = None,
    progress: Progress | None = None,
) -> FusedSweep:
    """Trains all lanes of a sweep: those of equal layers and shapes as one where that is fastest here.

    Args:
        request: of `open_sweep`.
        threads: cores to use; all by default.
        memory_bytes: that lanes which are trained as one may take; by default most of what is free.
        progress: told about samples.

    Raises:
        MissingLibrary, BadTrainingCode, TrainingWorkerFailed: as `train_sweep`.
    """
    return train_sweep(request.sweep, request.how, threads, progress, memory_limit=memory_bytes)
