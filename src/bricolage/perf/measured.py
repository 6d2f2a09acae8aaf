"""Costs of operators as they were measured, and a model where they were not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bricolage.graph.graph import Operator
from bricolage.graph.identity import operator_key
from bricolage.perf.calibrated import Calibrated


@dataclass(frozen=True)
class MeasuredOpCost:
    """Milliseconds of one operator: first what was measured of it alone, brought to the scale of operators inside
    graphs; else what the calibrated model says."""

    measured: Mapping[str, float]
    """By `operator_key`, ms, on the scale of whole graphs."""
    model: Calibrated

    @staticmethod
    def of(alone: Mapping[str, float], graph: Iterable[Operator], model: Calibrated) -> MeasuredOpCost:
        """`alone`: measured times of single operators, ms. Inside a graph they take less, since backends fuse them:
        all are scaled by the model's time over the measured time of those operators of `graph` that were measured."""
        known = [operator for operator in graph if operator_key(operator) in alone]
        total = sum(alone[operator_key(operator)] for operator in known)
        scale = model.predict(known) / total if total else 1.0
        return MeasuredOpCost({key: ms * scale for key, ms in alone.items()}, model)

    def __call__(self, operator: Operator) -> float:
        """Of one operator, ms."""
        ms = self.measured.get(operator_key(operator))
        return self.model(operator) if ms is None else ms
