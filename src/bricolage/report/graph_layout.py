"""Layered drawing of a directed acyclic graph, wrapped into rows like text: near-linear, without dependencies.

The classical steps (Sugiyama, Tagawa, Toda 1981): layers by longest path with a bound on their height, order within a
layer by barycentres, positions by least squares that keep the order (pool adjacent violators). Layers run from left to
right; after `columns` of them the drawing goes on in the next row. An edge over several layers gets a track between the
boxes; an edge into a later row leaves at the right margin and comes back at the left one, so no line crosses a box.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from bricolage.report.graph_layers import LayoutItem, Rows, arrange
from bricolage.report.tracks import Lanes, lanes_of

Point = tuple[float, float]


@dataclass(frozen=True)
class Style:
    """Sizes in pixels; `columns` layers a row, at most `stack` boxes a layer."""

    width: float = 132
    height: float = 40
    gap_x: float = 34
    gap_y: float = 12
    track: float = 8
    lane: float = 5
    columns: int = 7
    stack: int = 12


@dataclass(frozen=True)
class Box:
    """Upper left corner of a node."""

    x: float
    y: float


@dataclass(frozen=True)
class Edge:
    """From `source` to `target` as an SVG path."""

    source: int
    target: int
    path: str


@dataclass(frozen=True)
class Drawing:
    """Where everything is, in pixels."""

    boxes: tuple[Box, ...]
    edges: tuple[Edge, ...]
    width: float
    height: float


def draw(successors: Sequence[Sequence[int]], style: Style) -> Drawing:
    """Places nodes 0…n-1. Edges that would close a cycle are left out. O((V + E) · columns · log) time."""
    rows = arrange(successors, style.columns, style.stack, style.height + style.gap_y, style.track)
    lanes = lanes_of(rows)
    return _Pen(rows, lanes, style).drawing()


class _Pen:
    """Turns rows and lanes into coordinates."""

    def __init__(self, rows: Rows, lanes: Lanes, style: Style) -> None:
        self.rows, self.lanes, self.style = rows, lanes, style
        self.left = lanes.left * style.lane + 12
        self.right = self.left + min(rows.columns, rows.layers) * (style.width + style.gap_x) - style.gap_x
        self.width = self.right + lanes.right * style.lane + 14
        self.tops: list[float] = []
        y = 8.0
        for row in range(len(rows.heights)):
            entering = lanes.gutters[row]
            y += entering * style.lane + (24 if row else 0)
            self.tops.append(y)
            y += rows.heights[row]
        self.height = y + 10

    def drawing(self) -> Drawing:
        half = self.style.height / 2
        boxes = tuple(
            Box(self._x(item), self._y(item) - half) for item in (self.rows.node[n] for n in range(len(self.rows.node)))
        )
        edges = tuple(Edge(u, v, self._edge(u, v)) for u, v in self.rows.edges)
        return Drawing(boxes, edges, self.width, self.height)

    def _x(self, item: LayoutItem) -> float:
        return self.left + item.column * (self.style.width + self.style.gap_x)

    def _y(self, item: LayoutItem) -> float:
        return self.tops[item.row] + item.y

    def _edge(self, source: int, target: int) -> str:
        start, end = self.rows.node[source], self.rows.node[target]
        here = Path((self._x(start) + self.style.width, self._y(start)))
        if end.row != start.row:
            self._along(here, source, start.row, start.column + 1, self.rows.columns)
            self._wrap(here, source, end)
            self._along(here, source, end.row, 0, end.column)
        else:
            self._along(here, source, start.row, start.column + 1, end.column)
        here.curve((self._x(end), self._y(end)))
        return here.text

    def _along(self, path: Path, source: int, row: int, first: int, last: int) -> None:
        for column in range(first, last):
            item = self.rows.tracks[source, row, column]
            x, y = self._x(item), self._y(item)
            path.curve((x, y))
            path.line((x + self.style.width, y))

    def _wrap(self, path: Path, source: int, end: LayoutItem) -> None:
        """Around the right margin, back between the rows, and in at the left margin: to the track, or straight to a box
        in the first column."""
        row = end.row
        lane, gutter, left = self.lanes.of[source], self.lanes.gutter[source, row], self.lanes.entry[source, row]
        x_right = self.right + 8 + lane * self.style.lane
        y_gutter = self.tops[row] - 10 - (self.lanes.gutters[row] - 1 - gutter) * self.style.lane
        x_left = self.left - 8 - left * self.style.lane
        entry = self._y(end if end.column == 0 else self.rows.tracks[source, row, 0])
        path.corners(
            [(x_right, path.at[1]), (x_right, y_gutter), (x_left, y_gutter), (x_left, entry), (self.left, entry)]
        )


class Path:
    """An SVG path under construction."""

    def __init__(self, start: Point) -> None:
        self.at = start
        self.text = f"M{_n(start[0])} {_n(start[1])}"

    def line(self, to: Point) -> None:
        """A straight line to a point."""
        self.text += f"L{_n(to[0])} {_n(to[1])}"
        self.at = to

    def curve(self, to: Point) -> None:
        """A smooth step: horizontal at both ends."""
        if abs(to[1] - self.at[1]) < 0.05:
            self.line(to)
            return
        middle = (self.at[0] + to[0]) / 2
        self.text += f"C{_n(middle)} {_n(self.at[1])} {_n(middle)} {_n(to[1])} {_n(to[0])} {_n(to[1])}"
        self.at = to

    def corners(self, points: Sequence[Point], radius: float = 4) -> None:
        """Horizontal and vertical lines with rounded corners."""
        for corner, after in pairwise(points):
            self.line(_towards(corner, self.at, radius))
            end = _towards(corner, after, radius)
            self.text += f"Q{_n(corner[0])} {_n(corner[1])} {_n(end[0])} {_n(end[1])}"
            self.at = end
        self.line(points[-1])


def _towards(origin: Point, other: Point, distance: float) -> Point:
    dx, dy = other[0] - origin[0], other[1] - origin[1]
    length = abs(dx) + abs(dy)
    part = min(0.5, distance / length) if length else 0.0
    return origin[0] + dx * part, origin[1] + dy * part


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
