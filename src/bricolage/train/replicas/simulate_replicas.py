"""Trains replicas on machines that are described: what workers compute is computed here, one after another, and the seconds that it
would take them are simulated. So losses are those of any number of workers, with any number of cores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from bricolage.base import scratch
from bricolage.base.options import available_cores
from bricolage.base.progress import Progress, Silent
from bricolage.base.torch_library import load_torch
from bricolage.device.collective import Ring
from bricolage.device.device import Link
from bricolage.train.predict.workers import measure_ring
from bricolage.train.replicas.flat import Flat
from bricolage.train.replicas.replica_spec import Method, Replicas
from bricolage.train.replicas.replica_worker import STATE, ReplicaAnswer, ReplicaJob, servers, take_part
from bricolage.train.replicas.replicas import (
    TrainedReplicas,
    check_data,
    check_means,
    make_replicas_result,
)
from bricolage.train.replicas.simulated_peers import SimulatedNetwork, SimulatedPeers
from bricolage.train.replicas.step_times import ReplicaStepTimes, measure_step_times
from bricolage.train.replicas.virtual_time import VirtualTime
from bricolage.train.step.data import Data, read_data
from bricolage.train.step.step import build

_PROBED_S = 1.0
_A_CORE = 2
"""Workers for each core, at most, among which links are measured."""


@dataclass(frozen=True)
class ReplicaMachines:
    """Where workers and servers run."""

    ring: Ring
    """Of the workers; its link leads from any of them to any other, and to servers."""
    cores: int | None = None
    """That all share; None: each has those that it needs."""
    step_ms: float | None = None
    """Of the forward and backward phase of a worker; None: as measured here."""
    threads: int = 1
    """Of a worker, where that is measured."""


def describe_machines(
    workers: int, gbytes: float, latency_us: float, step_ms: float | None = None, threads: int = 1
) -> ReplicaMachines:
    """Workers with cores of their own and equal links of `gbytes` 10⁹ bytes a second."""
    link = Link(("0", "1"), gbytes, latency_us)
    return ReplicaMachines(Ring.described(workers, link), None, step_ms, threads)


def measure_machines(replicas: Replicas, threads: int, step_ms: float | None = None) -> ReplicaMachines:
    """This machine, whose cores all workers share, with what gloo takes among them.

    Raises:
        TrainingWorkerFailed: a process that measures ends.
    """
    cores = max(1, available_cores() // threads)
    probed = max(2, min(replicas.workers, _A_CORE * cores))
    ring, _ = measure_ring(replicas.step, probed, threads, _PROBED_S)
    alone = replace(ring, slows_computing=1.0, slowed=1.0)  # cores that are shared slow them both
    return ReplicaMachines(
        alone if probed == replicas.workers else alone.among(replicas.workers, None), cores, step_ms, threads
    )


def simulate_replicas(
    replicas: Replicas,
    machines: ReplicaMachines,
    method: Method | None = None,
    *,
    seed: int | None = None,
    progress: Progress | None = None,
) -> TrainedReplicas:
    """Trains by one method, in this process. With `machines.step_ms`, two runs have the same result.

    Args:
        replicas: what is trained, on what, by how many.
        machines: where.
        method: by default the first of those that `replicas` has.
        seed: of weights and of the data's order, instead of the training step's.
        progress: told when it is done.

    Raises:
        MissingLibrary, BadTrainingCode: as `train_replicas`.
    """
    load_torch()
    shown = progress if progress is not None else Silent()
    chosen = method if method is not None else replicas.methods[0]
    shown.start(f"simulating ({chosen.label})", 1)
    taken = replicas.step.seed if seed is None else seed
    parameters = check_data(replicas)
    data = read_data(replicas.step, replicas.data)
    job = ReplicaJob(replicas, chosen, servers(chosen, parameters), taken)
    with _threads(machines.threads), scratch.using(scratch.temporary()) as folder:
        apart = check_means(replicas, chosen, taken)
        times = _step_times(job, machines, data)
        answers = _run(job, machines, times, data, folder)
        state = Path(folder, STATE).read_bytes()
    shown.advance(1)
    shown.finish()
    report = make_replicas_result(chosen, taken, answers, replicas.workers)
    return TrainedReplicas(replace(report, mean_of_means=apart, simulated=True), state)


def _step_times(job: ReplicaJob, machines: ReplicaMachines, data: Data) -> ReplicaStepTimes:
    if machines.step_ms is None:
        return measure_step_times(job.replicas, job.method, data, job.seed)
    return ReplicaStepTimes.given(machines.step_ms / 1e3, Flat(build(job.replicas.step).module).sizes)


def _run(
    job: ReplicaJob, machines: ReplicaMachines, times: ReplicaStepTimes, data: Data, folder: Path
) -> list[ReplicaAnswer]:
    """Of workers, then of servers."""
    time = VirtualTime(machines.cores)
    network = SimulatedNetwork(time, machines.ring)
    answers: dict[int, ReplicaAnswer] = {}

    def participant(rank: int) -> Callable[[], None]:
        peers = SimulatedPeers(network, rank, job.replicas.workers, times, job.seed)

        def work() -> None:
            answers[rank] = take_part(job, peers, folder, data)

        return work

    time.run([participant(rank) for rank in range(job.replicas.workers + job.servers)])
    return [answers[rank] for rank in sorted(answers)]


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """PyTorch computes on a number of threads; afterwards its threads and random numbers are as before."""
    torch = load_torch()
    kept, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(kept)
        torch.set_rng_state(state)
