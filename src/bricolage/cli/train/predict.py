"""`bricolage train predict`: what a training step costs, and what changes of it would cost."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bricolage import errors
from bricolage.cli import arguments as a
from bricolage.cli.guard import guarded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bricolage.train.predict.convergence import LossCurve, Run, SpeedModel
    from bricolage.train.predict.prediction import Predicted, Prediction


@guarded
def predict(
    spec: Annotated[Path, typer.Argument(metavar="SPEC", help="A training step as TOML or JSON.", show_default=False)],
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            "--what-if",
            metavar="WORDS",
            help="A change, or several with commas between: batch=N, amp, foreach, fused, recompute[=A+B], micro=N, "
            "freeze=A+B, channels-last, threads=N, workers=N, bucket=MIB, stages=N (with micro=M), bandwidth=GB/S, fuse=N. "
            "May be given several times.",
        ),
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Run every change as well, and say how far off its prediction is.")
    ] = False,
    memory: Annotated[
        str | None,
        typer.Option("--memory", metavar="SIZE", help="Choose blocks to recompute so that a step fits (2GB, 300MB)."),
    ] = None,
    losses: Annotated[
        Path | None,
        typer.Option("--losses", metavar="FILE", help="Losses so far (step, loss): how long training goes on."),
    ] = None,
    target: Annotated[
        float | None, typer.Option("--target", metavar="LOSS", help="The loss to reach, for --losses.")
    ] = None,
    runs: Annotated[
        Path | None,
        typer.Option(
            "--runs",
            metavar="FILE",
            help="CSV of short runs (workers, parameter servers or 0, batch of all, steps/s), from which the speed at other "
            "worker counts is predicted.",
        ),
    ] = None,
    asynchronous: Annotated[
        bool, typer.Option("--asynchronous", help="Workers of --runs do not wait for each other.")
    ] = False,
    threads: Annotated[
        int | None, typer.Option("--threads", metavar="N", min=1, help="Cores to use; all by default.")
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", metavar="S", min=0.1, help="For each measurement.")] = 4.0,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="A page with times and memory over time.")
    ] = None,
    as_json: a.Json = False,
) -> None:
    """Say what a training step costs, and what it would cost otherwise.

    SPEC names a module, a batch, the loss and the optimiser. The step is run for some seconds to see what its operators take;
    changes are not run unless --measure asks for it. Running it runs the Python that SPEC names.
    """
    from bricolage.cli import output, progress
    from bricolage.train.predict.convergence import fit_loss, fit_speed, read_losses, read_runs
    from bricolage.train.predict.predict import predict_step
    from bricolage.train.predict.variant import parse_variant
    from bricolage.train.spec import read_spec

    found = read_spec(spec)
    variants = [parse_variant(one) for one in what_if] if what_if else None
    limit = None if memory is None else a.memory_bytes(memory)
    if (losses is None) != (target is None):
        raise errors.BadOption(option="--target", value=str(target), advice="Give --losses and --target together")
    curve = None if losses is None else fit_loss(read_losses(losses))
    short = [] if runs is None else read_runs(runs)
    scaled = _scaled(fit_speed(short, not asynchronous), short) if short else []
    output.check_writable(html)
    with output.stdout_kept(), progress.shown() as shown:
        done = predict_step(
            found, variants, threads=threads, seconds=seconds, measure=measure, memory_limit=limit, progress=shown
        )
    if html is not None:
        from bricolage.report.training import page

        output.write_text(html, page(done))
    if as_json:
        from bricolage.codec import encode

        told = encode(done)
        if curve is not None and target is not None:
            told["convergence"] = {**encode(curve), "target": target, "steps": _finite(curve.steps_to(target))}
        if scaled:
            told["speed"] = [{"workers": workers, "steps_s": speed} for workers, speed in scaled]
        output.show_json(told)
        return
    _show(done, measure)
    if curve is not None and target is not None:
        _show_convergence(done, curve, target)
    if scaled:
        _show_speed(scaled, None if curve is None or target is None else curve.steps_to(target))
    if html is not None:
        output.note(f"wrote {html}")


def _show(done: Prediction, measure: bool) -> None:
    from bricolage.cli import output
    from bricolage.report import words
    from bricolage.report.tables import plain_table

    print(f"{done.module} on {done.device}, {words.count(done.threads, 'thread')}, PyTorch {done.torch}\n")
    heads = [("Step", "fold"), ("Predicted", "right"), ("Samples/s", "right"), ("Gain", "right"), ("Peak", "right")]
    base = done.predicted[0]
    output.show(plain_table(heads, [_row(one, base) for one in done.predicted]))
    if measure:
        print("\nReally run:")
        heads = [("Step", "fold"), ("Measured", "right"), ("Error", "right"), ("Peak", "right"), ("Error", "right")]
        output.show(plain_table(heads, [_measured(one) for one in done.predicted if not one.reason]))
    for one in done.predicted:
        if one.reason:
            print(f"{one.variant}: {one.reason}")
        if one.begins:
            print(f"{one.variant}: stages begin at {', '.join(one.begins)}")
        if one.not_run:
            print(f"{one.variant}: it could not be run: {one.not_run}")
    if done.recomputation is not None:
        chosen = done.recomputation
        fits = "fits" if chosen.fits else "nothing fits; the least that was found is"
        names = ", ".join(chosen.blocks) or "nothing"
        print(f"\nWithin {words.size(chosen.limit_bytes)}: {fits} {words.size(chosen.peak_bytes)}, recomputing {names}")
    print("\nThe step as it is:")
    heads = [("Operator", "fold"), ("Phase", "left"), ("Calls", "right"), ("Time", "right"), ("", "right")]
    whole = sum(one.ms for one in done.operators) or 1.0
    rows = [
        [one.type, one.phase, str(one.count), words.milliseconds(one.ms), f"{one.ms / whole:.0%}"]
        for one in done.operators[:8]
    ]
    output.show(plain_table(heads, rows))


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


def _measured(one: Predicted) -> list[str]:
    from bricolage.report import words

    peak = one.measured_peak_bytes
    return [
        one.variant,
        words.MISSING if one.measured is None else str(one.measured),
        words.MISSING if one.error is None else f"{one.error:+.1%}",
        words.MISSING if peak is None else words.size(peak),
        words.MISSING if not peak else f"{one.peak_bytes / peak - 1:+.1%}",
    ]


def _show_convergence(done: Prediction, curve: LossCurve, target: float) -> None:
    from bricolage.report import words

    steps = curve.steps_to(target)
    print(
        f"\nLoss after k steps: 1 / ({curve.a:.3g} k + {curve.b:.3g}) + {curve.c:.3g}, off by {curve.error:.1%} of its spread."
    )
    if math.isinf(steps):
        print(f"It does not reach {target:g}: it ends at {curve.c:.3g}.")
        return
    seconds = steps * done.predicted[0].ms / 1e3
    print(f"It reaches {target:g} after about {steps:,.0f} steps, {words.seconds(seconds)} as it is.")


def _scaled(model: SpeedModel, short: Sequence[Run]) -> list[tuple[int, float]]:
    """Steps a second for 1, 2, 4 ... workers, up to twice those that ran; servers and the batch as in the last run."""
    last, most = short[-1], 2 * max(one.workers for one in short)
    counts = [1 << one for one in range(most.bit_length()) if 1 << one <= most]
    return [(count, model.steps_s(count, last.servers, last.batch)) for count in counts]


def _show_speed(scaled: Sequence[tuple[int, float]], steps: float | None) -> None:
    from bricolage.cli import output
    from bricolage.report import words
    from bricolage.report.tables import plain_table

    print("\nOther numbers of workers, by a model of the short runs:")
    heads = [("Workers", "right"), ("Steps/s", "right"), ("To the target", "right")]
    rows = []
    for count, speed in scaled:
        long = words.MISSING if steps is None or math.isinf(steps) else words.seconds(steps / speed)
        rows.append([str(count), f"{speed:,.4g}", long])
    output.show(plain_table(heads, rows))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
