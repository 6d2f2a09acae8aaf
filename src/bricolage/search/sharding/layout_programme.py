"""The layouts of a group of operators that take least: exactly, as far as time allows.

The problem is that of Alpa (Zheng et al., OSDI 2022): one signature for each operator, its time, conversions on edges, and a
limit of memory while each operator runs. Where memory is no matter the choice is that of a network of small tables, which bucket
elimination solves exactly in time linear in the length of the graph (`search.placement.elimination`). Where it is, an integer
programme decides on HiGHS; edges have a transport of weight from the choices of the writer to those of the reader, as transfers
have in `search.placement.milp`.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from bricolage.device.collective import Ring
from bricolage.errors import NoShardingPlan
from bricolage.search.placement.elimination import Factor, elimination_order, minimise_sum
from bricolage.search.placement.linear_rows import LinearRows
from bricolage.search.sharding.layouts import Layout, conversion_ms
from bricolage.search.sharding.sharding_problem import (
    ShardingPlan,
    ShardingProblem,
    device_memory,
    judge_choice,
    least_memory,
)

MAX_TABLE = 16_000_000
"""Entries of the largest table of elimination (128 MB)."""
_MAX_ENTRIES = 400_000_000
_SLACK = 1e-9
_ROUNDS = 12
"""Of prices for memory."""
_PRICES = (-4, 9)
"""Powers of two of the prices of a frontier, in steps of bytes held at the worst moment."""
_LEAST_S = 5.0
"""For which prices are tried, whatever the limit."""
_CLOSE = 1e-3
"""Part of the time by which a choice is more than the bound of its prices: others are not looked for by prices then."""
Tables = dict[tuple[int, int], np.ndarray]


def best_sharding(problem: ShardingProblem, *, limit_s: float = 60.0, gap: float = 0.0) -> ShardingPlan:
    """The choice that takes least among those that fit into memory, or the best that was found in `limit_s` seconds, with the
    bound.

    Args:
        problem: the problem.
        limit_s: seconds; 0 spares the integer programme.
        gap: part of the time that need not be proven: with a choice that is so close the integer programme is spared.

    Raises:
        NoShardingPlan: no choice fits, or none was found.
    """
    started = time.monotonic()
    if least_memory(problem) > problem.memory_bytes:
        raise NoShardingPlan(workers=problem.ring.workers, memory=f"{problem.memory_bytes / 1e9:.3g} GB")
    free = without_limit(problem)
    if free is not None and free.peak_bytes <= problem.memory_bytes:
        return free
    bound = 0.0 if free is None else free.ms
    priced = None if free is None else _solve_with_prices(problem, free, started + max(limit_s / 3, _LEAST_S))
    if priced is not None and priced.gap <= gap:
        return replace(priced, seconds=time.monotonic() - started)
    left = limit_s - (time.monotonic() - started)
    milp_plan = solve_layouts(problem, limit_s=max(left, 1.0)) if limit_s > 0.0 else None
    options = [candidate for candidate in (priced, milp_plan) if candidate is not None]
    if not options:
        raise NoShardingPlan(workers=problem.ring.workers, memory=f"{problem.memory_bytes / 1e9:.3g} GB")
    best = min(options, key=lambda option: option.ms)
    bound = min(max([bound, *(option.bound_ms for option in options)]), best.ms)
    return replace(best, bound_ms=bound, seconds=time.monotonic() - started)


# --- without a limit of memory --------------------------------------------------------------------------------------


def without_limit(problem: ShardingProblem, prices: Sequence[float] | None = None) -> ShardingPlan | None:
    """The least time whatever the memory, by elimination; None where tables grow too large.

    Args:
        problem: the problem.
        prices: milliseconds for each byte that is held while each operator runs; then it is the time and the price that are least.
    """
    started = time.monotonic()
    sizes = [len(operator.signatures) for operator in problem.operators]
    single, pairs = _tables(problem, prices)
    factors = [Factor((number,), table) for number, table in enumerate(single)]
    for ends, table in pairs.items():  # an operator with one signature joins no others
        free = tuple(end for end in ends if sizes[end] > 1) or ends[:1]
        factors.append(Factor(free, table.reshape([sizes[end] for end in free])))
    order = elimination_order(sizes, [factor.scope for factor in factors])
    if order.largest > MAX_TABLE or order.entries > _MAX_ENTRIES:
        return None
    solved = minimise_sum(sizes, factors, order)
    if solved is None:
        raise NoShardingPlan(workers=problem.ring.workers, memory="any size")
    return judge_choice(problem, solved[1], solved[0] * (1.0 - _SLACK), "elimination", time.monotonic() - started)


def _tables(problem: ShardingProblem, prices: Sequence[float] | None) -> tuple[list[np.ndarray], Tables]:
    """Costs by choice, and by pairs of choices."""
    sums = np.zeros(len(problem.operators) + 1) if prices is None else np.concatenate([[0.0], np.cumsum(prices)])
    single: list[np.ndarray] = []
    for operator in problem.operators:
        costs = operator.weight * np.array([way.ms for way in operator.signatures])
        if prices is not None:
            for output, tensor in enumerate(operator.writes):
                first, last = problem.lifetimes[tensor]
                price = sums[last + 1] - sums[first]
                costs += price * np.array(
                    [problem.bytes_of(tensor, way.outputs[output]) for way in operator.signatures]
                )
        single.append(costs)
    pairs: Tables = {}
    for edge in problem.edges:
        table = edge_table(problem, edge)
        if prices is not None:
            first, last = problem.copy_span(edge)
            if sums[last + 1] > sums[first]:
                table = table + (sums[last + 1] - sums[first]) * copy_table(problem, edge)
        ends = edge[0], edge[2]
        pairs[ends] = pairs[ends] + table if ends in pairs else table
    return single, pairs


def _edge_key(
    problem: ShardingProblem, edge: tuple[int, int, int, int]
) -> tuple[tuple[Layout, ...], tuple[Layout, ...], float, bool, float]:
    """What its table depends on: layouts on both sides, and bytes."""
    writer, output, reader, argument = edge
    consumer = problem.operators[reader]
    return (
        tuple(way.outputs[output] for way in problem.operators[writer].signatures),
        tuple(way.inputs[argument] for way in consumer.signatures),
        problem.tensors[consumer.reads[argument]].bytes,
        argument in consumer.in_place,
        consumer.weight,
    )


def edge_table(problem: ShardingProblem, edge: tuple[int, int, int, int]) -> np.ndarray:
    """Milliseconds of conversion, by the choices of writer and reader; not to be written to."""
    return _conversions(*_edge_key(problem, edge), problem.ring)


@functools.lru_cache(maxsize=1 << 14)
def _conversions(
    sources: tuple[Layout, ...], targets: tuple[Layout, ...], size: float, in_place: bool, weight: float, ring: Ring
) -> np.ndarray:
    """As `ShardingProblem.conversion` has them; readings of equal layouts and sizes share a table."""
    each = {
        (source, other): math.inf if in_place and source != other else weight * conversion_ms(source, other, size, ring)
        for source in set(sources)
        for other in set(targets)
    }
    return np.array([[each[source, other] for other in targets] for source in sources])


def copy_table(problem: ShardingProblem, edge: tuple[int, int, int, int]) -> np.ndarray:
    """Bytes of the copy that a reader holds, by the choices of writer and reader."""
    rows, columns = (range(len(problem.operators[end].signatures)) for end in (edge[0], edge[2]))
    return np.array([[problem.copy_bytes(edge, row, column) for column in columns] for row in rows])


# --- with it --------------------------------------------------------------------------------------------------------


def _solve_with_prices(problem: ShardingProblem, free: ShardingPlan, deadline: float) -> ShardingPlan | None:
    """The best choice that fits among those that prices for memory give, and the best bound of these prices (Lagrange).

    For any prices p ≥ 0 of operators, time + Σ p (memory - limit) at its least is no more than the least time that fits. Prices are
    high where the choice without them needs most; how high, bisection finds.
    """
    over = np.maximum(np.array(device_memory(problem, free.choices)) - problem.memory_bytes, 0.0)
    shape = over / over.sum()
    low, high, price = 0.0, math.inf, free.ms / problem.memory_bytes
    best: ShardingPlan | None = None
    bound = free.ms
    for _ in range(_ROUNDS):
        candidate = without_limit(problem, (price * shape).tolist())
        if candidate is None:
            break
        need = float(shape @ np.array(device_memory(problem, candidate.choices))) - problem.memory_bytes
        bound = max(bound, (candidate.ms + price * need) * (1.0 - _SLACK))
        if candidate.peak_bytes <= problem.memory_bytes:
            best = candidate if best is None or candidate.ms < best.ms else best
            high = price
        else:
            low = price
        if time.monotonic() > deadline or (best is not None and best.ms <= bound * (1.0 + _CLOSE)):
            break
        price = 4 * price if math.isinf(high) else (low + high) / 2 if low else high / 4
    if best is None:
        return None
    return replace(best, bound_ms=min(bound, best.ms), method="elimination with prices for memory")


def frontier(problem: ShardingProblem) -> list[ShardingPlan]:
    """Choices from the fastest to one that keeps little, each faster than all that keep less: what prices for memory give that rise
    in powers of two, whatever the limit; without a limit the fastest alone. Empty where tables grow too large."""
    free = without_limit(problem)
    if free is None or math.isinf(problem.memory_bytes):
        return [] if free is None else [free]
    held = np.array(device_memory(problem, free.choices))
    shape = (held / max(free.peak_bytes, 1.0)) ** 2
    plans = [free]
    for power in range(*_PRICES):
        price = 2.0**power * free.ms / max(free.peak_bytes, 1.0) / max(float(shape.sum()), 1.0)
        candidate = without_limit(problem, (price * shape).tolist())
        if candidate is not None and candidate.peak_bytes < plans[-1].peak_bytes:
            plans.append(candidate)
    return plans


def solve_layouts(problem: ShardingProblem, *, limit_s: float = 60.0) -> ShardingPlan | None:
    """The least time that fits into memory, by HiGHS within `limit_s` seconds; None where it found nothing.

    Raises:
        NoShardingPlan: it is proven that nothing fits.
    """
    started = time.monotonic()
    rows, columns, scale = _rows(problem)
    whole = np.zeros(len(rows.cost))
    for block in columns:
        whole[block[0] : block[-1] + 1] = 1
    result = rows.solve(whole, limit_s)
    if result.infeasible:
        raise NoShardingPlan(workers=problem.ring.workers, memory=f"{problem.memory_bytes / 1e9:.3g} GB")
    if result.x is None:
        return None
    choices = [int(np.argmax(result.x[column])) for column in columns]
    bound = 0.0 if result.bound is None else result.bound * scale
    seconds = time.monotonic() - started
    return judge_choice(problem, choices, bound * (1.0 - 1e-6), "integer programme", seconds)


def _rows(problem: ShardingProblem) -> tuple[LinearRows, list[list[int]], float]:
    """The programme: columns of choices come first, by operator. Costs are in units of `scale`."""
    single, pairs = _tables(problem, None)
    scale = max(math.fsum(float(unary.max()) for unary in single) / 1000.0, 1e-12)
    rows = LinearRows([])
    columns = [[rows.new_column(float(ms) / scale) for ms in unary] for unary in single]
    for choice_columns in columns:
        rows.add([(column, 1.0) for column in choice_columns], 1.0, 1.0)
    flows: dict[tuple[int, int], np.ndarray] = {}
    for (a, b), table in pairs.items():
        flows[a, b] = _transport(rows, columns[a], columns[b], table / scale)
    if math.isfinite(problem.memory_bytes):
        for entries in _memory_rows(problem, columns, flows):
            rows.add(entries.items(), -math.inf, 1.0)
    return rows, columns, scale


def _transport(rows: LinearRows, sources: Sequence[int], targets: Sequence[int], table: np.ndarray) -> np.ndarray:
    """Columns of pairs of choices, -1 where a pair cannot be."""
    pair_columns = np.full(table.shape, -1)
    for row, column in zip(*np.nonzero(np.isfinite(table)), strict=True):
        pair_columns[row, column] = rows.new_column(float(table[row, column]))
    for row, source in enumerate(sources):
        rows.add([*((int(number), 1.0) for number in pair_columns[row] if number >= 0), (source, -1.0)], 0.0, 0.0)
    for column, target in enumerate(targets):
        rows.add([*((int(number), 1.0) for number in pair_columns[:, column] if number >= 0), (target, -1.0)], 0.0, 0.0)
    return pair_columns


def _memory_rows(
    problem: ShardingProblem, columns: Sequence[Sequence[int]], flows: dict[tuple[int, int], np.ndarray]
) -> list[dict[int, float]]:
    """While each operator runs, by column the part of the memory that its choice takes."""
    memory_rows: list[dict[int, float]] = [{} for _ in problem.operators]

    def add(first: int, last: int, column: int, size: float) -> None:
        if size and column >= 0:
            for row in memory_rows[first : last + 1]:
                row[column] = row.get(column, 0.0) + size / problem.memory_bytes

    for tensor, (first, last) in enumerate(problem.lifetimes):
        writer, output = problem.writer[tensor]
        if writer < 0:
            continue
        for choice, way in enumerate(problem.operators[writer].signatures):
            add(first, last, columns[writer][choice], problem.bytes_of(tensor, way.outputs[output]))
    for edge in problem.edges:
        span = problem.copy_span(edge)
        for place, size in np.ndenumerate(copy_table(problem, edge)):
            add(*span, int(flows[edge[0], edge[2]][place]), float(size))
    return memory_rows
