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
    block = [
        device if device < problem.accelerators else problem.accelerators + number
        for number, device in enumerate(devices)
    ]
    inside: dict[int, list[int]] = {}
    for number, mine in enumerate(block):
        inside.setdefault(mine, []).append(number)
    before: dict[int, set[int]] = {part: set() for part in inside}
    after: dict[int, set[int]] = {part: set() for part in inside}
    for source, readers in enumerate(problem.readers):
        for reader in readers:
            if block[source] != block[reader]:
                before[block[reader]].add(block[source])
                after[block[source]].add(block[reader])
    waiting = {part: len(sources) for part, sources in before.items()}
    ends: dict[int, float] = {}
    ready = [part for part, count in waiting.items() if not count]
    while ready:
        part = heapq.heappop(ready)
        load = problem.load(inside[part], processor=part >= problem.accelerators)
        ends[part] = max((ends[other] for other in before[part]), default=0.0) + load
        for other in after[part]:
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
    placements: list[tuple[float, tuple[int, ...]]] = []
    limit = math.inf
    for family in (prefixes(blocks), downsets(blocks, max_downsets)):
        if family is not None:
            chain = Chains(problem, blocks, family).best(limit, deadline, total=True)
            if chain.devices is not None:
                placements.append((latency(problem, chain.devices), chain.devices))
                limit = min(limit, _sum_of_loads(problem, chain.devices))
    if not placements:
        return PlacedOperators((), "blocks in a row", math.inf, latency_bound(problem), time.monotonic() - started)
    value, devices = min(placements)
    value, devices = _improve_placement(
        problem, [blocks.operators[number] for number in range(len(blocks))], value, devices, deadline
    )
    bound = min(latency_bound(problem), value)
    return PlacedOperators(devices, "blocks in a row", value, bound, time.monotonic() - started)


def _sum_of_loads(problem: DevicePlacementProblem, devices: Sequence[int]) -> float:
    parts: dict[int, list[int]] = {}
    for number, device in enumerate(devices):
        parts.setdefault(min(device, problem.accelerators), []).append(number)
    return math.fsum(
        problem.load(operators, processor=device == problem.accelerators) for device, operators in parts.items()
    )


def _improve_placement(
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
                devices[other]
                for operator in group
                for other in (*problem.readers[operator], *problem.graph.predecessors[operator])
            }
            unused = next(
                (accelerator for accelerator in range(problem.accelerators) if accelerator not in devices), None
            )
            near |= {unused} if unused is not None else set()
            for device in sorted(near - {devices[group[0]]}):
                if time.monotonic() > deadline:
                    return value, devices
                changed = list(devices)
                for operator in group:
                    changed[operator] = device
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
    reachable = [0] * len(near)
    for node in order:
        reachable[node] = 1 << node
        for other in near[node]:
            reachable[node] |= reachable[other]
    return reachable


def _longest(problem: DevicePlacementProblem, weights: Sequence[float]) -> list[int]:
    ahead = [0.0] * len(problem)
    following = [-1] * len(problem)
    for operator in reversed(range(len(problem))):
        for reader in problem.readers[operator]:
            if ahead[reader] >= ahead[operator]:
                ahead[operator], following[operator] = ahead[reader], reader
        ahead[operator] += weights[operator]
    if not ahead:
        return []
    operator, path = max(range(len(problem)), key=ahead.__getitem__), []
    while operator >= 0:
        path.append(operator)
        operator = following[operator]
    return path


def _pieces(problem: DevicePlacementProblem, path: Sequence[int], above: Sequence[int], below: Sequence[int]) -> float:
    """The least time of a path that is divided between accelerators, in at most as many pieces, and processors."""
    count, many = len(path), problem.accelerators
    sources = [
        of(member for member in members(mask) if problem.move_ms[member]) for mask in _sets(problem.graph.predecessors)
    ]
    # By place of the path: what has a reader from the next place on, and so is moved out if the piece ends here.
    leaving = []
    for place in range(count):
        beyond = members(below[path[place + 1]]) if place + 1 < count else []
        outside = 0
        for operator in beyond:
            outside |= sources[operator]
        leaving.append(outside)
    best = [[math.inf] * (many + 1) for _ in range(count + 1)]
    best[0][0] = 0.0
    for begin, first in enumerate(path):
        prefix_ms = best[begin]
        if problem.processors:
            after = best[begin + 1]
            for used in range(many + 1):
                after[used] = min(after[used], prefix_ms[used] + problem.processor_ms[first])
        coming = above[path[begin - 1]] if begin else 0
        inside, paid, paid_ms, work, memory = 0, 0, 0.0, 0.0, 0.0
        for end in range(begin, count):
            added = members(below[first] & above[path[end]] & ~inside)
            for operator in added:
                inside |= 1 << operator
                arriving = sources[operator] & coming & ~paid
                paid |= arriving
                paid_ms += math.fsum(problem.move_ms[member] for member in members(arriving))
                work += problem.accelerator_ms[operator]
                memory += problem.memory[operator]
            if memory > problem.memory_bytes or math.isinf(work):
                break
            left = inside & leaving[end] & ~paid
            load = work + paid_ms + math.fsum(problem.move_ms[member] for member in members(left))
            after = best[end + 1]
            for used in range(many):
                after[used + 1] = min(after[used + 1], prefix_ms[used] + load)
    return min(best[count])


def _sets(near: Sequence[Sequence[int]]) -> list[int]:
    return [of(numbers) for numbers in near]
