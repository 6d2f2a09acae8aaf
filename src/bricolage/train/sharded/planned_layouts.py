"""Layouts of a training step's operators on a group of alike devices, as data, and what is predicted for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bricolage.search.sharding.layouts import Layout, split_axis


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
