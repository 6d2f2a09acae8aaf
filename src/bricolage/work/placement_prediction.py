"""Predicting placements that were never run, from the costs of their regions and transfers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bricolage.work.bits import members
from bricolage.work.cost import CostModel, Setting, Work
from bricolage.work.implementation import Assignment, Endpoint, Placement
from bricolage.work.timeline import Timeline, timeline
from bricolage.work.transfer import TransferCosts
from bricolage.work.work_graph import WorkGraph


@dataclass(frozen=True)
class Predictor:
    """Costs of regions and of transfers between them, put together."""

    graph: WorkGraph
    costs: CostModel
    """Of regions of the graph."""
    on: Setting
    transfers: TransferCosts
    _known: dict[Assignment, float | None] = field(default_factory=dict, repr=False)
    """What was asked: evolution tries the same regions again and again."""

    def placement(self, placement: Placement) -> float:
        """Predicted time in ms of a whole placement, from start to end; infinite when a part is unknown."""
        predicted = self.timeline(placement)
        return float("inf") if predicted is None else predicted.makespan_ms

    def timeline(self, placement: Placement) -> Timeline | None:
        """When each region of a placement is predicted to run; None when a part is unknown."""
        new = [assignment for assignment in placement if assignment not in self._known]
        works = [Work(implementation=assignment.implementation, region=assignment.region) for assignment in new]
        for assignment, estimate in zip(new, self.costs.estimate(works, self.on), strict=True):
            self._known[assignment] = None if estimate is None else estimate.ms
        costs = {assignment: ms for assignment in placement if (ms := self._known[assignment]) is not None}
        if len(costs) < len(placement):
            return None
        return timeline(self.graph, placement, costs.__getitem__, self.transfers)

    def transfer(self, region: int, consumer: Endpoint, owner: Mapping[int, Endpoint]) -> float:
        """Predicted time in ms to take over what other regions computed; `owner` maps operators to endpoints."""
        total = 0.0
        for index in self.graph.inputs_of(region):
            tensor = self.graph.tensors[index]
            if tensor.producer >= 0:
                total += self.transfers(owner[tensor.producer], consumer, tensor.bytes).ms
        return total


def operator_endpoints(placement: Placement) -> dict[int, Endpoint]:
    """The endpoint that runs each operator, by its number."""
    return {
        number: assignment.implementation.endpoint for assignment in placement for number in members(assignment.region)
    }
