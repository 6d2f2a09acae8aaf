"""Prices of operators while graphs are searched: each is asked for once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from bricolage.graph.constant_folding import is_known
from bricolage.graph.graph import Operator
from bricolage.graph.work import operator_work
from bricolage.work.cost import CostModel, Setting

_CACHE = "bricolage.ms"


def price_operators(
    costs: CostModel, on: Setting, operators: Iterable[Operator], sizes: Mapping[str, int] | None = None
) -> float:
    """Milliseconds of operators one after another. `sizes`: of symbolic dimensions; 0 for operators of which nothing is known."""
    works = [operator_work(operator, sizes) for operator in operators]
    return float(sum(estimate.ms for estimate in costs.estimate(works, on) if estimate is not None))


@dataclass(frozen=True)
class Pricing:
    """Costs of operators of one model, each asked for once: an operator keeps its price, and copies of it do too."""

    costs: CostModel
    on: Setting
    opsets: Mapping[str, int]
    """Of the model."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Of symbolic dimensions."""

    def of(self, node: ir.Node) -> float:
        """Milliseconds of one operator; 0 where everything it reads is constant, since it will be folded."""
        cached_ms = node.meta.get(_CACHE)
        if isinstance(cached_ms, float):
            return cached_ms
        if node.inputs and all(value is None or is_known(value) for value in node.inputs):
            return 0.0
        price_ms = price_operators(
            self.costs, self.on, [Operator(0, node, self.opsets.get(node.domain, 1))], self.sizes
        )
        node.meta[_CACHE] = price_ms
        return price_ms

    def total(self, nodes: Iterable[ir.Node]) -> float:
        """Of several operators; the sum does not depend on their order."""
        return math.fsum(map(self.of, nodes))
