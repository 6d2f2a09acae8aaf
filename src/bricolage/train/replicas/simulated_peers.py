"""Workers and servers in one process: what they compute is real, and what that and their messages take is simulated.

A message occupies the way out of its sender and the way into its receiver for its bytes, in the order in which messages are sent,
and arrives a latency later; so a server's link is a queue. Collectives take what a ring of such links takes (`device.collective`).
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from bricolage.device.collective import Ring
from bricolage.train.replicas.flat import Flat
from bricolage.train.replicas.peers import HEADER, Helper, Part, Peers
from bricolage.train.replicas.step_times import ReplicaStepTimes, compute_exposed_exchange_s
from bricolage.train.replicas.virtual_time import Participant, VirtualTime
from bricolage.work.simulator import Task

if TYPE_CHECKING:
    import torch

_LISTENER = -1
"""Of boxes: for messages to who listens, of any sender."""
_Letter: TypeAlias = "tuple[float, tuple[int, int, float, float, torch.Tensor]]"
"""When it arrives, and what `Peers.listen` returns."""
_HALVES = ("first half", "second half")


@dataclass
class _Meeting:
    """Of a collective: what each worker brought, and who waits for the others."""

    brought: dict[int, torch.Tensor] = field(default_factory=dict)
    waiting: list[Participant] = field(default_factory=list)


@dataclass(frozen=True)
class SimulatedMessage:
    """A message as a task of `work.simulator`, which occupies two ports, and the second in which its sender sent it."""

    task: Task
    sent_s: float


class SimulatedNetwork:
    """What carries messages between the workers and servers of one simulation."""

    def __init__(self, time: VirtualTime, ring: Ring) -> None:
        """`ring`: of all workers; its link is also the one to servers."""
        self.time, self.ring = time, ring
        self.messages: list[SimulatedMessage] = []
        """All messages so far."""
        self._free: dict[tuple[int, str], float] = defaultdict(float)
        self._boxes: dict[tuple[int, int], deque[_Letter]] = defaultdict(deque)
        self._listening: dict[tuple[int, int], Participant] = {}
        self._meetings: dict[str, _Meeting] = defaultdict(_Meeting)
        self.numbers: dict[str, int] = defaultdict(int)

    def send(self, letter: tuple[int, int, float, float, torch.Tensor], to: int, size: int, *, answer: bool) -> None:
        """Puts a letter on its way to a rank: to who listens there, or as the answer to who waits for the sender."""
        self.time.settle()
        sender, ports = letter[0], ((letter[0], "out"), (to, "in"))
        task = Task(1e-6 * size / self.ring.link.gbytes, ports)
        self.messages.append(SimulatedMessage(task, self.time.now))
        end = max([self.time.now, *(self._free[port] for port in ports)]) + task.ms / 1e3
        for port in ports:
            self._free[port] = end
        box = (to, sender if answer else _LISTENER)
        arrival = end + self.ring.link.latency_us / 1e6
        self._boxes[box].append((arrival, letter))
        if (waiting := self._listening.pop(box, None)) is not None:
            self.time.wake(waiting, arrival)

    def receive(self, rank: int, source: int = _LISTENER) -> tuple[int, int, float, float, torch.Tensor]:
        """The next letter to a rank: the answer of a source, or any to who listens."""
        self.time.settle()
        box = (rank, source)
        if not self._boxes[box]:
            self._listening[box] = self.time.current
            self.time.wait()
        arrival, letter = self._boxes[box].popleft()
        self.time.wait_until(arrival)
        return letter

    def meet(self, name: str, count: int, rank: int, tensor: torch.Tensor, ms: float) -> Mapping[int, torch.Tensor]:
        """What `count` workers bring, by rank, `ms` milliseconds after the last of them came."""
        self.time.settle()
        meeting = self._meetings[name]
        meeting.brought[rank] = tensor.clone()
        if len(meeting.brought) < count:
            meeting.waiting.append(self.time.current)
            self.time.wait()
            return meeting.brought
        del self._meetings[name]
        end = self.time.now + ms / 1e3
        for waiting in meeting.waiting:
            self.time.wake(waiting, end)
        self.time.wait_until(end)
        return meeting.brought


class SimulatedPeers(Peers):
    """One worker or server of a simulation.

    Args:
        network: of all.
        rank: its number.
        workers: how many there are; servers follow them.
        times: what a worker's step takes.
        seed: of how much longer or shorter each step takes.
    """

    def __init__(self, network: SimulatedNetwork, rank: int, workers: int, times: ReplicaStepTimes, seed: int) -> None:
        super().__init__(rank, workers)
        self._network, self._time, self._times = network, network.time, times
        self._random = random.Random(seed * 1_000_003 + rank)
        self._factor = 1.0
        self._exposed_s = 0.0

    def mean(self, tensor: torch.Tensor) -> None:
        """See `Peers`."""
        self._average(tensor, self._network.ring.all_reduce_ms(tensor.numel() * tensor.element_size()))

    def _average(self, tensor: torch.Tensor, ms: float) -> None:
        """Over all workers, in place."""
        together = self._network.meet("all", self.size, self.rank, tensor, ms if self.size > 1 else 0.0)
        tensor.copy_(_mean([together[rank] for rank in sorted(together)]))
        self.count_all_reduce(tensor, self.size)

    def mean_of_half(self, tensor: torch.Tensor) -> None:
        """See `Peers`."""
        half = 0 if self.rank < self.size // 2 else 1
        count = self.size // 2 if half == 0 else self.size - self.size // 2
        ring = self._network.ring.among(count, None)
        ms = ring.all_reduce_ms(tensor.numel() * tensor.element_size()) if count > 1 else 0.0
        together = self._network.meet(_HALVES[half], count, self.rank, tensor, ms)
        tensor.copy_(_mean([together[rank] for rank in sorted(together)]))
        self.count_all_reduce(tensor, count)

    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """See `Peers`."""
        size = tensor.numel() * tensor.element_size()
        ms = self._network.ring.all_gather_ms(self.size * size) if self.size > 1 else 0.0
        together = self._network.meet("all", self.size, self.rank, tensor, ms)
        self.sent_bytes += (self.size - 1) * size
        return [together[rank] for rank in sorted(together)]

    def agree(self, tensor: torch.Tensor) -> None:
        """See `Peers`."""
        together = self._network.meet("all", self.size, self.rank, tensor, self._network.ring.all_reduce_ms(0))
        tensor.copy_(together[0])

    def barrier(self) -> None:
        """See `Peers`; it takes no time."""
        import torch

        self._network.meet("all", self.size, self.rank, torch.empty(0), 0.0)

    def parallel(self, module: torch.nn.Module) -> torch.nn.Module:
        """See `Peers`: gradients are averaged when the backward phase has ended."""
        return module

    def complete_buckets(self, gradient: torch.Tensor) -> None:
        """See `Peers`. It takes what the exchange of buckets lasts beyond the backward phase."""
        self._average(gradient, 1e3 * self._exposed_s)

    def tell(self, to: int, kind: int, vector: torch.Tensor, clock: float = 0.0, lr: float = 0.0) -> None:
        """See `Peers`."""
        size = (HEADER + vector.numel()) * vector.element_size()
        self.sent_bytes += size
        self._network.send((self.rank, kind, clock, lr, vector.reshape(-1).clone()), to, size, answer=False)

    def listen(self, buffer: torch.Tensor) -> tuple[int, int, float, float, torch.Tensor]:  # noqa: ARG002 - letters bring theirs
        """See `Peers`."""
        return self._network.receive(self.rank)

    def answer(self, to: int, vector: torch.Tensor) -> None:
        """See `Peers`."""
        size = vector.numel() * vector.element_size()
        self.sent_bytes += size
        self._network.send((self.rank, 0, 0.0, 0.0, vector.clone()), to, size, answer=True)

    def hear(self, source: int, into: torch.Tensor) -> None:
        """See `Peers`."""
        into.copy_(self._network.receive(self.rank, source)[-1])

    def settle(self) -> None:
        """See `Peers`: letters arrive by themselves."""

    def add(self, name: str, number: int) -> int:
        """See `Peers`; it takes no time."""
        self._time.settle()
        self._network.numbers[name] += number
        return self._network.numbers[name]

    def start_helper(self, work: Callable[[], None]) -> Helper:
        """See `Peers`."""
        self._time.settle()
        return self._time.start(work)

    def seconds(self) -> float:
        """See `Peers`: simulated ones from the start."""
        self._time.settle()
        return self._time.now

    def pause(self, seconds: float) -> None:
        """See `Peers`. A pause occupies no core."""
        self._time.settle()
        self._time.wait_until(self._time.now + seconds)

    def watch(self, flat: Flat) -> None:
        """See `Peers`: gradients take their times as they come."""
        self._exposed_s = compute_exposed_exchange_s(self._times, flat, self._network.ring) if self.size > 1 else 0.0
        for parameter, seconds in zip(flat.parameters, self._times.gradients_s, strict=True):
            parameter.register_post_accumulate_grad_hook(lambda _, s=seconds: self._time.owe(s * self._factor))

    def begin_gradient(self) -> None:
        """See `Peers`."""
        self._factor = self._random.choice(self._times.factors)
        self._time.owe(self._times.forward_s * self._factor)

    def finish_gradient(self) -> None:
        """See `Peers`."""
        self._time.settle()

    def spend(self, part: Part, share: float = 1.0) -> None:
        """See `Peers`."""
        self._time.owe(share * (self._times.update_s if part == "update" else self._times.compression_s))


def _mean(tensors: list[torch.Tensor]) -> torch.Tensor:
    total = tensors[0].clone()
    for tensor in tensors[1:]:
        total += tensor
    return total / len(tensors)
