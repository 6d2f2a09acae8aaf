"""Exact minimisation of a sum of small tables over discrete variables, by eliminating one variable after the other.

This is bucket elimination (Dechter, "Bucket elimination: a unifying framework for reasoning", Artificial Intelligence
113, 1999) in the (min, +) algebra. Eliminating a variable adds up the tables that mention it and minimises it out; the
result is a table over its neighbours. Time and memory are linear in the number of variables and exponential only in the
width of the elimination order, which is small for operator graphs: parallel branches are eliminated one by one.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

_UNIT = 1 << 20

Table: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Factor:
    """A table of costs with one axis for each variable in `scope`; infinity forbids a combination."""

    scope: tuple[int, ...]
    table: Table


@dataclass(frozen=True)
class EliminationOrder:
    """Variables in the order of elimination, with the entries of the largest table and of all tables together."""

    variables: tuple[int, ...]
    largest: float
    entries: float


def elimination_order(sizes: Sequence[int], scopes: Sequence[tuple[int, ...]]) -> EliminationOrder:
    """The greedy order that always eliminates the variable whose table is smallest; ties by number.

    `sizes` are the numbers of values of the variables.
    """
    neighbours: list[set[int]] = [set() for _ in sizes]
    for scope in scopes:
        for variable in scope:
            neighbours[variable].update(scope)
    for variable, around in enumerate(neighbours):
        around.discard(variable)
    # Logarithms as integers: sums are exact, so they can be kept up to date by adding and subtracting.
    weight = [round(math.log2(size) * _UNIT) for size in sizes]
    current = [weight[v] + sum(weight[w] for w in neighbours[v]) for v in range(len(sizes))]
    heap = [(cost, variable) for variable, cost in enumerate(current)]
    heapq.heapify(heap)
    done = [False] * len(sizes)
    order: list[int] = []
    largest = entries = 0.0
    while heap:
        cost, variable = heapq.heappop(heap)
        if done[variable] or cost != current[variable]:
            continue
        done[variable] = True
        order.append(variable)
        table = 2.0 ** min(cost / _UNIT, 1000.0)
        largest, entries = max(largest, table), entries + table
        around = neighbours[variable]
        for other in around:
            near = neighbours[other]
            added = around - near
            added.discard(other)
            near |= added
            near.discard(variable)
            change = sum(weight[w] for w in added) - weight[variable]
            if change:
                current[other] += change
                heapq.heappush(heap, (current[other], other))
    return EliminationOrder(tuple(order), largest, entries)


def minimise_sum(
    sizes: Sequence[int], factors: Sequence[Factor], order: EliminationOrder
) -> tuple[float, list[int]] | None:
    """The least total cost and a value for every variable that reaches it; None when everything is forbidden.

    Among equal values the lowest wins, so the answer is a function of the arguments.
    """
    position = [0] * len(sizes)
    for place, variable in enumerate(order.variables):
        position[variable] = place
    buckets: list[list[Factor]] = [[] for _ in sizes]
    constant = 0.0
    for factor in factors:
        axes = sorted(range(len(factor.scope)), key=lambda axis: position[factor.scope[axis]])
        scope = tuple(factor.scope[axis] for axis in axes)
        buckets[scope[0]].append(Factor(scope, np.transpose(factor.table, axes)))
    decisions: list[tuple[int, tuple[int, ...], npt.NDArray[np.integer]]] = []
    for variable in order.variables:
        # Every scope is sorted by position, so the eliminated variable is axis 0 and broadcasting needs no transposition.
        joined, total = _add(buckets[variable], variable, sizes, position)
        buckets[variable] = []
        best = total.argmin(axis=0)
        message = total.min(axis=0)
        rest = joined[1:]
        small = np.uint8 if sizes[variable] <= 256 else np.uint32
        decisions.append((variable, rest, best.astype(small)))
        if rest:
            buckets[rest[0]].append(Factor(rest, message))
        else:
            constant += float(message)
        if not np.isfinite(constant):
            return None
    values = [0] * len(sizes)
    for variable, rest, choice in reversed(decisions):
        values[variable] = int(choice[tuple(values[other] for other in rest)])
    return constant, values


def _add(
    bucket: Sequence[Factor], variable: int, sizes: Sequence[int], position: Sequence[int]
) -> tuple[tuple[int, ...], Table]:
    """The sum of the factors of `bucket` over the union of their scopes, sorted by position."""
    if not bucket:
        return (variable,), np.zeros(sizes[variable])
    if len(bucket) == 1:
        return bucket[0].scope, bucket[0].table
    joined = tuple(sorted({v for factor in bucket for v in factor.scope}, key=position.__getitem__))
    total = np.zeros(())
    # Small tables first: the large broadcast then happens as late as possible.
    for factor in sorted(bucket, key=lambda f: f.table.size):
        mine = set(factor.scope)
        total = total + factor.table.reshape([sizes[v] if v in mine else 1 for v in joined])
    return joined, total
