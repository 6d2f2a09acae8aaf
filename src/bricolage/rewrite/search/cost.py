"""Prices of operators while graphs are searched: each is asked for once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import onnx_ir as ir

from bricolage.graph.folding import is_known
from bricolage.graph.graph import Operator
from bricolage.perf.roofline import OperatorCost

_CACHE = "bricolage.ms"


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
