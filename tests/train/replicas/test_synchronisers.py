"""Invariants of methods among threads of one process, which pass messages through queues."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest

from bricolage.train.replicas.flat import Flat
from bricolage.train.replicas.parameter_server import ParameterServer
from bricolage.train.replicas.replica_spec import Method
from bricolage.train.replicas.synchronisers import SYNCHRONISERS, Synchroniser
from bricolage.train.step.spec import Optimiser

torch = pytest.importorskip("torch")
STEPS = 24


class Post:
    """Letter boxes of all."""

    def __init__(self, count: int) -> None:
        self.letters: list[queue.Queue[Any]] = [queue.Queue() for _ in range(count)]
        self.answers = {(a, b): queue.Queue() for a in range(count) for b in range(count)}  # type: ignore[var-annotated]
        self.barrier = threading.Barrier(count - 1)
        self.sums: dict[int, Any] = {}


class ThreadPeers:
    """One of several threads; the messages of `Peers`."""

    def __init__(self, post: Post, rank: int, workers: int) -> None:
        self.post, self.rank, self.size, self.sent_bytes = post, rank, workers, 0

    def tell(self, to: int, kind: int, vector: Any, clock: float = 0.0, lr: float = 0.0) -> None:
        self.post.letters[to].put((self.rank, kind, clock, lr, vector.clone()))

    def listen(self, _: Any) -> Any:
        return self.post.letters[self.rank].get(timeout=20)

    def answer(self, to: int, vector: Any) -> None:
        self.post.answers[self.rank, to].put(vector.clone())

    def hear(self, source: int, into: Any) -> None:
        into.copy_(self.post.answers[source, self.rank].get(timeout=20))

    def settle(self) -> None:
        pass

    def mean(self, tensor: Any) -> None:
        self.post.sums[self.rank] = tensor.clone()
        self.post.barrier.wait(20)
        total = sum(self.post.sums.values()) / self.size
        self.post.barrier.wait(20)
        tensor.copy_(total)


def run(
    method: Method,
    workers: int,
    gradient: Callable[[int, Any], Any],
    lr: float = 0.1,
    start: Callable[[int], float] | None = None,
) -> tuple[list[Synchroniser], ParameterServer | None, list[Any]]:
    """Trains threads on made-up gradients, one of a step and a worker's weights; keepers, the server, and weights at the start."""
    post = Post(workers + 1)
    served = method.kind in ("bsp", "asp", "ssp", "easgd")
    keepers: dict[int, Synchroniser] = {}
    started: dict[int, Any] = {}
    failed: list[BaseException] = []
    torch.manual_seed(0)
    first = Flat(torch.nn.Linear(4, 3)).weights
    server = (
        ParameterServer(first, method, Optimiser("sgd", lr), ThreadPeers(post, workers, workers)) if served else None
    )  # type: ignore[arg-type]

    def work(rank: int) -> None:
        try:
            flat = Flat(torch.nn.Linear(4, 3))
            flat.weights.copy_(first + (start(rank) if start else 0.0))
            started[rank] = flat.weights.clone()
            peers = ThreadPeers(post, rank, workers)
            keeper = SYNCHRONISERS[method.kind](flat, method, Optimiser("sgd", lr), peers, 0)  # type: ignore[arg-type]
            keepers[rank] = keeper
            for step in range(STEPS):
                keeper.begin(lr, 0.0)
                flat.gradient.copy_(gradient(rank, step) * torch.ones_like(flat.gradient))
                keeper.step()
            if method.kind == "easgd":
                started[rank + workers] = flat.weights.clone()
            keeper.finish()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(workers)]
    if server is not None:
        threads.append(threading.Thread(target=server.serve))
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
        assert not one.is_alive(), "it hangs"
    assert not failed, failed
    return [keepers[rank] for rank in range(workers)], server, [started[rank] for rank in sorted(started)]


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
    import time

    def slow(rank: int, _: int) -> float:
        time.sleep(0.004 if rank == 2 else 0.0)
        return 1.0

    _, server, _ = run(Method("ssp", staleness=staleness), 3, slow)
    assert server is not None and server.seen.ahead <= staleness + 1
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
