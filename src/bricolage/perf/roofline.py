"""The roofline as a cost: what work takes at best on a device, from its peaks alone; and what any cost of operators is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import onnx_ir as ir

from bricolage.device.device import Peaks
from bricolage.graph.graph import Operator, describe
from bricolage.graph.properties import SYMBOLIC_SIZE
from bricolage.graph.work import flops, moved

_START_US = 5.0


@dataclass(frozen=True)
class Roofline:
    """Times of regions by their operations and bytes. The two are added rather than the larger taken: half of what
    real kernels reach, and never zero for either. For ranking what nobody has measured."""

    peaks: Peaks
    start_us: float = _START_US
    """For one region, whatever its size: entering a backend."""

    def ms(self, flops: float, bytes_: float) -> float:
        """Milliseconds for a region of so many operations and bytes."""
        return flops / self.peaks.gflops / 1e6 + bytes_ / self.peaks.gbytes / 1e6 + self.start_us / 1e3


class OperatorCost(Protocol):
    """Milliseconds of one operator. Its inputs and outputs have types and shapes, its attributes are those of ONNX; it may
    lie outside of any graph. At least 0; the same whenever operator and types are the same."""

    def __call__(self, operator: Operator, /) -> float:
        """Of one operator, ms."""
        ...


@dataclass(frozen=True)
class OperatorRoofline:
    """The longer of computing and moving, after a start: what can be said of an operator without measuring. By
    default of no machine in particular, so that what a search finds with it is the same everywhere."""

    peaks: Peaks = Peaks(gflops=200.0, gbytes=20.0)
    start_us: float = 2.0
    """That every operator takes, views too."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Of symbolic dimensions."""

    def __call__(self, operator: Operator) -> float:
        """Of one operator, ms."""
        bound = Operator(operator.number, _bound(operator.node, self.sizes), operator.version)
        return self.start_us / 1e3 + self.peaks.floor_ms(flops(bound), moved(bound))


def _bound(node: ir.Node, sizes: Mapping[str, int]) -> ir.Node:
    """The operator on values whose symbolic dimensions have sizes; itself where there are none."""
    values = [value for value in (*node.inputs, *node.outputs) if value is not None]
    if all(describe(value).static for value in values):
        return node
    copies: dict[ir.Value, ir.Value] = {}
    for value in values:
        info = describe(value)
        if info.shape is None:
            shape = None
        else:
            shape = ir.Shape([d if isinstance(d, int) else sizes.get(d, SYMBOLIC_SIZE) for d in info.shape])
        copies[value] = ir.Value(name=value.name, type=value.type, shape=shape, const_value=value.const_value)
    bound = ir.Node(
        node.domain,
        node.op_type,
        [None if value is None else copies[value] for value in node.inputs],
        [attribute for attribute in node.attributes.values() if attribute.type not in _BODIES],
        num_outputs=len(node.outputs),
    )
    for value, own in zip(node.outputs, bound.outputs, strict=True):
        own.name, own.type, own.shape = value.name, value.type, copies[value].shape
    return bound


_BODIES = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
