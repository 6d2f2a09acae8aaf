"""Cutting a graph into parts that are searched on their own, and carrying what was found over to the whole.

MetaFlow (SysML 2019) splits large graphs where few substitutions could cross. Here parts are intervals of the depth-first
numbering, which are convex and never form a cycle, cut where few bytes are alive; operators with bodies belong to none. Equal
parts, such as the layers of a transformer, are searched once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import onnx_ir as ir

from bricolage.graph.extract import extract_region
from bricolage.graph.graph import Graph, Region
from bricolage.graph.identity import Identities
from bricolage.graph.segments import segments
from bricolage.plan.rewrite_steps import RewriteStep
from bricolage.rewrite.rule import MatchFailure, Rule
from bricolage.rewrite.search.workspace import Workspace, has_body, replay_on
from bricolage.work.bits import members


@dataclass(frozen=True)
class IsomorphicRegions:
    """A part that occurs once or more often: its regions correspond operator by operator, in canonical order."""

    regions: tuple[Region, ...]
    names: tuple[tuple[str, ...], ...]
    """For each region the names of its values, in an order that is the same for all."""

    def model(self) -> ir.Model:
        """The first of its regions as a model."""
        return extract_region(self.regions[0])

    def correspondence(self, number: int) -> dict[str, str]:
        """What the values of the first region are called in another."""
        return dict(zip(self.names[0], self.names[number], strict=True))


def partition(graph: Graph, *, largest: int, shifted: bool) -> list[IsomorphicRegions]:
    """The parts of a graph, of at most `largest` operators each, equal ones together, in the graph's order. `shifted` ones are cut
    elsewhere, so that what crosses a border here lies within a part there."""
    identities = Identities(graph)
    groups: dict[tuple[str, tuple[int, ...]], list[tuple[Region, tuple[str, ...]]]] = {}
    for bits in _intervals(graph, largest, shifted):
        region = graph.region(bits)
        names = _names(region, identities.order(region))
        # The identity of a region does not tell which operators share a weight.
        first: dict[str, int] = {}
        sharing = tuple(first.setdefault(name, place) for place, name in enumerate(names))
        groups.setdefault((identities.key(region), sharing), []).append((region, names))
    return [IsomorphicRegions(*zip(*copies, strict=True)) for copies in groups.values()]


def _intervals(graph: Graph, largest: int, shifted: bool) -> list[int]:
    if shifted:
        cuts = _between(segments(graph, smallest=max(largest // 3, 1), largest=max(2 * largest // 3, 1)))
    else:
        cuts = segments(graph, smallest=max(largest // 2, 1), largest=largest)
    barred = {operator.number for operator in graph.operators if has_body(operator.node)}
    intervals: list[int] = []
    for bits in cuts:
        current = 0
        for number in members(bits):
            if number in barred:
                intervals.append(current)
                current = 0
            else:
                current |= 1 << number
        intervals.append(current)
    return [bits for bits in intervals if bits.bit_count() > 1]


def _between(cuts: Sequence[int]) -> list[int]:
    """Intervals from the middle of each to the middle of the next."""
    if len(cuts) < 2:
        return list(cuts)
    numbers = [members(bits) for bits in cuts]
    borders = [0, *(number[len(number) // 2] for number in numbers), numbers[-1][-1] + 1]
    return [((1 << (end - start)) - 1) << start for start, end in pairwise(borders) if end > start]


def _names(region: Region, order: Sequence[int]) -> tuple[str, ...]:
    """Of what the operators read and write, in order, each as often as it occurs."""
    operators = [region.graph.operators[number] for number in order]
    return tuple(
        value.name
        for operator in operators
        for value in (*operator.node.inputs, *operator.node.outputs)
        if value is not None and value.name
    )


class WholeModel:
    """A model that takes over, part by part, what was found for its parts."""

    def __init__(self, model: ir.Model, rules: Sequence[Rule], steps: Sequence[RewriteStep] = ()) -> None:
        self._model, self._rules = model, rules
        self.workspace = Workspace(model.clone(), rules, lazy=False)
        self.workspace.repeat(steps)

    def carry(self, part: IsomorphicRegions, steps: Sequence[RewriteStep]) -> int:
        """Makes the steps found for a part on all of its copies; for how many that was possible. A copy whose weights stand in the
        way is left as it was."""
        done = 0
        for number in range(len(part.regions)):
            before = len(self.workspace.steps)
            try:
                replay_on(
                    Workspace(part.model(), self._rules, lazy=True), self.workspace, steps, part.correspondence(number)
                )
                done += 1
            except MatchFailure:
                kept = self.workspace.steps[:before]
                self.workspace = Workspace(self._model.clone(), self._rules, lazy=False)
                self.workspace.repeat(kept)
        return done
