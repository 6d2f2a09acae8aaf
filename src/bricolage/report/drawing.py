"""The region graph as SVG: boxes coloured by backend, laid out by `bricolage.report.graph_layout`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from bricolage.report import words
from bricolage.report.facts import RegionFacts
from bricolage.report.graph_layout import Box, Style, draw

_SIZES = (
    (36, Style(width=150, height=44, gap_x=32, gap_y=14, columns=6)),
    (140, Style(width=104, height=36, gap_x=26, gap_y=10, columns=9)),
)
_COMPACT = Style(width=58, height=26, gap_x=20, gap_y=8, track=6, lane=4, columns=15)


def region_graph(facts: Sequence[RegionFacts], slots: Mapping[str, int]) -> str:
    """The graph of regions; the more there are, the smaller and the barer the boxes."""
    style = next((style for most, style in _SIZES if len(facts) <= most), _COMPACT)
    drawing = draw([f.after for f in facts], style)
    longest = max((f.planned.cost_ms or 0.0 for f in facts), default=0.0)
    lines = "".join(f'<path data-from="{e.source}" data-to="{e.target}" d="{e.path}"/>' for e in drawing.edges)
    boxes = "".join(_box(f, box, style, slots, longest) for f, box in zip(facts, drawing.boxes, strict=True))
    width, height = drawing.width, drawing.height
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    return (
        f'<svg class="graph" {size} role="img" '
        f'aria-label="Graph of {len(facts)} regions"><g class="edges">{lines}</g><g class="boxes">{boxes}</g></svg>'
    )


def _box(f: RegionFacts, box: Box, style: Style, slots: Mapping[str, int], longest: float) -> str:
    p, x, y = f.planned, box.x, box.y
    time = words.milliseconds(p.cost_ms)
    bar = (p.cost_ms or 0.0) / longest * (style.width - 8) if longest else 0.0
    parts = [
        f'<g class="box c{slots[p.implementation.backend]}" data-region="{f.number - 1}" transform="translate({x:.1f} {y:.1f})">',
        f'<rect class="body" width="{style.width}" height="{style.height}" rx="4"/>',
        f'<rect class="heat" x="4" y="{style.height - 5}" width="{max(bar, 0.5):.1f}" height="2.5" rx="1"/>',
    ]
    if style is _COMPACT:
        parts.append(f'<text class="small" x="{style.width / 2}" y="15">{time}</text></g>')
        return "".join(parts)
    letters = int((style.width - 14) / 7.1)
    parts.append(f'<text class="head" x="7" y="15">{escape(_fit(f"{f.number} {p.title}", letters))}</text>')
    second = (
        f"{p.implementation.backend} {time}" if len(p.implementation.backend) + len(time) + 1 <= letters + 1 else time
    )
    parts.append(f'<text class="foot" x="7" y="{style.height - 10}">{escape(second)}</text></g>')
    return "".join(parts)


def _fit(text: str, letters: int) -> str:
    return text if len(text) <= letters else text[: letters - 1] + "…"
