"""Blocks that cost nothing join a neighbour where no placement gets worse by that: each of them would double the downsets.

A block may join its only predecessor, or its only successor, when it takes no time, memory does not bind, and every output that it
makes or reads is free, or made or read by that neighbour too. One without predecessors and with free outputs alone may be in the
first part of any placement: it is put before all others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

from bricolage.search.devices.device_problem import DevicePlacementProblem


def fold_blocks(
    problem: DevicePlacementProblem, block: list[int], edges: set[tuple[int, int]]
) -> tuple[list[int], set[tuple[int, int]]]:
    """By operator its block after joining, numbered from 0; and the edges between blocks.

    Args:
        problem: the problem.
        block: by operator, numbered from 0.
        edges: of the forward graph, between different blocks, without circles.
    """
    free = _free(problem, block)
    outputs = _outputs(problem, block)
    by_block: dict[int, list[int]] = {}
    for number, (source, readers) in enumerate(outputs):
        for member in {source, *readers}:
            by_block.setdefault(member, []).append(number)
    before: dict[int, set[int]] = {node: set() for node in set(block)}
    after: dict[int, set[int]] = {node: set() for node in set(block)}
    for start, other in edges:
        before[other].add(start)
        after[start].add(other)
    joined: dict[int, int] = {}
    waiting = sorted(free)
    while waiting:
        free_block = waiting.pop()
        if free_block in joined:
            continue
        for anchors in (before[free_block], after[free_block]):
            anchor = next(iter(anchors)) if len(anchors) == 1 else None
            if anchor is None or not all(
                _stays(outputs[number], free_block, anchor) for number in by_block.get(free_block, ())
            ):
                continue
            joined[free_block] = anchor
            for number in by_block.pop(free_block, []):
                source, readers = outputs[number]
                outputs[number] = (
                    anchor if source == free_block else source,
                    {anchor if reader == free_block else reader for reader in readers},
                )
                by_block.setdefault(anchor, []).append(number)
            _merge(before, after, free_block, anchor)
            waiting += [other for other in (anchor, *before[anchor], *after[anchor]) if other in free]
            break
    _put_first(free, outputs, before, after)
    return _number_blocks(block, joined, after)


def _free(problem: DevicePlacementProblem, block: list[int]) -> set[int]:
    """Blocks that take no time on any device; none where memory may bind."""
    if math.fsum(problem.memory) > problem.memory_bytes:
        return set()
    costly = {
        mine
        for operator, mine in enumerate(block)
        if problem.accelerator_ms[operator] > 0.0 or (problem.processor_ms[operator] > 0.0 and problem.processors)
    }
    return set(block) - costly


def _outputs(problem: DevicePlacementProblem, block: list[int]) -> list[tuple[int, set[int]]]:
    """Outputs that cost something: the block that makes each, and those that read it."""
    return [
        (block[operator], {block[reader] for reader in readers})
        for operator, readers in enumerate(problem.readers)
        if problem.move_ms[operator] > 0.0 and readers
    ]


def _stays(output: tuple[int, set[int]], one: int, anchor: int) -> bool:
    """Whether an output that a block makes or reads costs no more when the block is where its anchor is."""
    source, readers = output
    others = {source, *readers} - {one, anchor}
    return not others or (source != one and (source == anchor or anchor in readers))


def _merge(before: dict[int, set[int]], after: dict[int, set[int]], one: int, anchor: int) -> None:
    for near, far in ((before, after), (after, before)):
        for other in near.pop(one):
            far[other].discard(one)
            if other != anchor:
                far[other].add(anchor)
                near[anchor].add(other)


def _put_first(
    free: set[int], outputs: Iterable[tuple[int, set[int]]], before: dict[int, set[int]], after: dict[int, set[int]]
) -> None:
    """An edge from free blocks without predecessors, one after another, to all other blocks without predecessors."""
    touched = {node for source, readers in outputs if readers != {source} for node in (source, *readers)}
    sources = sorted(node for node in before if not before[node])
    first = [node for node in sources if node in free and node not in touched]
    others = [node for node in sources if node not in first]
    for earlier, other in itertools.pairwise(first):
        after[earlier].add(other)
        before[other].add(earlier)
    if first:
        for other in others:
            after[first[-1]].add(other)
            before[other].add(first[-1])


def _number_blocks(
    block: list[int], joined: dict[int, int], after: dict[int, set[int]]
) -> tuple[list[int], set[tuple[int, int]]]:
    number: dict[int, int] = {}

    def place(one: int) -> int:
        while one in joined:
            one = joined[one]
        return number.setdefault(one, len(number))

    block_numbers = [place(old_block) for old_block in block]
    return block_numbers, {
        (place(old_block), place(other)) for old_block, readers in after.items() for other in readers
    }
