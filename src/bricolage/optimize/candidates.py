"""Candidates: which regions are worth measuring on which backend, in which order.

Regions come from the backends' claims (single operators, patterns, grown prefixes up to the claim's limit), from the
segments of the graph, and from each engine's maximal regions: the whole graph where it accepts all of it, otherwise the
largest convex regions that it accepts. Equal regions are measured once, and those that can save the most first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from bricolage.backends.interface import Backend
from bricolage.backends.matching import Matcher
from bricolage.graph.graph import Graph, describe
from bricolage.graph.identity import Identities
from bricolage.graph.region import Region
from bricolage.graph.segments import segments
from bricolage.graph.work import ANCHORS, VIEWS, Work, work
from bricolage.options import Precision
from bricolage.work import bits as bitset
from bricolage.work.graph import GRAPH_INPUT, WorkGraph, WorkOperator, WorkTensor

Level = Literal["operator", "prefix", "segment", "maximal"]


@dataclass(frozen=True)
class Way:
    """One way to run a region."""

    backend: str
    variant: str


@dataclass(frozen=True)
class Group:
    """Regions of one graph with the same identity, and the ways to run them. They share their measurements."""

    key: str
    regions: tuple[int, ...]
    """Bit-sets, disjoint or not; the first one stands for all when measuring."""
    ways: tuple[Way, ...]
    work: Work
    level: Level
    """The widest kind of region that it is."""

    @property
    def weight(self) -> float:
        """Estimated share of the model's time that the group stands for (arbitrary unit): work at typical speeds."""
        return len(self.regions) * (self.work.flops / 1e11 + self.work.bytes / 1e10 + 5e-6)


@dataclass(frozen=True)
class Candidates:
    """Everything that could be measured for a graph, most promising first; and what each backend could run as a whole."""

    groups: tuple[Group, ...]
    whole: tuple[Way, ...]
    """Ways that cover the whole graph with one region."""
    segments: tuple[int, ...] = ()
    """The graph cut into blocks, in executable order."""
    claimed: dict[str, int] = field(default_factory=dict)
    """Per backend the operators that it accepts, as a bit-set."""


def work_graph(graph: Graph) -> WorkGraph:
    """What the searches see of a graph: numbered work and bytes, nothing of `onnx_ir`."""
    operators = []
    for operator in graph.operators:
        amount = work(Region(graph, 1 << operator.number))
        operators.append(WorkOperator(operator.name, amount.flops, amount.bytes, operator.op_type))
    tensors = [
        WorkTensor(
            value.name or "", operator.number, graph.readers(value), describe(value).bytes, graph.is_output(value)
        )
        for operator in graph.operators
        for value in operator.outputs
    ]
    entering = {
        value: None for operator in graph.operators for value in operator.inputs if graph.producer(value) is None
    }
    tensors.extend(
        WorkTensor(value.name or "", GRAPH_INPUT, graph.readers(value), describe(value).bytes)
        for value in entering
        if not graph.is_constant(value)
    )
    return WorkGraph(tuple(operators), tuple(tensors))


def find(graph: Graph, backends: Sequence[Backend], precision: Precision, *, slow_per_region: bool) -> Candidates:
    """All candidates of `graph` on `backends`. With `slow_per_region` false, backends that compile slowly are candidates
    for large regions only: the whole graph, its segments and engines' maximal regions."""
    matcher, identities = Matcher(graph), Identities(graph)
    claims = {backend.name: tuple(backend.claims()) for backend in backends}
    accepted = {name: matcher.accepted(offered) for name, offered in claims.items()}
    everything = graph.everything.bits
    cuts = segments(graph)
    maximal = {part for bits in accepted.values() for part in matcher.maximal(bits) if part.bit_count() > 1}
    claimed: dict[str, int] = {}
    offers: dict[int, list[Way]] = defaultdict(list)
    whole: list[Way] = []
    for backend in backends:
        ways = [Way(backend.name, variant) for variant in backend.variants(precision)]
        found = matcher.regions(claims[backend.name])
        taken = accepted[backend.name]
        claimed[backend.name] = taken | bitset.of(bitset.lowest(region) for region in found if region.bit_count() == 1)
        if taken == everything or everything in found:
            whole.extend(ways)
        if backend.compiles_slowly and not slow_per_region:
            found = set()
        found |= {large for large in (*cuts, *maximal) if large & taken == large}
        for region in found:
            if region != everything and _worth_measuring(graph, region):
                offers[region].extend(ways)
    return Candidates(_group(graph, identities, offers, set(cuts), maximal), tuple(whole), tuple(cuts), claimed)


def _worth_measuring(graph: Graph, region: int) -> bool:
    """Views alone cost nothing anywhere; regions of several operators must do work to differ from their parts."""
    operators = Region(graph, region).operators
    if len(operators) == 1:
        return True
    return any(operator.op_type in ANCHORS for operator in operators) or not all(
        operator.op_type in VIEWS for operator in operators
    )


def _group(
    graph: Graph, identities: Identities, offers: dict[int, list[Way]], cuts: set[int], maximal: set[int]
) -> tuple[Group, ...]:
    def level(region: int) -> Level:
        if region in cuts and region.bit_count() > 1:
            return "segment"
        if region in maximal:
            return "maximal"
        return "operator" if region.bit_count() == 1 else "prefix"

    regions: dict[str, list[int]] = defaultdict(list)
    ways: dict[str, dict[Way, None]] = defaultdict(dict)
    for region in sorted(offers):
        key = identities.key(Region(graph, region))
        regions[key].append(region)
        for way in offers[region]:
            ways[key].setdefault(way)
    groups = []
    for key, members in regions.items():
        first = members[0]
        groups.append(Group(key, tuple(members), tuple(ways[key]), work(Region(graph, first)), level(first)))
    order: dict[Level, int] = {"segment": 0, "maximal": 0, "operator": 1, "prefix": 1}
    return tuple(sorted(groups, key=lambda group: (order[group.level], -group.weight, group.key)))
