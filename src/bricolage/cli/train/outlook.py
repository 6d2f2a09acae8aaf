"""How long training goes on, by its losses so far, and how fast it is with other numbers of workers, by short runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bricolage.errors import BadOption

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bricolage.costs.models.worker_scaling import Run, SpeedModel
    from bricolage.train.predict.convergence import LossCurve
    from bricolage.train.predict.prediction import Prediction

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


@dataclass(frozen=True)
class Convergence:
    """The loss by steps, and the loss to reach."""

    curve: LossCurve
    target: float

    @property
    def steps(self) -> float:
        """Until the target; infinite where it is never reached."""
        return self.curve.steps_to(self.target)


@dataclass(frozen=True)
class Outlook:
    """What was asked for of it."""

    convergence: Convergence | None
    speeds: Sequence[tuple[int, float]]
    """Number of workers, and steps a second with that number."""

    def facts(self) -> Mapping[str, object]:
        """For JSON."""
        from bricolage.base.codec import encode

        document: dict[str, object] = {}
        if (convergence := self.convergence) is not None:
            steps = convergence.steps if math.isfinite(convergence.steps) else None
            document["convergence"] = {**encode(convergence.curve), "target": convergence.target, "steps": steps}
        if self.speeds:
            document["speed"] = [{"workers": workers, "steps_s": speed} for workers, speed in self.speeds]
        return document

    def show(self, done: Prediction) -> None:
        """For people."""
        if self.convergence is not None:
            _show_convergence(done, self.convergence)
        if self.speeds:
            _show_speeds(self.speeds, None if self.convergence is None else self.convergence.steps)


def read_outlook(losses: Path | None, target: float | None, runs: Path | None, asynchronous: bool) -> Outlook:
    """The outlook by what the options name.

    Raises:
        UsageError: a file cannot be used, or `--losses` and `--target` are not given together.
    """
    from bricolage.costs.models.worker_scaling import fit_speed
    from bricolage.train.predict.convergence import fit_loss, read_losses, read_runs

    if (losses is None) != (target is None):
        raise BadOption(option="--target", value=str(target), advice="Give --losses and --target together")
    convergence = None
    if losses is not None and target is not None:
        convergence = Convergence(fit_loss(read_losses(losses)), target)
    short = [] if runs is None else read_runs(runs)
    return Outlook(convergence, _predict_scaling(fit_speed(short, not asynchronous), short) if short else [])


def _show_convergence(done: Prediction, found: Convergence) -> None:
    from bricolage.report import words

    curve, steps = found.curve, found.steps
    print(
        f"\nLoss after k steps: 1 / ({curve.a:.3g} k + {curve.b:.3g}) + {curve.c:.3g}, off by {curve.error:.1%} of its spread."
    )
    if math.isinf(steps):
        print(f"It does not reach {found.target:g}: it ends at {curve.c:.3g}.")
        return
    seconds = steps * done.predicted[0].ms / 1e3
    print(f"It reaches {found.target:g} after about {steps:,.0f} steps, {words.seconds(seconds)} as it is.")


def _predict_scaling(model: SpeedModel, short: Sequence[Run]) -> list[tuple[int, float]]:
    """Steps a second for 1, 2, 4 ... workers, up to twice those that ran; servers and the batch as in the last run."""
    last, most = short[-1], 2 * max(run.workers for run in short)
    counts = [1 << exponent for exponent in range(most.bit_length()) if 1 << exponent <= most]
    return [(count, model.steps_s(count, last.servers, last.batch)) for count in counts]


def _show_speeds(scaled: Sequence[tuple[int, float]], steps: float | None) -> None:
    from bricolage.cli import output
    from bricolage.report import words
    from bricolage.report.tables import plain_table

    print("\nOther numbers of workers, by a model of the short runs:")
    heads = [("Workers", "right"), ("Steps/s", "right"), ("To the target", "right")]
    rows = []
    for count, speed in scaled:
        long = words.MISSING if steps is None or math.isinf(steps) else words.seconds(steps / speed)
        rows.append([str(count), f"{speed:,.4g}", long])
    output.show_result(plain_table(heads, rows))
