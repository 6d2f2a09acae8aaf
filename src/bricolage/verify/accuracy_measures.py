"""Measures of accuracy that a user may ask for in addition to a precision word, on data that calibration has not seen.

A relative error says little of what a model is for. So accuracy may also be asked for as a signal-to-noise ratio, as a cosine, as
the share of rows whose largest output is the same one, or as any number that a Python function of the user's makes of outputs.
"""

from __future__ import annotations

import copy
import hashlib
import inspect
import math
import runpy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bricolage.base.option_words import parse_accuracy
from bricolage.errors import MetricFails, MissingFile, UnusableSamples
from bricolage.verify.compare import relative_error
from bricolage.work.values import ModelValue

Outputs = Mapping[str, ModelValue]
_NO_NOISE_DB = 300.0
"""Of outputs that are equal: more than float64 can tell."""


@dataclass(frozen=True)
class Reached:
    """What came of a measure."""

    value: float
    met: bool
    error: float
    """The largest relative error of an output of a sample."""
    told: str
    """In words: "top-1 agreement 0.9960 on 250 samples, at least 0.9900 is asked for"."""


class AccuracyDemand:
    """An accuracy that is asked for, ready to be measured."""

    def __init__(self, word: str, bound: float) -> None:
        """`word`: as `Options.accuracy` has it; `bound`: the relative error that is accepted in any case.

        Raises:
            BadOption: no such measure.
            MissingFile, MetricFails: the user's function cannot be loaded.
        """
        parsed = parse_accuracy(word)
        self.word, self.measure = word, parsed.measure
        self.limit = bound if parsed.limit is None else parsed.limit
        self.at_least = parsed.at_least
        self._path, self._function = Path(parsed.path), parsed.function
        self._metric: Callable[..., object] | None = self._load_metric() if parsed.path else None

    def within(self, bound: float) -> AccuracyDemand:
        """The same, where an error up to `bound` is a runtime's own, whatever was asked for."""
        relaxed = copy.copy(self)
        if self.measure == "relative":
            relaxed.limit = max(self.limit, bound)
        return relaxed

    @property
    def digest(self) -> str:
        """Of all that a verdict rests on but the data: with a function of the user's, its file."""
        file = self._path.read_bytes() if self._metric is not None else b""
        return hashlib.sha256(f"{self.word} {self.limit!r} ".encode() + file).hexdigest()[:16]

    @property
    def takes_more(self) -> bool:
        """Whether data may hold arrays other than the model's inputs, labels for example."""
        return self._metric is not None

    @property
    def name(self) -> str:
        """For people."""
        named = {"relative": "relative error", "sqnr": "SQNR (dB)", "cosine": "cosine", "top1": "top-1 agreement"}
        return named.get(self.measure, self._function)

    @property
    def asked(self) -> str:
        """For people: "top-1 agreement of at least 0.99"."""
        return f"{self.name} of at {'least' if self.at_least else 'most'} {_figure(self.limit)}"

    def judged(
        self, outputs: Sequence[Outputs], reference: Sequence[Outputs], samples: Sequence[Mapping[str, np.ndarray]] = ()
    ) -> Reached:
        """Measures answers to samples against those of float64.

        Args:
            outputs: by name, for each sample.
            reference: likewise, in float64.
            samples: the data, with what of it is no input of the model; for a function of the user's.

        Raises:
            MetricFails: the user's function raises, or returns no number.
            UnusableSamples: the outputs are none of which the measure says anything.
        """
        if self._metric is not None:
            value = self._call_metric(outputs, reference, samples)
        else:
            value = _MEASURES[self.measure](outputs, reference)
        met = value >= self.limit if self.at_least else value <= self.limit
        asked = f"at {'least' if self.at_least else 'most'} {_figure(self.limit)} is asked for"
        statement = f"{self.name} {_figure(value)} on {len(reference)} sample{'s' * (len(reference) != 1)}, {asked}"
        return Reached(value, met, _relative(outputs, reference), statement)

    def excess(self, reached: Reached, bound: float) -> float:
        """An error on the scale of `bound` that says how far an answer missed: what a relative error is, and for other measures
        more than the bound, but so little that a part of the model may do with it what the whole does not."""
        if reached.met:
            return 0.0
        if self.measure == "relative":
            return reached.value
        short = abs(reached.value - self.limit) / max(abs(self.limit), 1e-12)
        return bound * (1.0 + min(max(short, 1e-3), 1.0)) if math.isfinite(short) else math.inf

    def _load_metric(self) -> Callable[..., object]:
        if not self._path.is_file():
            raise MissingFile(path=self._path)
        with self._running("the file"):
            metric = runpy.run_path(str(self._path)).get(self._function)
        if not callable(metric):
            raise self._failure("the file has no such function")
        return metric  # type: ignore[no-any-return]

    def _call_metric(
        self, outputs: Sequence[Outputs], reference: Sequence[Outputs], samples: Sequence[Outputs]
    ) -> float:
        assert self._metric is not None
        with self._running("it"):
            given = [list(outputs), list(reference)]
            if len(inspect.signature(self._metric).parameters) > 2:
                given.append(list(samples))
            value = float(self._metric(*given))  # type: ignore[arg-type]
        if math.isnan(value):
            raise self._failure("it returns NaN")
        return value

    @contextmanager
    def _running(self, what: str) -> Iterator[None]:
        """Runs what the user has written."""
        try:
            yield
        except Exception as error:
            raise self._failure(f"{what} raises {type(error).__name__}: {error}") from error

    def _failure(self, reason: str) -> MetricFails:
        return MetricFails(function=self._function, path=self._path, reason=reason)


def _figure(value: float) -> str:
    return f"{value:.4g}"


def _relative(outputs: Sequence[Outputs], reference: Sequence[Outputs]) -> float:
    """The largest of any output of any sample."""
    return max(
        (relative_error([y[name] for name in r], list(r.values())) for y, r in zip(outputs, reference, strict=True)),
        default=0.0,
    )


def _sqnr(outputs: Sequence[Outputs], reference: Sequence[Outputs]) -> float:
    """-20 log10(‖y - r‖ / ‖r‖) in decibels, all samples together; of the worst output."""
    return min(_of_floats(outputs, reference, _decibels))


def _decibels(y: list[np.ndarray], r: list[np.ndarray]) -> float:
    noise = sum(float(np.sum((a - b) ** 2)) for a, b in zip(y, r, strict=True))
    signal = sum(float(np.sum(b**2)) for b in r)
    if not math.isfinite(noise):
        return -math.inf
    return min(10.0 * math.log10(signal / noise), _NO_NOISE_DB) if noise and signal else _NO_NOISE_DB * (not noise)


def _cosine(outputs: Sequence[Outputs], reference: Sequence[Outputs]) -> float:
    """The smallest of any output of any sample."""
    return min(_of_floats(outputs, reference, lambda y, r: min(map(_angle, y, r))))


def _angle(y: np.ndarray, r: np.ndarray) -> float:
    lengths = float(np.linalg.norm(y)) * float(np.linalg.norm(r))
    if not lengths:
        return float(np.array_equal(y, r))
    cosine = float(np.vdot(y, r)) / lengths
    return cosine if math.isfinite(cosine) else -1.0


def _top1(outputs: Sequence[Outputs], reference: Sequence[Outputs]) -> float:
    """The share of rows along the last axis whose largest element is the same one; of the worst output that has several elements in
    a row."""
    return min(_of_floats(outputs, reference, agreement, rows=True))


def agreement(y: Sequence[np.ndarray], r: Sequence[np.ndarray]) -> float:
    """The share of rows along the last axis, of all arrays of the same shapes, whose largest element is at the same place."""
    same = [np.argmax(a, axis=-1) == np.argmax(b, axis=-1) for a, b in zip(y, r, strict=True)]
    return float(np.mean(np.concatenate([np.asarray(equal_rows).reshape(-1) for equal_rows in same])))


def _of_floats(
    outputs: Sequence[Outputs],
    reference: Sequence[Outputs],
    measure: Callable[[list[np.ndarray], list[np.ndarray]], float],
    *,
    rows: bool = False,
) -> list[float]:
    """A measure of each output of floats, over all samples."""
    measures: list[float] = []
    for name, first in (reference[0] if reference else {}).items():
        if (
            not isinstance(first, np.ndarray)
            or first.dtype.kind != "f"
            or (rows and (not first.ndim or first.shape[-1] < 2))
        ):
            continue
        y = [np.asarray(answer[name]).astype(np.float64) for answer in outputs]
        r = [np.asarray(answer[name]).astype(np.float64) for answer in reference]
        if any(a.shape != b.shape for a, b in zip(y, r, strict=True)):
            return [-math.inf]
        measures.append(measure(y, r))
    if not measures:
        kind = "scores, several in a row" if rows else "floating-point numbers"
        raise UnusableSamples(
            option="--accuracy", reason=f"no output holds {kind}", expected="a model with such an output"
        )
    return measures


_MEASURES: Mapping[str, Callable[[Sequence[Outputs], Sequence[Outputs]], float]] = {
    "relative": _relative,
    "sqnr": _sqnr,
    "cosine": _cosine,
    "top1": _top1,
}
