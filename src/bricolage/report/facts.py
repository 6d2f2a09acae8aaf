"""Regions of a plan as a reader meets them: their operators by name, their neighbours, and how sure the choice is."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from bricolage.graph.graph import Graph
from bricolage.plan.number_sets import parse_numbers
from bricolage.plan.plan import Bucket
from bricolage.plan.shipped_program import Alternative, PlannedRegion


@dataclass(frozen=True)
class RegionFacts:
    """One region. Names, types and neighbours are empty where the graph is missing."""

    number: int
    """From 1, in the order of the plan."""
    planned: PlannedRegion
    operators: tuple[str, ...]
    """Names of the operators."""
    types: tuple[tuple[str, int], ...]
    """Operator types with their counts, most frequent first."""
    before: tuple[int, ...]
    """Indices (from 0) of the regions whose results it reads."""
    after: tuple[int, ...]
    share: float | None
    """Part of the plan's predicted time, transfers included."""

    @property
    def chosen(self) -> Alternative | None:
        """The measurement of what was chosen."""
        p = self.planned
        return next((a for a in p.alternatives if a.implementation == p.implementation), None)

    @property
    def runner_up(self) -> Alternative | None:
        """The fastest other way whose answer is right."""
        p = self.planned
        others = (a for a in p.alternatives if a.median_ms is not None and a.outcome == "ok")
        return min(
            (a for a in others if a.implementation != p.implementation),
            key=lambda a: a.median_ms or 0.0,
            default=None,
        )

    @property
    def margin(self) -> float | None:
        """How much slower the runner-up is, as a ratio minus one; negative where it is faster by itself."""
        other, planned_ms = self.runner_up, self.planned.cost_ms
        if other is None or other.median_ms is None or not planned_ms:
            return None
        return other.median_ms / planned_ms - 1

    @property
    def clear(self) -> bool | None:
        """Whether the intervals of the chosen and the runner-up do not overlap; None where one is not known."""
        other, alternative = self.runner_up, self.chosen
        if other is None or alternative is None or other.ci_ms is None or alternative.ci_ms is None:
            return None
        return alternative.ci_ms[1] < other.ci_ms[0] or other.ci_ms[1] < alternative.ci_ms[0]


def region_facts(bucket: Bucket, graph: Graph | None = None) -> tuple[RegionFacts, ...]:
    """Facts on every region. `graph` is the bucket's graph, numbered as in the plan.

    Raises:
        ValueError: the plan names operators that the graph does not have.
    """
    members = [parse_numbers(region.operators) for region in bucket.program.regions]
    total = sum((r.cost_ms or 0.0) + r.transfer_ms for r in bucket.program.regions)
    before, after = _neighbours(members, graph) if graph is not None else ([()] * len(members), [()] * len(members))
    facts: list[RegionFacts] = []
    for index, (region, inside) in enumerate(zip(bucket.program.regions, members, strict=True)):
        operators = [graph.operators[n] for n in inside] if graph is not None else []
        types = Counter(operator.op_type for operator in operators).most_common()
        spent = None if region.cost_ms is None or not total else (region.cost_ms + region.transfer_ms) / total
        facts.append(
            RegionFacts(
                number=index + 1,
                planned=region,
                operators=tuple(operator.name for operator in operators),
                types=tuple(types),
                before=before[index],
                after=after[index],
                share=spent,
            )
        )
    return tuple(facts)


def _neighbours(members: list[tuple[int, ...]], graph: Graph) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Regions read and regions that read, by index."""
    home: dict[int, int] = {}
    for index, inside in enumerate(members):
        if inside and inside[-1] >= len(graph):
            raise ValueError(f"the plan names operator {inside[-1]}, the graph has {len(graph)}")
        home.update(dict.fromkeys(inside, index))
    before: list[set[int]] = [set() for _ in members]
    after: list[set[int]] = [set() for _ in members]
    for number, index in home.items():
        for earlier in graph.predecessors[number]:
            other = home.get(earlier, index)
            if other != index:
                before[index].add(other)
                after[other].add(index)
    return [tuple(sorted(s)) for s in before], [tuple(sorted(s)) for s in after]
