"""Second half of the layered drawing: lanes for edges that leave a row at the right and enter a later one at the left.

Lanes are nested so that edges between two neighbouring rows do not cross: the lowest exit takes the innermost lane at
the right, the topmost line between the rows and the outermost lane at the left, and so enters lowest.
"""

from __future__ import annotations

from dataclasses import dataclass

from bricolage.report.graph_layers import Rows

MOST_LANES = 16
"""More edges than this share lanes, as in a cable."""


@dataclass(frozen=True)
class Lanes:
    """Lane numbers count from the drawing outwards; lines between rows count from the top."""

    of: dict[int, int]
    """Source → lane in the right margin."""
    gutter: dict[tuple[int, int], int]
    """(source, row entered) → line above that row."""
    entry: dict[tuple[int, int], int]
    """(source, row entered) → lane in the left margin."""
    gutters: tuple[int, ...]
    """Lines above each row."""
    right: int
    left: int


def lanes_of(rows: Rows) -> Lanes:
    """Allots lanes to all edges between rows."""
    exits = {u: rows.tracks.get((u, rows.node[u].row, rows.columns - 1), rows.node[u]).y for u in rows.wraps}
    of: dict[int, int] = {}
    busy: list[int] = []  # lane → last row for which it is taken
    for u in sorted(rows.wraps, key=lambda u: (rows.node[u].row, rows.wraps[u][-1], -exits[u])):
        start = rows.node[u].row
        lane = next((k for k, until in enumerate(busy) if until <= start), len(busy))
        if lane >= MOST_LANES:
            lane = u % MOST_LANES
        if lane == len(busy):
            busy.append(0)
        busy[lane] = max(busy[lane], rows.wraps[u][-1])
        of[u] = lane
    gutter: dict[tuple[int, int], int] = {}
    entry: dict[tuple[int, int], int] = {}
    gutters: list[int] = []
    for row in range(len(rows.heights)):
        entering = [u for u, r in rows.entries if r == row]
        for line, u in enumerate(sorted(entering, key=lambda u: (of[u], -exits[u]))):
            gutter[u, row] = min(line, MOST_LANES - 1)
        for line, u in enumerate(sorted(entering, key=lambda u: -rows.entries[u, row].y)):
            entry[u, row] = min(len(entering) - 1 - line, MOST_LANES - 1)
        gutters.append(min(len(entering), MOST_LANES))
    left = max(entry.values(), default=-1) + 1
    return Lanes(of, gutter, entry, tuple(gutters), len(busy), left)
