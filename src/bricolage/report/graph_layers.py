"""First half of the layered drawing: layers, rows, order within a layer, vertical positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

_ORDER_SWEEPS = 6
_POSITION_SWEEPS = 8


@dataclass(eq=False)
class LayoutItem:
    """A box, or the place where a track passes a layer. `y` is the vertical centre within the row."""

    row: int
    column: int
    size: float
    y: float = 0.0
    order: float = 0.0
    left: list[LayoutItem] = field(default_factory=list)
    right: list[LayoutItem] = field(default_factory=list)


@dataclass(frozen=True)
class Rows:
    """The arranged graph."""

    columns: int
    """Layers a row."""
    layers: int
    heights: tuple[float, ...]
    """Height of each row."""
    node: tuple[LayoutItem, ...]
    tracks: dict[tuple[int, int, int], LayoutItem]
    """By (source, row, column)."""
    edges: tuple[tuple[int, int], ...]
    wraps: dict[int, tuple[int, ...]]
    """Source → later rows in which it is read, ascending."""
    entries: dict[tuple[int, int], LayoutItem]
    """(source, row) → the item at which its output enters that later row."""


def arrange(successors: Sequence[Sequence[int]], columns: int, stack: int, box: float, track: float) -> Rows:
    """Layers, rows, order and positions of nodes 0…n-1. `box` and `track` are heights of items, gaps included."""
    order, edges = _acyclic(successors)
    layer = _layers(len(successors), order, edges, stack)
    builder = _Builder(layer, edges, columns, box, track)
    heights = tuple(_arrange_row(row) for row in builder.grid)
    return Rows(
        columns=columns,
        layers=max(layer, default=-1) + 1,
        heights=heights,
        node=tuple(builder.node),
        tracks=builder.tracks,
        edges=tuple(edges),
        wraps=builder.wraps,
        entries=builder.entries,
    )


def _acyclic(successors: Sequence[Sequence[int]]) -> tuple[list[int], list[tuple[int, int]]]:
    """A topological order (lowest number first among the ready) and the edges that agree with it."""
    waiting = [0] * len(successors)
    for u, after in enumerate(successors):
        for v in set(after) - {u}:
            waiting[v] += 1
    ready = [v for v in range(len(successors) - 1, -1, -1) if not waiting[v]]
    order: list[int] = []
    while ready:
        u = ready.pop()
        order.append(u)
        for v in sorted(set(successors[u]) - {u}, reverse=True):
            waiting[v] -= 1
            if not waiting[v]:
                ready.append(v)
    placed = set(order)
    order += [v for v in range(len(successors)) if v not in placed]  # on a cycle: by number
    place = {v: i for i, v in enumerate(order)}
    edges = sorted({(u, v) for u, after in enumerate(successors) for v in after if place[u] < place[v]})
    return order, edges


def _layers(count: int, order: Sequence[int], edges: Sequence[tuple[int, int]], stack: int) -> list[int]:
    """Longest path from the sources, at most `stack` nodes a layer; then sources move right, up to their readers."""
    before: list[list[int]] = [[] for _ in range(count)]
    after: list[list[int]] = [[] for _ in range(count)]
    for u, v in edges:
        before[v].append(u)
        after[u].append(v)
    layer = [0] * count
    filled: list[int] = []
    free: list[int] = []  # union-find: the next layer with room

    def next_free(k: int) -> int:
        while len(free) <= k:
            free.append(len(free))
            filled.append(0)
        root = k
        while free[root] != root:
            root = free[root]
            if root == len(free):
                free.append(root)
                filled.append(0)
        while free[k] != root:
            free[k], k = root, free[k]
        return root

    for v in order:
        k = next_free(max((layer[u] + 1 for u in before[v]), default=0))
        layer[v] = k
        filled[k] += 1
        if filled[k] >= stack:
            free[k] = k + 1
    for v in reversed(order):
        if not before[v] and after[v]:
            target = min(layer[w] for w in after[v]) - 1
            while target > layer[v] and filled[target] >= stack:
                target -= 1
            filled[layer[v]] -= 1
            filled[target] += 1
            layer[v] = target
    return layer


class _Builder:
    """Boxes and tracks of every row, linked to what stands left and right of them."""

    def __init__(
        self, layer: Sequence[int], edges: Sequence[tuple[int, int]], columns: int, box: float, track: float
    ) -> None:
        self.columns, self.track_size = columns, track
        self.node = [LayoutItem(k // columns, k % columns, box) for k in layer]
        self.tracks: dict[tuple[int, int, int], LayoutItem] = {}
        self.wraps: dict[int, tuple[int, ...]] = {}
        self.entries: dict[tuple[int, int], LayoutItem] = {}
        count = max(layer, default=-1) // columns + 1
        self.grid: list[list[list[LayoutItem]]] = [[[] for _ in range(columns)] for _ in range(count)]
        for item in self.node:
            self.grid[item.row][item.column].append(item)
        readers: dict[int, list[int]] = {}
        for u, v in edges:
            readers.setdefault(u, []).append(v)
        for u, targets in readers.items():
            self._route(u, targets)

    def _route(self, source: int, targets: Sequence[int]) -> None:
        start = self.node[source]
        by_row: dict[int, list[LayoutItem]] = {}
        for v in targets:
            by_row.setdefault(self.node[v].row, []).append(self.node[v])
        later = tuple(sorted(row for row in by_row if row != start.row))
        if later:
            self.wraps[source] = later
        for row in sorted({start.row, *later}):
            leaves = row == start.row and bool(later)
            here = by_row.get(row, [])
            last = self.columns if leaves else max(item.column for item in here)
            first = start.column + 1 if row == start.row else 0
            self._lay(source, row, start if row == start.row else None, first, last, here)

    def _lay(
        self, source: int, row: int, before: LayoutItem | None, first: int, last: int, targets: list[LayoutItem]
    ) -> None:
        by_column: dict[int, list[LayoutItem]] = {}
        for item in targets:
            by_column.setdefault(item.column, []).append(item)
        for column in range(first, last + 1):
            for item in by_column.get(column, []):
                if before is None:
                    self.entries.setdefault((source, row), item)
                else:
                    _link(before, item)
            if column < last:
                track = LayoutItem(row, column, self.track_size)
                self.tracks[source, row, column] = track
                self.grid[row][column].append(track)
                if before is None:
                    self.entries[source, row] = track
                else:
                    _link(before, track)
                before = track


def _link(left: LayoutItem, right: LayoutItem) -> None:
    left.right.append(right)
    right.left.append(left)


def _arrange_row(columns: list[list[LayoutItem]]) -> float:
    """Orders and places one row; its height in pixels."""
    for column in columns:
        _number(column)
    for sweep in range(_ORDER_SWEEPS):
        forward = sweep % 2 == 0
        for column in columns if forward else reversed(columns):
            for item in column:
                near = item.left if forward else item.right
                if near:
                    item.order = sum(other.order for other in near) / len(near)
            column.sort(key=lambda item: item.order)
            _number(column)
    for column in columns:
        y = -sum(item.size for item in column) / 2
        for item in column:
            item.y = y + item.size / 2
            y += item.size
    for sweep in range(_POSITION_SWEEPS):
        for column in columns if sweep % 2 == 0 else reversed(columns):
            _settle(column)
    items = [item for column in columns for item in column]
    top = min((item.y - item.size / 2 for item in items), default=0.0)
    for item in items:
        item.y -= top
    return max((item.y + item.size / 2 for item in items), default=0.0)


def _number(column: list[LayoutItem]) -> None:
    """Orders from 0 to 1, so that layers of different sizes compare."""
    for index, item in enumerate(column):
        item.order = (index + 0.5) / len(column)


def _settle(column: list[LayoutItem]) -> None:
    """Moves items towards the mean of their neighbours, as near as order and sizes allow: isotonic regression of the
    wishes less the offsets, by pooling adjacent violators."""
    offset = 0.0
    offsets: list[float] = []
    pools: list[tuple[float, float, int]] = []  # sum of weighted wishes, weight, items
    for item in column:
        offset += item.size / 2
        near = [*item.left, *item.right]
        wish = sum(other.y for other in near) / len(near) if near else item.y
        weight = 1.0 if item.size > 20 else 2.0  # tracks should run straight
        total, mass, count = (wish - offset) * weight, weight, 1
        while pools and pools[-1][0] / pools[-1][1] > total / mass:
            before = pools.pop()
            total, mass, count = total + before[0], mass + before[1], count + before[2]
        pools.append((total, mass, count))
        offsets.append(offset)
        offset += item.size / 2
    index = 0
    for total, mass, count in pools:
        for item in column[index : index + count]:
            item.y = total / mass + offsets[index]
            index += 1
