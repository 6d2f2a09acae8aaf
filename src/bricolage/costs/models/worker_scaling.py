"""How fast a training step is on other numbers of workers: Optimus' model (Peng et al., EuroSys 2018), fitted by non-negative least
squares.

The speed of w workers with q parameter servers on a batch of M samples in all is taken as 1 / (a M / w + b + c w / q + d w + e q)
steps a second where they wait for each other, and w / (a + b w / q + c w + d q) where they do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Run:
    """A short run: workers, parameter servers (0: all-reduce), samples of all workers in a step, and steps a second."""

    workers: int
    servers: int
    batch: int
    steps_s: float


@dataclass(frozen=True)
class SpeedModel:
    """Seconds of a step as a sum of terms, each by its non-negative factor."""

    synchronous: bool
    factors: tuple[float, ...]

    def steps_s(self, workers: int, servers: int, batch: int) -> float:
        """Steps a second; without waiting, those of all workers together."""
        seconds = sum(
            f * t for f, t in zip(self.factors, _terms(self.synchronous, workers, servers, batch), strict=True)
        )
        return (1.0 if self.synchronous else workers) / max(seconds, 1e-300)


def fit_speed(runs: Sequence[Run], synchronous: bool = True) -> SpeedModel:
    """The model through short runs; eight to ten of them, says Optimus.

    Raises ValueError where there are none, or one has no workers or no speed.
    """
    import numpy as np
    from scipy.optimize import nnls

    if not runs or any(run.workers < 1 or run.servers < 0 or run.batch < 1 or not run.steps_s > 0 for run in runs):
        raise ValueError("runs need workers, a batch and a speed")
    seconds = np.array([(1.0 if synchronous else run.workers) / run.steps_s for run in runs])
    terms = np.array([_terms(synchronous, run.workers, run.servers, run.batch) for run in runs])
    factors, _ = nnls(terms / seconds[:, None], np.ones(len(runs)))  # relative errors
    return SpeedModel(synchronous, tuple(float(factor) for factor in factors))


def predict_scaling(model: SpeedModel, short: Sequence[Run]) -> list[tuple[int, float]]:
    """Steps a second for 1, 2, 4 ... workers, up to twice those that ran, of which there is one at least; servers and the batch as
    in the last run."""
    last, most = short[-1], 2 * max(run.workers for run in short)
    counts = [1 << exponent for exponent in range(most.bit_length()) if 1 << exponent <= most]
    return [(count, model.steps_s(count, last.servers, last.batch)) for count in counts]


def _terms(synchronous: bool, workers: int, servers: int, batch: int) -> tuple[float, ...]:
    shared = workers / servers if servers else 0.0
    if synchronous:
        return (batch / workers, 1.0, shared, float(workers), float(servers))
    return (1.0, shared, float(workers), float(servers))
