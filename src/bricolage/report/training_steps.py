"""A predicted training step as a page of its own: when what runs, what memory is taken meanwhile, and where both go."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from markupsafe import Markup

from bricolage._version import __version__
from bricolage.report import words
from bricolage.report.charts import grid, svg
from bricolage.report.pages import fill_template

if TYPE_CHECKING:
    from bricolage.train.predict.prediction import Predicted, Prediction, Span

_LEFT, _WIDTH, _LANE, _MEMORY = 84, 960, 26, 130
_PHASES = ("forward", "recompute", "backward", "update", "exchange", "idle")
_THINNEST = 0.25
"""Pixels: a narrower span is drawn together with its neighbours."""


def phase_bars(found: Prediction) -> str:
    """One bar for each variant: its phases one after another, on one axis."""
    shown = [step for step in found.predicted if not step.reason]
    axis = max(step.ms for step in shown) * 1.02 or 1.0
    left, width, row = 240, 640, 30
    height = len(shown) * row + 26
    parts = [svg(left + width + 130, height, "Predicted time of a step by phases"), *grid(axis, left, width, 0, height)]
    for number, step in enumerate(shown):
        x, y = float(left), number * row
        parts.append(f'<text class="name" x="{left - 10}" y="{y + 19}">{escape(_short(step.variant))}</text>')
        for phase in _PHASES:
            ms = step.phases.get(phase, 0.0)
            if ms <= 0.0:
                continue
            wide = ms / axis * width
            title = f"<title>{phase}: {words.milliseconds(ms)}</title>"
            parts.append(
                f'<rect class="{phase}" x="{x:.1f}" y="{y + 6}" width="{wide:.1f}" height="{row - 12}">{title}</rect>'
            )
            x += wide
        if step.measured is not None:
            at = left + step.measured.median_ms / axis * width
            if at <= left + width:
                parts.append(f'<path class="whisker" d="M{at:.1f} {y + 2}v{row - 4}"/>')
        parts.append(
            f'<text class="value" x="{max(x, left) + 9:.1f}" y="{y + 19}">{words.milliseconds(step.ms)}</text>'
        )
    return "".join((*parts, "</svg>"))


def step_course(one: Predicted) -> str:
    """When phases, layers and exchanges run, and the memory that tensors take, on one axis of time."""
    if one.course is None or not one.course.spans:
        return ""
    stages = max(span.stage for span in one.course.spans) + 1
    end = max([span.end_ms for span in one.course.spans] + [sent.end_ms for sent in one.course.sent]) or 1.0
    lanes = [f"stage {number + 1}" for number in range(stages)] if stages > 1 else ["computing"]
    lanes += ["exchange"] if one.course.sent else []
    top = len(lanes) * _LANE + 8
    height = top + _MEMORY + 34
    parts = [svg(_LEFT + _WIDTH + 20, height, f"Course of the step: {one.variant}")]
    parts += grid(end, _LEFT, _WIDTH, 0, height)
    for number, name in enumerate(lanes):
        parts.append(f'<text class="name" x="{_LEFT - 8}" y="{number * _LANE + 17}">{name}</text>')
    for number in range(stages):
        parts += _spans([span for span in one.course.spans if span.stage == number], end, number * _LANE + 4)
    for sent in one.course.sent:
        x, wide = _LEFT + sent.start_ms / end * _WIDTH, (sent.end_ms - sent.start_ms) / end * _WIDTH
        title = f"<title>{words.size(sent.bytes)} in {words.milliseconds(sent.end_ms - sent.start_ms)}</title>"
        parts.append(
            f'<rect class="exchange" x="{x:.1f}" y="{_LANE + 4}" width="{max(wide, 1):.1f}" height="{_LANE - 8}">{title}</rect>'
        )
    parts += _memory(one, end, top)
    return "".join((*parts, "</svg>"))


def _spans(spans: Sequence[Span], end: float, top: int) -> list[str]:
    parts: list[str] = []
    start, phase = 0.0, ""
    layers: list[str] = []
    for number, span in enumerate(spans):
        if not layers:
            start, phase = span.start_ms, span.phase
        layers.append(span.layer or "outside of modules")
        following = spans[number + 1] if number + 1 < len(spans) else None
        # Spans that do not touch, as of micro-batches that wait for each other, are drawn apart.
        last = following is None or following.phase != phase or following.start_ms > span.end_ms + 1e-9
        wide = (span.end_ms - start) / end * _WIDTH
        if wide < _THINNEST and not last:
            continue
        layer_names = ", ".join(dict.fromkeys(layers[:4])) + (" ..." if len(layers) > 4 else "")
        title = f"<title>{escape(phase)}: {escape(layer_names)}, {words.milliseconds(span.end_ms - start)}</title>"
        x = _LEFT + start / end * _WIDTH
        parts.append(
            f'<rect class="{phase} part" x="{x:.2f}" y="{top}" width="{wide:.2f}" height="{_LANE - 8}">{title}</rect>'
        )
        layers = []
    return parts


def _memory(one: Predicted, end: float, top: int) -> list[str]:
    assert one.course is not None
    points, floor = one.course.memory, top + _MEMORY
    most = max((size for _, size in points), default=1) or 1
    path = [f"M{_LEFT} {floor}"]
    for at, size in points:
        x, y = _LEFT + at / end * _WIDTH, floor - size / most * (_MEMORY - 12)
        path.append(f"H{x:.1f}V{y:.1f}")
    path.append(f"H{_LEFT + _WIDTH}V{floor}Z")
    return [
        f'<path class="memory" d="{"".join(path)}"><title>peak {words.size(one.peak_bytes)}</title></path>',
        f'<text class="name" x="{_LEFT - 8}" y="{top + 16}">{escape(words.size(most))}</text>',
        f'<text class="name" x="{_LEFT - 8}" y="{floor}">0</text>',
    ]


def _short(text: str) -> str:
    return text if len(text) <= 34 else f"{text[:24]}…{text[-8:]}"


def training_page(found: Prediction) -> str:
    """The page: a table of the variants, and for each its timeline and memory; the operators and layers of the step."""
    whole = sum(operator.ms for operator in found.operators) or 1.0
    layers = sorted(found.layers, key=lambda layer: -sum(layer.ms.values()))
    return fill_template(
        "training.html.j2",
        {"ms": words.milliseconds, "size": words.size},
        found=found,
        base=found.predicted[0],
        bars=Markup(phase_bars(found)),
        shown=[(step, Markup(step_course(step))) for step in found.predicted if not step.reason],
        refused=[step for step in found.predicted if step.reason],
        operators=[(operator, operator.ms / whole) for operator in found.operators[:20]],
        layers=layers[:30],
        phases=_PHASES[:4],
        version=__version__,
    )
