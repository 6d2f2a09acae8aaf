"""What the commands of `bricolage train` tell: sweeps, searches, predictions of steps, and replicas."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType

from bricolage.base.codec import JsonObject, encode
from bricolage.report import words
from bricolage.report.tables import plain_table

if TYPE_CHECKING:
    from bricolage.api.train_outlook import Convergence, Outlook
    from bricolage.train.fuse.fuse import Swept
    from bricolage.train.fuse.hyperparameter_search import Searched
    from bricolage.train.predict.prediction import Predicted, Prediction
    from bricolage.train.replicas.replicas import ReplicasResult

_STEP_HEADS = [("Step", "fold"), ("Predicted", "right"), ("Samples/s", "right"), ("Gain", "right"), ("Peak", "right")]
_MEASURED_HEADS = [
    ("Step", "fold"),
    ("Measured", "right"),
    ("Error of gain", "right"),
    ("Peak", "right"),
    ("Error of peak", "right"),
]
_OPERATOR_HEADS = [("Operator", "fold"), ("Phase", "left"), ("Calls", "right"), ("Time", "right"), ("", "right")]
_SHOWN = 8
"""Operators of the step as it is, the longest first."""


def sweep_parts(report: Swept) -> Iterator[RenderableType]:
    """What became of each lane, and how groups of them were trained."""
    heads = [("Lane", "fold"), ("Steps", "right"), ("End", "left"), ("Loss", "right")]
    heads += [("Held-out loss", "right"), ("Accuracy", "right")]
    rows = [
        [
            lane.name,
            str(lane.steps),
            lane.stopped,
            words.loss(lane.loss),
            words.loss(lane.held_out_loss),
            words.MISSING if lane.accuracy is None else f"{lane.accuracy:.1%}",
        ]
        for lane in report.lanes
    ]
    yield plain_table(heads, rows)
    for group in report.groups:
        yield f"\n{words.count(len(group.lanes), 'lane')} trained {group.how} in {group.seconds:.1f} s: {group.reason}"
        if group.speeds:
            heads = [("", "left"), ("Samples/s", "right"), ("95 % interval", "right")]
            speeds = sorted(group.speeds.items(), key=lambda item: -item[1].median)
            rows = [[name, f"{speed.median:,.0f}", f"{speed.low:,.0f}-{speed.high:,.0f}"] for name, speed in speeds]
            yield plain_table(heads, rows)


def search_parts(report: Searched) -> Iterator[RenderableType]:
    """The trials, the best first."""
    heads = [("Trial", "left"), ("Drawn", "fold"), ("Steps", "right"), ("End", "left"), ("Held-out loss", "right")]
    heads += [("Accuracy", "right"), ("Trained", "left")]
    rows = [
        [
            trial.name + (" *" if trial.name == report.best else ""),
            ", ".join(
                f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}"
                for key, value in trial.drawn.items()
            ),
            str(trial.steps),
            trial.stopped,
            words.loss(trial.loss),
            words.MISSING if trial.accuracy is None else f"{trial.accuracy:.1%}",
            trial.how,
        ]
        for trial in sorted(
            report.trials, key=lambda trial: (trial.stopped != "finished", trial.loss is None, trial.loss)
        )
    ]
    yield plain_table(heads, rows)
    rate = report.samples / report.seconds
    trials = words.count(len(report.trials), "trial")
    yield f"\n{trials} in {report.seconds:.1f} s, {rate:,.0f} samples/s; * is the best"


def prediction_parts(done: Prediction, *, measured: bool) -> Iterator[RenderableType]:
    """A step and changes of it, with what they really took where that was `measured`, and the operators of the step as it is."""
    yield f"{done.module} on {done.device}, {words.count(done.threads, 'thread')}, PyTorch {done.torch}\n"
    base = done.predicted[0]
    yield plain_table(_STEP_HEADS, [_predicted_row(prediction, base) for prediction in done.predicted])
    if measured:
        yield "\nReally run:"
        rows = [_measured_row(prediction) for prediction in done.predicted if not prediction.reason]
        yield plain_table(_MEASURED_HEADS, rows)
    for prediction in done.predicted:
        if prediction.reason:
            yield f"{prediction.variant}: {prediction.reason}"
        if prediction.begins:
            yield f"{prediction.variant}: stages begin at {', '.join(prediction.begins)}"
        if prediction.not_run:
            yield f"{prediction.variant}: it could not be run: {prediction.not_run}"
    if done.recomputation is not None:
        chosen = done.recomputation
        fits = "fits" if chosen.fits else "nothing fits; the least that was found is"
        names = ", ".join(chosen.blocks) or "nothing"
        yield f"\nWithin {words.size(chosen.limit_bytes)}: {fits} {words.size(chosen.peak_bytes)}, recomputing {names}"
    yield "\nThe step as it is:"
    whole = sum(operator.ms for operator in done.operators) or 1.0
    rows = [
        [
            operator.type,
            operator.phase,
            str(operator.count),
            words.milliseconds(operator.ms),
            f"{operator.ms / whole:.0%}",
        ]
        for operator in done.operators[:_SHOWN]
    ]
    yield plain_table(_OPERATOR_HEADS, rows)


def _predicted_row(one: Predicted, base: Predicted) -> list[str]:
    if one.reason:
        return [one.variant, *[words.MISSING] * 4]
    return [
        one.variant,
        words.milliseconds(one.ms),
        f"{one.samples_s:,.0f}",
        f"{one.samples_s / base.samples_s:.2f}x",
        words.size(one.peak_bytes),
    ]


def _measured_row(one: Predicted) -> list[str]:
    peak = one.measured_peak_bytes
    return [
        one.variant,
        words.MISSING if one.measured is None else str(one.measured),
        words.MISSING if one.error is None else f"{one.error:+.1%}",
        words.MISSING if peak is None else words.size(peak),
        words.MISSING if not peak else f"{one.peak_bytes / peak - 1:+.1%}",
    ]


def outlook_json(outlook: Outlook) -> JsonObject:
    """What was asked for of it."""
    document: JsonObject = {}
    if (convergence := outlook.convergence) is not None:
        steps = convergence.steps if math.isfinite(convergence.steps) else None
        document["convergence"] = {**encode(convergence.curve), "target": convergence.target, "steps": steps}
    if outlook.speeds:
        document["speed"] = [{"workers": workers, "steps_s": speed} for workers, speed in outlook.speeds]
    return document


def outlook_parts(outlook: Outlook, step_ms: float) -> Iterator[RenderableType]:
    """The same for people; `step_ms` is what a step takes as it is."""
    if outlook.convergence is not None:
        yield from _convergence_lines(outlook.convergence, step_ms)
    if outlook.speeds:
        steps = None if outlook.convergence is None else outlook.convergence.steps
        yield "\nOther numbers of workers, by a model of the short runs:"
        heads = [("Workers", "right"), ("Steps/s", "right"), ("To the target", "right")]
        rows = []
        for count, speed in outlook.speeds:
            long = words.MISSING if steps is None or math.isinf(steps) else words.seconds(steps / speed)
            rows.append([str(count), f"{speed:,.4g}", long])
        yield plain_table(heads, rows)


def _convergence_lines(found: Convergence, step_ms: float) -> Iterator[str]:
    curve, steps = found.curve, found.steps
    yield f"\nLoss after k steps: 1 / ({curve.a:.3g} k + {curve.b:.3g}) + {curve.c:.3g}, off by {curve.error:.1%} of its spread."
    if math.isinf(steps):
        yield f"It does not reach {found.target:g}: it ends at {curve.c:.3g}."
        return
    seconds = steps * step_ms / 1e3
    yield f"It reaches {found.target:g} after about {steps:,.0f} steps, {words.seconds(seconds)} as it is."


def means_note(done: Sequence[ReplicasResult], workers: int) -> str:
    """That synchronous methods are not one model's training, where the loss is no mean over samples; empty else."""
    if (apart := max(outcome.mean_of_means for outcome in done)) <= 0.0:
        return ""
    return (
        f"the loss is no mean over samples: the mean of {workers} workers' gradients is {apart:.1%} from the gradient of "
        "their batches together, so that synchronous methods are not the same as one model trained on these"
    )


def replica_parts(
    done: Sequence[ReplicasResult], workers: int, to_loss: float | None = None
) -> Iterator[RenderableType]:
    """A row for each method, with means over its seeds. With several seeds, or `to_loss`, a second table: standard deviations, and
    when a method first had such a held-out loss, and after how many steps of all workers."""
    within = min(outcome.seconds for outcome in done)
    heads = [("Method", "fold"), ("Loss", "right"), ("Accuracy", "right"), (f"In {within:.2f} s", "right")]
    heads += [("Time", "right"), ("Samples/s", "right"), ("Sent", "right"), ("Ahead", "right"), ("Stale", "right")]
    labels = dict.fromkeys(outcome.method.label for outcome in done)
    seed_runs = {label: [outcome for outcome in done if outcome.method.label == label] for label in labels}
    yield plain_table(heads, [_method_row(label, runs, within) for label, runs in seed_runs.items()])
    several = len(done) > len(labels)
    if several or to_loss is not None:
        heads = [("Method", "fold")]
        heads += [("Loss ±", "right"), ("Accuracy ±", "right")] if several else []
        heads += [(f"To {to_loss:g}", "right"), ("Steps", "right")] if to_loss is not None else []
        rows = [
            [
                label,
                *(_spread_cells(runs) if several else ()),
                *(_to_loss_cells(runs, to_loss) if to_loss is not None else ()),
            ]
            for label, runs in seed_runs.items()
        ]
        yield ""
        yield plain_table(heads, rows)
    simulated = "; times are simulated" if any(outcome.simulated for outcome in done) else ""
    seeds = f"; means over {len(done) // len(labels)} seeds" if several else ""
    yield f"\n{words.count(workers, 'worker')}{seeds}{simulated}"


def _method_row(label: str, seed_runs: Sequence[ReplicasResult], within: float) -> list[str]:
    """`within`: seconds by which the fastest method was done."""
    early = [at.accuracy for outcome in seed_runs if (at := outcome.at(within)) is not None and at.accuracy is not None]
    return [
        label,
        _mean([outcome.loss for outcome in seed_runs], words.loss),
        _mean([outcome.accuracy for outcome in seed_runs], "{:.1%}".format),
        _mean(early, "{:.1%}".format),
        words.seconds(sum(outcome.seconds for outcome in seed_runs) / len(seed_runs)),
        f"{sum(outcome.samples_s for outcome in seed_runs) / len(seed_runs):,.0f}",
        words.size(sum(outcome.sent_bytes for outcome in seed_runs) // len(seed_runs)),
        str(max(outcome.ahead for outcome in seed_runs)),
        f"{max(outcome.staleness for outcome in seed_runs):.1f}",
    ]


def _to_loss_cells(seed_runs: Sequence[ReplicasResult], loss: float) -> list[str]:
    """Mean seconds, and mean steps of all workers, until runs had a loss; of how many of them, where not all had it."""
    reached = [(outcome, at) for outcome in seed_runs if (at := outcome.first_below(loss)) is not None]
    if not reached:
        return [words.MISSING, words.MISSING]
    seconds = words.seconds(sum(at.seconds for _, at in reached) / len(reached))
    part = "" if len(reached) == len(seed_runs) else f" ({len(reached)} of {len(seed_runs)})"
    steps = sum(outcome.steps * at.samples / outcome.samples for outcome, at in reached) / len(reached)
    return [f"{seconds}{part}", f"{steps:,.0f}"]


def _spread_cells(seed_runs: Sequence[ReplicasResult]) -> list[str]:
    """Standard deviations of losses and accuracies."""
    columns = [[outcome.loss for outcome in seed_runs], [outcome.accuracy for outcome in seed_runs]]
    numbers = [[value for value in column if value is not None] for column in columns]
    forms = (words.loss, "{:.1%}".format)
    return [
        form(statistics.stdev(column)) if len(column) > 1 else words.MISSING
        for form, column in zip(forms, numbers, strict=True)
    ]


def _mean(values: Sequence[float | None], form: Callable[[float], str]) -> str:
    numbers = [value for value in values if value is not None]
    return form(sum(numbers) / len(numbers)) if numbers else words.MISSING
