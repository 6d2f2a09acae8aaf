"""Figures of the page as SVG text: contestants, errors, timeline. Coordinates are pixels; colours are classes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from bricolage.plan.plan import Bucket
from bricolage.plan.race_outcome import Contestant
from bricolage.report import words
from bricolage.report.facts import RegionFacts

_CLIP = 4.0
"""Bars longer than this many times the fastest are cut off, so that one slow contestant does not flatten the rest."""
_LABEL = 280
_LETTERS = 32
_PLOT = 710
_ROW = 30
_CORE, _TIMES, _LANE = 80, 960, 34
"""Pixels of a schedule: the names of cores, the time, a row."""


def backend_class(contestant: Contestant, slots: Mapping[str, int]) -> str:
    """The colour class of a contestant: its backend's; plans that mix backends have their own."""
    implementation = contestant.implementation
    return "mix" if implementation is None else f"c{slots.get(implementation.backend, 8)}"


def contestant_chart(bucket: Bucket, slots: Mapping[str, int]) -> str:
    """Horizontal bars of the medians with their 95 % intervals, fastest first."""
    timed = [c for c in words.rank_contestants(bucket) if c.median_ms is not None]
    if not timed:
        return ""
    fastest = min(c.median_ms or math.inf for c in timed)
    longest = max((c.ci_ms[1] if c.ci_ms else c.median_ms or 0.0) for c in timed)
    axis = min(longest * 1.02, fastest * _CLIP) or 1.0
    height = len(timed) * _ROW + 26
    parts = [svg(_LABEL + _PLOT + 150, height, "Median time of each contestant")]
    parts += grid(axis, _LABEL, _PLOT, 0, height)
    for row, contestant in enumerate(timed):
        parts.append(
            _bar(contestant, row * _ROW, axis, contestant.name == bucket.race.chosen, backend_class(contestant, slots))
        )
    return "".join((*parts, "</svg>"))


def _bar(contestant: Contestant, y: float, axis: float, ships: bool, colour: str) -> str:
    median, middle = contestant.median_ms or 0.0, y + _ROW / 2
    cut = median > axis
    end = _LABEL + min(median / axis, 1.0) * _PLOT
    classes = f"bar {colour}" + ("" if contestant.accepted else " refused")
    round_ = min(3.0, (end - _LABEL) / 2)
    outline = f"M{_LABEL} {y + 6}H{end - round_:.1f}q{round_:.1f} 0 {round_:.1f} 3V{y + _ROW - 9}"
    outline += f"q0 3 {-round_:.1f} 3H{_LABEL}z"
    parts = [_name(contestant, middle, ships), f'<path class="{classes}" d="{outline}"/>']
    right = end
    if contestant.ci_ms is not None and not cut:
        low, high = (_LABEL + min(value / axis, 1.0) * _PLOT for value in contestant.ci_ms)
        right = max(right, high)
        ends = f"M{low:.1f} {middle - 4}v8M{high:.1f} {middle - 4}v8"
        parts.append(f'<path class="whisker" d="M{low:.1f} {middle}H{high:.1f}{ends}"/>')
    if cut:
        parts.append(f'<path class="cut" d="M{end - 16} {y + 4}l-5 {_ROW - 8}M{end - 10} {y + 4}l-5 {_ROW - 8}"/>')
    note = "  ships" if ships else "" if contestant.accepted else "  not accepted"
    parts.append(
        f'<text class="value" x="{right + 9:.1f}" y="{middle + 4}">{words.milliseconds(median)}'
        f'<tspan class="{"ships" if ships else "faint"}">{note}</tspan></text>'
    )
    return f"<g><title>{escape(_hover(contestant))}</title>{''.join(parts)}</g>"


def _name(contestant: Contestant, y: float, ships: bool) -> str:
    kind = "name ships" if ships else "name"
    return f'<text class="{kind}" x="{_LABEL - 10}" y="{y + 4}">{escape(_short(contestant.name))}</text>'


def _hover(contestant: Contestant) -> str:
    text = f"{contestant.name}: {words.milliseconds(contestant.median_ms)}, 95 % CI {words.interval(contestant.ci_ms)}"
    return text + (f"; {contestant.reason}" if contestant.reason else "")


def error_chart(bucket: Bucket, limit: float, slots: Mapping[str, int]) -> str:
    """Relative errors on a logarithmic axis, with the limit and what rounding does to the model as lines."""
    shown = {c.name: words.shown_error(c) for c in bucket.race.contestants}
    contestants = [
        c for c in words.rank_contestants(bucket) if (error := shown[c.name]) is not None and math.isfinite(error)
    ]
    values = (
        [error for c in contestants if (error := shown[c.name])]
        + [limit]
        + ([bucket.verification.original_error] if bucket.verification.original_error > 0 else [])
    )
    if not contestants:
        return ""
    low, high = math.floor(math.log10(min(values)) - 0.2), math.ceil(math.log10(max(values)) + 0.2)
    height = len(contestants) * 24 + 48

    def place(value: float) -> float:
        return _LABEL + (math.log10(value) - low) / (high - low) * _PLOT if value > 0 else _LABEL

    parts = [svg(_LABEL + _PLOT + 150, height, "Relative error of each contestant")]
    for power in range(low, high + 1, max(1, (high - low) // 8)):
        x = place(10.0**power)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="18" y2="{height - 24}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{height - 8}">1e{power}</text>')
    beyond = _LABEL + _PLOT - place(limit)
    parts.append(f'<rect class="beyond" x="{place(limit):.1f}" y="18" width="{beyond:.1f}" height="{height - 42}"/>')
    parts.append(_marker(place(limit), height, "limit", "limit", 4, "start"))
    if bucket.verification.original_error > 0:
        parts.append(
            _marker(place(bucket.verification.original_error), height, "float32 rounding", "original", -4, "end")
        )
    for row, contestant in enumerate(contestants):
        y, x = 18 + row * 24 + 12, place(shown[contestant.name] or 0.0)
        parts.append(
            f"<g><title>{escape(contestant.name)}: {words.error(shown[contestant.name])}</title>"
            f"{_name(contestant, y, contestant.name == bucket.race.chosen)}"
            f'<line class="grid" x1="{_LABEL}" x2="{_LABEL + _PLOT}" y1="{y}" y2="{y}"/>'
            f'<circle class="dot {backend_class(contestant, slots)}" cx="{x:.1f}" cy="{y}" r="5"/>'
            f'<text class="value" x="{_LABEL + _PLOT + 14}" y="{y + 4}">{words.error(shown[contestant.name])}</text></g>'
        )
    return "".join((*parts, "</svg>"))


def _marker(x: float, height: float, text: str, kind: str, shift: float, anchor: str) -> str:
    return (
        f'<line class="{kind}" x1="{x:.1f}" x2="{x:.1f}" y1="18" y2="{height - 24}"/>'
        f'<text class="tick" style="text-anchor:{anchor}" x="{x + shift:.1f}" y="13">{text}</text>'
    )


def timeline_chart(facts: Sequence[RegionFacts], slots: Mapping[str, int]) -> str:
    """The regions in the order in which they run, as wide as their time; transfers in grey before them."""
    width, height = 1100.0, 34
    total = sum((f.planned.cost_ms or 0.0) + f.planned.transfer_ms for f in facts)
    if not total:
        return ""
    box = f'viewBox="0 0 {width:.0f} {height}" preserveAspectRatio="none"'
    parts = [f'<svg class="timeline" {box} role="img" aria-label="Timeline">']
    x = 0.0
    for index, f in enumerate(facts):
        edge = f.planned.transfer_ms / total * width
        if edge > 0.05:
            parts.append(f'<rect class="edge" x="{x:.2f}" y="6" width="{edge:.2f}" height="{height - 12}"/>')
        x += edge
        span = (f.planned.cost_ms or 0.0) / total * width
        gap = 1.0 if span > 4 else 0.0
        place = f'x="{x:.2f}" y="0" width="{max(span - gap, 0.05):.2f}" height="{height}"'
        parts.append(f'<rect class="bar c{slots[f.planned.implementation.backend]}" data-region="{index}" {place}/>')
        x += span
    return "".join((*parts, "</svg>"))


def schedule_chart(bucket: Bucket, slots: Mapping[str, int]) -> str:
    """Rows are cores, bars are regions at their predicted times; lines where the schedule ends, and below which none can. Empty
    where the plan has no schedule, or does not say when its regions run."""
    schedule = bucket.program.schedule
    if schedule is None or not schedule.ms or any(region.start_ms is None for region in bucket.program.regions):
        return ""
    starts = [region.start_ms or 0.0 for region in bucket.program.regions]
    end = max([start + ms for start, ms in zip(starts, schedule.ms, strict=True)] + [schedule.lower_ms])
    if not end:
        return ""
    cores = sorted({core for region_cores in schedule.cores for core in region_cores})
    height = 18 + len(cores) * _LANE + 24
    parts = [svg(_CORE + _TIMES + 60, height, "Predicted schedule of the regions on the cores")]
    parts += grid(end, _CORE, _TIMES, 18, height)
    for row, core in enumerate(cores):
        y = 18 + row * _LANE
        parts.append(f'<text class="name" x="{_CORE - 10}" y="{y + _LANE / 2 + 4}">core {core}</text>')
        for index, (region_cores, start, ms) in enumerate(zip(schedule.cores, starts, schedule.ms, strict=True)):
            if core in region_cores:
                x, width = _CORE + start / end * _TIMES, ms / end * _TIMES
                place = f'x="{x:.2f}" y="{y + 2}" width="{max(width - (width > 4), 0.05):.2f}" height="{_LANE - 4}"'
                colour = slots[bucket.program.regions[index].implementation.backend]
                parts.append(f'<rect class="bar c{colour}" data-region="{index}" {place}/>')
    parts.append(_marker(_CORE + schedule.lower_ms / end * _TIMES, height, "no schedule below", "limit", -4, "end"))
    return "".join((*parts, "</svg>"))


def grid(axis: float, left: int, width: int, top: int, height: int) -> Iterator[str]:
    """Lines at round times of an axis that begins at 0, and what they say."""
    by = step(axis)
    for i in range(int(axis / by) + 1):
        x = left + i * by / axis * width
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{height - 24}"/>'
        yield f'<text class="tick" x="{x:.1f}" y="{height - 8}">{words.tick(i * by)}</text>'


def svg(width: float, height: float, label: str) -> str:
    """The opening tag of a figure."""
    return (
        f'<svg class="chart" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}" '
        f'role="img" aria-label="{escape(label)}">'
    )


def _short(text: str) -> str:
    """Long names lose their middle: plans are told apart by their ends."""
    return text if len(text) <= _LETTERS else f"{text[: _LETTERS - 11]}…{text[-10:]}"


def step(axis: float) -> float:
    """A round distance between ticks: about six of them."""
    raw = axis / 6
    power = 10.0 ** math.floor(math.log10(raw))
    return next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw)
