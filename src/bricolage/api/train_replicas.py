"""One model trained by several workers, which one of several methods keeps in step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from bricolage.base.progress import Progress
from bricolage.train.replicas.replica_spec import Replicas, override_replicas, read_replicas
from bricolage.train.replicas.replicas import TrainedReplicas, train_replicas


def open_replicas(
    path: Path,
    *,
    methods: Sequence[str] | None = None,
    workers: int | None = None,
    straggler_ms: float | None = None,
) -> Replicas:
    """The training that a file describes, with what is given instead: kinds of methods, the number of workers, and the delay added
    to each step of the last worker, in milliseconds.

    Raises:
        MissingFile, BadTrainingSpec: the file cannot be used, or a method cannot train what it says.
        BadOption: there is no such method.
    """
    return override_replicas(read_replicas(path), path, methods, workers, straggler_ms)


def train_methods(
    replicas: Replicas, *, threads: int | None = None, seeds: int = 1, progress: Progress | None = None
) -> Iterator[TrainedReplicas]:
    """Trains by each method, with each of `seeds` seeds from the training step's on: what became of it, one after another.

    Args:
        replicas: what is trained, on what, by how many, by which methods.
        threads: of each worker; by default cores divided by workers.
        seeds: runs of each method.
        progress: told about runs.

    Raises:
        MissingLibrary, BadTrainingCode, TrainingWorkerFailed: as `train_replicas`.
    """
    for method in replicas.methods:
        for number in range(seeds):
            seed = replicas.step.seed + number
            yield train_replicas(replicas, method, threads=threads, seed=seed, progress=progress)
