"""Ranges of values: the least and the largest that a tensor can hold, found from the operators that compute it.

That is interval arithmetic. What an operator does with NaN, and with floats that its integers cannot hold, is not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import onnx_ir as ir

from bricolage.graph.graph import describe
from bricolage.lowering.common import constant_of
from bricolage.verify.interval import UNKNOWN, ValueRange, of_constant
from bricolage.verify.range_rules import SECOND, TRANSFERS

_DEEPEST = 300
"""Operators in a row that are followed."""
_WIDEST = 2.0**62


class Ranges:
    """Ranges of a graph's values, found when they are asked for.

    Args:
        entering: ranges of the graph's inputs, by name. Of others nothing is known.
        owners: of the bodies of control flow, the operators whose they are.
    """

    def __init__(
        self, entering: Mapping[str, tuple[float, float]], owners: Mapping[ir.Graph, ir.Node] = MappingProxyType({})
    ) -> None:
        self.leaves: dict[str, None] = {}
        """Names of the inputs that a range rests on, in order."""
        self._entering, self._owners = entering, owners
        self._known: dict[ir.Value, ValueRange] = {}
        self._depth = 0

    def of(self, value: ir.Value | None) -> ValueRange:
        """What is known of a value."""
        if value is None:
            return UNKNOWN
        if value not in self._known:
            self._depth += 1
            value_range = self._derive_range(value) if self._depth <= _DEEPEST else UNKNOWN
            self._depth -= 1
            self._known[value] = _within_type(value_range, value)
        return self._known[value]

    def hull(self, value: ir.Value | None) -> ValueRange:
        """One range for all elements of a value."""
        return self.of(value).hull

    def _derive_range(self, value: ir.Value) -> ValueRange:
        array = constant_of(value) if not value.is_graph_input() else None
        if array is not None:
            return of_constant(array)
        node = value.producer()
        if node is None:
            if value.graph in self._owners:
                return self._of_body(value)
            self.leaves[value.name or ""] = None
            return ValueRange.of(*self._entering[value.name or ""]) if value.name in self._entering else UNKNOWN
        if node.domain not in ("", "ai.onnx"):
            return UNKNOWN
        transfer = TRANSFERS.get(node.op_type)
        if transfer is None:
            return UNKNOWN
        if value is not node.outputs[0]:
            return SECOND[node.op_type](self, node) if node.op_type in SECOND else UNKNOWN
        with np.errstate(all="ignore"):
            return transfer(self, node)

    def _of_body(self, value: ir.Value) -> ValueRange:
        """What enters the body of control flow: of a Loop, the number of the iteration has a range."""
        assert value.graph is not None
        node = self._owners[value.graph]
        if node.op_type != "Loop" or value is not value.graph.inputs[0]:
            return UNKNOWN
        most = constant_of(node.inputs[0])
        return ValueRange.of(0, np.inf if most is None else max(int(most.reshape(-1)[0]) - 1, 0))


def _within_type(found: ValueRange, value: ir.Value) -> ValueRange:
    """As far as the value's type holds it: what wraps around may be anything."""
    dtype = describe(value).dtype
    if dtype == ir.DataType.BOOL:
        return ValueRange(np.clip(found.low, 0, 1), np.clip(found.high, 0, 1))
    if dtype is None or not dtype.is_integer() or dtype.bitwidth < 8:
        return found
    limits = np.iinfo(dtype.numpy())
    low, high = float(limits.min), float(limits.max)
    if (
        bool((found.low >= low).all() and (found.high <= high).all())
        and float(np.abs(found.high).max(initial=0)) < _WIDEST
    ):
        return found
    wide = dtype.bitwidth >= 32
    return replace(ValueRange.of(-np.inf, np.inf) if wide else ValueRange.of(low, high), below=found.below)
