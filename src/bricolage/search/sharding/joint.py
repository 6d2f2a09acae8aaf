"""Conversions that several readers share: a search over what a step's graph is, together with its layouts.

Unity (Unger et al., OSDI 2022) has operators that partition, combine, replicate and reduce, and substitutions that put them
into a graph; a best-first queue keeps graphs that cost at most α times the best, each priced by a dynamic programme over its
layouts. Here the four are conversions on edges, and an operator that is partitioned along an inner dimension, with summands as its
output, is one of its signatures: those substitutions are choices of the programme, which is exact. Edges convert each reader for
itself. What is left to search is sharing. The substitution is an operator that takes a tensor in any
layout and gives it on in the same: behind it, what all readers want is made once. Which tensors have one is searched by such a
queue, and a graph's price is that of its best layouts.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

from bricolage.errors import NoShardingPlan
from bricolage.search.sharding.sharding_problem import (
    DividedOperator,
    DividedTensor,
    ShardingPlan,
    ShardingProblem,
    Signature,
)

RELAY = "relay"
"""Name of such an operator."""
Solve = Callable[[ShardingProblem], ShardingPlan]


def with_relays(problem: ShardingProblem, tensors: Sequence[int]) -> ShardingProblem:
    """The problem with an operator behind each of some tensors, from which all read it but those that write it in place.

    What a relay gives is a new tensor, behind the others by number; its layouts are those in which readers want it, or it is
    written.
    """
    facts, operators = list(problem.tensors), list(problem.operators)
    behind: dict[int, list[DividedOperator]] = defaultdict(list)
    for tensor in tensors:
        writer, output = problem.writer[tensor]
        relay, original = len(facts), problem.tensors[tensor]
        wanted = {way.outputs[output] for way in problem.operators[writer].signatures}
        for number, reader in enumerate(operators):
            places = [n for n, read in enumerate(reader.reads) if read == tensor and n not in reader.in_place]
            wanted |= {way.inputs[place] for way in reader.signatures for place in places}
            reads = tuple(relay if place in places else read for place, read in enumerate(reader.reads))
            operators[number] = replace(reader, reads=reads)
            for written in reader.writes if places else ():
                if facts[written].root == tensor:
                    facts[written] = replace(facts[written], root=-1)  # the relay's copy may be its own
        facts.append(DividedTensor(f"{original.name} relayed", original.bytes))
        ways = tuple(Signature((layout,), (layout,), 0.0) for layout in sorted(wanted))
        behind[writer].append(DividedOperator(RELAY, (tensor,), (relay,), ways))
    order = [operator for number, first in enumerate(operators) for operator in (first, *behind[number])]
    return replace(problem, operators=tuple(order), tensors=tuple(facts))


def candidates(problem: ShardingProblem, plan: ShardingPlan) -> list[int]:
    """Tensors that are read several times: those first that a plan converts to one layout for several readers, by the time that
    would be saved."""
    readings: dict[int, int] = defaultdict(int)
    spent: dict[tuple[int, str], list[float]] = defaultdict(list)
    for edge in problem.edges:
        reader, way = problem.operators[edge[2]], plan.choices[edge[2]]
        ms = problem.conversion(edge, plan.choices[edge[0]], way)
        readings[reader.reads[edge[3]]] += edge[3] not in reader.in_place
        if ms > 0.0:
            spent[reader.reads[edge[3]], reader.signatures[way].inputs[edge[3]]].append(ms)
    saved: dict[int, float] = defaultdict(float)
    for (tensor, _), several in spent.items():
        saved[tensor] += sum(several) - max(several)
    return sorted(
        (number for number, count in readings.items() if count > 1), key=lambda number: (-saved[number], number)
    )


def shared_conversions(
    problem: ShardingProblem,
    first: ShardingPlan,
    solve: Solve,
    *,
    alpha: float = 1.05,
    most: int = 24,
    limit_s: float = math.inf,
) -> tuple[ShardingProblem, ShardingPlan]:
    """The best problem with relays that was found, and its layouts; never worse than the problem itself.

    Args:
        problem: without relays.
        first: its best layouts.
        solve: the best layouts of one with relays.
        alpha: graphs that cost more than this times the best are not looked at further.
        most: graphs that are priced.
        limit_s: seconds, after which no further graph is priced.
    """
    best, end = (problem, first), time.monotonic() + limit_s
    queue: list[tuple[float, tuple[int, ...], ShardingProblem, ShardingPlan]] = [(first.ms, (), problem, first)]
    seen: set[tuple[int, ...]] = {()}
    while queue and len(seen) < most:
        ms, chosen, now, plan = heapq.heappop(queue)
        if ms > alpha * best[1].ms:
            break
        for tensor in candidates(now, plan):
            key = tuple(sorted({*chosen, tensor}))
            if tensor >= len(problem.tensors) or key in seen or len(seen) >= most or time.monotonic() > end:
                continue
            seen.add(key)
            other = with_relays(problem, key)
            try:
                solution = solve(other)
            except NoShardingPlan:  # what is kept for all readers does not fit
                continue
            if solution.ms < best[1].ms:
                best = other, solution
            heapq.heappush(queue, (solution.ms, key, other, solution))
    return best
