"""When one sample is done: accelerators that each run one block of operators, and processors that run operators one by one.

The latency problem of Tarnawski et al., NeurIPS 2020, with one block for each accelerator: a block begins when all that it reads is
there, moves that in, computes, moves out what others read, and only then is any of it there for them. There are as many processors
as operators run at once.

The bound is ours. A path meets each accelerator in one piece, since blocks are convex. A piece from a to b holds whatever lies
between them on any path; it pays for what comes from before the piece before it, and for what is read behind it. So the cheapest
division of one path into pieces is a shortest path, and no placement is done sooner: nothing in it is a matter of large constants,
which make the bound of the integer programme so weak.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Iterable, Sequence

from bricolage.search.devices.colocation import contract, downsets, prefixes
from bricolage.search.devices.device_problem import DevicePlacementProblem, PlacedOperators
from bricolage.search.devices.downsets import MAX_DOWNSETS, Chains
from bricolage.work.bits import members, of


def latency(problem: DevicePlacementProblem, devices: Sequence[int]) -> float:
    """When one sample is done, milliseconds; infinite where blocks wait for each other, or do not fit."""
    block = [one if one < problem.accelerators else problem.accelerators + number for number, one in enumerate(devices)]
    inside: dict[int, list[int]] = {}
    for number, mine in enumerate(block):
        inside.setdefault(mine, []).append(number)
    before: dict[int, set[int]] = {one: set() for one in inside}
    after: dict[int, set[int]] = {one: set() for one in inside}
    for source, readers in enumerate(problem.readers):
        for reader in readers:
            if block[source] != block[reader]:
                before[block[reader]].add(block[source])
                after[block[source]].add(block[reader])
    waiting = {one: len(some) for one, some in before.items()}
    ends: dict[int, float] = {}
    ready = [one for one, count in waiting.items() if not count]
    while ready:
        one = heapq.heappop(ready)
        load = problem.load(inside[one], processor=one >= problem.accelerators)
        ends[one] = max((ends[other] for other in before[one]), default=0.0) + load
        for other in after[one]:
            waiting[other] -= 1
            if not waiting[other]:
                heapq.heappush(ready, other)
    return max(ends.values(), default=0.0) if len(ends) == len(inside) else math.inf


def least_latency(
    problem: DevicePlacementProblem, *, limit_s: float = 60.0, max_downsets: int = MAX_DOWNSETS
) -> PlacedOperators:
    """The best placement found, and the bound.

    Blocks are the parts between downsets whose loads have the least sum: exact where blocks come one after another, an upper bound
    of the latency where branches run at once. Then single blocks of the graph move for as long as that helps and there is time.
    """
    started = time.monotonic()
    deadline = started + limit_s
    blocks = contract(problem)
    found: list[tuple[float, tuple[int, ...]]] = []
    limit = math.inf
    for family in (prefixes(blocks), downsets(blocks, max_downsets)):
        if family is not None:
            chain = Chains(problem, blocks, family).best(limit, deadline, total=True)
            if chain.devices is not None:
                found.append((latency(problem, chain.devices), chain.devices))
                limit = min(limit, _sum_of_loads(problem, chain.devices))
    if not found:
        return PlacedOperators((), "blocks in a row", math.inf, latency_bound(problem), time.monotonic() - started)
    value, devices = min(found)
    value, devices = _improved(problem, [blocks.operators[one] for one in range(len(blocks))], value, devices, deadline)
    bound = min(latency_bound(problem), value)
    return PlacedOperators(devices, "blocks in a row", value, bound, time.monotonic() - started)


def _sum_of_loads(problem: DevicePlacementProblem, devices: Sequence[int]) -> float:
    parts: dict[int, list[int]] = {}
    for number, one in enumerate(devices):
        parts.setdefault(min(one, problem.accelerators), []).append(number)
    return math.fsum(problem.load(some, processor=one == problem.accelerators) for one, some in parts.items())


def _improved(
    problem: DevicePlacementProblem,
    groups: Sequence[tuple[int, ...]],
    value: float,
    devices: tuple[int, ...],
    deadline: float,
) -> tuple[float, tuple[int, ...]]:
    """Groups go to a device of a neighbour, or to an accelerator without work, while that makes it sooner."""
    better = True
    while better:
        better = False
        for group in groups:
            near = {
                devices[other] for one in group for other in (*problem.readers[one], *problem.graph.predecessors[one])
            }
            unused = next((one for one in range(problem.accelerators) if one not in devices), None)
            near |= {unused} if unused is not None else set()
            for device in sorted(near - {devices[group[0]]}):
                if time.monotonic() > deadline:
                    return value, devices
                changed = list(devices)
                for one in group:
                    changed[one] = device
                sooner = latency(problem, changed)
                if sooner < value * (1.0 - 1e-12):
                    value, devices, better = sooner, tuple(changed), True
    return value, devices


def latency_bound(problem: DevicePlacementProblem) -> float:
    """What no placement goes below: the best division into pieces of each of a few long paths."""
    fastest = [min(a, p) for a, p in zip(problem.accelerator_ms, problem.processor_ms, strict=True)]
    order = range(len(problem))
    above, below = _reach(problem.graph.predecessors, order), _reach(problem.readers, reversed(order))
    best = 0.0
    for weights in (
        fastest,
        [ms + 1e-9 * size for ms, size in zip(fastest, problem.memory, strict=True)],
        [1.0] * len(problem),
    ):
        path = _longest(problem, weights)
        if path:
            best = max(best, _pieces(problem, path, above, below))
    return best * (1.0 - 1e-12)


def _reach(near: Sequence[Sequence[int]], order: Iterable[int]) -> list[int]:
    """As sets of bits, all that each can reach, itself included."""
    found = [0] * len(near)
    for one in order:
        found[one] = 1 << one
        for other in near[one]:
            found[one] |= found[other]
    return found


def _longest(problem: DevicePlacementProblem, weights: Sequence[float]) -> list[int]:
    ahead = [0.0] * len(problem)
    following = [-1] * len(problem)
    for one in reversed(range(len(problem))):
        for reader in problem.readers[one]:
            if ahead[reader] >= ahead[one]:
                ahead[one], following[one] = ahead[reader], reader
        ahead[one] += weights[one]
    if not ahead:
        return []
    one, path = max(range(len(problem)), key=ahead.__getitem__), []
    while one >= 0:
        path.append(one)
        one = following[one]
    return path


def _pieces(problem: DevicePlacementProblem, path: Sequence[int], above: Sequence[int], below: Sequence[int]) -> float:
    """The least time of a path that is divided between accelerators, in at most as many pieces, and processors."""
    count, many = len(path), problem.accelerators
    sources = [
        of(member for member in members(some) if problem.move_ms[member]) for some in _sets(problem.graph.predecessors)
    ]
    # By place of the path: what has a reader from the next place on, and so is moved out if the piece ends here.
    leaving = []
    for place in range(count):
        beyond = members(below[path[place + 1]]) if place + 1 < count else []
        outside = 0
        for one in beyond:
            outside |= sources[one]
        leaving.append(outside)
    best = [[math.inf] * (many + 1) for _ in range(count + 1)]
    best[0][0] = 0.0
    for begin, first in enumerate(path):
        known = best[begin]
        if problem.processors:
            after = best[begin + 1]
            for used in range(many + 1):
                after[used] = min(after[used], known[used] + problem.processor_ms[first])
        coming = above[path[begin - 1]] if begin else 0
        inside, paid, work, memory = 0, 0, 0.0, 0.0
        for end in range(begin, count):
            added = members(below[first] & above[path[end]] & ~inside)
            for one in added:
                inside |= 1 << one
                paid |= sources[one] & coming
                work += problem.accelerator_ms[one]
                memory += problem.memory[one]
            if memory > problem.memory_bytes or math.isinf(work):
                break
            moved = paid | (inside & leaving[end])
            load = work + math.fsum(problem.move_ms[member] for member in members(moved))
            after = best[end + 1]
            for used in range(many):
                after[used + 1] = min(after[used + 1], known[used] + load)
    return min(best[count])


def _sets(near: Sequence[Sequence[int]]) -> list[int]:
    return [of(some) for some in near]
