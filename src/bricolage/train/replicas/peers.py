"""What workers and servers do with each other, whatever carries it: processes that speak gloo (`gloo_peers`), or participants of a
simulation whose messages take simulated time (`simulated_peers`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, Protocol

from bricolage.train.replicas.flat import Flat

if TYPE_CHECKING:
    import torch

GRADIENT, CENTRE, WEIGHTS, DONE = 0, 1, 2, 3
"""Kinds of messages to who listens."""
HEADER = 3
"""Numbers before a message's vector: its kind, the sender's clock or weight, and its lr."""
Part = Literal["update", "compression"]
"""Of a step, what is no forward and no backward phase."""


class Helper(Protocol):
    """Something that runs while the worker goes on computing."""

    def join(self) -> None:
        """Until it is done; raises what ended it."""
        ...

    def check(self) -> None:
        """Raises what ended it, if it failed by now."""
        ...


@contextmanager
def collect_failures(failures: list[BaseException]) -> Iterator[None]:
    """What ends a thread that speaks to other workers is raised in the one that trains."""
    try:
        yield
    except BaseException as error:
        failures.append(error)


class Peers(ABC):
    """The workers, of whom this is number `rank` of `size`, and the servers after them; with the bytes that this one sent."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.sent_bytes = 0

    @abstractmethod
    def mean(self, tensor: torch.Tensor) -> None:
        """The mean over workers, in place; by a ring, so that each sends 2 (p - 1) / p of it."""

    @abstractmethod
    def mean_of_half(self, tensor: torch.Tensor) -> None:
        """The mean over this worker's half, in place."""

    @abstractmethod
    def gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """The tensors of all workers, which are of one shape; each goes to all others."""

    @abstractmethod
    def agree(self, tensor: torch.Tensor) -> None:
        """What the first worker has, in place."""

    @abstractmethod
    def barrier(self) -> None:
        """Until all workers are here."""

    @abstractmethod
    def parallel(self, module: torch.nn.Module) -> torch.nn.Module:
        """The module with gradients that are averaged in buckets while the backward phase goes on."""

    @abstractmethod
    def complete_buckets(self, gradient: torch.Tensor) -> None:
        """Until the gradient that a `parallel` module averages in buckets is the mean of all."""

    @abstractmethod
    def tell(self, to: int, kind: int, vector: torch.Tensor, clock: float = 0.0, lr: float = 0.0) -> None:
        """Sends to who listens, without waiting until it is there."""

    @abstractmethod
    def listen(self, buffer: torch.Tensor) -> tuple[int, int, float, float, torch.Tensor]:
        """The next message to this rank: sender, kind, clock, lr, and its vector, which the next one may overwrite."""

    @abstractmethod
    def answer(self, to: int, vector: torch.Tensor) -> None:
        """Sends back, without waiting until it is there."""

    @abstractmethod
    def hear(self, source: int, into: torch.Tensor) -> None:
        """The answer of one."""

    @abstractmethod
    def settle(self) -> None:
        """Until all that was sent is there."""

    @abstractmethod
    def add(self, name: str, number: int) -> int:
        """Adds to a number that is common to all, zero at first; what it is then."""

    @abstractmethod
    def start_helper(self, work: Callable[[], None]) -> Helper:
        """Does something while this worker computes."""

    @abstractmethod
    def seconds(self) -> float:
        """Of a clock, from any moment on."""

    @abstractmethod
    def pause(self, seconds: float) -> None:
        """Does nothing for a time."""

    @abstractmethod
    def watch(self, flat: Flat) -> None:
        """Is told of the module, before anything else is hooked to its backward phase."""

    @abstractmethod
    def begin_gradient(self) -> None:
        """Before the forward phase of a step."""

    @abstractmethod
    def finish_gradient(self) -> None:
        """After the backward phase."""

    @abstractmethod
    def spend(self, part: Part, share: float = 1.0) -> None:
        """Before a part of a step, or a share of it by elements."""

    def count_all_reduce(self, tensor: torch.Tensor, count: int) -> None:
        """Counts what one of `count` workers sends for an all-reduce."""
        self.sent_bytes += 2 * (count - 1) * tensor.numel() * tensor.element_size() // count


def buffer_for(vector: torch.Tensor) -> torch.Tensor:
    """Room for a message with such a vector."""
    import torch

    return torch.empty(HEADER + vector.numel(), dtype=vector.dtype)
