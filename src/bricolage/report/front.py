"""The figure of an operating point: requests a second over the p99 latency of all that was tried, and the Pareto front."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

from bricolage.plan.throughput import ServingConfig, Throughput
from bricolage.report import words
from bricolage.report.charts import step, svg
from bricolage.report.operating_points import request_rate

_Scale = Callable[[float], float]
_LEFT, _RIGHT, _TOP, _BOTTOM = 90, 30, 16, 46
_WIDTH, _HEIGHT = 1110, 430
_TICKS = 9
"""Of the logarithmic axis, at most."""
_LETTERS = 6.4
"""Width of a letter of a label."""


def colour(server: ServingConfig, slots: Mapping[str, int]) -> str:
    """The colour class of a server: its backend's; plans have their own."""
    implementation = server.implementation
    return "mix" if implementation is None else f"c{slots.get(implementation.backend, 8)}"


def figure(found: Throughput, slots: Mapping[str, int]) -> str:
    """SVG text. Dots are copies and plans, rings a backend's own queue."""
    servers = [server for server in found.servers if server.accepted and server.rate and server.p99_ms]
    if not servers:
        return ""
    times = [server.p99_ms or 0.0 for server in servers] + ([found.latency_limit_ms] if found.latency_limit_ms else [])
    low, high = math.log10(min(times)) - 0.08, math.log10(max(times)) + 0.08
    top = max(server.rate or 0.0 for server in servers) * 1.06

    def x(ms: float) -> float:
        return _LEFT + (math.log10(ms) - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - value / top * (_HEIGHT - _TOP - _BOTTOM)

    parts = [svg(_WIDTH, _HEIGHT, "Requests a second over p99 latency"), *_grid(low, high, top, x, y)]
    if found.latency_limit_ms is not None:
        at = x(found.latency_limit_ms)
        beyond = max(0.0, _WIDTH - _RIGHT - at)
        parts.append(f'<rect class="beyond" x="{at:.1f}" y="{_TOP}" width="{beyond:.1f}" height="{y(0) - _TOP:.1f}"/>')
        parts.append(f'<line class="limit" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{y(0):.1f}"/>')
        parts.append(f'<text class="tick" style="text-anchor:start" x="{at + 4:.1f}" y="{_TOP + 10}">limit</text>')
    front = sorted((found.server(name) for name in found.front), key=lambda server: server.p99_ms or 0.0)
    parts.append(_outline(front, x, y))
    parts += [
        _dot(server, found, x(server.p99_ms or 0.0), y(server.rate or 0.0), colour(server, slots))
        for server in sorted(servers, key=lambda server: server.name == found.chosen)
    ]
    # The ends of the front and what ships have labels; the others show their names under the pointer.
    named = [*front[:1], *front[-1:], *([found.winner] if found.winner in servers else [])]
    parts += _labels(list(dict.fromkeys(named)), found, x, y)
    return "".join((*parts, "</svg>"))


def _grid(low: float, high: float, top: float, x: _Scale, y: _Scale) -> list[str]:
    parts: list[str] = []
    by = step(top)
    for i in range(int(top / by) + 1):
        at = y(i * by)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(
            f'<text class="tick" style="text-anchor:end" x="{_LEFT - 8}" y="{at + 4:.1f}">{request_rate(i * by)}</text>'
        )
    for ms in _round_times(low, high):
        at = x(ms)
        parts.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{y(0):.1f}"/>')
        parts.append(f'<text class="tick" x="{at:.1f}" y="{y(0) + 16:.1f}">{words.milliseconds(ms)}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text class="tick" x="{middle}" y="{_HEIGHT - 6}">99 of 100 requests take at most</text>')
    parts.append(f'<text class="tick" style="text-anchor:start" x="4" y="{_TOP - 4}">requests/s</text>')
    return parts


def _round_times(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten between two logarithms; powers alone where that would be too many."""
    powers = range(math.floor(low), math.ceil(high) + 1)
    for digits in ((1, 2, 5), (1,)):
        round_times = [d * 10.0**power for power in powers for d in digits if low <= math.log10(d) + power <= high]
        if len(round_times) <= _TICKS:
            break
    return round_times


def _outline(front: Sequence[ServingConfig], x: _Scale, y: _Scale) -> str:
    """What could be had at each latency: steps from one point of the front to the next."""
    if len(front) < 2:
        return ""
    first = front[0]
    path = f"M{x(first.p99_ms or 0.0):.1f} {y(first.rate or 0.0):.1f}"
    for server in front[1:]:
        path += f"H{x(server.p99_ms or 0.0):.1f}V{y(server.rate or 0.0):.1f}"
    return f'<path class="front" d="{path}"/>'


def _dot(one: ServingConfig, found: Throughput, at_x: float, at_y: float, kind: str) -> str:
    tooltip = f"{one.name}: {request_rate(one.rate)} requests/s, p50 {words.milliseconds(one.p50_ms)}, p99 "
    tooltip += words.milliseconds(one.p99_ms) + (f"; {one.reason}" if one.reason else "")
    ring = " ring" if one.kind == "queue" else ""
    late = found.latency_limit_ms is not None and (one.p99_ms or 0.0) > found.latency_limit_ms
    faint = " refused" if late else ""
    size = 8 if one.name == found.chosen else 5
    return (
        f"<g><title>{escape(tooltip)}</title>"
        f'<circle class="dot {kind}{ring}{faint}" cx="{at_x:.1f}" cy="{at_y:.1f}" r="{size}"/></g>'
    )


def _labels(named: Sequence[ServingConfig], found: Throughput, x: _Scale, y: _Scale) -> list[str]:
    """Labels of points; one that would cover another is moved down."""
    parts, taken = [], list[tuple[float, float, float]]()
    for server in sorted(named, key=lambda server: y(server.rate or 0.0)):
        ships = server.name == found.chosen
        text = server.name + (" · ships" if ships else "")
        width = len(text) * _LETTERS
        at_x, at_y = x(server.p99_ms or 0.0), y(server.rate or 0.0) - 6
        left = at_x + 12 + width > _WIDTH
        start = at_x - 12 - width if left else at_x + 12
        while any(abs(at_y - other) < 14 and start < end and begun < start + width for begun, end, other in taken):
            at_y += 14
        taken.append((start, start + width, at_y))
        anchor = "end" if left else "start"
        parts.append(
            f'<text class="label{" ships" if ships else ""}" style="text-anchor:{anchor}" '
            f'x="{at_x - 12 if left else at_x + 12:.1f}" y="{at_y:.1f}">{escape(text)}</text>'
        )
    return parts
