"""Recurrences side by side: each is a strand of small kernels, and a thread runs a strand alone.

The steps of a recurrence depend on each other, so threads that share a step meet before the next one; small steps take hardly
longer than that. Where a graph has as many recurrences that do not depend on each other as there are threads (the two directions
of an LSTM), each thread takes one of them, and all meet once for many steps. Where sharing a step saves no more than its
meeting costs, one thread takes it, even if others have nothing to do meanwhile.

A recurrence is found by its weights: the same constant multiplies again what was made of its own product.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from bricolage.native.fuse.buffer_layout import arena
from bricolage.native.fuse.inspect import kernel_flops
from bricolage.native.fuse.kernel_plan import Buffer, FusionPlan, PlannedKernel, kernel_reads
from bricolage.native.ir.lowerings.lowering_context import RecurrentBatch
from bricolage.native.ir.tensors import Constant, MatMul

_PIECE = 2_000_000
"""Multiply-adds that a thread does without meeting the others: some 100 µs, as in a loop that threads share. Where a kernel has
more, a barrier costs next to nothing in comparison."""
_FEWEST = 3
"""Products of a recurrence."""
_ALIKE = 0.8
"""Products of the smallest strand of a group, as a part of the largest one's, at least: otherwise threads idle."""
_MEETING = 20_000
"""Weights that a thread reads from its second-level cache while threads meet: of an RNN with 65,536, two threads took 2.5 µs a step
and one 3.3 (Intel Xeon with AMX, 2 cores), so that the meeting takes some 0.9."""
_WEIGHT = 0.4
"""Time of a multiply-add whose weight is in a register, that of reading a weight being 1."""
_FEWEST_SEQUENCES = 4
"""Of a part of a batch: with fewer, reading the weights takes longer than multiplying by them."""
_WEIGHT_BYTES = 4
_RESIDENT = 0.75
"""Part of a second-level cache that weights may take to stay there from step to step."""


def in_strands(plan: FusionPlan, threads: int, l2_bytes: int) -> FusionPlan:
    """The plan with recurrences side by side where as many as there are threads do not depend on each other, and an arena for
    that; otherwise the same plan. The kernels keep their numbers. `l2_bytes` is a core's second-level cache."""
    if threads == 1:
        return plan
    multiplied = _group_by_weights(plan)
    if not any(len(numbers) >= _FEWEST for numbers in multiplied):
        return plan
    work = [kernel_flops(kernel, plan) // 2 for kernel in plan.kernels]
    order = _Dependences(plan)
    chains = [chain for numbers in multiplied for chain in _chains(order, numbers) if len(chain) >= _FEWEST]
    strands = [
        strand
        for strand in _strands(order, chains)
        if all(work[number] <= _PIECE for number in strand) and _pays(plan, strand, threads, l2_bytes)
    ]
    products = [_products(kernel) for kernel in plan.kernels]
    alone = {strand for strand in strands if _is_small(plan, strand, threads)}
    groups = list(_groups(strands, alone, order, threads, products))
    sections = _in_order(order, [section for group in groups for section in _cut(group, work)]) if groups else None
    if sections is None:
        return plan
    ordered = replace(
        plan,
        waves=tuple(sum(rows, ()) for rows in sections),
        strands={step: rows for step, rows in enumerate(sections) if len(rows) > 1 or len(rows[0]) > 1},
    )
    arena(ordered)
    return ordered


def divide_batch(batch: RecurrentBatch, threads: int, l2_bytes: int) -> int:
    """Into how many parts the sequences of a recurrence fall: as many as make a strand for each thread, where a core's
    second-level cache of `l2_bytes` holds the weights that every one of them reads; one part otherwise."""
    parts = threads // batch.directions
    if parts < 2 or batch.steps < _FEWEST or batch.sequences < parts * _FEWEST_SEQUENCES:
        return 1
    step = -(-batch.sequences // parts) * batch.weights
    return parts if _WEIGHT_BYTES * batch.weights <= _RESIDENT * l2_bytes and step <= _PIECE else 1


_Rows = tuple[tuple[int, ...], ...]
"""Numbers of kernels in rows that do not depend on each other."""


def _group_by_weights(plan: FusionPlan) -> list[list[int]]:
    """Kernels that multiply by the same constant."""
    weight_users: dict[int, list[int]] = defaultdict(list)
    for number, kernel in enumerate(plan.kernels):
        if isinstance(kernel.root, MatMul) and isinstance(kernel.root.right, Constant):
            weight_users[kernel.root.right.identity].append(number)
    return list(weight_users.values())


def _chains(order: _Dependences, numbers: Sequence[int]) -> list[list[int]]:
    """Kernels of which each depends on the one before: several, where recurrences share their weights."""
    chains: list[list[int]] = []
    for number in numbers:
        for chain in chains:
            if order.depends(number, chain[-1]):
                chain.append(number)
                break
        else:
            chains.append([number])
    return chains


class _Dependences:
    """Which kernels depend on which; sets of kernels are bits."""

    def __init__(self, plan: FusionPlan) -> None:
        writers: dict[tuple[str, int], dict[tuple[int, int], int]] = defaultdict(dict)
        self.sources: list[set[int]] = []
        """Kernels that each reads from."""
        self.before: list[int] = []
        """All on which each depends, itself included."""
        for number, kernel in enumerate(plan.kernels):
            sources = {writer for buffer in kernel_reads(kernel, plan) for writer in _writers(writers, buffer)}
            before = 1 << number
            for source in sources:
                before |= self.before[source]
            self.sources.append(sources)
            self.before.append(before)
            for buffer in kernel.targets:
                writers[buffer.storage][buffer.extent] = number

    def depends(self, one: int, other: int) -> bool:
        """Whether the first needs the other one."""
        return bool(self.before[one] >> other & 1)

    def between(self, ends: Sequence[int]) -> tuple[int, ...]:
        """Those of `ends`, and what depends on one of them and is needed by another."""
        mask = sum(1 << number for number in ends)
        needed = 0
        for number in ends:
            needed |= self.before[number]
        return tuple(n for n in range(min(ends), max(ends) + 1) if needed >> n & 1 and self.before[n] & mask)


def _writers(writers: dict[tuple[str, int], dict[tuple[int, int], int]], buffer: Buffer) -> list[int]:
    """Kernels that write elements of a buffer. Each is written once, and mostly as it is read."""
    writes = writers.get(buffer.storage, {})
    if buffer.extent in writes and math.prod(buffer.shape) == buffer.extent[1] - buffer.extent[0]:
        return [writes[buffer.extent]]
    first, end = buffer.extent
    return [number for (begin, behind), number in writes.items() if first < behind and begin < end]


def _strands(order: _Dependences, chains: list[list[int]]) -> list[tuple[int, ...]]:
    """Recurrences with all that lies between their products."""
    joined: list[list[int]] = []
    for chain in chains:
        # A cell with several products: they depend on each other in turn.
        for other in joined:
            if order.depends(chain[-1], other[0]) and order.depends(other[-1], chain[0]):
                other[:] = sorted({*other, *chain})
                break
        else:
            joined.append(list(chain))
    return [order.between(chain) for chain in joined]


def _products(kernel: PlannedKernel) -> int:
    """Multiply-adds of a kernel's matrix product."""
    return kernel.root.elements * kernel.root.depth if isinstance(kernel.root, MatMul) else 0


def _pays(plan: FusionPlan, strand: tuple[int, ...], threads: int, l2_bytes: int) -> bool:
    """Whether what a thread alone reads in a step costs less than the meetings. A thread that shares steps keeps its part of the
    weights in its second-level cache. Where that holds a part but not all, only cells that spare half of the meetings and more
    pay: those with as many kernels behind their products."""
    products = [root for number in strand if isinstance(root := plan.kernels[number].root, MatMul)]
    weights = {root.right.identity: root.right.nbytes for root in products if isinstance(root.right, Constant)}
    whole, room = sum(weights.values()), _RESIDENT * l2_bytes
    return not room < whole <= threads * room or len(strand) + 1 >= 2 * len(products)


def _is_small(plan: FusionPlan, strand: tuple[int, ...], threads: int) -> bool:
    """Whether sharing a product saves no more than the one meeting that it costs."""
    kernels = [plan.kernels[number] for number in strand]
    spent = [
        max(kernel.root.right.elements, _WEIGHT * _products(kernel))
        for kernel in kernels
        if isinstance(kernel.root, MatMul)
    ]
    return sum(spent) * (threads - 1) <= _MEETING * threads * len(spent)


def _groups(
    strands: list[tuple[int, ...]],
    alone: Collection[tuple[int, ...]],
    order: _Dependences,
    threads: int,
    products: Sequence[int],
) -> Iterator[_Rows]:
    """As many strands as there are threads, or fewer where each pays alone, which do not depend on each other and take about as
    long."""
    left = sorted(strands)
    while left:
        group = [left.pop(0)]
        for strand in list(left):
            sizes = [sum(products[number] for number in each) for each in (*group, strand)]
            apart = all(_apart(order, strand, each) for each in group)
            if len(group) < threads and apart and min(sizes) >= _ALIKE * max(sizes):
                group.append(strand)
                left.remove(strand)
        if len(group) == threads or all(strand in alone for strand in group):
            yield tuple(group)


def _apart(order: _Dependences, one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    masks = [sum(1 << number for number in each) for each in (one, other)]
    return not any(order.before[n] & masks[1] for n in one) and not any(order.before[n] & masks[0] for n in other)


def _cut(group: _Rows, work: Sequence[int]) -> list[_Rows]:
    """The rows in pieces, side by side."""
    most = max(sum(work[number] for number in row) for row in group)
    count = min(-(-most // _PIECE), *(len(row) for row in group))
    return [tuple(row[len(row) * i // count : len(row) * (i + 1) // count] for row in group) for i in range(count)]


def _in_order(order: _Dependences, groups: list[_Rows]) -> list[_Rows] | None:
    """All kernels, those of a group together, in the order of their numbers otherwise; None where groups wait for each other."""
    alone = set(range(len(order.sources))) - {n for rows in groups for row in rows for n in row}
    sections = [*groups, *(((number,),) for number in sorted(alone))]
    of = {number: i for i, rows in enumerate(sections) for row in rows for number in row}
    needs = [
        {of[source] for row in rows for n in row for source in order.sources[n]} - {i}
        for i, rows in enumerate(sections)
    ]
    users: dict[int, list[int]] = defaultdict(list)
    for section, needed in enumerate(needs):
        for other in needed:
            users[other].append(section)
    missing = [len(needed) for needed in needs]
    ready = [(rows[0][0], i) for i, rows in enumerate(sections) if not missing[i]]
    heapq.heapify(ready)
    ordered: list[_Rows] = []
    while ready:
        _, section = heapq.heappop(ready)
        ordered.append(sections[section])
        for user in users[section]:
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(ready, (sections[user][0][0], user))
    return ordered if len(ordered) == len(sections) else None
