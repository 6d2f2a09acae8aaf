"""Trains replicas of one model by each of several methods, and says what each is worth: accuracy, time, bytes."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

from bricolage.base.options import available_cores
from bricolage.base.progress import Progress, Silent
from bricolage.base.torch_library import load_torch
from bricolage.errors import BadTrainingCode
from bricolage.train.replicas.flat import Flat
from bricolage.train.replicas.means import ROUNDING, mean_of_means_error
from bricolage.train.replicas.replica_spec import LOCKSTEP, Method, Replicas
from bricolage.train.replicas.replica_worker import STATE, Point, ReplicaAnswer, ReplicaJob, servers, work
from bricolage.train.run.process_group import run_group
from bricolage.train.step.data import read_data
from bricolage.train.step.step import build

if TYPE_CHECKING:
    import torch

_LIMIT_S = 7 * 24 * 3600.0


@dataclass(frozen=True)
class ReplicasResult:
    """What became of one method."""

    method: Method
    seed: int
    workers: int
    seconds: float
    """From the first step to the end of the last worker."""
    samples: int
    """Of all workers."""
    steps: int
    """Of all workers."""
    batch: int
    """Of one worker, in its last step."""
    sent_bytes: int
    """By all workers and servers, for training; in rings where that is how it is done."""
    loss: float | None
    """On held-out data; None without such data."""
    accuracy: float | None
    """None where targets are no classes."""
    ahead: int
    """Steps by which a worker was beyond the slowest, at most; as far as servers see it."""
    staleness: float
    """Updates of others between reading weights and applying a gradient, on average; as far as servers see it."""
    course: tuple[Point, ...]
    mean_of_means: float = 0.0
    """Of a synchronous method: how far the mean of the workers' gradients is from the gradient of their batches together, relative,
    where that is more than rounding: the loss is no mean over samples."""
    simulated: bool = False
    """Whether its seconds are simulated."""

    @property
    def samples_s(self) -> float:
        """Samples a second of all workers."""
        return self.samples / self.seconds

    def first_below(self, loss: float) -> Point | None:
        """The first point of its course with this held-out loss or a lower one; None where it never had one."""
        return next((point for point in self.course if point.loss <= loss), None)

    def at(self, seconds: float) -> Point | None:
        """The last point of its course within `seconds` seconds."""
        return max(
            (point for point in self.course if point.seconds <= seconds), key=lambda point: point.seconds, default=None
        )


@dataclass(frozen=True)
class TrainedReplicas:
    """A method's report, and the weights that it ended with."""

    report: ReplicasResult
    _state: bytes

    def state(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers, by name."""
        tensors: dict[str, torch.Tensor] = load_torch().load(io.BytesIO(self._state), weights_only=True)
        return tensors

    def save(self, file: IO[bytes]) -> None:
        """Writes them as `torch.save` does."""
        file.write(self._state)


def train_replicas(
    replicas: Replicas,
    method: Method | None = None,
    *,
    threads: int | None = None,
    seed: int | None = None,
    progress: Progress | None = None,
) -> TrainedReplicas:
    """Trains by one method, in a process for each worker and each server.

    Args:
        replicas: what is trained, on what, by how many.
        method: by default the first of those that `replicas` has.
        threads: of each worker; by default cores divided by workers.
        seed: of weights and of the data's order, instead of the training step's.
        progress: told when it is done.

    Raises:
        MissingLibrary: PyTorch is not installed.
        BadTrainingCode: a function that the spec names is not there, fails, or returns something else than it should; or there is
            too little data for a step of all workers.
        TrainingWorkerFailed: a process ends; the others are ended, too.
    """
    load_torch()
    shown = progress if progress is not None else Silent()
    chosen = method if method is not None else replicas.methods[0]
    shown.start(f"training ({chosen.label})", 1)
    worker_threads = threads or max(1, available_cores() // replicas.workers)
    count = servers(chosen, check_data(replicas))
    taken = replicas.step.seed if seed is None else seed
    apart = check_means(replicas, chosen, taken)
    jobs = [ReplicaJob(replicas, chosen, count, taken)] * (replicas.workers + count)
    state: list[bytes] = []

    def keep(folder: Path) -> None:
        state.append(Path(folder, STATE).read_bytes())

    answers = run_group(work, jobs, ReplicaAnswer, worker_threads, _LIMIT_S, keep)
    shown.advance(1)
    shown.finish()
    report = make_replicas_result(chosen, taken, answers, replicas.workers)
    return TrainedReplicas(replace(report, mean_of_means=apart), state[0])


def check_means(replicas: Replicas, method: Method, seed: int) -> float:
    """How far the mean of the workers' gradients is from the gradient of their batches together, relative, where a method needs
    them to be equal and the difference is more than rounding; else 0."""
    if method.kind not in LOCKSTEP or replicas.workers < 2:
        return 0.0
    apart = mean_of_means_error(replicas, seed)
    return apart if apart > ROUNDING else 0.0


def check_data(replicas: Replicas) -> int:
    """How many tensors are trained. What is wrong with the module and the data is said here, not by a process.

    Raises:
        MissingLibrary, BadTrainingCode: as `train_replicas` does.
    """
    module = build(replicas.step).module
    try:
        Flat(module)
    except ValueError as error:
        raise BadTrainingCode(place=replicas.step.module, reason=str(error)) from error
    data = read_data(replicas.step, replicas.data)
    assert data.train is not None
    if len(data.train) < replicas.workers * replicas.step.batch_size:
        reason = (
            f"{len(data.train)} samples are too few for {replicas.workers} workers with {replicas.step.batch_size} each"
        )
        raise BadTrainingCode(place=replicas.data, reason=reason)
    return sum(1 for parameter in module.parameters() if parameter.requires_grad)


def make_replicas_result(method: Method, seed: int, answers: Sequence[ReplicaAnswer], count: int) -> ReplicasResult:
    """Of what `count` workers answer, and the servers after them."""
    workers, served = answers[:count], answers[count:]
    lockstep = method.kind in LOCKSTEP
    return ReplicasResult(
        method,
        seed,
        workers=len(workers),
        seconds=max(worker.seconds for worker in workers),
        samples=sum(worker.samples for worker in workers),
        steps=sum(worker.steps for worker in workers),
        batch=workers[0].batch,
        sent_bytes=sum(worker.sent_bytes for worker in (*workers, *served)),
        loss=workers[0].loss,
        accuracy=workers[0].accuracy,
        ahead=max((server.ahead for server in served), default=0),
        staleness=0.0 if lockstep else max((server.staleness for server in served), default=0.0),
        course=workers[0].course,
    )
