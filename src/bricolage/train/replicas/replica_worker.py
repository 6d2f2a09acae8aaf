"""One of several processes that train replicas of one model, or serve them (see `train.run.rank`)."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bricolage.errors import BadTrainingCode
from bricolage.train.replicas.flat import Flat
from bricolage.train.replicas.gloo_peers import GlooPeers
from bricolage.train.replicas.parameter_server import ParameterServer
from bricolage.train.replicas.peers import Peers
from bricolage.train.replicas.replica_spec import LOCKSTEP, SERVED, Method, Replicas
from bricolage.train.replicas.synchronisers import SYNCHRONISERS, Synchroniser
from bricolage.train.run.rank import Rank
from bricolage.train.step.data import Data, Samples, read_data
from bricolage.train.step.evaluate import evaluate_module, loss_value
from bricolage.train.step.step import build, find_loss

if TYPE_CHECKING:
    import torch

STATE = "state.pt"
"""Where the first worker leaves the weights, in the group's folder."""
_POINTS = 20
"""Of a course, about."""


@dataclass(frozen=True)
class ReplicaJob:
    """What all processes do: ranks from `workers` on are servers."""

    replicas: Replicas
    method: Method
    servers: int
    seed: int


@dataclass(frozen=True)
class Point:
    """How far training was: seconds, samples of all workers, and what the first worker's weights were worth on held-out data."""

    seconds: float
    samples: int
    loss: float
    accuracy: float | None


@dataclass(frozen=True)
class ReplicaAnswer:
    """What became of one process."""

    seconds: float = 0.0
    """From the first step of all to the end of the last."""
    steps: int = 0
    samples: int = 0
    batch: int = 0
    """Of the last step."""
    sent_bytes: int = 0
    weight: float = 0.0
    """This replica's part in the sum of gossip."""
    ahead: int = 0
    """Of a server: steps by which a worker went on beyond the slowest, at most."""
    staleness: float = 0.0
    """Of a server: updates of others between reading weights and applying a gradient, on average."""
    loss: float | None = None
    accuracy: float | None = None
    course: tuple[Point, ...] = ()


def work(job: ReplicaJob, rank: Rank) -> ReplicaAnswer:
    """Trains, or serves, as one process of a group. Servers whose number is beyond the job's have nothing to do."""
    peers = GlooPeers(rank, job.replicas.workers)
    answer = ReplicaAnswer()
    if rank.number < job.replicas.workers + job.servers:
        answer = take_part(job, peers, rank.folder)
    rank.dist.barrier()
    return answer


def take_part(job: ReplicaJob, peers: Peers, folder: Path, data: Data | None = None) -> ReplicaAnswer:
    """Trains, or serves where the rank is beyond the workers'.

    Args:
        job: of all.
        peers: the others.
        folder: for the weights of the first worker.
        data: what the job's data are, where they were read before.
    """
    replicas, method = job.replicas, job.method
    step = build(replace(replicas.step, seed=job.seed))
    flat = Flat(step.module)
    optimiser = replicas.step.optimiser
    if peers.rank >= replicas.workers:
        begin, end = flat.shards(job.servers)[peers.rank - replicas.workers]
        share = (end - begin) / len(flat)
        served = ParameterServer(flat.weights[begin:end], method, optimiser, peers, share).serve()
        stale = sum(served.staleness) / len(served.staleness) if served.staleness else 0.0
        return ReplicaAnswer(sent_bytes=peers.sent_bytes, ahead=served.ahead, staleness=stale)
    peers.watch(flat)
    synchroniser = SYNCHRONISERS[method.kind](flat, method, optimiser, peers, job.seed)
    return _train(job, data or read_data(replicas.step, replicas.data), synchroniser, folder)


def servers(method: Method, parameters: int) -> int:
    """How many servers a method has for a module, by its number of parameters."""
    return min(method.servers, parameters) if method.kind in SERVED else 0


def _train(job: ReplicaJob, data: Data, synchroniser: Synchroniser, folder: Path) -> ReplicaAnswer:
    import torch

    replicas, method, flat, peers = job.replicas, job.method, synchroniser.flat, synchroniser.peers
    assert data.train is not None
    share = Share(data.train, peers.rank, replicas.workers, job.seed)
    size = replicas.step.batch_size
    epoch = len(data.train) // (size * replicas.workers)
    if epoch < 1:
        reason = f"it has {len(data.train)} samples, and {replicas.workers} workers take {size} each for a step"
        raise BadTrainingCode(place=replicas.data, reason=reason)
    steps = replicas.steps if replicas.steps is not None else (replicas.epochs or 1) * epoch
    whole = steps * size * replicas.workers
    if method.similarity is not None:
        synchroniser.batch = min(size, len(data.train) // replicas.workers)
    first_lr = method.lr if method.lr is not None else replicas.step.optimiser.lr
    loss_of = find_loss(replicas.step.loss, replicas.step.folder)
    late = replicas.straggler_ms / 1e3 if peers.rank == replicas.workers - 1 else 0.0
    kept: list[tuple[float, int, dict[str, torch.Tensor]]] = []
    torch.manual_seed(job.seed * 1_000_003 + peers.rank)
    peers.barrier()
    begun = peers.seconds()
    samples = own_samples = last = 0
    lockstep = method.kind in LOCKSTEP
    name = f"samples of {method.label} {job.seed}"
    while samples < whole:
        lr = first_lr * replicas.decay ** sum(samples >= at * whole for at in replicas.decay_at)
        now = size if synchroniser.batch is None else min(synchroniser.batch, share.most)
        if lockstep:
            samples += now * replicas.workers
        else:  # who is faster takes more of them
            samples = peers.add(name, now)
            if samples - now >= whole:
                break
        own_samples += now
        batch = share.next(now)
        synchroniser.begin(lr, samples / len(data.train))
        if late:
            peers.pause(late)
        flat.gradient.zero_()
        peers.begin_gradient()
        loss_value(loss_of(synchroniser.module(*batch.inputs), *batch.targets), replicas.step.loss).backward()
        peers.finish_gradient()
        synchroniser.step()
        if peers.rank == 0 and samples * _POINTS // whole > last:
            last = samples * _POINTS // whole
            kept.append((peers.seconds() - begun, samples, _state(flat)))
    synchroniser.finish()
    _average_buffers(synchroniser)
    seconds = peers.seconds() - begun
    if peers.rank == 0 and not kept:  # the others were faster and took all samples
        kept.append((seconds, whole, _state(flat)))
    answer = ReplicaAnswer(seconds, synchroniser.steps, own_samples, now, peers.sent_bytes, synchroniser.weight)
    return answer if peers.rank else _add_evaluations(answer, data, flat, kept, folder)


def _add_evaluations(
    answer: ReplicaAnswer, data: Data, flat: Flat, kept: list[tuple[float, int, dict[str, torch.Tensor]]], folder: Path
) -> ReplicaAnswer:
    """With what the weights are worth, in the end and on the way; of the first worker."""
    import torch

    final = evaluate_module(flat.module, data)
    course = []
    for seconds, samples, state in kept:
        evaluation = evaluate_module(flat.module, data, state)
        if evaluation is not None:
            course.append(Point(seconds, samples, _finite(evaluation[0]), evaluation[1]))
    torch.save(
        {name: tensor.detach().clone() for name, tensor in flat.module.state_dict().items()}, Path(folder, STATE)
    )
    if final is None:
        return answer
    return replace(answer, loss=_finite(final[0]), accuracy=final[1], course=tuple(course))


def _finite(loss: float) -> float:
    """JSON has no infinity."""
    return loss if math.isfinite(loss) else sys.float_info.max


def _state(flat: Flat) -> dict[str, torch.Tensor]:
    return {
        name: tensor.detach().clone()
        for name, tensor in (*flat.module.named_parameters(), *flat.module.named_buffers())
    }


def _average_buffers(synchroniser: Synchroniser) -> None:
    """Running statistics are the mean of all workers'; counts are the first one's."""
    for buffer in synchroniser.flat.module.buffers():
        if buffer.is_floating_point():
            synchroniser.peers.mean(buffer)


class Share:
    """One worker's share of the data: of each epoch's permutation, which is common, the samples rank, rank + workers ...; so what
    all workers see in a step are consecutive samples of it."""

    def __init__(self, data: Samples, rank: int, workers: int, seed: int) -> None:
        import torch

        self.most = len(data) // workers
        """Samples of a step, at most."""
        self._data, self._rank, self._workers = data, rank, workers
        self._generator = torch.Generator().manual_seed(seed)
        self._order = self._permutations()
        self._left = next(self._order)

    def _permutations(self) -> Iterator[torch.Tensor]:
        import torch

        while True:
            yield torch.randperm(len(self._data), generator=self._generator)

    def next(self, size: int) -> Samples:
        """The next `size` samples; what is left over at the end of an epoch is left out."""
        if len(self._left) < size * self._workers:
            self._left = next(self._order)
        now, self._left = self._left[: size * self._workers], self._left[size * self._workers :]
        return self._data.rows(now[self._rank :: self._workers])
