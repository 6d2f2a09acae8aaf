"""Candidates that cannot be part of any better placement, taken out before a search."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from bricolage.errors import NoPlacement
from bricolage.work.bits import lowest, members
from bricolage.work.implementation import Endpoint
from bricolage.work.placement import Candidate
from bricolage.work.transfer import TransferCosts
from bricolage.work.work_graph import GRAPH_INPUT, WorkGraph, WorkTensor

Costs: TypeAlias = npt.NDArray[np.float64]


def usable_candidates(graph: WorkGraph, candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """The candidates that a placement may contain, in a canonical order, so that ties do not depend on the input order.

    Left out: infinite or unknown costs, empty or foreign regions, and regions that are not convex (they always form a
    cycle with whatever runs between their parts).
    Raises NoPlacement, naming the first operator that has no candidate left.
    """
    # Regions of large graphs are long numbers, slow to hash; shifted down to their lowest operator they are short.
    grouped: dict[tuple[int, int], list[Candidate]] = {}
    for candidate in candidates:
        region = candidate.region
        if math.isfinite(candidate.cost_ms) and 0 < region <= graph.everything:
            low = lowest(region)
            grouped.setdefault((low, region >> low), []).append(candidate)
    kept: list[Candidate] = []
    covered = 0
    for key in sorted(grouped, key=lambda key: (key[0], key[1].bit_length(), key[1])):
        group = grouped[key]
        if graph.is_convex(group[0].region):
            kept.extend(sorted(group, key=lambda c: (c.cost_ms, c.implementation, c.key)))
            covered |= group[0].region
    if covered != graph.everything:
        missing = graph.operators[lowest(graph.everything & ~covered)]
        raise NoPlacement(name=missing.name, op_type=missing.op_type or "operator")
    return tuple(kept)


def by_region(candidates: Iterable[Candidate]) -> Iterator[tuple[int, list[Candidate]]]:
    """Neighbours with the same region, together; `usable_candidates` puts all candidates of a region next to each other."""
    for region, group in itertools.groupby(candidates, key=attrgetter("region")):
        yield region, list(group)


def keep_cheapest(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """The cheapest of `usable_candidates` for each region, the first of equals: all that matters without transfers."""
    return tuple(group[0] for _, group in by_region(candidates))


def prune_dominated(
    graph: WorkGraph, candidates: Sequence[Candidate], transfers: TransferCosts
) -> tuple[Candidate, ...]:
    """`usable_candidates` without those that another one of the same region can always replace at no loss.

    A at endpoint a replaces B at endpoint b when cost(A) + worst(a, b) <= cost(B), where worst(a, b) is the largest
    possible difference of the transfer costs around the region: for each tensor that enters, over the endpoints that may
    produce it; for each that leaves, over those that may read it, as often as it may be read. An optimum is kept.
    """
    endpoints = sorted({candidate.implementation.endpoint for candidate in candidates})
    number = {endpoint: index for index, endpoint in enumerate(endpoints)}
    regret = _Regret(graph, candidates, number, transfers)
    kept: list[Candidate] = []
    for region, group in by_region(candidates):
        worst = regret.around(region).tolist() if len(group) > 1 else []
        survivors: list[Candidate] = []
        for candidate in group:
            b = number[candidate.implementation.endpoint]
            if all(
                other.cost_ms + worst[number[other.implementation.endpoint]][b] > candidate.cost_ms
                for other in survivors
            ):
                survivors.append(candidate)
        kept.extend(survivors)
    return tuple(kept)


class TransferMatrix:
    """Transfer costs as matrices (producer, consumer) over `endpoints`, one per size in bytes."""

    def __init__(self, endpoints: Sequence[Endpoint], transfers: TransferCosts) -> None:
        self._endpoints = tuple(endpoints)
        self._transfers = transfers
        self._known: dict[int, Costs] = {}

    def __call__(self, size: int) -> Costs:
        """Matrix in ms for a tensor of `size` bytes; not to be written to."""
        if size not in self._known:
            self._known[size] = np.array(
                [[self._transfers(a, b, size).ms for b in self._endpoints] for a in self._endpoints], dtype=np.float64
            )
        return self._known[size]


class _Regret:
    """The largest difference in transfer costs from using endpoint a in place of b, as matrices [a, b] in ms."""

    def __init__(
        self,
        graph: WorkGraph,
        candidates: Sequence[Candidate],
        number: Mapping[Endpoint, int],
        transfers: TransferCosts,
    ) -> None:
        self._graph = graph
        self._matrix = TransferMatrix(tuple(number), transfers)
        self._size = len(number)
        possible: list[set[int]] = [set() for _ in graph.operators]
        for region, group in by_region(candidates):
            endpoints = {number[candidate.implementation.endpoint] for candidate in group}
            for operator in members(region):
                possible[operator] |= endpoints
        self._possible = [frozenset(endpoints) for endpoints in possible]
        self._entering: dict[tuple[int, frozenset[int]], Costs] = {}
        self._leaving: dict[tuple[int, frozenset[int]], Costs] = {}

    def around(self, region: int) -> Costs:
        """Worst difference for `region`: what enters it and what leaves it."""
        inside = set(members(region))
        total = np.zeros((self._size, self._size))
        read = {t for operator in inside for t in self._graph.reads[operator]}
        for index in sorted(read):
            tensor = self._graph.tensors[index]
            if tensor.producer != GRAPH_INPUT and tensor.producer not in inside:
                total += self._enter(tensor)
        for operator in sorted(inside):
            for index in self._graph.writes[operator]:
                total += self._leave(self._graph.tensors[index], inside)
        return total

    def _enter(self, tensor: WorkTensor) -> Costs:
        key = (tensor.bytes, self._possible[tensor.producer])
        if key not in self._entering:
            costs = self._matrix(tensor.bytes)[sorted(key[1])]
            self._entering[key] = (costs[:, :, None] - costs[:, None, :]).max(axis=0)
        return self._entering[key]

    def _leave(self, tensor: WorkTensor, inside: set[int]) -> Costs:
        readers = [consumer for consumer in set(tensor.consumers) if consumer not in inside]
        if not readers:
            return np.zeros((self._size, self._size))
        key = (tensor.bytes, frozenset().union(*(self._possible[reader] for reader in readers)))
        if key not in self._leaving:
            costs = self._matrix(tensor.bytes)[:, sorted(key[1])]
            self._leaving[key] = (costs[:, None, :] - costs[None, :, :]).max(axis=2)
        worst = self._leaving[key]
        # At least one region reads it and at most one per reader, so a gain counts once and a loss for each.
        return np.where(worst > 0, worst * len(readers), worst)
