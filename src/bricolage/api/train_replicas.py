"""One model trained by several workers, which one of several methods keeps in step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from bricolage.base.progress import Progress
from bricolage.errors import BadOption
from bricolage.train.replicas.replica_spec import Replicas, override_replicas, read_replicas
from bricolage.train.replicas.replicas import TrainedReplicas, train_replicas
from bricolage.train.replicas.simulate_replicas import (
    ReplicaMachines,
    describe_machines,
    measure_machines,
    simulate_replicas,
)


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


def open_machines(
    replicas: Replicas,
    *,
    gbytes: float | None = None,
    latency_us: float | None = None,
    step_ms: float | None = None,
    threads: int | None = None,
) -> ReplicaMachines:
    """Where a simulation has the workers: with links of `gbytes` 10⁹ bytes a second and cores of their own; without it on this
    machine, whose cores they share, with what gloo takes between its processes.

    Args:
        replicas: how many workers there are.
        gbytes: bandwidth of each link, in either direction.
        latency_us: of each link, 0 by default.
        step_ms: of the forward and backward phase of a worker; measured by default.
        threads: of each worker, 1 by default.

    Raises:
        BadOption: a latency without a bandwidth.
        MissingLibrary: PyTorch is not installed.
        TrainingWorkerFailed: a process that measures ends.
    """
    if gbytes is not None:
        return describe_machines(replicas.workers, gbytes, latency_us or 0.0, step_ms, threads or 1)
    if latency_us is not None:
        raise BadOption(option="--latency", value=f"{latency_us:g}", advice="Give --bandwidth, too")
    return measure_machines(replicas, threads or 1, step_ms)


def train_methods(
    replicas: Replicas,
    *,
    threads: int | None = None,
    seeds: int = 1,
    progress: Progress | None = None,
    machines: ReplicaMachines | None = None,
) -> Iterator[TrainedReplicas]:
    """Trains by each method, with each of `seeds` seeds from the training step's on: what became of it, one after another.

    Args:
        replicas: what is trained, on what, by how many, by which methods.
        threads: of each worker; by default cores divided by workers.
        seeds: runs of each method.
        progress: told about runs.
        machines: where it is simulated to run; None: it runs here, in processes.

    Raises:
        MissingLibrary, BadTrainingCode, TrainingWorkerFailed: as `train_replicas`.
    """
    for method in replicas.methods:
        for number in range(seeds):
            seed = replicas.step.seed + number
            if machines is None:
                yield train_replicas(replicas, method, threads=threads, seed=seed, progress=progress)
            else:
                yield simulate_replicas(replicas, machines, method, seed=seed, progress=progress)
