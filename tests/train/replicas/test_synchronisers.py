"""Invariants of methods among workers and servers of one process, whose messages take simulated time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bricolage.device.collective import Ring
from bricolage.device.device import Link
from bricolage.train.replicas.flat import Flat
from bricolage.train.replicas.parameter_server import ParameterServer
from bricolage.train.replicas.replica_spec import Method
from bricolage.train.replicas.simulated_peers import SimulatedNetwork, SimulatedPeers
from bricolage.train.replicas.step_times import ReplicaStepTimes
from bricolage.train.replicas.synchronisers import SYNCHRONISERS, Synchroniser
from bricolage.train.replicas.virtual_time import VirtualTime
from bricolage.train.step.spec import Optimiser

torch = pytest.importorskip("torch")
STEPS = 24
STEP_S = 1e-3


def run(
    method: Method,
    workers: int,
    gradient: Callable[[int, Any], Any],
    lr: float = 0.1,
    start: Callable[[int], float] | None = None,
    late_s: float = 0.0,
) -> tuple[list[Synchroniser], ParameterServer | None, list[Any]]:
    """Trains on made-up gradients, one of a step and a worker's weights; synchronisers, the server, and weights at the start. The
    last worker's steps are longer by `late_s`."""
    time = VirtualTime()
    network = SimulatedNetwork(time, Ring.described(workers, Link(("0", "1"), 0.1, 20.0)))
    times = ReplicaStepTimes.given(STEP_S, [12, 3])
    served = method.kind in ("bsp", "asp", "ssp", "easgd")
    keepers: dict[int, Synchroniser] = {}
    started: dict[int, Any] = {}
    servers: list[ParameterServer] = []
    torch.manual_seed(0)
    first = Flat(torch.nn.Linear(4, 3)).weights

    def work(rank: int) -> None:
        flat = Flat(torch.nn.Linear(4, 3))
        flat.weights.copy_(first + (start(rank) if start else 0.0))
        started[rank] = flat.weights.clone()
        peers = SimulatedPeers(network, rank, workers, times, 0)
        keeper = SYNCHRONISERS[method.kind](flat, method, Optimiser("sgd", lr), peers, 0)
        keepers[rank] = keeper
        for step in range(STEPS):
            peers.pause(STEP_S + (late_s if rank == workers - 1 else 0.0))
            keeper.begin(lr, 0.0)
            flat.gradient.copy_(gradient(rank, step) * torch.ones_like(flat.gradient))
            keeper.step()
        if method.kind == "easgd":
            started[rank + workers] = flat.weights.clone()
        keeper.finish()

    def serve() -> None:
        server = ParameterServer(
            first, method, Optimiser("sgd", lr), SimulatedPeers(network, workers, workers, times, 0)
        )
        servers.append(server)
        server.serve()

    workers_ = [lambda rank=rank: work(rank) for rank in range(workers)]
    time.run([*workers_, serve] if served else workers_)
    return (
        [keepers[rank] for rank in range(workers)],
        servers[0] if served else None,
        [started[rank] for rank in sorted(started)],
    )


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_elastic_averaging_keeps_the_sum_where_nothing_is_learnt(workers: int) -> None:
    method = Method("easgd", period=1)
    _, server, states = run(method, workers, lambda *_: 0.0, start=float)
    assert server is not None
    before, after = states[:workers], states[workers:]
    centre = states[0]  # of rank 0, which starts where the centre does
    torch.testing.assert_close(sum(after) + server.weights, sum(before) + centre, rtol=1e-4, atol=1e-4)
    spread = max(float((one - after[0]).abs().max()) for one in after)
    assert spread < 0.5 * (workers - 1), "replicas come together"


@pytest.mark.parametrize("staleness", [0, 1, 4])
def test_nobody_is_further_ahead_than_allowed(staleness: int) -> None:
    _, server, _ = run(Method("ssp", staleness=staleness), 3, lambda *_: 1.0, late_s=8 * STEP_S)
    assert server is not None and server.seen.ahead == staleness
    assert server.seen.updates == 3 * STEPS


def test_every_gradient_is_applied_once() -> None:
    for kind, updates in (("asp", 3 * STEPS), ("ssp", 3 * STEPS), ("bsp", STEPS)):
        keepers, server, states = run(Method(kind), 3, lambda rank, _: float(rank))  # type: ignore[arg-type]
        assert server is not None and server.seen.updates == updates
        moved = 0.1 * STEPS * (0 + 1 + 2) / (3 if kind == "bsp" else 1)
        torch.testing.assert_close(server.weights, states[0] - moved, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(keepers[0].flat.weights, server.weights)


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_parts_of_gossip_add_up_to_one(workers: int) -> None:
    keepers, _, states = run(Method("gosgd", probability=0.7), workers, lambda *_: 0.0, start=float)
    assert sum(one.weight for one in keepers) == pytest.approx(1.0)
    # Without gradients the weighted sum stays the mean of where all began.
    torch.testing.assert_close(keepers[0].flat.weights, sum(states) / workers, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("workers", [2, 3, 4])
def test_neighbours_keep_the_mean_and_come_together(workers: int) -> None:
    keepers, _, states = run(Method("adpsgd"), workers, lambda *_: 0.0, start=float)
    torch.testing.assert_close(keepers[0].flat.weights, sum(states) / workers, rtol=1e-4, atol=1e-4)
    shared = [one._shared for one in keepers]  # type: ignore[attr-defined]
    assert max(float((one - shared[0]).abs().max()) for one in shared) < 0.5 * (workers - 1)


def test_local_steps_are_averaged_in_the_end() -> None:
    keepers, _, states = run(Method("local", period=5), 3, lambda rank, _: float(rank))
    for one in keepers:
        torch.testing.assert_close(one.flat.weights, states[0] - 0.1 * STEPS, rtol=1e-4, atol=1e-4)
