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
        for one in {source, *readers}:
            by_block.setdefault(one, []).append(number)
    before: dict[int, set[int]] = {one: set() for one in set(block)}
    after: dict[int, set[int]] = {one: set() for one in set(block)}
    for one, other in edges:
        before[other].add(one)
        after[one].add(other)
    joined: dict[int, int] = {}
    waiting = sorted(free)
    while waiting:
        one = waiting.pop()
        if one in joined:
            continue
        for anchors in (before[one], after[one]):
            anchor = next(iter(anchors)) if len(anchors) == 1 else None
            if anchor is None or not all(_stays(outputs[number], one, anchor) for number in by_block.get(one, ())):
                continue
            joined[one] = anchor
            for number in by_block.pop(one, []):
                source, readers = outputs[number]
                outputs[number] = (
                    anchor if source == one else source,
                    {anchor if reader == one else reader for reader in readers},
                )
                by_block.setdefault(anchor, []).append(number)
            _merge(before, after, one, anchor)
            waiting += [other for other in (anchor, *before[anchor], *after[anchor]) if other in free]
            break
    _put_first(free, outputs, before, after)
    return _numbered(block, joined, after)


def _free(problem: DevicePlacementProblem, block: list[int]) -> set[int]:
    """Blocks that take no time on any device; none where memory may bind."""
    if math.fsum(problem.memory) > problem.memory_bytes:
        return set()
    costly = {
        mine
        for one, mine in enumerate(block)
        if problem.accelerator_ms[one] > 0.0 or (problem.processor_ms[one] > 0.0 and problem.processors)
    }
    return set(block) - costly


def _outputs(problem: DevicePlacementProblem, block: list[int]) -> list[tuple[int, set[int]]]:
    """Outputs that cost something: the block that makes each, and those that read it."""
    return [
        (block[one], {block[reader] for reader in readers})
        for one, readers in enumerate(problem.readers)
        if problem.move_ms[one] > 0.0 and readers
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
    touched = {one for source, readers in outputs if readers != {source} for one in (source, *readers)}
    sources = sorted(one for one in before if not before[one])
    first = [one for one in sources if one in free and one not in touched]
    others = [one for one in sources if one not in first]
    for one, other in itertools.pairwise(first):
        after[one].add(other)
        before[other].add(one)
    if first:
        for other in others:
            after[first[-1]].add(other)
            before[other].add(first[-1])


def _numbered(
    block: list[int], joined: dict[int, int], after: dict[int, set[int]]
) -> tuple[list[int], set[tuple[int, int]]]:
    number: dict[int, int] = {}

    def place(one: int) -> int:
        while one in joined:
            one = joined[one]
        return number.setdefault(one, len(number))

    found = [place(one) for one in block]
    return found, {(place(one), place(other)) for one, readers in after.items() for other in readers}
