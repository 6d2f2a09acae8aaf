"""Operators that go to one device together, as blocks of a graph without circles whose downsets are the stages of a pipeline.

As the authors of the problem prepare their instances: forward operators of a colour are one block, and bring the backward operators
of their colour. Backward operators without forward ones get a block of their own, with the edges of the backward graph mirrored.
Blocks that read from one another in a circle become one, and blocks that cost nothing join a neighbour (`fold.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bricolage.search.devices.device_problem import DevicePlacementProblem
from bricolage.search.devices.fold import fold_blocks
from bricolage.search.devices.topological_order import depth_first
from bricolage.work.bits import members


@dataclass(frozen=True)
class PlacementBlocks:
    """Blocks in a depth-first topological order: their operators, and as sets of bits the blocks that come directly before."""

    operators: tuple[tuple[int, ...], ...]
    before: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.operators)

    @cached_property
    def after(self) -> tuple[int, ...]:
        """As sets of bits the blocks that come directly after each."""
        successors = [0] * len(self)
        for block, sources in enumerate(self.before):
            for source in members(sources):
                successors[source] |= 1 << block
        return tuple(successors)

    @cached_property
    def of(self) -> tuple[int, ...]:
        """By operator its block."""
        block_of = [0] * sum(map(len, self.operators))
        for block, operator in enumerate(self.operators):
            for number in operator:
                block_of[number] = block
        return tuple(block_of)


def contract(problem: DevicePlacementProblem) -> PlacementBlocks:
    """The blocks of a problem."""
    block, orphan = _number_colours(problem)
    edges = set()
    for source, readers in enumerate(problem.readers):
        for reader in readers:
            source_block, other = block[source], block[reader]
            if source_block == other:
                continue
            if not problem.backward[source] and not problem.backward[reader]:
                edges.add((source_block, other))
            elif problem.backward[source] and problem.backward[reader] and (source_block in orphan or other in orphan):
                edges.add((other, source_block))
    count = max(block, default=-1) + 1
    label = _strong(count, edges)
    block = [label[number] for number in block]
    block, edges = fold_blocks(
        problem, block, {(label[start], label[other]) for start, other in edges if label[start] != label[other]}
    )
    order = depth_first(range(max(block, default=-1) + 1), sorted(edges))
    place = {number: index for index, number in enumerate(order)}
    operators: list[list[int]] = [[] for _ in order]
    for operator, mine in enumerate(block):
        operators[place[mine]].append(operator)
    before = [0] * len(order)
    for start, other in edges:
        before[place[other]] |= 1 << place[start]
    return PlacementBlocks(tuple(map(tuple, operators)), tuple(before))


def group_colours(problem: DevicePlacementProblem) -> PlacementBlocks:
    """Operators of one colour, and nothing more: for placements of any shape. No block is before another."""
    block, _ = _number_colours(problem)
    groups: list[list[int]] = [[] for _ in range(max(block, default=-1) + 1)]
    for operator, mine in enumerate(block):
        groups[mine].append(operator)
    return PlacementBlocks(tuple(map(tuple, groups)), (0,) * len(groups))


def _number_colours(problem: DevicePlacementProblem) -> tuple[list[int], set[int]]:
    """By operator a block by its colour; and those blocks that have no forward operator."""
    numbers: dict[tuple[str, int], int] = {}
    block = []
    forward = set()
    for operator, colour in enumerate(problem.colours):
        mine = numbers.setdefault(("colour", colour) if colour >= 0 else ("operator", operator), len(numbers))
        block.append(mine)
        if not problem.backward[operator]:
            forward.add(mine)
    return block, set(block) - forward


def _strong(count: int, edges: set[tuple[int, int]]) -> list[int]:
    """By block the number of its strongly connected part."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    edge_list = sorted(edges)
    ones = np.ones(len(edge_list), dtype=np.int8)
    rows, columns = [source for source, _ in edge_list], [other for _, other in edge_list]
    matrix = csr_array((ones, (rows, columns)), shape=(count, count))
    _, labels = connected_components(matrix, directed=True, connection="strong")
    part_numbers: list[int] = labels.tolist()
    return part_numbers


def downsets(blocks: PlacementBlocks, most: int) -> list[int] | None:
    """All sets of blocks that hold whatever comes before one of theirs; None where there are more than `most`."""
    level = {0: sum(1 << block for block, sources in enumerate(blocks.before) if not sources)}
    closed_sets = [0]
    after = [members(mask) for mask in blocks.after]
    while level:
        following: dict[int, int] = {}
        for held, able in level.items():
            left = able
            while left:
                bit = left & -left
                left ^= bit
                grown = held | bit
                if grown in following:
                    continue
                ready = able ^ bit
                for other in after[bit.bit_length() - 1]:
                    if not blocks.before[other] & ~grown:
                        ready |= 1 << other
                following[grown] = ready
            if len(closed_sets) + len(following) > most:
                return None
        closed_sets.extend(following)
        level = following
    return closed_sets


def prefixes(blocks: PlacementBlocks) -> list[int]:
    """The downsets along the depth-first order."""
    return [(1 << end) - 1 for end in range(len(blocks) + 1)]
