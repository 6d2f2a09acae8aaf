"""Workers and servers that are processes and speak gloo."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bricolage.train.replicas.flat import Flat
from bricolage.train.replicas.peers import HEADER, Helper, Part, Peers, collect_failures
from bricolage.train.run.rank import Rank

if TYPE_CHECKING:
    import torch

_TO_LISTENER, _ANSWER = 1, 2


class GlooPeers(Peers):
    """One process of a group that has met."""

    def __init__(self, rank: Rank, workers: int) -> None:
        super().__init__(rank.number, workers)
        self._place = rank
        self._dist = dist = rank.dist
        self._group = dist.new_group(list(range(workers)))
        halves = [list(range(workers // 2)), list(range(workers // 2, workers))]
        self._halves = [dist.new_group(half) for half in halves] if workers > 1 else []
        self._under_way: list[tuple[Any, Any]] = []

    def mean(self, tensor: torch.Tensor) -> None:
        """See `Peers`."""
        self._dist.all_reduce(tensor, group=self._group)
        tensor.div_(self.size)
        self.count_all_reduce(tensor, self.size)

    def mean_of_half(self, tensor: torch.Tensor) -> None:
        """See `Peers`."""
        half = 0 if self.rank < self.size // 2 else 1
        count = self.size // 2 if half == 0 else self.size - self.size // 2
        self._dist.all_reduce(tensor, group=self._halves[half])
        tensor.div_(count)
        self.count_all_reduce(tensor, count)

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """See `Peers`."""
        tensors = [tensor.clone() for _ in range(self.size)]
        self._dist.all_gather(tensors, tensor, group=self._group)
        self.sent_bytes += (self.size - 1) * tensor.numel() * tensor.element_size()
        return tensors

    def agree(self, tensor: torch.Tensor) -> None:
        """See `Peers`."""
        self._dist.broadcast(tensor, 0, group=self._group)

    def barrier(self) -> None:
        """See `Peers`."""
        self._dist.barrier(group=self._group)

    def parallel(self, module: torch.nn.Module) -> torch.nn.Module:
        """See `Peers`."""
        import torch

        return torch.nn.parallel.DistributedDataParallel(module, process_group=self._group, broadcast_buffers=False)

    def complete_buckets(self, gradient: torch.Tensor) -> None:
        """See `Peers`: the end of the backward phase has waited for them."""
        self.count_all_reduce(gradient, self.size)

    def tell(self, to: int, kind: int, vector: torch.Tensor, clock: float = 0.0, lr: float = 0.0) -> None:
        """See `Peers`."""
        import torch

        head = torch.tensor([kind, clock, lr], dtype=vector.dtype)
        self._send(to, torch.cat([head, vector.reshape(-1)]), _TO_LISTENER)

    def listen(self, buffer: torch.Tensor) -> tuple[int, int, float, float, torch.Tensor]:
        """See `Peers`."""
        sender = int(self._dist.recv(buffer, tag=_TO_LISTENER))
        kind, clock, lr = buffer[:HEADER].tolist()
        return sender, int(kind), clock, lr, buffer[HEADER:]

    def answer(self, to: int, vector: torch.Tensor) -> None:
        """See `Peers`."""
        self._send(to, vector.clone(), _ANSWER)

    def hear(self, source: int, into: torch.Tensor) -> None:
        """See `Peers`."""
        self._dist.recv(into, src=source, tag=_ANSWER)

    def settle(self) -> None:
        """See `Peers`."""
        for work, _ in self._under_way:
            work.wait()
        self._under_way.clear()

    def add(self, name: str, number: int) -> int:
        """See `Peers`."""
        return self._place.add(name, number)

    def start_helper(self, work: Callable[[], None]) -> Helper:
        """See `Peers`."""
        return _HelperThread(work)

    def seconds(self) -> float:
        """See `Peers`."""
        return time.perf_counter()

    def pause(self, seconds: float) -> None:
        """See `Peers`."""
        time.sleep(seconds)

    def watch(self, flat: Flat) -> None:
        """See `Peers`: what a process computes takes its time by itself."""

    def begin_gradient(self) -> None:
        """See `watch`."""

    def finish_gradient(self) -> None:
        """See `watch`."""

    def spend(self, part: Part, share: float = 1.0) -> None:
        """See `watch`."""

    def _send(self, to: int, vector: torch.Tensor, tag: int) -> None:
        self._under_way = [transfer for transfer in self._under_way if not transfer[0].is_completed()]
        self._under_way.append((self._dist.isend(vector, to, tag=tag), vector))
        self.sent_bytes += vector.numel() * vector.element_size()


class _HelperThread:
    """A thread of this process."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._failures: list[BaseException] = []
        self._work = work
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with collect_failures(self._failures):
            self._work()

    def join(self) -> None:
        self._thread.join()
        self.check()

    def check(self) -> None:
        if self._failures:
            raise self._failures[0]
