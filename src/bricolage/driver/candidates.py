"""Candidates: which regions are worth measuring on which backend, in which order.

Regions come from the backends' claims (single operators, patterns, grown prefixes up to the claim's limit), from the
segments of the graph, and from each engine's maximal regions: the whole graph where it accepts all of it, otherwise the
largest convex regions that it accepts. A backend that does not claim all of a graph may be tried with the whole of it. Equal
regions are measured once, and those that can save the most first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from bricolage.backends.capabilities import explain_quarantine
from bricolage.backends.claim_matching import Matcher
from bricolage.backends.interface import Backend
from bricolage.base.options import Precision
from bricolage.costs.models.roofline import added_ms
from bricolage.device.device import Device, Peaks
from bricolage.graph.graph import Graph, Region
from bricolage.graph.identity import Identities
from bricolage.graph.operator_kinds import ANCHORS, VIEWS
from bricolage.graph.segments import segments
from bricolage.graph.work import workload
from bricolage.work import bits as bitset
from bricolage.work.implementation import Implementation
from bricolage.work.workload import Workload

Level = Literal["operator", "prefix", "segment", "maximal"]
LARGE: frozenset[Level] = frozenset({"segment", "maximal"})
"""Kinds of regions that are measured before others."""


@dataclass(frozen=True)
class CandidateGroup:
    """Regions of one graph with the same identity, and who could run them. They share their measurements."""

    key: str
    regions: tuple[int, ...]
    """Bit-sets, disjoint or not; the first one is measured for all."""
    implementations: tuple[Implementation, ...]
    work: Workload
    level: Level
    """The widest kind of region that it is."""

    def weight(self, peaks: Peaks) -> float:
        """Estimated share of the model's time that the group takes, ms."""
        return len(self.regions) * added_ms(peaks, self.work.flops, self.work.bytes)


@dataclass(frozen=True)
class Candidates:
    """Everything that could be measured for a graph, most promising first; and what each backend could run as a whole."""

    groups: tuple[CandidateGroup, ...]
    whole: tuple[Implementation, ...]
    """Those that take the whole graph as one region."""
    unclaimed: tuple[Implementation, ...] = ()
    """Those of backends that do not claim all of the graph and may be tried with it as a whole (`Backend.tries_whole`): what it
    computes is checked there, which says more than a test of each operator. They run no smaller region of it."""
    segments: tuple[int, ...] = ()
    """The graph cut into blocks, in executable order."""
    claimed: dict[str, int] = field(default_factory=dict)
    """Per backend the operators that it accepts, as a bit-set."""

    @property
    def backends(self) -> set[str]:
        """Those that offer to run a part of the graph."""
        return {implementation.backend for group in self.groups for implementation in group.implementations}


@dataclass
class KnownClaims:
    """What each backend claims of a graph, which no device changes: by graph, then by backend, the operators of maximal regions and
    the other regions. Graphs are told apart as objects: operators of equal ones may stand in another order."""

    _known: dict[int, tuple[Graph, dict[str, tuple[int, frozenset[int]]]]] = field(default_factory=dict, init=False)

    def of(self, graph: Graph, backends: Sequence[Backend]) -> Mapping[str, tuple[int, frozenset[int]]]:
        """Of these backends, found now where it is not known.

        Args:
            graph: whose operators are claimed.
            backends: as they passed their self-check.
        """
        claims, matcher = self._known.setdefault(id(graph), (graph, {}))[1], Matcher(graph)
        for backend in backends:
            if backend.name not in claims:
                offered = tuple(backend.claims())
                claims[backend.name] = matcher.accepted(offered), frozenset(matcher.regions(offered))
        return claims


def find_candidates(
    graph: Graph,
    backends: Sequence[Backend],
    precision: Precision,
    device: Device,
    *,
    slow_per_region: bool,
    known: KnownClaims | None = None,
) -> Candidates:
    """All candidates of `graph` on `backends` and a device. With `slow_per_region` false, backends that compile
    slowly are candidates for large regions only: the whole graph, its segments and engines' maximal regions. `known`: what backends
    claim, found for another device."""
    matcher, identities = Matcher(graph), Identities(graph)
    claims = (known or KnownClaims()).of(graph, backends)
    accepted = {backend.name: claims[backend.name][0] for backend in backends}
    everything = graph.everything.bits
    cuts = segments(graph)
    maximal = {part for bits in accepted.values() for part in matcher.maximal(bits) if part.bit_count() > 1}
    claimed: dict[str, int] = {}
    offers: dict[int, list[Implementation]] = defaultdict(list)
    whole: list[Implementation] = []
    unclaimed: list[Implementation] = []
    for backend in backends:
        configs = backend.suited_configs(precision, device, graph.everything)
        suited = [Implementation(backend.name, config, device.name) for config in configs]
        regions = set(claims[backend.name][1])
        taken = accepted[backend.name]
        claimed[backend.name] = taken | bitset.of(
            bitset.lowest(region) for region in regions if region.bit_count() == 1
        )
        if taken == everything or everything in regions:
            whole.extend(suited)
        elif backend.tries_whole and (graph.static or backend.dynamic) and explain_quarantine(backend, graph) is None:
            unclaimed.extend(suited)
        if backend.compiles_slowly and not slow_per_region:
            regions = set()
        regions |= {large for large in (*cuts, *maximal) if large & taken == large}
        for region in regions:
            if region != everything and _worth_measuring(graph, region):
                part = Region(graph, region)
                offers[region].extend(
                    implementation for implementation in suited if backend.suits(implementation.config, part)
                )
    return Candidates(
        _group(graph, identities, offers, set(cuts), maximal, device.peaks),
        tuple(whole),
        tuple(unclaimed),
        tuple(cuts),
        claimed,
    )


def _worth_measuring(graph: Graph, region: int) -> bool:
    """Views alone cost nothing anywhere; regions of several operators must do work to differ from their parts."""
    operators = Region(graph, region).operators
    if len(operators) == 1:
        return True
    return any(operator.op_type in ANCHORS for operator in operators) or not all(
        operator.op_type in VIEWS for operator in operators
    )


def _group(
    graph: Graph,
    identities: Identities,
    offers: dict[int, list[Implementation]],
    cuts: set[int],
    maximal: set[int],
    peaks: Peaks,
) -> tuple[CandidateGroup, ...]:
    def level(region: int) -> Level:
        if region in cuts and region.bit_count() > 1:
            return "segment"
        if region in maximal:
            return "maximal"
        return "operator" if region.bit_count() == 1 else "prefix"

    regions: dict[str, list[int]] = defaultdict(list)
    implementations: dict[str, dict[Implementation, None]] = defaultdict(dict)
    for region in sorted(offers):
        key = identities.key(Region(graph, region))
        regions[key].append(region)
        for offer in offers[region]:
            implementations[key].setdefault(offer)
    groups = []
    for key, members in regions.items():
        first = members[0]
        groups.append(
            CandidateGroup(
                key, tuple(members), tuple(implementations[key]), workload(Region(graph, first)), level(first)
            )
        )
    return tuple(sorted(groups, key=lambda group: (group.level not in LARGE, -group.weight(peaks), group.key)))
