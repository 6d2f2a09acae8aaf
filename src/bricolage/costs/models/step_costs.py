"""What a job's training step takes on kinds of device: as it was measured there, or by what other jobs took on both kinds.

From one kind to another a step's time goes by what limits it: computing, moving bytes, starting operators, or something that no
device makes faster, such as reading data. Which, is seen from how far its time on the first kind is above the roofline of its
operators. A Gaussian process (Rasmussen and Williams, 2006, sections 2.2, 5.4) learns the ratio of both times from jobs that ran on
both; its interval is widened until it holds nine in ten of the jobs that it knows, each left out in turn (section 5.4.2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

from bricolage.device.device import Peaks
from bricolage.work.cost import Estimate, Setting, Work

Vector = npt.NDArray[np.float64]
FEWEST = 5
"""Jobs that ran on both kinds, below which nothing is said."""
_COVERED = 0.9
_NORMAL = 1.645
"""Deviations of a normal distribution that hold nine in ten."""


@dataclass(frozen=True)
class MeasuredSteps:
    """A cost model of what was measured: milliseconds of a step by a work's key, then by kind of device."""

    ms: Mapping[str, Mapping[str, float]]

    def estimate(self, works: Sequence[Work], on: Setting) -> Sequence[Estimate | None]:
        """None for what did not run there."""
        timings = [self.ms.get(work.key, {}).get(on.device.name) for work in works]
        return [None if ms is None else Estimate.of(ms, "measured") for ms in timings]


@dataclass(frozen=True)
class TransferredSteps:
    """A cost model of steps that ran on another kind of device, on one device each.

    The device of the setting counts by its name alone, the kind in a cluster. A work is a whole step: its key says which, its
    operators what it computes.
    """

    known: Sequence[Work]
    """Steps of other jobs."""
    ms: Mapping[str, Mapping[str, float]]
    """Milliseconds by key and kind: of those, and of the steps that are asked about."""
    peaks: Mapping[str, Peaks]
    """Of a device of each kind."""

    def estimate(self, works: Sequence[Work], on: Setting) -> Sequence[Estimate | None]:
        """The narrowest interval of those from each kind that a step ran on; None where it ran nowhere else, the peaks are not
        known, or fewer than five other jobs ran on both kinds."""
        return [self._one(work, on.device.name) for work in works]

    def _one(self, work: Work, target: str) -> Estimate | None:
        ran = self.ms.get(work.key, {})
        candidates = [self._between(work, source, target) for source in ran if source != target]
        estimates = [candidate for candidate in candidates if candidate is not None]
        return min(estimates, key=lambda estimate: estimate.high_ms / estimate.low_ms, default=None)

    def _between(self, work: Work, source: str, target: str) -> Estimate | None:
        if not {source, target} <= self.peaks.keys() or not work.operators:
            return None
        rows = [
            sample
            for sample in self.known
            if sample.key != work.key and sample.operators and {source, target} <= self.ms.get(sample.key, {}).keys()
        ]
        if len(rows) < FEWEST:
            return None
        model = RatioModel(
            np.array([self._features(row, source) for row in rows]),
            np.array([math.log(self.ms[row.key][target] / self.ms[row.key][source]) for row in rows]),
        )
        mean, half = model.predict(np.array(self._features(work, source)))
        ms = self.ms[work.key][source]
        return Estimate(ms * math.exp(mean), ms * math.exp(mean - half), ms * math.exp(mean + half), "learned")

    def _features(self, work: Work, source: str) -> tuple[float, ...]:
        """Logarithms: its time, how near that is to the roofline, operators a millisecond, FLOPs for each byte."""
        ms = self.ms[work.key][source]
        floor = sum(self.peaks[source].floor_ms(operator.flops, operator.bytes) for operator in work.operators)
        flops, moved = (sum(values) for values in zip(*((o.flops, o.bytes) for o in work.operators), strict=True))
        return (
            math.log(ms),
            math.log(max(floor, 1e-9) / ms),
            math.log(len(work.operators) / ms),
            math.log(max(flops, 1) / max(moved, 1)),
        )


@dataclass(frozen=True)
class RatioModel:
    """A Gaussian process of few samples: a squared exponential over standardised features, its scales by the evidence.

    Args:
        x: (samples, features).
        y: (samples).
    """

    x: Vector
    y: Vector

    def predict(self, at: Vector) -> tuple[float, float]:
        """The mean at (features), and half of the interval that holds nine in ten."""
        parameters, inverse = self._fitted_kernel
        away = self._kernel(self._scale_features(at)[None], self._standard, parameters)[0]
        variance = math.exp(2 * parameters[-2]) + math.exp(2 * parameters[-1]) - float(away @ inverse @ away)
        mean = self.y.mean() + self._spread * float(away @ inverse @ self._targets)
        return mean, self._covering_width * self._spread * math.sqrt(max(variance, 1e-9))

    @cached_property
    def _standard(self) -> Vector:
        return self._scale_features(self.x)

    def _scale_features(self, x: Vector) -> Vector:
        scaled: Vector = (x - self.x.mean(axis=0)) / (self.x.std(axis=0) + 1e-9)
        return scaled

    @cached_property
    def _spread(self) -> float:
        return float(self.y.std()) + 1e-6

    @cached_property
    def _targets(self) -> Vector:
        targets: Vector = (self.y - self.y.mean()) / self._spread
        return targets

    @cached_property
    def _fitted_kernel(self) -> tuple[Vector, Vector]:
        """Logarithms of the features' scales, of the deviation and of the noise; and the inverse of the covariance."""
        features = self.x.shape[1]
        start = np.array([0.7] * features + [0.0, -2.0])
        solution = minimize(self._unlikely, start, method="L-BFGS-B", bounds=[(-4.0, 6.0)] * (features + 2))
        at: Vector = solution.x
        inverse: Vector = np.linalg.inv(self._covariance(at)).astype(np.float64)
        return at, inverse

    def _unlikely(self, parameters: Vector) -> float:
        """Minus the logarithm of the evidence, and of normal priors of the parameters: with few samples it has many maxima."""
        lower = np.linalg.cholesky(self._covariance(parameters))
        half = np.linalg.solve(lower, self._targets)
        prior = ((parameters[:-2] - math.log(2.0)) ** 2).sum() + parameters[-2] ** 2 + (parameters[-1] + 2.5) ** 2
        return float(0.5 * half @ half + np.log(np.diag(lower)).sum() + 0.5 * prior)

    def _covariance(self, parameters: Vector) -> Vector:
        noise = math.exp(2 * parameters[-1]) + 1e-6
        covariance: Vector = self._kernel(self._standard, self._standard, parameters) + noise * np.eye(len(self.y))
        return covariance

    @staticmethod
    def _kernel(a: Vector, b: Vector, parameters: Vector) -> Vector:
        apart = (a[:, None] - b[None]) / np.exp(parameters[:-2])
        kernel: Vector = math.exp(2 * parameters[-2]) * np.exp(-0.5 * (apart**2).sum(axis=-1))
        return kernel

    @cached_property
    def _covering_width(self) -> float:
        """Deviations that hold nine in ten of the samples, each left out in turn."""
        _, inverse = self._fitted_kernel
        diagonal = np.diag(inverse)
        off = np.abs(inverse @ self._targets) / diagonal * np.sqrt(diagonal)
        return max(float(np.quantile(off, _COVERED)), _NORMAL)
