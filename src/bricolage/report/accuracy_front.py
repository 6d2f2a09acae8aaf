"""The figure of what accuracy costs: the error of every contestant over its time, and the front of those that nothing beats in
both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from bricolage.plan.plan import Bucket
from bricolage.report import words
from bricolage.report.charts import backend_class, svg

_LEFT, _RIGHT, _TOP, _BOTTOM = 90, 30, 24, 46
_WIDTH, _HEIGHT = 1110, 400
_LETTERS = 6.4
"""Width of a letter of a label."""
_LEAST = 1e-9
"""Errors below it are drawn there."""
_LOWER = 10.0
"""Contestants differ in accuracy where one's error is this many times another's."""


@dataclass(frozen=True)
class Plotted:
    """A contestant."""

    name: str
    ms: float
    error: float
    accepted: bool
    colour: str


def points(bucket: Bucket, slots: Mapping[str, int]) -> list[Plotted]:
    """Contestants with a time and an error, those that were too inaccurate among them."""
    plotted = []
    for contestant in bucket.race.contestants:
        ms, error = contestant.median_ms or contestant.dropped_ms, words.shown_error(contestant)
        if ms and error is not None and math.isfinite(error):
            plotted.append(
                Plotted(contestant.name, ms, max(error, _LEAST), contestant.accepted, backend_class(contestant, slots))
            )
    return plotted


def accuracy_pareto(found: Sequence[Plotted]) -> list[Plotted]:
    """Those than which none is both faster and more accurate, the fastest first."""
    kept: list[Plotted] = []
    for candidate in sorted(found, key=lambda point: (point.ms, point.error)):
        if not kept or candidate.error < kept[-1].error:
            kept.append(candidate)
    return kept


def accuracy_figure(bucket: Bucket, slots: Mapping[str, int]) -> str:
    """SVG text; empty where all that was measured is about as accurate."""
    plotted = points(bucket, slots)
    if len(plotted) < 2 or max(p.error for p in plotted) < _LOWER * min(p.error for p in plotted):
        return ""
    times, errors = [math.log10(p.ms) for p in plotted], [math.log10(p.error) for p in plotted]
    limit = math.log10(max(bucket.verification.bound, _LEAST))
    left, right = min(times) - 0.08, max(times) + 0.2
    low, high = math.floor(min([*errors, limit]) - 0.2), math.ceil(max([*errors, limit]) + 0.2)

    def x(ms: float) -> float:
        return _LEFT + (math.log10(ms) - left) / (right - left) * (_WIDTH - _LEFT - _RIGHT)

    def y(power: float) -> float:
        return _TOP + (high - power) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    parts = [svg(_WIDTH, _HEIGHT, "Error of each contestant over its time")]
    for power in range(low, high + 1, max(1, (high - low) // 8)):
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(power):.1f}" y2="{y(power):.1f}"/>'
        )
        parts.append(
            f'<text class="tick" style="text-anchor:end" x="{_LEFT - 8}" y="{y(power) + 4:.1f}">1e{power}</text>'
        )
    for ms in _round_times(left, right):
        parts.append(f'<line class="grid" x1="{x(ms):.1f}" x2="{x(ms):.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>')
        parts.append(f'<text class="tick" x="{x(ms):.1f}" y="{_HEIGHT - _BOTTOM + 16}">{words.milliseconds(ms)}</text>')
    band = max(0.0, y(limit) - _TOP)
    parts.append(f'<rect class="beyond" x="{_LEFT}" y="{_TOP}" width="{_WIDTH - _LEFT - _RIGHT}" height="{band:.1f}"/>')
    parts.append(f'<line class="limit" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(limit):.1f}" y2="{y(limit):.1f}"/>')
    parts.append(f'<text class="tick" style="text-anchor:start" x="4" y="{_TOP - 10}">relative error</text>')
    parts.append(f'<text class="tick" x="{(_LEFT + _WIDTH) / 2}" y="{_HEIGHT - 6}">median time</text>')
    best = accuracy_pareto(plotted)
    path = "".join(
        f"{'M' if not at else 'H'}{x(p.ms):.1f}{' ' if not at else 'V'}{y(math.log10(p.error)):.1f}"
        for at, p in enumerate(best)
    )
    parts.append(f'<path class="front" d="{path}"/>')
    for point in plotted:
        tooltip = f"{point.name}: {words.milliseconds(point.ms)}, error {words.error(point.error)}"
        faint, size = "" if point.accepted else " refused", 8 if point.name == bucket.race.chosen else 5
        place = f'cx="{x(point.ms):.1f}" cy="{y(math.log10(point.error)):.1f}" r="{size}"'
        parts.append(f'<g><title>{escape(tooltip)}</title><circle class="dot {point.colour}{faint}" {place}/></g>')
    named = [*best, *(p for p in plotted if p.name == bucket.race.chosen and p not in best)]
    parts += _labels([(p, x(p.ms), y(math.log10(p.error))) for p in named], bucket.race.chosen)
    return "".join((*parts, "</svg>"))


def _round_times(low: float, high: float) -> list[float]:
    powers = range(math.floor(low), math.ceil(high) + 1)
    return [d * 10.0**power for power in powers for d in (1, 2, 5) if low <= math.log10(d) + power <= high]


def _labels(placed: Sequence[tuple[Plotted, float, float]], chosen: str) -> list[str]:
    """Labels of points; one that would cover another is moved down."""
    parts, taken = [], list[tuple[float, float, float]]()
    for point, at_x, at_y in sorted(placed, key=lambda placement: placement[2]):
        text = point.name + (" · ships" if point.name == chosen else "")
        width, to_left = len(text) * _LETTERS, at_x + 12 + len(text) * _LETTERS > _WIDTH
        start, at_y = at_x - 12 - width if to_left else at_x + 12, at_y - 6
        while any(abs(at_y - other) < 14 and start < end and begun < start + width for begun, end, other in taken):
            at_y += 14
        taken.append((start, start + width, at_y))
        style = f'style="text-anchor:{"end" if to_left else "start"}" x="{at_x - 12 if to_left else at_x + 12:.1f}"'
        kind = "label ships" if point.name == chosen else "label"
        parts.append(f'<text class="{kind}" {style} y="{at_y:.1f}">{escape(text)}</text>')
    return parts
