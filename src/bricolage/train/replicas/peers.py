"""Messages between workers and servers over gloo, with the bytes that this process sends."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

GRADIENT, CENTRE, WEIGHTS, DONE = 0, 1, 2, 3
"""Kinds of messages to who listens."""
HEADER = 3
"""Numbers before a message's vector: its kind, the sender's clock or weight, and its lr."""
_TO_LISTENER, _ANSWER = 1, 2


class Peers:
    """The workers, of whom this is number `rank`, and the servers after them."""

    def __init__(self, dist: ModuleType, rank: int, workers: int) -> None:
        self._dist = dist
        self.rank, self.size = rank, workers
        self.sent_bytes = 0
        self._group = dist.new_group(list(range(workers)))
        halves = [list(range(workers // 2)), list(range(workers // 2, workers))]
        self._halves = [dist.new_group(half) for half in halves] if workers > 1 else []
        self._under_way: list[tuple[Any, Any]] = []

    def mean(self, tensor: torch.Tensor) -> None:
        """The mean over workers, in place; by a ring, so that each sends 2 (p - 1) / p of it."""
        self._dist.all_reduce(tensor, group=self._group)
        tensor.div_(self.size)
        self.count_all_reduce(tensor, self.size)

    def mean_of_half(self, tensor: torch.Tensor) -> None:
        """The mean over this worker's half, in place."""
        half = 0 if self.rank < self.size // 2 else 1
        count = self.size // 2 if half == 0 else self.size - self.size // 2
        self._dist.all_reduce(tensor, group=self._halves[half])
        tensor.div_(count)
        self.count_all_reduce(tensor, count)

    def count_all_reduce(self, tensor: torch.Tensor, count: int) -> None:
        """Counts what one of `count` workers sends for an all-reduce that another class does."""
        self.sent_bytes += 2 * (count - 1) * tensor.numel() * tensor.element_size() // count

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """The tensors of all workers, which are of one shape; each goes to all others."""
        tensors = [tensor.clone() for _ in range(self.size)]
        self._dist.all_gather(tensors, tensor, group=self._group)
        self.sent_bytes += (self.size - 1) * tensor.numel() * tensor.element_size()
        return tensors

    def agree(self, tensor: torch.Tensor) -> None:
        """What the first worker has, in place."""
        self._dist.broadcast(tensor, 0, group=self._group)

    def barrier(self) -> None:
        """Until all workers are here."""
        self._dist.barrier(group=self._group)

    def parallel(self, module: torch.nn.Module) -> torch.nn.Module:
        """The module with gradients that are averaged in buckets while the backward phase goes on."""
        import torch

        return torch.nn.parallel.DistributedDataParallel(module, process_group=self._group, broadcast_buffers=False)

    def tell(self, to: int, kind: int, vector: torch.Tensor, clock: float = 0.0, lr: float = 0.0) -> None:
        """Sends to who listens, without waiting until it is there."""
        import torch

        head = torch.tensor([kind, clock, lr], dtype=vector.dtype)
        self._send(to, torch.cat([head, vector.reshape(-1)]), _TO_LISTENER)

    def listen(self, buffer: torch.Tensor) -> tuple[int, int, float, float, torch.Tensor]:
        """The next message of anybody: sender, kind, clock, lr, and its vector, which the next one overwrites."""
        sender = int(self._dist.recv(buffer, tag=_TO_LISTENER))
        kind, clock, lr = buffer[:HEADER].tolist()
        return sender, int(kind), clock, lr, buffer[HEADER:]

    def answer(self, to: int, vector: torch.Tensor) -> None:
        """Sends back, without waiting until it is there."""
        self._send(to, vector.clone(), _ANSWER)

    def hear(self, source: int, into: torch.Tensor) -> None:
        """The answer of one."""
        self._dist.recv(into, src=source, tag=_ANSWER)

    def settle(self) -> None:
        """Until all that was sent is there."""
        for work, _ in self._under_way:
            work.wait()
        self._under_way.clear()

    def _send(self, to: int, vector: torch.Tensor, tag: int) -> None:
        self._under_way = [transfer for transfer in self._under_way if not transfer[0].is_completed()]
        self._under_way.append((self._dist.isend(vector, to, tag=tag), vector))
        self.sent_bytes += vector.numel() * vector.element_size()


def buffer_for(vector: torch.Tensor) -> torch.Tensor:
    """Room for a message with such a vector."""
    import torch

    return torch.empty(HEADER + vector.numel(), dtype=vector.dtype)
