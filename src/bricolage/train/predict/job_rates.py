"""What a job does on numbers of equal devices, its rate and its memory, by what is known of its training step.

Several cost models know something of a step on one device of a kind, and the first that does is asked: what was measured there
(`MeasuredSteps`), what other jobs say that ran on both kinds (`TransferredSteps`), the prediction from the step's operators,
brought to the kind by rooflines and mended by what the job was measured to take on some kind. Exchanges between devices are
predicted and added.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypeAlias

from bricolage.base.codec import DecodeError, Length, Within, decode, read_file
from bricolage.base.progress import Progress
from bricolage.costs.models.step_costs import MeasuredSteps, TransferredSteps
from bricolage.device.description import EqualDevices
from bricolage.device.device import DeviceKind
from bricolage.errors import BadTrainingSpec, MissingFile
from bricolage.train.predict.elsewhere import predict_elsewhere, traced_step
from bricolage.train.predict.prediction import Predicted
from bricolage.train.step.spec import StepSpec, read_spec
from bricolage.work.cost import Estimate, FirstKnown, Setting, Work
from bricolage.work.workload import workload_of

_Predictions: TypeAlias = Mapping[tuple[str, int], Predicted]
"""By kind and number of devices."""


@dataclass(frozen=True)
class JobOnDevices:
    """A step on a number of devices of a kind. Where `reason` is not empty it cannot be said, and nothing else holds."""

    kind: str
    devices: int
    step: Estimate | None = None
    steps_per_s: float = 0.0
    samples_per_s: float = 0.0
    peak_bytes: int = 0
    """Of tensors, on one device."""
    memory_bytes: int = 0
    """Of a device; 0 where the cluster's file does not say."""
    cost_per_1000_steps: float = 0.0
    """Device-hours times price."""
    reason: str = ""

    @property
    def fits(self) -> bool:
        """Into a device's memory, as far as it is known."""
        return not self.memory_bytes or self.peak_bytes <= self.memory_bytes


@dataclass(frozen=True)
class RatedJob:
    """A job that ran on some kinds of device, or on none."""

    spec: StepSpec
    rates: Mapping[str, float]
    """Steps a second, on one device of a kind."""


@dataclass(frozen=True)
class _Known:
    """Another job that ran on some kinds: its step, and steps a second on one device of each."""

    step: str
    rates: Annotated[Mapping[DeviceKind, Annotated[float, Within(1e-9, 1e9)]], Length(1, 64)]


@dataclass(frozen=True)
class _KnownFile:
    job: Annotated[tuple[_Known, ...], Length(1, 4096)]


@dataclass
class _Mended:
    """The prediction for one device of each kind, times what the job's measured rate says of predictions for it: the mean factor,
    in logarithms, over the kinds that it ran on."""

    key: str
    """Of the step as work: nothing is said of other work."""
    predicted: Mapping[str, Predicted]
    measured: Mapping[str, float]
    _factors: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        both = self.measured.keys() & {kind for kind, prediction in self.predicted.items() if not prediction.reason}
        self._factors = [math.log(self.measured[kind] / self.predicted[kind].ms) for kind in sorted(both)]

    def estimate(self, works: Sequence[Work], on: Setting) -> Sequence[Estimate | None]:
        """On the device of the setting."""
        prediction = self.predicted.get(on.device.name)
        if prediction is None or prediction.reason:
            return [None] * len(works)
        estimate = Estimate(
            prediction.ms, min(prediction.low_ms, prediction.ms), max(prediction.high_ms, prediction.ms), "roofline"
        )
        if self._factors:
            estimate = estimate.times(math.exp(sum(self._factors) / len(self._factors)), "calibrated")
        return [estimate if work.key == self.key else None for work in works]


def rate_job(
    job: RatedJob,
    others: Sequence[RatedJob],
    places: Sequence[EqualDevices],
    *,
    seconds: float,
    progress: Progress | None = None,
) -> list[JobOnDevices]:
    """What a job does at each place. Its step is run here for `seconds`, and priced there by its operators and by what others did.

    Raises:
        MissingLibrary, BadTrainingCode, NotTraceable, BadDevices: as `predict_elsewhere` has it.
    """
    asked = [place for place in places if not place.unknown]
    predictions = predict_elsewhere(job.spec, asked, seconds=seconds, progress=progress) if asked else []
    predicted = {(place.kind, place.workers): prediction for place, prediction in zip(asked, predictions, strict=True)}
    peaks = {place.kind: place.device.peaks for place in places if not math.isinf(place.device.peaks.gflops)}
    jobs = {str(number): each for number, each in enumerate([job, *others])}
    work, *learnt = [_work(key, each.spec) for key, each in jobs.items()]
    ms = {key: {kind: 1e3 / rate for kind, rate in each.rates.items()} for key, each in jobs.items()}
    alone = {kind: prediction for (kind, workers), prediction in predicted.items() if workers == 1}
    model = FirstKnown((MeasuredSteps(ms), TransferredSteps(learnt, ms, peaks), _Mended(work.key, alone, ms[work.key])))
    rows = []
    for place in places:
        (estimate,) = model.estimate([work], Setting(place.device, 1))
        rows.append(_rate_at(place, job.spec, predicted, estimate))
    return rows


def _work(key: str, spec: StepSpec) -> Work:
    return Work(workload_of(list(traced_step(spec).work.operators)), key=key)


def _rate_at(place: EqualDevices, spec: StepSpec, predicted: _Predictions, estimate: Estimate | None) -> JobOnDevices:
    """The job at a place; `estimate` is that of one device there."""
    here = predicted.get((place.kind, place.workers))
    reason = place.unknown if here is None else here.reason
    if estimate is not None and place.workers == 1:
        reason = ""  # a measured rate needs no description
    if reason or estimate is None:
        return JobOnDevices(place.kind, place.workers, reason=reason or "nothing is known of it there")
    if here is not None and place.workers > 1:
        # What workers wait for gradients does not change with what computing takes.
        waits = max(here.ms - predicted[place.kind, 1].ms, 0.0)
        estimate = Estimate(estimate.ms + waits, estimate.low_ms + waits, estimate.high_ms + waits, estimate.source)
    return JobOnDevices(
        place.kind,
        place.workers,
        step=estimate,
        steps_per_s=1e3 / estimate.ms,
        samples_per_s=spec.batch_size * place.workers * 1e3 / estimate.ms,
        peak_bytes=0 if here is None else here.peak_bytes,
        memory_bytes=place.device.memory_bytes,
        cost_per_1000_steps=place.workers * place.price * estimate.ms / 3600.0,
    )


def read_known_jobs(path: Path) -> list[RatedJob]:
    """Jobs with their rates, as a file lists them.

    Raises:
        MissingFile, BadTrainingSpec: it, or a file that it names, cannot be used.
    """
    if not path.is_file():
        raise MissingFile(path=path)
    try:
        jobs_file = decode(_KnownFile, read_file(path), "it")
    except DecodeError as error:
        raise BadTrainingSpec(path=path, reason=str(error)) from error
    return [RatedJob(read_spec(path.resolve().parent / job.step), job.rates) for job in jobs_file.job]
