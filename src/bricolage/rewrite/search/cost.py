"""What a search minimises: the sum of the times of a graph's operators."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import onnx_ir as ir

from bricolage.graph.folding import is_known
from bricolage.graph.graph import Operator, describe
from bricolage.graph.work import flops, moved
from bricolage.rewrite.profitability import SYMBOLIC_SIZE

_CACHE = "bricolage.ms"


class OperatorCost(Protocol):
    """Milliseconds of one operator. Its inputs and outputs have types and shapes, its attributes are those of ONNX; it may
    lie outside of any graph. At least 0; the same whenever operator and types are the same."""

    def __call__(self, operator: Operator, /) -> float: ...


@dataclass(frozen=True)
class Roofline:
    """The longer of computing and moving, after a start: what can be said of an operator without measuring.

    flops           floating-point operations a second
    bandwidth       bytes a second
    start           seconds that every operator takes, views too
    sizes           of symbolic dimensions
    """

    flops: float = 2e11
    bandwidth: float = 2e10
    start: float = 2e-6
    sizes: Mapping[str, int] = field(default_factory=dict)

    def __call__(self, operator: Operator) -> float:
        bound = Operator(operator.number, _bound(operator.node, self.sizes), operator.version)
        return 1e3 * (self.start + max(flops(bound) / self.flops, moved(bound) / self.bandwidth))


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


class Pricing:
    """Costs of operators of one model, each asked for once: an operator keeps its price, and copies of it do too."""

    def __init__(self, cost: OperatorCost, opsets: Mapping[str, int]) -> None:
        self._cost, self._opsets = cost, opsets

    def of(self, node: ir.Node) -> float:
        """Milliseconds of one operator; 0 where everything it reads is constant, since it will be folded."""
        known = node.meta.get(_CACHE)
        if isinstance(known, float):
            return known
        if node.inputs and all(value is None or is_known(value) for value in node.inputs):
            return 0.0
        found = float(self._cost(Operator(0, node, self._opsets.get(node.domain, 1))))
        node.meta[_CACHE] = found
        return found

    def total(self, nodes: Iterable[ir.Node]) -> float:
        """Of several operators; the sum does not depend on their order."""
        return math.fsum(map(self.of, nodes))
