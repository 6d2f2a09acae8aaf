"""`bricolage train predict`: what a training step costs, and what changes of it would cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bricolage.cli import arguments as a
from bricolage.cli.guard import guard_command
from bricolage.cli.train import outlook
from bricolage.train.predict.variant import forms

if TYPE_CHECKING:
    from bricolage.train.predict.prediction import Predicted, Prediction

Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--what-if",
        metavar="WORDS",
        help=f"A change, or several separated by commas: {forms()}. Repeatable.",
    ),
]


@guard_command
def predict(
    spec: Annotated[Path, typer.Argument(metavar="SPEC", help="A training step as TOML or JSON.", show_default=False)],
    what_if: Changes = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Run every change too, and report the error of its prediction.")
    ] = False,
    memory: Annotated[
        str | None,
        typer.Option("--memory", metavar="SIZE", help="Choose blocks to recompute so that a step fits (2GB, 300MB)."),
    ] = None,
    losses: outlook.Losses = None,
    target: outlook.Target = None,
    runs: outlook.Runs = None,
    asynchronous: outlook.Asynchronous = False,
    threads: a.Threads = None,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="S", min=0.1, help="Seconds for each measurement.")
    ] = 4.0,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="A page with times and memory over time.")
    ] = None,
    as_json: a.Json = False,
) -> None:
    """Predict time and memory of a training step, and of changes of it.

    SPEC names a module, a batch, the loss and the optimiser. The step runs for some seconds to time its operators;
    changes run only with --measure. Running the step runs the Python that SPEC names.
    """
    from bricolage.cli import output, progress_bars
    from bricolage.train.predict.predict import predict_step
    from bricolage.train.predict.variant import parse_variant
    from bricolage.train.step.spec import read_spec

    step_spec = read_spec(spec)
    variants = [parse_variant(change) for change in what_if] if what_if else None
    limit = None if memory is None else a.memory_bytes(memory)
    further = outlook.read_outlook(losses, target, runs, asynchronous)
    output.check_writable(html)
    with output.stdout_kept(), progress_bars.show_progress() as shown:
        done = predict_step(
            step_spec, variants, threads=threads, seconds=seconds, measure=measure, memory_limit=limit, progress=shown
        )
    if html is not None:
        from bricolage.report.training_steps import training_page

        output.write_text(html, training_page(done))
    if as_json:
        from bricolage.base.codec import encode

        output.show_json({**encode(done), **further.facts()})
        return
    _show(done, measure)
    further.show(done)
    if html is not None:
        output.note(f"wrote {html}")


def _show(done: Prediction, measure: bool) -> None:
    from bricolage.cli import output
    from bricolage.report import words
    from bricolage.report.tables import plain_table

    print(f"{done.module} on {done.device}, {words.count(done.threads, 'thread')}, PyTorch {done.torch}\n")
    heads = [("Step", "fold"), ("Predicted", "right"), ("Samples/s", "right"), ("Gain", "right"), ("Peak", "right")]
    base = done.predicted[0]
    output.show_result(plain_table(heads, [_row(prediction, base) for prediction in done.predicted]))
    if measure:
        print("\nReally run:")
        heads = [("Step", "fold"), ("Measured", "right"), ("Error", "right"), ("Peak", "right"), ("Error", "right")]
        output.show_result(
            plain_table(
                heads, [_build_measured_row(prediction) for prediction in done.predicted if not prediction.reason]
            )
        )
    for prediction in done.predicted:
        if prediction.reason:
            print(f"{prediction.variant}: {prediction.reason}")
        if prediction.begins:
            print(f"{prediction.variant}: stages begin at {', '.join(prediction.begins)}")
        if prediction.not_run:
            print(f"{prediction.variant}: it could not be run: {prediction.not_run}")
    if done.recomputation is not None:
        chosen = done.recomputation
        fits = "fits" if chosen.fits else "nothing fits; the least that was found is"
        names = ", ".join(chosen.blocks) or "nothing"
        print(f"\nWithin {words.size(chosen.limit_bytes)}: {fits} {words.size(chosen.peak_bytes)}, recomputing {names}")
    print("\nThe step as it is:")
    heads = [("Operator", "fold"), ("Phase", "left"), ("Calls", "right"), ("Time", "right"), ("", "right")]
    whole = sum(operator.ms for operator in done.operators) or 1.0
    rows = [
        [
            operator.type,
            operator.phase,
            str(operator.count),
            words.milliseconds(operator.ms),
            f"{operator.ms / whole:.0%}",
        ]
        for operator in done.operators[:8]
    ]
    output.show_result(plain_table(heads, rows))


def _row(one: Predicted, base: Predicted) -> list[str]:
    from bricolage.report import words

    if one.reason:
        return [one.variant, *[words.MISSING] * 4]
    return [
        one.variant,
        words.milliseconds(one.ms),
        f"{one.samples_s:,.0f}",
        f"{one.samples_s / base.samples_s:.2f}x",
        words.size(one.peak_bytes),
    ]


def _build_measured_row(one: Predicted) -> list[str]:
    from bricolage.report import words

    peak = one.measured_peak_bytes
    return [
        one.variant,
        words.MISSING if one.measured is None else str(one.measured),
        words.MISSING if one.error is None else f"{one.error:+.1%}",
        words.MISSING if peak is None else words.size(peak),
        words.MISSING if not peak else f"{one.peak_bytes / peak - 1:+.1%}",
    ]
