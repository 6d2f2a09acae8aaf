"""A plan of a training step on several devices: tables for the terminal, and a page of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from markupsafe import Markup
from rich.console import RenderableType
from rich.table import Table

from bricolage._version import __version__
from bricolage.report import words
from bricolage.report.charts import grid, svg
from bricolage.report.pages import fill_template
from bricolage.report.tables import plain_table
from bricolage.train.pipeline.search import simulate_plan

if TYPE_CHECKING:
    from bricolage.train.pipeline.pipeline_problem import PipelinePlan
    from bricolage.train.run.document import TrainingPlan
    from bricolage.train.run.launch_plan import PlanResult

_LEFT, _WIDTH, _LANE, _MEMORY = 84, 960, 26, 70
_KINDS = {"F": "forward", "B": "backward", "I": "backward", "W": "weights"}
_TOLD = {"F": "forward", "B": "backward", "I": "gradient of the input", "W": "gradient of the weights"}
Bar = tuple[str, float, float]
"""A pass ("0F3"), its begin and its end, milliseconds."""


def plan_words(one: PipelinePlan) -> str:
    """A plan in a few words: "1f1b, 2 x 4 devices, 8 micro-batches"."""
    if one.devices == 1 and one.replicas == 1 and one.micro_batches == 1:
        return one.schedule
    if one.groups:
        sizes = " + ".join(str(len(group.devices)) for group in one.groups)
        parts = [one.schedule, f"{sizes} devices", f"{one.micro_batches} micro-batch{'es' * (one.micro_batches > 1)}"]
        return ", ".join([*parts, *(["recomputed"] if one.recompute else [])])
    parts = [one.schedule, f"{one.replicas} x {words.count(one.devices, 'device')}"]
    if one.devices > 1 or one.micro_batches > 1:
        parts.append(f"{one.micro_batches} micro-batch{'es' if one.micro_batches > 1 else ''}")
    if one.divided:
        numbers = ", ".join(str(stage + 1) for stage in one.divided)
        which = "all stages" if len(one.divided) == one.stages else f"stage{'s' * (len(one.divided) > 1)} {numbers}"
        parts.append(f"weights of {which} divided")
    return ", ".join([*parts, *(["recomputed"] if one.recompute else [])])


def plan_table(made: TrainingPlan) -> Table:
    """The plan that is chosen, and its runner-ups."""
    heads = [("Plan", "fold"), ("Step", "right"), ("Bubble", "right"), ("Exchange", "right")]
    heads += [("Peak", "right"), ("Gap", "right")]
    return plain_table(heads, _plan_rows(made))


def _plan_rows(made: TrainingPlan) -> list[list[str]]:
    """All plans, the fastest first: words, milliseconds, bubble, exchange, peak, gap."""

    def row(told: str, ms: float, exchange: float | None, peak: float, bubble: float | None = None) -> list[str]:
        return [
            told,
            words.milliseconds(ms),
            words.MISSING if bubble is None else f"{bubble:.0%}",
            words.MISSING if exchange is None else words.milliseconds(exchange),
            words.size(peak),
            f"{max(1.0 - made.bound_ms / ms, 0.0) if ms else 0.0:.0%}",
        ]

    rows: list[tuple[float, list[str]]] = []
    for candidate in made.plans:
        bubble = candidate.bubble if candidate.devices > 1 else None
        exchange = (
            candidate.exchange_ms if candidate.replicas > 1 and len(candidate.divided) < candidate.stages else None
        )
        rows.append(
            (candidate.step_ms, row(plan_words(candidate), candidate.step_ms, exchange, candidate.peak_bytes, bubble))
        )
    if (sharded := made.layouts) is not None:
        title = f"sharded, {words.count(sharded.workers, 'device')}"
        title += f", {sharded.divided_parameters} of {words.count(len(sharded.parameters), 'weight')} divided"
        rows.append((sharded.ms, row(title, sharded.ms, sharded.conversion_ms, sharded.peak_bytes)))
    if (whole := made.fully_sharded) is not None:
        title = f"fully sharded, {words.count(made.devices.count, 'device')}"
        rows.append((whole.step_ms, row(title, whole.step_ms, whole.exchange_ms, whole.peak_bytes)))
    if (grouped := made.grouped) is not None:
        sizes = " + ".join(str(stage.devices) for stage in grouped.stages)
        title = f"layouts in stages, {sizes} devices, {grouped.micro_batches} micro-batches"
        rows.append(
            (grouped.step_ms, row(title, grouped.step_ms, grouped.exchange_ms, grouped.peak_bytes, grouped.bubble))
        )
    return [cells for _, cells in sorted(rows, key=lambda pair: pair[0])]


def plan_parts(made: TrainingPlan) -> Iterator[RenderableType]:
    """A plan with its runner-ups, its bound, and what changes of the devices would make of it."""
    yield f"{made.step.module}, {made.step.batch_size} samples a step, on {made.devices}\n"
    yield plan_table(made)
    yield from group_words(made)
    yield f"\nNo plan takes less than {words.milliseconds(made.bound_ms)}."
    for change in made.changes:
        yield f"With {change.change}: {words.milliseconds(change.step_ms)} ({plan_words(change.plan)})"
    yield from made.notes


def group_words(made: TrainingPlan) -> list[str]:
    """Of the best plan on unlike devices, a sentence for each stage: its layers, its devices and their micro-batches."""
    shown = made.pipelined
    if shown is None or not shown.groups:
        return []
    ends = [*shown.begins[1:], len(made.layers)]
    sentences = [""]
    for number, (begin, end, group) in enumerate(zip(shown.begins, ends, shown.groups, strict=True)):
        which = f"layer {begin + 1}" if end - begin == 1 else f"layers {begin + 1} to {end}"
        parts = zip(group.devices, group.micro_batches, strict=True)
        where = ", ".join(f"{made.devices.names[device]} ({count} of {shown.micro_batches})" for device, count in parts)
        sentences.append(f"Stage {number + 1}, {which}: micro-batches on {where}")
    return sentences


def result_table(done: PlanResult) -> Table:
    """What was predicted and what was measured."""
    heads = [("", "left"), ("Predicted", "right"), ("Measured", "right"), ("95 % interval", "right")]
    heads += [("Error", "right"), ("Gradients", "right"), ("", "left")]
    return plain_table(heads, _result_rows(done))


def _result_rows(done: PlanResult) -> list[list[str]]:
    rows = []
    for name, timing in done.measured.items():
        check, error = done.checks.get(name), done.error(name)
        rows.append(
            [
                name,
                words.milliseconds(done.predicted_ms.get(name)),
                words.milliseconds(timing.median_ms),
                words.interval((timing.low_ms, timing.high_ms)),
                words.MISSING if error is None else f"{error:+.0%}",
                words.MISSING if check is None else words.error(check.error),
                "kept" if name == done.kept else "",
            ]
        )
    return rows


_ENGINES = {"torch": "torch.distributed.pipelining", "loop": "a loop on send and receive"}


def result_words(done: PlanResult) -> list[str]:
    """Sentences below the table."""
    sentences = [f"{name} is not kept: {reason}" for name, reason in done.failures.items()]
    against = [
        f"{speedup.value:.2f} [{speedup.low:.2f}, {speedup.high:.2f}] times {name}"
        for name, speedup in sorted(done.speedups.items())
    ]
    sentences += [
        f"The {name} was run by {_ENGINES[engine]}" for name, engine in done.engines.items() if engine in _ENGINES
    ]
    return [*sentences, f"Kept: {done.kept}" + (f", as fast as {' and '.join(against)}" if against else "")]


def device_timeline(lanes: Sequence[Sequence[Bar]], label: str) -> str:
    """A row for each device, with the passes that it runs; empty where there are none."""
    end = max((bar[2] for lane in lanes for bar in lane), default=0.0)
    if not end:
        return ""
    height = len(lanes) * _LANE + 34
    parts = [svg(_LEFT + _WIDTH + 20, height, label), *grid(end, _LEFT, _WIDTH, 0, height)]
    for number, lane in enumerate(lanes):
        top = number * _LANE + 4
        parts.append(f'<text class="name" x="{_LEFT - 8}" y="{top + 13}">device {number}</text>')
        for name, start, stop in lane:
            stage, kind, micro = name.partition(next(letter for letter in name if letter in _KINDS))
            wide = (stop - start) / end * _WIDTH
            tooltip = f"stage {int(stage) + 1}, micro-batch {int(micro) + 1}: {_TOLD[kind]}, {words.milliseconds(stop - start)}"
            parts.append(
                f'<rect class="{_KINDS[kind]} part" x="{_LEFT + start / end * _WIDTH:.2f}" y="{top}" width="{max(wide, 0.2):.2f}" '
                f'height="{_LANE - 8}"><title>{escape(tooltip)}</title></rect>'
            )
    return "".join((*parts, "</svg>"))


def memory_chart(curves: Sequence[Sequence[tuple[float, int]]], end: float) -> str:
    """Bytes over time, a figure for each device on one scale."""
    most = max((size for curve in curves for _, size in curve), default=0)
    if not most or not end:
        return ""
    height = len(curves) * _MEMORY + 30
    parts = [svg(_LEFT + _WIDTH + 20, height, "Memory of each device"), *grid(end, _LEFT, _WIDTH, 0, height)]
    for number, curve in enumerate(curves):
        floor = (number + 1) * _MEMORY
        path = [f"M{_LEFT} {floor}"]
        for at, size in curve:
            path.append(f"H{_LEFT + min(at / end, 1.0) * _WIDTH:.1f}V{floor - size / most * (_MEMORY - 12):.1f}")
        peak = max((size for _, size in curve), default=0)
        parts.append(
            f'<path class="memory" d="{"".join(path)}H{_LEFT + _WIDTH}V{floor}Z"><title>peak {words.size(peak)}</title></path>'
            f'<text class="name" x="{_LEFT - 8}" y="{floor - 22}">device {number}</text>'
            f'<text class="name" x="{_LEFT - 8}" y="{floor - 6}">{escape(words.size(peak))}</text>'
        )
    return "".join((*parts, "</svg>"))


def parallel_page(made: TrainingPlan, done: PlanResult | None = None) -> str:
    """The page: plans, the pipeline's timeline and memory, what was measured, and what other devices would bring."""
    shown = made.pipelined
    figures: dict[str, object] = {}
    if shown is not None:
        times, curves = simulate_plan(made.problem, shown)
        lanes: list[list[Bar]] = [[] for _ in range(shown.devices)]
        for pass_ in times.passes:
            lanes[pass_.device].append((str(pass_.one), pass_.start_ms, pass_.end_ms))
        figures = {
            "predicted": Markup(device_timeline(lanes, "Predicted passes")),
            "memory": Markup(memory_chart(curves, times.makespan_ms)),
            "measured": Markup(_draw_measured_passes(done, shown.devices)),
        }
    return fill_template(
        "parallel.html.j2",
        {"ms": words.milliseconds, "size": words.size, "plan": plan_words},
        made=made,
        shown=shown,
        begins=() if shown is None else made.begins(shown),
        figures=figures,
        done=done,
        plans=_plan_rows(made),
        layouts=_layout_rows(made),
        rows=[] if done is None else _result_rows(done),
        told=[] if done is None else result_words(done),
        version=__version__,
    )


def _layout_rows(made: TrainingPlan) -> list[list[str]]:
    """Weights by the layout in which they lie."""
    by: dict[str, list[str]] = {}
    for name, layout in () if made.layouts is None else made.layouts.parameters.items():
        by.setdefault(layout, []).append(name)
    return [[layout, str(len(names)), ", ".join(names)] for layout, names in sorted(by.items())]


def _draw_measured_passes(done: PlanResult | None, devices: int) -> str:
    """Of the first replica."""
    if done is None:
        return ""
    ranks = done.passes.get("pipeline", ())[:devices]
    lanes = [[(event.name, event.start_ms, event.end_ms) for event in rank] for rank in ranks]
    return device_timeline(lanes, "Measured passes")
