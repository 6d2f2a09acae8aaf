"""`bricolage train predict`: what a training step costs, and what changes of it would cost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bricolage.api.train_changes import change_forms
from bricolage.base.option_words import parse_bytes
from bricolage.cli import arguments as a
from bricolage.cli.guard import guard_command

Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--what-if",
        metavar="WORDS",
        help=f"A change, or several separated by commas: {change_forms()}. Repeatable.",
    ),
]
Losses = Annotated[
    Path | None,
    typer.Option(
        "--losses",
        metavar="FILE",
        help="CSV of losses so far (step, loss), from which the remaining time is predicted.",
    ),
]
Target = Annotated[float | None, typer.Option("--target", metavar="LOSS", help="The loss to reach, for --losses.")]
Runs = Annotated[
    Path | None,
    typer.Option(
        "--runs",
        metavar="FILE",
        help="CSV of short runs (workers, parameter servers or 0, batch of all, steps/s), from which the speed at other "
        "worker counts is predicted.",
    ),
]
Asynchronous = Annotated[bool, typer.Option("--asynchronous", help="Workers of --runs do not wait for each other.")]


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
    losses: Losses = None,
    target: Target = None,
    runs: Runs = None,
    asynchronous: Asynchronous = False,
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
    from bricolage.api.train_outlook import read_outlook
    from bricolage.api.train_predict import open_prediction, predict_changes
    from bricolage.base.codec import encode
    from bricolage.cli import output, progress_bars
    from bricolage.report.training_tables import outlook_json, outlook_parts, prediction_parts

    request = open_prediction(spec, what_if)
    limit = None if memory is None else parse_bytes(memory)
    further = read_outlook(losses, target, runs, synchronous=not asynchronous)
    output.check_writable(html)
    with output.stdout_kept(), progress_bars.show_progress() as shown:
        done = predict_changes(
            request, threads=threads, seconds=seconds, measure=measure, memory_bytes=limit, progress=shown
        )
    if html is not None:
        from bricolage.report.training_steps import training_page

        output.write_text(html, training_page(done))
    if as_json:
        output.show_json({**encode(done), **outlook_json(further)})
        return
    output.show_parts(prediction_parts(done, measured=measure))
    output.show_parts(outlook_parts(further, done.predicted[0].ms))
    if html is not None:
        output.note(f"wrote {html}")
