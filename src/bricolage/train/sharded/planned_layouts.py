"""Layouts of a training step's operators on a group of alike devices, as data, and what is predicted for them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from bricolage.search.sharding.layouts import REPLICATED, Layout, split_along, split_axis


@dataclass(frozen=True)
class OperatorLayouts:
    """Of what an operator reads and writes."""

    name: str
    """Of its node in the traced graph."""
    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]


@dataclass(frozen=True)
class LayoutPlan:
    """Layouts of a step on a group of devices, with what is predicted for it; times in milliseconds.

    Raises ValueError where a layout is none.
    """

    workers: int
    parameters: Mapping[str, Layout]
    buffers: Mapping[str, Layout]
    batch: tuple[Layout, ...]
    operators: tuple[OperatorLayouts, ...]
    relays: Mapping[str, Layout]
    """Tensors, by node and output ("mm.0"), that are converted as soon as they are made, for all who read them."""
    ms: float
    conversion_ms: float
    bound_ms: float
    """No layouts that fit take less, by the same prediction, with these relays."""
    peak_bytes: float
    """On each device."""
    replicas_ms: float
    """Of plain data parallelism: weights whole, samples divided. Infinite where it does not fit."""
    single_ms: float
    """Of one device, whatever its memory."""
    method: str
    whole: tuple[str, ...] = ()
    """Types of operators, some of which run whole on each device whatever the layouts: DTensor does not divide them, or their
    sizes do not divide."""
    refuted: tuple[str, ...] = ()
    """Types of which DTensor takes layouts in which their answer would be another one."""

    def __post_init__(self) -> None:
        layouts = [*self.parameters.values(), *self.buffers.values(), *self.batch, *self.relays.values()]
        for layout in [*layouts, *(source for call in self.operators for source in (*call.inputs, *call.outputs))]:
            split_axis(layout)

    @property
    def divides(self) -> bool:
        """Whether any operator reads or writes a part."""
        layouts = (source for call in self.operators for source in (*call.inputs, *call.outputs))
        return any(split_axis(layout) is not None for layout in layouts)

    @property
    def divided_parameters(self) -> int:
        """Parameters that do not lie whole on each device."""
        return sum(split_axis(parameter) is not None for parameter in self.parameters.values())


@dataclass(frozen=True)
class GroupStage:
    """Parts of the module from `begin` to before `end` on a group of neighbouring devices."""

    begin: int
    end: int
    first: int
    """Of its devices."""
    devices: int
    layouts: LayoutPlan
    """Of a micro-batch."""

    @property
    def ranks(self) -> range:
        """Of its devices."""
        return range(self.first, self.first + self.devices)


@dataclass(frozen=True)
class GroupedPlan:
    """Stages of a 1F1B pipeline on groups of devices, with layouts inside each (Alpa's two levels). Times in milliseconds.

    Raises ValueError where stages leave out a part, or share a device.
    """

    parts: tuple[str, ...]
    """Paths of the modules with which parts begin, but for the first."""
    stages: tuple[GroupStage, ...]
    micro_batches: int
    step_ms: float
    """By the simulator."""
    bubble: float
    exchange_ms: float
    """Of a step, what the stage that converts most spends on it."""
    peak_bytes: float
    """On the device that holds most."""
    messages_ms: tuple[float, ...] = ()
    """Of a micro-batch, between each stage and the next."""

    def __post_init__(self) -> None:
        cuts = [0, *(stage.end for stage in self.stages)]
        if [stage.begin for stage in self.stages] != cuts[:-1] or cuts[-1] != len(self.parts) + 1:
            raise ValueError("its stages are not all parts of the module in their order")
        devices = [rank for stage in self.stages for rank in stage.ranks]
        if len(devices) != len(set(devices)) or any(stage.layouts.workers != stage.devices for stage in self.stages):
            raise ValueError("two of its stages have a device in common, or layouts for other devices")
        if self.micro_batches < 1 or any(begin >= end for begin, end in itertools.pairwise(cuts)):
            raise ValueError("a plan needs a micro-batch, and each stage a part")

    @property
    def devices(self) -> int:
        """That work, and those before them."""
        return max(stage.first + stage.devices for stage in self.stages)


def message_layout(rows: int | None, devices: int) -> Layout:
    """How a message between stages lies on a group: divided along its first axis where that goes evenly, else whole.

    Args:
        rows: of the tensor; None where it has no axis.
        devices: of the group.
    """
    return split_along(0) if rows and devices > 1 and rows % devices == 0 else REPLICATED
