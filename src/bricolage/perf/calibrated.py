"""A cost model of operators, calibrated on what was measured of one graph on this machine: what a search over
rewrites minimises.

The time of a region is modelled as Σ over its operators of (start + FLOPs · a + bytes · b), with a and b of the
operator's kind and the start the same for all but views. The coefficients are never negative and minimise the
relative errors on all measured regions, each with the time of its fastest backend. Large regions are fused by their
backends, single operators are not; the fit sees both, and weighs a region by its number of operators, so that it
describes operators inside graphs rather than alone."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from bricolage.device.device import Peaks
from bricolage.graph.graph import Operator, Region, describe
from bricolage.graph.identity import operator_key
from bricolage.graph.work import VIEWS, flops, moved

_KINDS = {
    "Conv": "convolution",
    "ConvTranspose": "convolution",
    "MatMul": "product",
    "Gemm": "product",
    "Attention": "product",
    **dict.fromkeys(["LSTM", "GRU", "RNN"], "product"),
    **dict.fromkeys(
        ["Exp", "Log", "Tanh", "Sigmoid", "Erf", "Gelu", "Softmax", "LogSoftmax", "Pow", "Mish"], "function"
    ),
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

    operators: tuple[Operator, ...]
    ms: float

    @staticmethod
    def of(region: Region, ms: float) -> CalibrationSample:
        """Of a region."""
        return CalibrationSample(tuple(region.operators), ms)


@dataclass(frozen=True)
class Calibrated:
    """Predicted milliseconds of operators. Made by `calibrate`."""

    coefficients: npt.NDArray[np.float64]
    samples: tuple[CalibrationSample, ...]
    peaks: Peaks = _UNKNOWN
    """Of the device: what is expected where nothing was measured."""

    def __call__(self, operator: Operator) -> float:
        """Of one operator, ms."""
        return float(_features(operator) @ self.coefficients)

    def predict(self, operators: Iterable[Operator]) -> float:
        """Of a whole graph or region, ms."""
        return float(sum(self(operator) for operator in operators))

    @cached_property
    def error(self) -> float:
        """Median relative error on regions that the fit has not seen (five-fold cross-validation)."""
        errors: list[float] = []
        for fold in range(min(_FOLDS, len(self.samples))):
            seen = [sample for index, sample in enumerate(self.samples) if index % _FOLDS != fold]
            model = Calibrated(_fit(seen, self.peaks), ())
            errors += [abs(model.predict(s.operators) / s.ms - 1.0) for s in self.samples[fold::_FOLDS]]
        return statistics.median(errors) if errors else float("inf")


@dataclass(frozen=True)
class MeasuredOpCost:
    """Milliseconds of one operator: first what was measured of it alone, brought to the scale of operators inside
    graphs; else what the calibrated model says."""

    measured: Mapping[str, float]
    """By `operator_key`, ms, on the scale of whole graphs."""
    model: Calibrated

    @staticmethod
    def of(alone: Mapping[str, float], graph: Iterable[Operator], model: Calibrated) -> MeasuredOpCost:
        """`alone`: measured times of single operators, ms. Inside a graph they take less, since backends fuse them:
        all are scaled by the model's time over the measured time of those operators of `graph` that were measured."""
        known = [operator for operator in graph if operator_key(operator) in alone]
        total = sum(alone[operator_key(operator)] for operator in known)
        scale = model.predict(known) / total if total else 1.0
        return MeasuredOpCost({key: ms * scale for key, ms in alone.items()}, model)

    def __call__(self, operator: Operator) -> float:
        """Of one operator, ms."""
        ms = self.measured.get(operator_key(operator))
        return self.model(operator) if ms is None else ms


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
    found, _ = nnls(np.array(rows), np.array(targets))
    return np.asarray(found * scale, dtype=np.float64)


def _what(feature: str) -> str:
    return feature.rpartition(" ")[2]


def _features(operator: Operator) -> npt.NDArray[np.float64]:
    found = np.zeros(len(_FEATURES))
    if operator.op_type in VIEWS:
        return found
    kind = _kind(operator)
    found[0] = 1.0
    found[_FEATURES.index(f"{kind} flops")] = flops(operator)
    found[_FEATURES.index(f"{kind} bytes")] = moved(operator)
    return found


def _kind(operator: Operator) -> str:
    kind = _KINDS.get(operator.op_type, "other")
    if kind == "convolution" and operator.op_type == "Conv" and operator.attribute("group", 1) != 1:
        weight = describe(operator.node.inputs[1]).shape if operator.node.inputs[1] is not None else None
        if weight is not None and weight[1] == 1:
            return "depthwise"
    return kind
