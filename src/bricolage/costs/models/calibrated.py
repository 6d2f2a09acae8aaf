"""A cost model of operators, calibrated on what was measured of one graph on this machine: what a search over
rewrites minimises.

The time of a region is modelled as Σ over its operators of (start + FLOPs · a + bytes · b), with a and b of the
operator's kind and the start the same for all but views. The coefficients are never negative and minimise the
relative errors on all measured regions, each with the time of its fastest backend. Large regions are fused by their
backends, single operators are not; the fit sees both, and weighs a region by its number of operators, so that it
describes operators inside graphs rather than alone."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from bricolage.device.device import Peaks
from bricolage.graph.operator_kinds import VIEWS, OperatorCategory, category
from bricolage.work.cost import CostModel, Estimate, FirstKnown, OneByOne, Setting, Work
from bricolage.work.workload import OperatorWork

_KINDS: Mapping[OperatorCategory, str] = {
    "convolution": "convolution",
    "transposed convolution": "convolution",
    **dict.fromkeys(("product", "attention", "recurrent"), "product"),
    **dict.fromkeys(("function", "softmax"), "function"),
}
_FEATURES = ("start", *(f"{kind} {what}" for kind in ("convolution", "depthwise", "product", "function", "other")
                        for what in ("flops", "bytes")))  # fmt: skip
_UNIT = {"start": 1e-3, "flops": 1e-9, "bytes": 1e-7}
"""Scales that bring a start of 1 µs, 1 GFLOP and 10 MB to the same size."""
_START_MS = 1e-3
"""Expected for one operator of a kind that was never measured; its operations and bytes are expected at the device's peaks."""
_UNKNOWN = Peaks(gflops=100.0, gbytes=10.0)
_PRIOR_WEIGHT = 0.05
_FOLDS = 5


@dataclass(frozen=True)
class CalibrationSample:
    """A measured region: its operators, and milliseconds on the backend that is fastest there."""

    operators: tuple[OperatorWork, ...]
    ms: float


@dataclass(frozen=True)
class Calibrated:
    """Predicted milliseconds of operators one after another. Made by `calibrate`."""

    coefficients: npt.NDArray[np.float64]
    samples: tuple[CalibrationSample, ...]
    peaks: Peaks = _UNKNOWN
    """Of the device: what is expected where nothing was measured."""

    def estimate(self, works: Sequence[Work], on: Setting) -> Sequence[Estimate | None]:
        """On the device that it was calibrated on."""
        del on
        return [Estimate.of(self.predict(work.operators), "calibrated") for work in works]

    def predict(self, operators: Iterable[OperatorWork]) -> float:
        """Of a whole graph or region, ms."""
        return float(sum(float(_features(operator) @ self.coefficients) for operator in operators))

    @cached_property
    def error(self) -> float:
        """Median relative error on regions that the fit has not seen (five-fold cross-validation)."""
        errors: list[float] = []
        for fold in range(min(_FOLDS, len(self.samples))):
            seen = [sample for index, sample in enumerate(self.samples) if index % _FOLDS != fold]
            model = Calibrated(_fit(seen, self.peaks), ())
            errors += [abs(model.predict(s.operators) / s.ms - 1.0) for s in self.samples[fold::_FOLDS]]
        return statistics.median(errors) if errors else float("inf")

    def with_operators(self, alone: Mapping[str, float], graph: Iterable[Work]) -> CostModel:
        """A model of the operators of a graph: first what was measured of them `alone` (ms by key), else this one. Inside a graph
        they take less, since backends fuse them: all are scaled by this model's time over the measured time of those operators
        of `graph` that were measured."""
        measured_works = [work for work in graph if work.key in alone]
        total = sum(alone[work.key] for work in measured_works)
        scale = sum(self.predict(work.operators) for work in measured_works) / total if total else 1.0

        def estimate_measured(work: Work) -> Estimate | None:
            return Estimate.of(alone[work.key] * scale, "measured") if work.key in alone else None

        return FirstKnown((OneByOne(estimate_measured), self))


def calibrate(samples: Sequence[CalibrationSample], peaks: Peaks = _UNKNOWN) -> Calibrated:
    """Fits the model. Without samples it knows no more than its assumptions: 1 µs an operator, and the peaks of the device."""
    usable = tuple(sample for sample in samples if sample.ms > 0.0 and sample.operators)
    return Calibrated(_fit(usable, peaks), usable, peaks)


def _fit(samples: Sequence[CalibrationSample], peaks: Peaks) -> npt.NDArray[np.float64]:
    prior = {"start": _START_MS, "flops": 1e-6 / peaks.gflops, "bytes": 1e-6 / peaks.gbytes}
    scale = np.array([_UNIT[_what(feature)] for feature in _FEATURES])
    rows: list[npt.NDArray[np.float64]] = []
    targets: list[float] = []
    for sample in samples:
        weight = np.sqrt(len(sample.operators)) / sample.ms
        rows.append(sum((_features(o) for o in sample.operators), np.zeros(len(_FEATURES))) * scale * weight)
        targets.append(sample.ms * weight)
    for index, feature in enumerate(_FEATURES):
        row = np.zeros(len(_FEATURES))
        row[index] = _PRIOR_WEIGHT
        rows.append(row)
        targets.append(_PRIOR_WEIGHT * prior[_what(feature)] / scale[index])
    from scipy.optimize import nnls  # takes longer to import than all else of a decision

    coefficients, _ = nnls(np.array(rows), np.array(targets))
    return np.asarray(coefficients * scale, dtype=np.float64)


def _what(feature: str) -> str:
    return feature.rpartition(" ")[2]


def _features(one: OperatorWork) -> npt.NDArray[np.float64]:
    features = np.zeros(len(_FEATURES))
    if one.kind in VIEWS:
        return features
    kind = _kind(one)
    features[0] = 1.0
    features[_FEATURES.index(f"{kind} flops")] = one.flops
    features[_FEATURES.index(f"{kind} bytes")] = one.bytes
    return features


def _kind(one: OperatorWork) -> str:
    kind = _KINDS.get(category(one.kind), "other")
    if kind == "convolution" and one.groups != 1 and one.flops == 2 * math.prod(one.shape) * math.prod(one.kernel):
        return "depthwise"  # each sum is over one channel
    return kind
