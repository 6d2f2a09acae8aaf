"""A training step as a row of layers on like devices, and a plan for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from bricolage.device.collective import Ring
from bricolage.device.device import Link

DIVIDABLE = ("1f1b", "dapple", "gpipe", "interleaved")
"""Schedules whose stages may lie divided among replicas: a stage is on one device of each, and backward passes are whole."""


@dataclass(frozen=True)
class PlannedLayer:
    """What a layer takes for one sample, in milliseconds and bytes; and for good."""

    name: str
    forward_ms: float
    input_gradient_ms: float
    weight_gradient_ms: float
    sent_bytes: float
    """Of its output, which the next layer reads; as many come back as gradients."""
    kept_bytes: float
    """Of activations, from its forward pass to its backward pass, its input included."""
    gradient_bytes: float
    """Of its weights' gradients, which replicas exchange."""
    lasting_bytes: float
    """Of weights, gradients and the optimiser's state."""
    update_ms: float = 0.0
    """Of the update, whatever the batch."""
    forward_start_ms: float = 0.0
    """Of each forward pass, whatever its samples."""
    backward_start_ms: float = 0.0
    divided_ms: float = 0.0
    """That a backward pass takes longer in two, gradients of inputs and of weights; for a sample."""
    divided_start_ms: float = 0.0
    """The same for each pass, whatever its samples."""


@dataclass(frozen=True)
class PipelineProblem:
    """Raises ValueError where there are no layers, no devices, no samples, or a number is negative or not finite."""

    layers: tuple[PlannedLayer, ...]
    devices: int
    batch: int
    """Samples in a step, over all devices."""
    link: Link
    """Between any two devices."""
    memory_bytes: float = math.inf
    """Of each device."""
    start_ms: float = 0.0
    """Of each pass of a stage, whatever its samples: what it takes to start."""
    cores: float = math.inf
    """Devices that compute at once at full speed; more than these share it, as processes on one machine do."""
    prefetch: bool = False
    """Whether messages are asked for ahead, so that they come while a device computes."""
    ring: Ring | None = None
    """How all-reduces were measured; None: a ring of `link`s."""

    def __post_init__(self) -> None:
        if not self.layers or self.devices < 1 or self.batch < 1:
            raise ValueError("a plan needs a layer, a device and a sample")
        for layer in self.layers:
            facts = [value for value in vars(layer).values() if not isinstance(value, str)]
            if not all(math.isfinite(fact) and fact >= 0.0 for fact in facts):
                raise ValueError(f"layer '{layer.name}' has a time or size that is negative, or no number")

    @cached_property
    def layer_ms(self) -> tuple[float, ...]:
        """Of each layer the passes of one sample."""
        return tuple(layer.forward_ms + layer.input_gradient_ms + layer.weight_gradient_ms for layer in self.layers)

    @property
    def bound_ms(self) -> float:
        """No plan takes less: all passes of all samples, over all devices without a gap, or one sample forward and back through all
        layers, without gradients of weights, which nothing waits for."""
        through = math.fsum(layer.forward_ms + layer.input_gradient_ms for layer in self.layers)
        return max(self.batch * math.fsum(self.layer_ms) / min(self.devices, self.cores), through)

    def all_reduce_ms(self, size: float, workers: int) -> float:
        """Milliseconds in which a number of workers add up `size` bytes: in a ring, 2 (p - 1) messages of a pth of them."""
        if workers < 2:
            return 0.0
        if self.ring is not None:
            return self.ring.among(workers, None).all_reduce_ms(size)
        return 2 * (workers - 1) * self.link.ms(size / workers)

    def ring_among(self, workers: int) -> Ring:
        """What collectives of a number of workers take: as measured, or on described links."""
        return Ring.described(workers, self.link) if self.ring is None else self.ring.among(workers, None)


@dataclass(frozen=True)
class PipelinePlan:
    """A choice, and what the simulator says of it. Times in milliseconds."""

    schedule: str
    stages: int
    """Of one replica, in all; several may be on one device."""
    devices: int
    """Of one replica."""
    replicas: int
    micro_batches: int
    recompute: bool
    """Whether backward passes compute a stage's activations again from its input."""
    begins: tuple[int, ...]
    """Of each stage its first layer."""
    step_ms: float
    bubble: float
    """Part of the devices' time, until the last backward pass, in which they run no pass."""
    exchange_ms: float
    """Of the longest exchange of gradients between replicas."""
    peak_bytes: float
    """On the device that holds most."""
    bound_ms: float
    divided: tuple[int, ...] = ()
    """Stages whose weights, gradients and optimiser's state lie divided among their replicas (FSDP2): each pass gathers them."""

    @property
    def gap(self) -> float:
        """Part of the step that is not proven to be needed, by whatever plan."""
        return 1.0 - self.bound_ms / self.step_ms if self.step_ms else 0.0

    @property
    def is_data_parallel(self) -> bool:
        """Whether each replica is one device."""
        return self.devices == 1


def divisors(number: int) -> Sequence[int]:
    """Ascending."""
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]
