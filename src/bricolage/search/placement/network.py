"""Placement with transfer costs as a sum of small tables, ready for variable elimination.

Variables:

- per operator, which of the candidates that cover it is chosen;
- per tensor between operators, what its readers have to know of its producer's choice: the candidate itself when that
  also covers one of the readers, else only its
  endpoint (backend and device). These small variables stand between the operators, so tables
  grow with the number of endpoints, not with the number of candidates;
- per candidate whose region does not hang together, and per candidate in a cycle cut, whether it is chosen.

Every path between two operators of a region runs over such variables, which makes their choices agree. A region pays
for a tensor at the lowest of its operators that reads it, so once for each tensor and region.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from bricolage.search.placement.elimination import EliminationOrder, Factor, elimination_order, minimise_sum
from bricolage.search.placement.pruning import TransferMatrix, by_region
from bricolage.work.bits import lowest, members
from bricolage.work.placement import Candidate
from bricolage.work.transfer import TransferCosts
from bricolage.work.work_graph import GRAPH_INPUT, WorkGraph, WorkTensor

Indices: TypeAlias = npt.NDArray[np.int64]

LONGEST_CUT = 12
"""Cycle cuts through more regions than this would make tables too large."""


class Network:
    """The tables of one placement problem; cuts can be added between two minimisations.

    `candidates` must be usable (see `pruning.usable_candidates`).
    """

    def __init__(self, graph: WorkGraph, candidates: Sequence[Candidate], transfers: TransferCosts) -> None:
        self.graph = graph
        self.candidates = tuple(candidates)
        self._sizes: list[int] = []
        self._factors: list[Factor] = []
        self._flags: dict[int, int] = {}
        endpoints = sorted({candidate.implementation.endpoint for candidate in candidates})
        number = {endpoint: index for index, endpoint in enumerate(endpoints)}
        self._matrix = TransferMatrix(endpoints, transfers)
        self._endpoint = np.array([number[c.implementation.endpoint] for c in candidates], dtype=np.int64)
        self._operators: list[list[int]] = []
        for region, group in by_region(candidates):
            self._operators += [members(region)] * len(group)
        covering: list[list[int]] = [[] for _ in graph.operators]
        for index, operators in enumerate(self._operators):
            for operator in operators:
                covering[operator].append(index)
        self._domain: list[Indices] = [np.array(indices, dtype=np.int64) for indices in covering]
        self._covering = [frozenset(indices) for indices in covering]
        self._add_costs()
        for tensor in graph.tensors:
            if tensor.producer != GRAPH_INPUT and tensor.consumers:
                self._add_tensor(tensor)
        self._join_parts()

    def order(self) -> EliminationOrder:
        """The elimination order, from which the work of `solve` can be judged beforehand."""
        return elimination_order(self._sizes, [factor.scope for factor in self._factors])

    def solve(self, order: EliminationOrder) -> tuple[float, tuple[int, ...]] | None:
        """The least cost in ms and the indices of the chosen candidates; None when no cover exists."""
        assignment = minimise_sum(self._sizes, self._factors, order)
        if assignment is None:
            return None
        cost, values = assignment
        chosen = {int(self._domain[operator][values[operator]]) for operator in range(len(self.graph))}
        return cost, tuple(sorted(chosen))

    def forbid(self, cycle: Sequence[int]) -> None:
        """Forbid that all candidates of `cycle` (indices) are chosen together."""
        scope = tuple(self._flag(index) for index in cycle)
        table = np.zeros((2,) * len(scope))
        table[(1,) * len(scope)] = np.inf
        self._factors.append(Factor(scope, table))

    def _variable(self, size: int) -> int:
        self._sizes.append(size)
        return len(self._sizes) - 1

    def _add_costs(self) -> None:
        """One variable per operator; a candidate is paid for at the lowest operator of its region."""
        cost = np.array([candidate.cost_ms for candidate in self.candidates])
        first = np.array([operators[0] for operators in self._operators], dtype=np.int64)
        for operator, domain in enumerate(self._domain):
            variable = self._variable(len(domain))
            self._factors.append(Factor((variable,), np.where(first[domain] == operator, cost[domain], 0.0)))

    def _add_tensor(self, tensor: WorkTensor) -> None:
        producer, consumers = tensor.producer, sorted(set(tensor.consumers))
        domain = self._domain[producer]
        crossing = {
            int(index) for index in domain if any(int(index) in self._covering[consumer] for consumer in consumers)
        }
        # A class is a crossing candidate (its index), or an endpoint (-1 - its number).
        classes = np.array([i if i in crossing else -1 - self._endpoint[i] for i in domain.tolist()], dtype=np.int64)
        labels = np.unique(classes)
        if len(labels) < len(domain):
            interface = self._variable(len(labels))
            agree = np.where(classes[:, None] == labels[None, :], 0.0, np.inf)
            self._factors.append(Factor((producer, interface), agree))
        else:
            interface, labels = producer, classes
        endpoints = np.where(labels < 0, -1 - labels, self._endpoint[labels])
        costs = self._matrix(tensor.bytes)[endpoints]
        earlier: list[int] = []
        for consumer in consumers:
            table = self._reading(tensor, labels, costs, consumer, earlier)
            if table.any():
                self._factors.append(Factor((interface, consumer), table))
            earlier.append(consumer)

    def _reading(
        self, tensor: WorkTensor, labels: Indices, costs: npt.NDArray[np.float64], consumer: int, earlier: Sequence[int]
    ) -> npt.NDArray[np.float64]:
        """The table (class of the tensor, candidate of the consumer): the transfer cost, infinity if they disagree."""
        domain = self._domain[consumer]
        table = costs[:, self._endpoint[domain]]
        for column, candidate in enumerate(domain.tolist()):
            if candidate in self._covering[tensor.producer]:
                table[:, column] = np.where(labels == candidate, 0.0, np.inf)
            elif any(candidate in self._covering[other] for other in earlier):
                table[:, column] = 0.0  # paid for at an earlier reader of the same region
        covering = self._covering[consumer]
        for row, label in enumerate(labels.tolist()):
            if label >= 0 and label in covering:
                table[row] = np.where(domain == label, 0.0, np.inf)
        return table

    def _join_parts(self) -> None:
        """Tie the parts of the regions that do not hang together: they are chosen whole or not at all."""
        index = 0
        for region, group in by_region(self.candidates):
            if len(self._operators[index]) > 1:
                parts = self.graph.components(region)
                if len(parts) > 1:
                    for offset in range(len(group)):
                        self._flag(index + offset, [lowest(part) for part in parts])
            index += len(group)

    def _flag(self, index: int, operators: Iterable[int] = ()) -> int:
        """The variable that says whether candidate `index` is chosen, tied to `operators` or its lowest operator."""
        if index not in self._flags:
            flag = self._flags[index] = self._variable(2)
            for operator in operators or self._operators[index][:1]:
                chosen = self._domain[operator] == index
                table = np.where(np.stack([~chosen, chosen], axis=1), 0.0, np.inf)
                self._factors.append(Factor((operator, flag), table))
        return self._flags[index]
