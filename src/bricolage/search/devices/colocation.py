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
        found = [0] * len(self)
        for block, sources in enumerate(self.before):
            for source in members(sources):
                found[source] |= 1 << block
        return tuple(found)

    @cached_property
    def of(self) -> tuple[int, ...]:
        """By operator its block."""
        found = [0] * sum(map(len, self.operators))
        for block, operator in enumerate(self.operators):
            for one in operator:
                found[one] = block
        return tuple(found)


def contract(problem: DevicePlacementProblem) -> PlacementBlocks:
    """The blocks of a problem."""
    block, orphan = _coloured(problem)
    edges = set()
    for source, readers in enumerate(problem.readers):
        for reader in readers:
            one, other = block[source], block[reader]
            if one == other:
                continue
            if not problem.backward[source] and not problem.backward[reader]:
                edges.add((one, other))
            elif problem.backward[source] and problem.backward[reader] and (one in orphan or other in orphan):
                edges.add((other, one))
    count = max(block, default=-1) + 1
    label = _strong(count, edges)
    block = [label[one] for one in block]
    block, edges = fold_blocks(
        problem, block, {(label[one], label[other]) for one, other in edges if label[one] != label[other]}
    )
    order = depth_first(range(max(block, default=-1) + 1), sorted(edges))
    place = {one: index for index, one in enumerate(order)}
    operators: list[list[int]] = [[] for _ in order]
    for one, mine in enumerate(block):
        operators[place[mine]].append(one)
    before = [0] * len(order)
    for one, other in edges:
        before[place[other]] |= 1 << place[one]
    return PlacementBlocks(tuple(map(tuple, operators)), tuple(before))


def coloured(problem: DevicePlacementProblem) -> PlacementBlocks:
    """Operators of one colour, and nothing more: for placements of any shape. No block is before another."""
    block, _ = _coloured(problem)
    found: list[list[int]] = [[] for _ in range(max(block, default=-1) + 1)]
    for one, mine in enumerate(block):
        found[mine].append(one)
    return PlacementBlocks(tuple(map(tuple, found)), (0,) * len(found))


def _coloured(problem: DevicePlacementProblem) -> tuple[list[int], set[int]]:
    """By operator a block by its colour; and those blocks that have no forward operator."""
    known: dict[tuple[str, int], int] = {}
    block = []
    forward = set()
    for one, colour in enumerate(problem.colours):
        mine = known.setdefault(("colour", colour) if colour >= 0 else ("operator", one), len(known))
        block.append(mine)
        if not problem.backward[one]:
            forward.add(mine)
    return block, set(block) - forward


def _strong(count: int, edges: set[tuple[int, int]]) -> list[int]:
    """By block the number of its strongly connected part."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    some = sorted(edges)
    ones = np.ones(len(some), dtype=np.int8)
    rows, columns = [one for one, _ in some], [other for _, other in some]
    matrix = csr_array((ones, (rows, columns)), shape=(count, count))
    _, labels = connected_components(matrix, directed=True, connection="strong")
    found: list[int] = labels.tolist()
    return found


def downsets(blocks: PlacementBlocks, most: int) -> list[int] | None:
    """All sets of blocks that hold whatever comes before one of theirs; None where there are more than `most`."""
    level = {0: sum(1 << one for one, sources in enumerate(blocks.before) if not sources)}
    found = [0]
    after = [members(one) for one in blocks.after]
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
            if len(found) + len(following) > most:
                return None
        found.extend(following)
        level = following
    return found


def prefixes(blocks: PlacementBlocks) -> list[int]:
    """The downsets along the depth-first order."""
    return [(1 << end) - 1 for end in range(len(blocks) + 1)]
