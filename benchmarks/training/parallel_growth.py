"""How long planning takes as steps and groups of devices grow: `python -m benchmarks.training.parallel_plans --growth --json`.

Transformers of 1,024 hidden units are planned from 1,000 operators on 64 devices to 100,000 operators on 4,096 devices, both as
pipelines with replicas (`train/pipeline/search.py`) and as stages on groups of devices whose operators are divided
(`train/sharded/two_levels.py`). `--page FILE` writes the seconds as figures with logarithmic axes.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path

from benchmarks.training.sharded_steps import DescribedTransformer
from bricolage.device.device import Link, Peaks
from bricolage.errors import NoPipelinePlan, NoShardingPlan
from bricolage.report.charts import svg
from bricolage.train.pipeline.pipeline_problem import PipelineProblem, PlannedLayer
from bricolage.train.pipeline.search import best_plans
from bricolage.train.sharded.two_levels import Hosts, plan_sharded

OPERATORS, DEVICES = (1_000, 3_000, 10_000, 30_000, 100_000), (64, 256, 1024, 4096)
HIDDEN, TOKENS, GFLOPS, MEMORY = 1024, 512, 50_000.0, 80e9
INSIDE, ACROSS = Link(("one", "other"), 100.0, 5.0), Link(("one", "other"), 1.25, 20.0)
_COPYING = 1500.0
_CLUSTERS = 32
_LEFT, _WIDTH, _HEIGHT = 70, 560, 300
_KINDS = {"pipelines": "#2a78d6", "stages on groups": "#d6752a"}


@dataclass(frozen=True)
class GrowthRow:
    """One plan."""

    kind: str
    operators: int
    devices: int
    seconds: float
    step_ms: float | None
    """None where nothing fits."""
    bound_ms: float | None


def growth(
    layers_of: Callable[[int, int, int, float], tuple[PlannedLayer, ...]],
    operators: Sequence[int] = OPERATORS,
    devices: Sequence[int] = DEVICES,
) -> list[GrowthRow]:
    """All plans.

    Args:
        layers_of: layers by their number, hidden units, tokens and 10⁹ operations a second.
        operators: of steps.
        devices: of groups.
    """
    found = []
    for count, some in itertools.product(operators, devices):
        each = len(_step(1, some).problem(1, _hosts(some).ring(1)).operators)
        layers = max(1, round(count / each))
        found.append(_row("pipelines", layers * each, some, lambda: _pipelines(layers_of, layers, some)))  # noqa: B023
        found.append(_row("stages on groups", layers * each, some, lambda: _staged(layers, some)))  # noqa: B023
    return found


def _row(kind: str, operators: int, devices: int, solve: Callable[[], tuple[float, float | None]]) -> GrowthRow:
    started = time.monotonic()
    step: float | None
    try:
        step, bound = solve()
    except (NoPipelinePlan, NoShardingPlan):
        step = bound = None
    return GrowthRow(kind, operators, devices, time.monotonic() - started, step, bound)


def _pipelines(
    layers_of: Callable[[int, int, int, float], tuple[PlannedLayer, ...]], layers: int, devices: int
) -> tuple[float, float | None]:
    row = layers_of(layers, HIDDEN, TOKENS, GFLOPS)
    best = best_plans(PipelineProblem(row, devices, 2 * devices, ACROSS, MEMORY, 0.2), count=1)[0]
    return best.step_ms, best.bound_ms


def _hosts(devices: int) -> Hosts:
    return Hosts(devices, 8, INSIDE, ACROSS, _COPYING, MEMORY)


def _step(layers: int, devices: int) -> DescribedTransformer:
    micro = max(1, devices // 8)
    return DescribedTransformer(layers, HIDDEN, TOKENS, 2 * devices // micro, micro, Peaks(GFLOPS, _COPYING), MEMORY)


def _staged(layers: int, devices: int) -> tuple[float, float | None]:
    step, clusters = _step(layers, devices), min(layers, _CLUSTERS)
    least = max(1, devices // 64)
    groups = [least << power for power in range(4) if least << power <= devices]
    found = plan_sharded(step.row(clusters), _hosts(devices), step.micro_batches, groups=groups)
    return found.step_ms, None


def page(rows: Sequence[GrowthRow]) -> str:
    """Seconds by operators, for each number of devices."""
    figures = [
        f"<h2>{devices:,} devices</h2>{_figure([one for one in rows if one.devices == devices])}"
        for devices in sorted({one.devices for one in rows})
    ]
    legend = " ".join(f'<span style="color:{colour}">&#9632; {escape(kind)}</span>' for kind, colour in _KINDS.items())
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Growth of planning</title>'
        "<style>body{font:15px sans-serif;margin:2em}text{font:12px sans-serif}.grid{stroke:#ccc}</style></head><body>"
        f"<h1>Seconds of planning, by operators of a step</h1><p>{legend}</p>{''.join(figures)}</body></html>\n"
    )


def _figure(rows: Sequence[GrowthRow]) -> str:
    """Both axes logarithmic."""
    wide = [math.log10(min(one.operators for one in rows)), math.log10(max(one.operators for one in rows))]
    times = [max(one.seconds, 1e-2) for one in rows]
    low, high = math.floor(math.log10(min(times))), max(math.ceil(math.log10(max(times))), 2)

    def place(operators: float, seconds: float) -> tuple[float, float]:
        x = (math.log10(operators) - wide[0]) / max(wide[1] - wide[0], 1e-9)
        y = (math.log10(max(seconds, 1e-2)) - low) / max(high - low, 1)
        return _LEFT + x * _WIDTH, 10 + (1.0 - y) * (_HEIGHT - 40)

    parts = [svg(_LEFT + _WIDTH + 60, _HEIGHT, "Seconds of planning by operators")]
    for power in range(low, high + 1):
        _, y = place(10 ** wide[0], 10.0**power)
        parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{_LEFT + _WIDTH}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g} s</text>')
    for operators in sorted({one.operators for one in rows}):
        x, _ = place(operators, 1.0)
        parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - 8}" text-anchor="middle">{operators:,}</text>')
    for kind, colour in _KINDS.items():
        points = [place(one.operators, one.seconds) for one in rows if one.kind == kind]
        line = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        parts.append(f'<path d="M{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>' for x, y in points]
    return "".join((*parts, "</svg>"))


def write(rows: Sequence[GrowthRow], place: Path | None) -> list[dict[str, object]]:
    """Writes the page where one is asked for; the rows as data."""
    if place is not None:
        place.write_text(page(rows), encoding="utf-8")
    return [asdict(one) for one in rows]
