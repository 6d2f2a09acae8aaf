"""A training step as a row of layers on like devices, and a plan for it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from bricolage.device.collective import Ring
from bricolage.device.device import Link
from bricolage.work.pipeline.group_schedule import StageGroup

DIVIDABLE = ("1f1b", "dapple", "gpipe", "interleaved")
"""Schedules whose stages may lie divided among replicas: a stage is on one device of each, and backward passes are whole."""


_PASS_TIMES = ("forward_ms", "input_gradient_ms", "weight_gradient_ms")


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

    @property
    def pass_ms(self) -> float:
        """Of the passes of one sample."""
        return self.forward_ms + self.input_gradient_ms + self.weight_gradient_ms


@dataclass(frozen=True)
class UnlikeDevices:
    """Devices that differ in speed, memory or links. Raises ValueError where two have no link, or lists differ in length."""

    names: tuple[str, ...]
    layers: tuple[tuple[PlannedLayer, ...], ...]
    """By device: the step's layers as they are there."""
    memory_bytes: tuple[int, ...]
    """By device; 0 where that is not known."""
    links: tuple[Link, ...]
    """Their ends are names of devices."""

    def __post_init__(self) -> None:
        if not len(self.names) == len(self.layers) == len(self.memory_bytes) or len(set(map(len, self.layers))) > 1:
            raise ValueError(f"{len(self.names)} unlike devices, and layers of {len(self.layers)}")
        joined = {frozenset(link.between) for link in self.links}
        for name, other in itertools.combinations(self.names, 2):
            if frozenset((name, other)) not in joined:
                raise ValueError(f"devices '{name}' and '{other}' have no link")

    def link(self, source: int, target: int) -> Link:
        """Between two of them."""
        return self._by_ends[frozenset((self.names[source], self.names[target]))]

    @cached_property
    def _by_ends(self) -> dict[frozenset[str], Link]:
        return {frozenset(link.between): link for link in self.links}

    def with_links(self, times: float) -> UnlikeDevices:
        """The same with links of `times` the bandwidth."""
        return replace(self, links=tuple(replace(link, gbytes=times * link.gbytes) for link in self.links))

    def with_memory(self, times: int) -> UnlikeDevices:
        """The same with `times` the memory."""
        return replace(self, memory_bytes=tuple(times * size for size in self.memory_bytes))

    def step_ms(self, device: int, batch: int) -> float:
        """Of a batch on one device alone, with its update."""
        return math.fsum(batch * layer.pass_ms + layer.update_ms for layer in self.layers[device])

    def alone(self, batch: int) -> int | None:
        """The fastest device that holds a whole batch; None where none does."""
        able = [
            device
            for device, layers in enumerate(self.layers)
            if math.fsum(layer.lasting_bytes + batch * layer.kept_bytes for layer in layers) <= self.memory(device)
        ]
        return min(able, key=lambda device: self.step_ms(device, batch), default=None)

    def memory(self, device: int) -> float:
        """Bytes of one; infinite where that is not known."""
        return self.memory_bytes[device] or math.inf

    @cached_property
    def speeds(self) -> tuple[float, ...]:
        """By device: as fast as the slowest of them, times at most this, in whatever layer, pass or sample."""
        speeds = []
        for mine in self.layers:
            ratios = [1.0]
            for layer, others in zip(mine, zip(*self.layers, strict=True), strict=True):
                for name in _PASS_TIMES:
                    slowest, here = max(getattr(other, name) for other in others), getattr(layer, name)
                    ratios += [slowest / here if here else math.inf] if slowest else []
            speeds.append(max(ratios))
        return tuple(speeds)


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
    unlike: UnlikeDevices | None = None
    """Where devices differ: `layers`, `link` and `memory_bytes` are then those of the slowest, with the slowest link."""

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
        return tuple(layer.pass_ms for layer in self.layers)

    @property
    def bound_ms(self) -> float:
        """No plan takes less: all passes of all samples, over all devices without a gap, or one sample forward and back through all
        layers, without gradients of weights, which nothing waits for."""
        through = math.fsum(layer.forward_ms + layer.input_gradient_ms for layer in self.layers)
        if self.unlike is not None:
            speeds = self.unlike.speeds
            return max(self.batch * math.fsum(self.layer_ms) / sum(speeds), through / max(speeds))
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
    groups: tuple[StageGroup, ...] = ()
    """By stage its devices, where these are unlike; `devices` are then all there are. Empty: stages lie on devices in order."""

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
