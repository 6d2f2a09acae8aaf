"""Pieces of a step on several devices: in which order each runs its own, and which storages move between them.

A storage has versions: a piece that writes it makes the next. A device that runs a piece needs the newest version of what the piece
reads, and has it from the device that wrote it, once for each version. So results are those of the step in one process, whatever
operators write in place.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from bricolage.search.schedules.scheduling_problem import ScheduleProblem
from bricolage.work.simulator import Task, simulate


@dataclass(frozen=True)
class PieceAccess:
    """Storages of a piece, by number."""

    reads: frozenset[int]
    """Those that others have written, or that are there before the step."""
    writes: frozenset[int]


@dataclass(frozen=True)
class StorageMove:
    """A version of a storage, from the device that wrote it to one that reads it."""

    storage: int
    bytes: int
    source: int
    """The piece that wrote it."""
    target: int
    """The first piece there that reads it."""
    from_device: int
    to_device: int


@dataclass(frozen=True)
class PieceRoutes:
    """Of one placement."""

    order: tuple[int, ...]
    """All pieces; each device runs its own in this order."""
    moves: tuple[StorageMove, ...]
    holders: tuple[tuple[int, int], ...]
    """Storages that some piece writes, each with the device that has its newest version in the end."""


def piece_accesses(
    pieces: Sequence[Sequence[int]], reads: Sequence[frozenset[int]], writes: Sequence[frozenset[int]]
) -> list[PieceAccess]:
    """Of pieces from those of their operators. Operators that write nothing do not run."""
    accesses = []
    for piece in pieces:
        read: set[int] = set()
        written: set[int] = set()
        for operator in piece:
            if writes[operator]:
                read |= reads[operator] - written
                written |= writes[operator]
        accesses.append(PieceAccess(frozenset(read), frozenset(written)))
    return accesses


def order_pieces(
    pieces: Sequence[Sequence[int]],
    reads: Sequence[frozenset[int]],
    writes: Sequence[frozenset[int]],
    ranks: Sequence[float],
) -> tuple[int, ...]:
    """Pieces behind all that must run before them, the highest rank first among those that could be next. A piece waits for what
    wrote what it reads; and for what still reads, or wrote, what it writes.

    Raises:
        ValueError: two pieces wait for each other.
    """
    piece_of = {operator: number for number, piece in enumerate(pieces) for operator in piece}
    before: list[set[int]] = [set() for _ in pieces]
    writer: dict[int, int] = {}
    readers: dict[int, set[int]] = {}
    for operator in range(len(reads)):
        if not writes[operator]:
            continue
        piece = piece_of[operator]
        for storage in reads[operator]:
            if storage in writer:
                before[piece].add(writer[storage])
            readers.setdefault(storage, set()).add(piece)
        for storage in writes[operator]:
            before[piece] |= readers.pop(storage, set())
            if storage in writer:
                before[piece].add(writer[storage])
            writer[storage] = piece
            readers[storage] = {piece}
    after: list[list[int]] = [[] for _ in pieces]
    waiting = []
    for piece, sources in enumerate(before):
        sources.discard(piece)
        waiting.append(len(sources))
        for source in sources:
            after[source].append(piece)
    ready = [(-ranks[piece], piece) for piece, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        piece = heapq.heappop(ready)[1]
        order.append(piece)
        for follower in after[piece]:
            waiting[follower] -= 1
            if not waiting[follower]:
                heapq.heappush(ready, (-ranks[follower], follower))
    if len(order) < len(pieces):
        raise ValueError("pieces of the step wait for each other in a circle")
    return tuple(order)


def route_storages(
    accesses: Sequence[PieceAccess], sizes: dict[int, int], devices: Sequence[int], order: Sequence[int]
) -> PieceRoutes:
    """What moves where. What is there before the step is on each device.

    Args:
        accesses: of pieces.
        sizes: bytes of storages.
        devices: of pieces.
        order: in which they run.

    Raises:
        ValueError: something that lasts is written on a device, and used on another: the next step would find an old version there.
    """
    newest: dict[int, tuple[int, int]] = {}  # by storage: piece, device
    there: dict[int, set[int]] = {}
    before_step: dict[int, set[int]] = {}  # by storage: devices that use what was there before the step
    moves: list[StorageMove] = []
    for piece in order:
        device = devices[piece]
        for storage in sorted(accesses[piece].reads):
            if storage not in newest:
                before_step.setdefault(storage, set()).add(device)
            elif device not in there[storage]:
                source, home = newest[storage]
                moves.append(StorageMove(storage, sizes[storage], source, piece, home, device))
                there[storage].add(device)
        for storage in accesses[piece].writes:
            newest[storage] = piece, device
            there[storage] = {device}
    for storage, users in before_step.items():
        if storage in newest and users != {newest[storage][1]}:
            raise ValueError("something that lasts from step to step is written on one device and used on another")
    return PieceRoutes(
        tuple(order), tuple(moves), tuple((storage, device) for storage, (_, device) in sorted(newest.items()))
    )


def simulate_pieces(
    problem: ScheduleProblem, names: Sequence[str], devices: Sequence[int], routes: PieceRoutes
) -> float:
    """Milliseconds of a step as it is run: each device one piece after another, and moves that do not wait for each other.

    Args:
        problem: pieces with their times, and what moves take.
        names: of devices.
        devices: of pieces.
        routes: order and moves.
    """
    count = len(devices)
    tasks = [Task(0.0)] * count
    arriving: list[list[int]] = [[] for _ in range(count)]
    transfers: list[Task] = []
    for move in routes.moves:
        ms = problem.transfer(names[move.from_device], names[move.to_device], move.bytes)
        arriving[move.target].append(count + len(transfers))
        transfers.append(Task(ms, (), (move.source,)))
    for piece, device in enumerate(devices):
        name = names[device]
        tasks[piece] = Task(problem.ms(piece, name, problem.cores[name]), (device,), tuple(arriving[piece]))
    return max(simulate([*tasks, *transfers], routes.order).ends, default=0.0)
