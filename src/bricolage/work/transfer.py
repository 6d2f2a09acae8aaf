"""Transfer costs: what it takes to hand a tensor from one implementation to another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from bricolage.work.implementation import Endpoint


class TransferCosts(Protocol):
    """A pure function: the time in ms to hand `size` bytes from `producer` to `consumer`."""

    def __call__(self, producer: Endpoint, consumer: Endpoint, size: int, /) -> float:
        """The time in ms."""
        ...


@dataclass(frozen=True)
class NoTransferCosts:
    """Handing over is free; the model is then purely additive."""

    def __call__(self, producer: Endpoint, consumer: Endpoint, size: int, /) -> float:  # noqa: ARG002 - the protocol's shape
        """Nothing."""
        return 0.0
