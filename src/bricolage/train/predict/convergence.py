"""How long training goes on: Optimus' model of the loss (Peng et al., EuroSys 2018), fitted by non-negative least squares.

The loss after k steps is taken as 1 / (a k + b) + c. How many steps a second there are is `costs.models.worker_scaling`'s."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bricolage.base.option_words import is_number
from bricolage.costs.models.worker_scaling import Run
from bricolage.errors import BadTrainingLog, MissingFile

_LEAST_POINTS = 5
_OFFSETS = 200
"""Values of c that are tried, up to the least loss that was seen."""


@dataclass(frozen=True)
class LossCurve:
    """loss(k) = 1 / (a k + b) + c, and how far off it is on what was seen: the root mean square by the spread of losses."""

    a: float
    b: float
    c: float
    error: float

    def loss(self, steps: float) -> float:
        """After `steps` steps."""
        return 1.0 / max(self.a * steps + self.b, 1e-300) + self.c

    def steps_to(self, loss: float) -> float:
        """Steps until the loss is so low; infinite where it never is."""
        if loss <= self.c or self.a <= 0.0:
            return math.inf if loss < self.loss(0.0) else 0.0
        return max(0.0, (1.0 / (loss - self.c) - self.b) / self.a)


def fit_loss(points: Sequence[tuple[float, float]]) -> LossCurve:
    """The curve through (step, loss), later points with more weight.

    Raises ValueError where there are fewer than five of them, or a loss is not a number.
    """
    import numpy as np
    from scipy.optimize import nnls

    data = np.array(sorted(points), dtype=float).reshape(-1, 2)
    if len(data) < _LEAST_POINTS:
        raise ValueError(f"it has {len(data)} losses; {_LEAST_POINTS} are needed")
    if not np.isfinite(data).all():
        raise ValueError("a step or a loss is not a number")
    steps, losses = data.T
    weights = np.linspace(0.5, 1.5, len(data))
    best: LossCurve | None = None
    spread = float(np.std(losses)) or 1.0
    low = float(losses.min())
    for c in np.linspace(0.0, low, _OFFSETS, endpoint=False) if low > 0 else [0.0]:
        gap = np.maximum(losses - c, 1e-9)
        scale = weights * gap * gap  # an error of 1 / gap is one of the loss times its square
        (a, b), _ = nnls(np.stack([steps, np.ones_like(steps)], 1) * scale[:, None], scale / gap)
        curve = LossCurve(float(a), float(b), float(c), 0.0)
        off = float(
            np.sqrt(
                np.mean(
                    [(weight * (curve.loss(k) - y)) ** 2 for weight, k, y in zip(weights, steps, losses, strict=True)]
                )
            )
        )
        if best is None or off / spread < best.error:
            best = LossCurve(curve.a, curve.b, curve.c, off / spread)
    assert best is not None
    return best


def read_losses(path: Path) -> list[tuple[float, float]]:
    """Steps and losses from a text file: a line each, separated by a comma or a blank; one number alone is a loss of the next step.

    Raises:
        MissingFile: there is no such file.
        BadTrainingLog: a line is neither.
    """
    losses: list[tuple[float, float]] = []
    for number, values in _numbers(path):
        if len(values) > 2:
            raise BadTrainingLog(path=path, reason=f"line {number} is no step and loss")
        losses.append((values[0], values[1]) if len(values) == 2 else (float(len(losses) + 1), values[0]))
    if len(losses) < _LEAST_POINTS:
        raise BadTrainingLog(path=path, reason=f"it has {len(losses)} losses; {_LEAST_POINTS} are needed")
    return losses


def read_runs(path: Path) -> list[Run]:
    """Short runs from a text file: workers, parameter servers (0: all-reduce), samples of all workers in a step, steps a second.

    Raises:
        MissingFile: there is no such file.
        BadTrainingLog: a line is no run, or there are none.
    """
    runs = []
    for number, values in _numbers(path):
        if len(values) != 4 or any(value != int(value) for value in values[:3]):
            raise BadTrainingLog(path=path, reason=f"line {number} is no run: workers, servers, batch, steps a second")
        run = Run(int(values[0]), int(values[1]), int(values[2]), values[3])
        if run.workers < 1 or run.servers < 0 or run.batch < 1 or run.steps_s <= 0:
            raise BadTrainingLog(path=path, reason=f"line {number} has no workers, no batch or no speed")
        runs.append(run)
    if not runs:
        raise BadTrainingLog(path=path, reason="it has no runs")
    return runs


def _numbers(path: Path) -> Iterator[tuple[int, list[float]]]:
    """Lines that are not empty, but for a head, with their numbers."""
    if not path.is_file():
        raise MissingFile(path=path)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadTrainingLog(path=path, reason=f"it cannot be read ({error})") from error
    for number, line in enumerate(lines, 1):
        words = line.replace(",", " ").split()
        if not words or (number == 1 and not is_number(words[0])):
            continue
        try:
            values = [float(word) for word in words]
        except ValueError as error:
            raise BadTrainingLog(path=path, reason=f"line {number} has something else than numbers") from error
        if not all(map(math.isfinite, values)):
            raise BadTrainingLog(path=path, reason=f"line {number} has something else than numbers")
        yield number, values
