"""Placements of operators on devices, by method: tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType

from bricolage.report import words
from bricolage.report.tables import plain_table

if TYPE_CHECKING:
    from bricolage.search.devices.placement_methods import Goal, MethodPlacement
    from bricolage.train.place.comparison import PlacedRun, PlacementComparison

_TITLES: Mapping[Goal, str] = {
    "sample": "One sample, operators one by one",
    "load": "Each sample, while samples follow one another",
    "blocks": "One sample, a block of operators on each accelerator",
}
_OTHER: Mapping[Goal, Goal] = {"sample": "load", "load": "sample", "blocks": "load"}
_HEADS: Mapping[Goal, str] = {"sample": "One sample", "load": "Each sample", "blocks": "Blocks"}
_MOST_DEVICES = 5
"""Whose memory is shown; --json has all."""


def placement_parts(comparison: PlacementComparison) -> Iterator[RenderableType]:
    """A table for what methods look for, what the devices hold, what was refused, and the bounds of all placements."""
    operators, devices = len(comparison.operators), len(comparison.devices)
    yield f"{comparison.source}: {words.count(operators, 'operator')} on {words.count(devices, 'device')}"
    for goal, title in _TITLES.items():
        rows = [method for method in comparison.methods if method.goal == goal and not method.refused]
        if rows:
            yield ""
            yield plain_table(_heads(goal), [_row(method, comparison) for method in rows], title)
    yield ""
    yield from _memory_parts(comparison)
    for method in comparison.methods:
        if method.refused:
            yield f"{method.method} refuses: {method.refused}"
    if comparison.runs:
        yield ""
        yield _run_table(comparison.runs)
        yield from (f"{', '.join(run.methods)} was not timed: {run.refused}" for run in comparison.runs if run.refused)
        yield ""
    for goal, bound in comparison.bounds.items():
        yield f"{_TITLES[goal]}: no placement takes less than {words.milliseconds(bound)}"
    kept = comparison.placement
    yield f"Kept: {kept.method}, {words.milliseconds(kept.ms[comparison.goal])} ({_TITLES[comparison.goal].lower()})"


def _heads(goal: Goal) -> list[tuple[str, str]]:
    heads = [("Method", "left"), ("Predicted", "right"), ("Bound", "right"), ("Gap", "right")]
    return [*heads, (_HEADS[_OTHER[goal]], "right"), ("Took", "right"), ("Note", "fold")]


def _row(method: MethodPlacement, comparison: PlacementComparison) -> list[str]:
    return [
        f"{method.method} *" if method is comparison.placement else method.method,
        words.milliseconds(method.predicted_ms),
        words.milliseconds(method.bound_ms),
        words.percent(method.gap),
        words.milliseconds(method.ms.get(_OTHER[method.goal])),
        words.seconds(method.seconds),
        method.note,
    ]


def _run_table(runs: Sequence[PlacedRun]) -> RenderableType:
    """What was predicted and measured of placements that were run, the fastest first."""
    heads = [("Predicted", "right"), ("Measured", "right"), ("95 % interval", "right"), ("Error", "right")]
    heads += [("Moved", "right"), ("Gradients", "right"), ("Run", "fold")]
    timed = [run for run in runs if run.measured is not None]
    rows = []
    for run in sorted(timed, key=lambda run: run.measured.median_ms if run.measured is not None else 0.0):
        assert run.measured is not None
        rows.append(
            [
                words.milliseconds(run.predicted_ms),
                words.milliseconds(run.measured.median_ms),
                words.interval((run.measured.low_ms, run.measured.high_ms)),
                words.MISSING if run.error is None else f"{run.error:+.0%}",
                words.size(run.moved_bytes),
                words.MISSING if run.check is None else words.error(run.check.error),
                ", ".join(run.methods),
            ]
        )
    return plain_table(heads, rows, "Steps on processes of this machine")


def _memory_parts(comparison: PlacementComparison) -> Iterator[RenderableType]:
    """What operators take of each device."""
    shown = comparison.devices[:_MOST_DEVICES]
    rows = [
        [method.method, *(words.size(method.memory[device]) for device in shown)]
        for method in comparison.methods
        if not method.refused
    ]
    limits = [
        words.size(comparison.memory_bytes[device]) if device in comparison.memory_bytes else words.MISSING
        for device in shown
    ]
    heads = [("Memory", "left"), *((_short_name(device), "right") for device in shown)]
    yield plain_table(heads, [*rows, ["there is", *limits]])
    if len(comparison.devices) > len(shown):
        yield f"and {len(comparison.devices) - len(shown)} more devices: --json has them all"
    yield ""


def _short_name(device: str) -> str:
    return device.replace("accelerator ", "acc. ").replace("processor ", "proc. ")
