"""How long training goes on, by its losses so far, and how fast it is with other numbers of workers, by short runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bricolage.costs.models.worker_scaling import fit_speed, predict_scaling
from bricolage.errors import BadOption
from bricolage.train.predict.convergence import LossCurve, fit_loss, read_losses, read_runs


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


def read_outlook(losses: Path | None, target: float | None, runs: Path | None, *, synchronous: bool) -> Outlook:
    """The outlook by files of losses so far and of short runs.

    Args:
        losses: steps and losses, from which it is predicted when `target` is reached.
        target: the loss to reach.
        runs: workers, parameter servers, batch and steps a second, from which the speed with other numbers of workers is predicted.
        synchronous: whether workers of these runs wait for each other.

    Raises:
        BadOption: `losses` and `target` are not given together.
        MissingFile, BadTrainingLog: a file cannot be used.
    """
    if (losses is None) != (target is None):
        raise BadOption(option="--target", value=str(target), advice="Give --losses and --target together")
    convergence = None
    if losses is not None and target is not None:
        convergence = Convergence(fit_loss(read_losses(losses)), target)
    short = [] if runs is None else read_runs(runs)
    return Outlook(convergence, predict_scaling(fit_speed(short, synchronous), short) if short else [])
