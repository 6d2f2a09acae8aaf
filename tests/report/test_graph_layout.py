"""The layered drawing: properties on random graphs, and its growth."""

from __future__ import annotations

import re
import time

import report_samples as samples
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.report.graph_layout import Drawing, Style, draw

STYLE = Style(columns=5, stack=4)


def successors(sources: list[list[int]]) -> list[list[int]]:
    after: list[list[int]] = [[] for _ in sources]
    for v, before in enumerate(sources):
        for u in before:
            after[u].append(v)
    return after


@st.composite
def dags(build: st.DrawFn) -> list[list[int]]:
    count = build(st.integers(1, 60))
    pairs = build(st.sets(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=3 * count))
    after: list[list[int]] = [[] for _ in range(count)]
    for u, v in pairs:
        if u != v:
            after[min(u, v)].append(max(u, v))
    return after


def segments(path: str) -> list[tuple[float, float]]:
    """End points of the pieces of a path."""
    found: list[tuple[float, float]] = []
    for piece in re.findall(r"[MLCQ][^MLCQ]*", path):
        values = [float(v) for v in piece[1:].split()]
        found.append((values[-2], values[-1]))
    return found


def check(drawing: Drawing, after: list[list[int]], style: Style) -> None:
    assert len(drawing.boxes) == len(after)
    assert {(e.source, e.target) for e in drawing.edges} == {(u, v) for u, near in enumerate(after) for v in near}
    boxes = [(b.x, b.y, b.x + style.width, b.y + style.height) for b in drawing.boxes]
    for i, a in enumerate(boxes):
        assert a[0] >= 0 and a[1] >= 0 and a[2] <= drawing.width and a[3] <= drawing.height
        for b in boxes[:i]:
            apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] + 0.01 or b[3] <= a[1] + 0.01
            assert apart, "two boxes overlap"
    for edge in drawing.edges:
        points = segments(edge.path)
        start, end = boxes[edge.source], boxes[edge.target]
        assert abs(points[0][0] - start[2]) < 0.2 and start[1] < points[0][1] < start[3]
        assert abs(points[-1][0] - end[0]) < 0.2 and end[1] < points[-1][1] < end[3]
        for x, y in points[1:-1]:
            assert 0 <= x <= drawing.width and 0 <= y <= drawing.height
            for number, box in enumerate(boxes):
                inside = box[0] + 0.2 < x < box[2] - 0.2 and box[1] + 0.2 < y < box[3] - 0.2
                assert not inside or number in (edge.source, edge.target), "a line bends inside a box"


@settings(max_examples=120, deadline=None)
@given(dags())
def test_boxes_are_apart_and_edges_end_at_them(after: list[list[int]]) -> None:
    check(draw(after, STYLE), after, STYLE)


def test_edges_run_forward() -> None:
    """In a row from left to right, or into a later row."""
    after = successors(samples.random_dag(200, seed=1))
    drawing = draw(after, STYLE)
    for edge in drawing.edges:
        a, b = drawing.boxes[edge.source], drawing.boxes[edge.target]
        assert b.x > a.x or b.y > a.y + STYLE.height


def test_cycle_is_drawn_without_the_edge_that_closes_it() -> None:
    drawing = draw([[1], [2], [0]], STYLE)
    assert len(drawing.boxes) == 3
    assert {(e.source, e.target) for e in drawing.edges} == {(0, 1), (1, 2)}


def test_nothing_to_draw() -> None:
    assert draw([], STYLE).boxes == ()


def test_same_graph_same_drawing() -> None:
    after = successors(samples.random_dag(80, seed=2))
    assert draw(after, STYLE) == draw(after, STYLE)


def test_growth_is_near_linear() -> None:
    """Ten times the nodes take at most thirty times the time (a quadratic layout would take a hundred)."""

    def seconds(count: int) -> float:
        after = successors(samples.random_dag(count, seed=3))
        best = float("inf")
        for _ in range(2):
            began = time.process_time()
            draw(after, STYLE)
            best = min(best, time.process_time() - began)
        return best

    assert seconds(3000) < 30 * seconds(300)
