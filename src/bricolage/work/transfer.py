"""Transfer costs: what it takes to hand a tensor from one implementation to another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from bricolage.work.cost import Estimate
from bricolage.work.implementation import Endpoint

FREE = Estimate.of(0.0, "described")


class TransferCosts(Protocol):
    """A pure function: what it takes to hand `size` bytes from `producer` to `consumer`."""

    def __call__(self, producer: Endpoint, consumer: Endpoint, size: int, /) -> Estimate:
        """The time."""
        ...


@dataclass(frozen=True)
class NoTransferCosts:
    """Handing over is free; the model is then purely additive."""

    def __call__(self, producer: Endpoint, consumer: Endpoint, size: int, /) -> Estimate:  # noqa: ARG002 - the protocol's shape
        """Nothing."""
        return FREE
