"""Policies on a cluster side by side: a table for the terminal, and a page of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from markupsafe import Markup
from rich.table import Table

from bricolage._version import __version__
from bricolage.api.cluster_replay import KnownPolicy
from bricolage.cluster.policy_catalogue import SOURCES
from bricolage.cluster.policy_comparison import ClusterComparison, PolicyResult
from bricolage.cluster.why import Waited
from bricolage.errors import plain
from bricolage.report import words
from bricolage.report.charts import svg
from bricolage.report.pages import fill_template
from bricolage.report.palette import COLOURS
from bricolage.report.tables import plain_table

_LEFT, _WIDTH, _HIGH = 70, 860, 190
_DASHES = ("", "7 3", "2 3", "9 3 2 3")
"""Colours repeat; then lines are dashed."""


@dataclass(frozen=True)
class Whole:
    """A comparison with its name: as it is, and changed."""

    name: str
    found: ClusterComparison


def span(seconds: float) -> str:
    """A duration in the unit that fits: "42 s", "17 min", "3.4 h", "12.5 d"."""
    for unit, length, most in (("s", 1.0, 120.0), ("min", 60.0, 120.0), ("h", 3600.0, 100.0)):
        if seconds < most * length:
            value = seconds / length
            return f"{value:.0f} {unit}" if value >= 10 or unit == "s" else f"{value:.1f} {unit}"
    return f"{seconds / 86400:.1f} d"


def span_with_range(seconds: float, interval_s: tuple[float, float]) -> str:
    """A duration and what it lies between: "17 min (12 min to 30 min)"."""
    low, high = interval_s
    return f"{span(seconds)} ({span(low)} to {span(high)})"


def comparison_heading(found: ClusterComparison) -> str:
    """How many jobs, on which devices."""
    return f"{words.count(found.jobs, 'job')} on {words.list_devices(found.devices)}"


def policy_table(found: ClusterComparison, before: ClusterComparison | None = None) -> Table:
    """A row for each policy, least mean completion time first; with `before` the change against it."""
    heads = [("Policy", "left"), ("Mean JCT", "right"), *([("Change", "right")] if before else [])]
    heads += [("p99", "right"), ("Queued", "right"), ("Makespan", "right"), ("Used", "right"), ("Unfair", "right")]
    heads += [("Late", "right")] if any(result.outcome.deadlines for result in found.results) else []
    old = {} if before is None else {result.outcome.policy: result.outcome.mean_jct_s for result in before.results}
    return plain_table(heads, [_cells(result, old, len(heads), before is not None) for result in rank_policies(found)])


def catalogue_table(policies: Sequence[KnownPolicy]) -> Table:
    """A row for each policy that can be asked for."""
    heads = [("Policy", "left"), ("What it does", "left"), ("Source", "left")]
    return plain_table(heads, [[entry.name, entry.title, entry.source] for entry in policies])


def source_sentences() -> list[str]:
    """What the words for sources mean."""
    return [f"{source}: {meaning}" for source, meaning in SOURCES.items()]


def rank_policies(found: ClusterComparison) -> list[PolicyResult]:
    """Least mean completion time first."""
    return sorted(found.results, key=lambda result: result.outcome.mean_jct_s)


def _cells(one: PolicyResult, old: Mapping[str, float], count: int, changed: bool) -> list[str]:
    o = one.outcome
    before = old.get(o.policy)
    change = [words.MISSING if before is None else f"{o.mean_jct_s / before - 1:+.1%}"] if changed else []
    cells = [o.policy, span(o.mean_jct_s), *change, span(o.p99_jct_s), span(o.mean_queue_s), span(o.makespan_s)]
    return [*cells, f"{o.utilisation:.0%}", f"{o.unfair:.0%}", f"{o.late} of {o.deadlines}"][:count]


def notes(found: ClusterComparison) -> list[str]:
    """What the figures leave out."""
    sentences = [f"{count} {reason}: left out" for reason, count in found.left_out.items()] + list(found.notes)
    return sentences + [f"{name} is not shown: {reason}" for name, reason in found.refused.items()]


def wait_sentences(found: ClusterComparison) -> list[str]:
    """Of each policy, why the jobs that were asked about waited, and what was to be predicted when they came."""
    sentences = []
    for result in rank_policies(found):
        for waited in result.waits:
            if waited.expected is not None:  # of the longest waits, which are there unasked, nothing is predicted
                sentences.append(_format_wait(result.outcome.policy, waited))
                start = span_with_range(waited.expected.start_s, waited.expected.start_interval_s)
                end = span_with_range(waited.expected.end_s, waited.expected.end_interval_s)
                sentences.append(f"  predicted when it came: start at {start}, end at {end}")
    return sentences


def _format_wait(policy: str, waited: Waited) -> str:
    line = f"{waited.job} under {policy}: submitted at {span(waited.submit_s)}, "
    line += f"started at {span(waited.start_s)}, ended at {span(waited.finish_s)}; "
    line += f"it waited for {waited.reason}" if waited.start_s > waited.submit_s else "it did not wait"
    return plain(line + (f". It would have started with {waited.change}" if waited.change else ""))


def cluster_page(wholes: Sequence[Whole], title: str) -> str:
    """The page: a table, curves of all policies on one axis, and of each policy its devices over time and its longest waits."""
    return fill_template(
        "cluster.html.j2",
        {"span": span},
        wholes=[_build_context(whole) for whole in wholes],
        title=title,
        version=__version__,
        colours=COLOURS,
    )


def _build_context(whole: Whole) -> dict[str, object]:
    comparison = whole.found
    results = rank_policies(comparison)
    names = [result.outcome.policy for result in results]
    percents = [f"{share} %" for share in (0, 25, 50, 75, 100)]
    hours = [span(comparison.span_s * part / 4) for part in range(5)]
    return {
        "name": whole.name,
        "found": comparison,
        "results": results,
        "notes": notes(comparison),
        "legend": [(name, *_style(number)) for number, name in enumerate(names)],
        "jct": Markup(
            lines(
                [result.jct_s for result in results],
                names,
                percents,
                "Completion time of jobs, shortest first",
                span,
                True,
            )
        ),
        "rho": Markup(
            lines([result.rho for result in results], names, percents, "Finish-time fairness", "{:.3g}".format, True)
        ),
        "queue": Markup(
            lines([result.waiting for result in results], names, hours, "Jobs that wait, over time", "{:.3g}".format)
        ),
        "used": [Markup(_draw_usage(result, comparison, hours)) for result in results],
        "bars": Markup(bars(results)),
    }


def _style(number: int) -> tuple[int, str]:
    hues = len(COLOURS) - 1
    return number % hues, _DASHES[number // hues % len(_DASHES)]


def lines(
    curves: Sequence[Sequence[float]],
    names: Sequence[str],
    marks: Sequence[str],
    label: str,
    unit: Callable[[float], str],
    logarithmic: bool = False,
) -> str:
    """Curves at equal distances from left to right, on one axis; `marks` stand below at equal distances.

    Args:
        curves: their values.
        names: said by the pointer.
        marks: below the axis, from its start to its end.
        label: what the figure shows.
        unit: a function of a value, for the marks of the vertical axis.
        logarithmic: that axis; what is below a ten-thousandth of the largest value is at its foot.
    """
    most = max((max(curve, default=0.0) for curve in curves), default=0.0) or 1.0
    positive = [value for curve in curves for value in curve if value > 0]
    least = max(min(positive, default=most), most / 1e4) if logarithmic else 0.0

    def y(value: float) -> float:
        if logarithmic:
            wide = math.log(most / least) or 1.0
            return 10 + _HIGH * (1 - max(math.log(max(value, least) / least), 0.0) / wide)
        return 10 + _HIGH * (1 - value / most)

    parts = [svg(_LEFT + _WIDTH + 30, _HIGH + 40, label)]
    for part in range(5):
        at = least * (most / least) ** (part / 4) if logarithmic else most * part / 4
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="{y(at):.1f}" y2="{y(at):.1f}"/>')
        parts.append(f'<text class="name tick" x="{_LEFT - 8}" y="{y(at) + 4:.1f}">{escape(unit(at))}</text>')
    for number, mark in enumerate(marks):
        x = _LEFT + _WIDTH * number / (len(marks) - 1)
        parts.append(f'<text class="tick" x="{x:.1f}" y="{_HIGH + 30}">{escape(mark)}</text>')
    for number, (curve, name) in enumerate(zip(curves, names, strict=True)):
        colour, dashes = _style(number)
        step = _WIDTH / max(len(curve) - 1, 1)
        path = "".join(f"{'L' if i else 'M'}{_LEFT + i * step:.1f} {y(value):.1f}" for i, value in enumerate(curve))
        parts.append(
            f'<path class="curve s{colour}" stroke-dasharray="{dashes}" d="{path}"><title>{escape(name)}</title></path>'
        )
    return "".join((*parts, "</svg>"))


def bars(results: Sequence[PolicyResult]) -> str:
    """Mean completion time of each policy, with the range over seeds where there is one."""
    left, width, row = 150, 640, 26
    most = (
        max(max(result.outcome.mean_jct_s, (result.mean_jct_interval_s or (0.0, 0.0))[1]) for result in results) * 1.02
        or 1.0
    )
    parts = [svg(left + width + 110, len(results) * row + 8, "Mean completion time")]
    for number, result in enumerate(results):
        y, wide = number * row, result.outcome.mean_jct_s / most * width
        colour, _ = _style(number)
        parts.append(f'<text class="name" x="{left - 10}" y="{y + 17}">{escape(result.outcome.policy)}</text>')
        parts.append(f'<rect class="f{colour}" x="{left}" y="{y + 5}" width="{wide:.1f}" height="{row - 10}"/>')
        end = wide
        if result.mean_jct_interval_s is not None:
            low, high = (value / most * width for value in result.mean_jct_interval_s)
            parts.append(f'<path class="whisker" d="M{left + low:.1f} {y + row / 2}H{left + high:.1f}"/>')
            end = max(end, high)
        parts.append(
            f'<text class="value" x="{left + end + 8:.1f}" y="{y + 17}">{span(result.outcome.mean_jct_s)}</text>'
        )
    return "".join((*parts, "</svg>"))


def _draw_usage(one: PolicyResult, found: ClusterComparison, marks: Sequence[str]) -> str:
    """Devices that are held over time, kinds stacked."""
    high, total = 110, sum(found.devices.values())
    parts = [svg(_LEFT + _WIDTH + 30, high + 40, f"Devices over time, {one.outcome.policy}")]
    below = [0.0] * len(next(iter(one.used.values())))
    step = _WIDTH / max(len(below) - 1, 1)
    for number, (kind, held) in enumerate(one.used.items()):
        above = [low + value for low, value in zip(below, held, strict=True)]
        up = "".join(
            f"{'L' if i else 'M'}{_LEFT + i * step:.1f} {10 + high * (1 - v / total):.1f}" for i, v in enumerate(above)
        )
        down = "".join(
            f"L{_LEFT + i * step:.1f} {10 + high * (1 - v / total):.1f}" for i, v in reversed(list(enumerate(below)))
        )
        parts.append(
            f'<path class="f{number % (len(COLOURS) - 1)}" d="{up}{down}Z"><title>{escape(kind)}</title></path>'
        )
        below = above
    parts.append(f'<line class="limit" x1="{_LEFT}" x2="{_LEFT + _WIDTH}" y1="10" y2="10"/>')
    parts.append(f'<text class="name tick" x="{_LEFT - 8}" y="14">{total}</text>')
    parts.append(f'<text class="name tick" x="{_LEFT - 8}" y="{high + 14}">0</text>')
    for number, mark in enumerate(marks):
        parts.append(
            f'<text class="tick" x="{_LEFT + _WIDTH * number / (len(marks) - 1):.1f}" y="{high + 30}">{escape(mark)}</text>'
        )
    return "".join((*parts, "</svg>"))
