"""What a job would do on each kind and number of devices of a cluster: `bricolage cluster estimate`.

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
from typing import Annotated

from bricolage.base.codec import DecodeError, Length, Within, decode, read_file
from bricolage.base.progress import Progress
from bricolage.cluster.history.rates import PredictedRate, write_rates
from bricolage.cluster.machines import ClusterSpec, DeviceKind, NodeGroup, read_cluster
from bricolage.cluster.step_costs import MeasuredSteps, TransferredSteps
from bricolage.device.description import DescribedDevices, ScaledTimes
from bricolage.device.device import Device, Link, Machine, Peaks
from bricolage.errors import BadOption, BadTrainingSpec, MissingFile, NotWritable
from bricolage.train.predict.elsewhere import StepPlacement, predict_elsewhere, traced_step
from bricolage.train.predict.prediction import Predicted
from bricolage.train.step.spec import StepSpec, read_spec
from bricolage.work.cost import CostModel, Estimate, FirstKnown, Setting, Work
from bricolage.work.training_step import StepGraph
from bricolage.work.workload import workload_of

__all__ = ["JobOnDevices", "estimate_job", "read_cluster", "write_estimated_rates"]
_STEP = "the step"
"""The key of what is asked about, among other jobs' files."""


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

    predicted: Mapping[str, Predicted]
    measured: Mapping[str, float]
    _factors: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        both = self.measured.keys() & {kind for kind, prediction in self.predicted.items() if not prediction.reason}
        self._factors = [math.log(self.measured[kind] / self.predicted[kind].ms) for kind in sorted(both)]

    def estimate(self, works: Sequence[Work], on: Setting) -> Sequence[Estimate | None]:
        """Of the step alone."""
        prediction = self.predicted.get(on.device.name)
        if prediction is None or prediction.reason:
            return [None] * len(works)
        estimate = Estimate(
            prediction.ms, min(prediction.low_ms, prediction.ms), max(prediction.high_ms, prediction.ms), "roofline"
        )
        if self._factors:
            estimate = estimate.times(math.exp(sum(self._factors) / len(self._factors)), "calibrated")
        return [estimate if work.key == _STEP else None for work in works]


def estimate_job(
    step: Path,
    cluster: ClusterSpec,
    *,
    measured: Mapping[str, float] | None = None,
    known: Path | None = None,
    most: int = 8,
    seconds: float = 4.0,
    progress: Progress | None = None,
) -> list[JobOnDevices]:
    """Rate and memory of a job on each kind and number of devices of a cluster.

    Args:
        step: file of a training step. It is run here for `seconds`, and priced elsewhere by its operators.
        cluster: kinds without `gflops` and `gbytes` get an estimate only where the job was measured.
        measured: steps a second on one device of a kind, from a short run there.
        known: a file of other jobs with their steps and rates: `[[job]]`, `step = FILE`, `rates = { KIND = STEPS_PER_S }`.
        most: devices at most; numbers are powers of two.
        seconds: for the profile.
        progress: told about placements.

    Returns:
        By kind in the cluster's order, then by devices.

    Raises:
        BadOption: `measured` names a kind that the cluster does not have.
        MissingFile, BadTrainingSpec: a file cannot be used.
        MissingLibrary, BadTrainingCode, NotTraceable, BadDevices: as `predict_elsewhere` has it.
    """
    ran = {kind: 1e3 / rate for kind, rate in (measured or {}).items()}
    for kind in ran:
        if kind not in cluster.kinds:
            raise BadOption(option="--measured", value=kind, advice=f"The cluster has {', '.join(cluster.kinds)}")
    spec = read_spec(step)
    others = [] if known is None else _read_known(known)
    places = [place for kind in cluster.kinds for place in _placements(cluster, kind, most)]
    asked = [place for place in places if not _why_not(place, cluster)]
    predictions = predict_elsewhere(spec, asked, seconds=seconds, progress=progress) if asked else []
    predicted = {(place.kind, place.workers): prediction for place, prediction in zip(asked, predictions, strict=True)}
    alone = {kind: prediction for (kind, workers), prediction in predicted.items() if workers == 1}
    works, ms = [_work(_STEP, traced_step(spec))], {_STEP: ran}
    for number, (other, rates) in enumerate(others):
        works.append(_work(str(number), traced_step(other)))
        ms[str(number)] = {kind: 1e3 / rate for kind, rate in rates.items()}
    peaks = {group.kind: group.peaks for group in cluster.group if group.peaks is not None}
    model = FirstKnown((MeasuredSteps(ms), TransferredSteps(works[1:], ms, peaks), _Mended(alone, ran)))
    return [_row(place, cluster, spec, predicted, model, works[0]) for place in places]


def write_estimated_rates(path: Path, kind: str, estimates: Sequence[JobOnDevices]) -> int:
    """Writes rates of a kind of job into a table that a replay reads; rows of other kinds that the file has stay.

    Args:
        path: of the table, as CSV.
        kind: of job, as histories call it.
        estimates: those that are known, and fit into memory, are written.

    Returns:
        How many rates were written.

    Raises:
        BadOption: nothing is known of the job on any kind of device.
        BadHistory, UnknownHistory: the file is there, and is no such table.
        NotWritable: it cannot be written.
    """
    rows = [
        PredictedRate(
            estimate.kind,
            estimate.devices,
            (estimate.steps_per_s, 1e3 / estimate.step.high_ms, 1e3 / estimate.step.low_ms),
        )
        for estimate in estimates
        if estimate.step is not None and estimate.fits
    ]
    if not rows:
        raise BadOption(option="--output", value=path, advice="Nothing is known of the job on any kind of device")
    try:
        write_rates(path, kind, rows)
    except OSError as error:
        raise NotWritable(path=path, reason=error.strerror or error) from error
    return len(rows)


def _row(
    place: StepPlacement,
    cluster: ClusterSpec,
    spec: StepSpec,
    predicted: Mapping[tuple[str, int], Predicted],
    model: CostModel,
    work: Work,
) -> JobOnDevices:
    group = cluster.of_kind(place.kind)
    here = predicted.get((place.kind, place.workers))
    (estimate,) = model.estimate([work], Setting(place.devices.machine.devices[0], 1))
    reason = _why_not(place, cluster) if here is None else here.reason
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
        memory_bytes=int((group.memory_gb or 0.0) * 1e9),
        cost_per_1000_steps=place.workers * group.price * estimate.ms / 3600.0,
    )


def _why_not(place: StepPlacement, cluster: ClusterSpec) -> str:
    if cluster.of_kind(place.kind).peaks is None:
        return "the cluster's file gives no gflops and gbytes of this kind, and it was not measured there"
    if place.workers > 1 and place.link is None:
        return "the cluster's file gives no bandwidth between them (link_gbytes, network_gbytes)"
    return ""


def _placements(cluster: ClusterSpec, kind: str, most: int) -> list[StepPlacement]:
    """One, two, four ... devices of a kind; beyond a node, the slower of both links counts."""
    group, largest = cluster.of_kind(kind), max(cluster.nodes(kind))
    placements, count = [], 1
    while count <= min(most, cluster.capacity[kind]):
        crossed = [group.network_gbytes] if count > largest else []
        crossed += [group.link_gbytes] if min(count, largest) > 1 else []
        gbytes = min((rate for rate in crossed if rate is not None), default=None) if None not in crossed else None
        link = None if gbytes is None else Link(("from", "to"), gbytes, group.latency_us)
        placements.append(StepPlacement(kind, _describe_kind(group), count, link, group.start_us / 1e3))
        count *= 2
    return placements


def _describe_kind(group: NodeGroup) -> DescribedDevices:
    peaks = group.peaks or Peaks(math.inf, math.inf)
    device = Device(
        group.kind,
        "gpu",
        model="described",
        instructions=frozenset(),
        cores=(0,),
        physical_cores=1,
        memory_bytes=int((group.memory_gb or 0.0) * 1e9),
        peaks=peaks,
        system="",
        architecture="",
    )
    return DescribedDevices(Machine((device,), ()), {group.kind: ScaledTimes()})


def _work(key: str, graph: StepGraph) -> Work:
    return Work(workload_of(list(graph.work.operators)), key=key)


def _read_known(path: Path) -> list[tuple[StepSpec, Mapping[str, float]]]:
    if not path.is_file():
        raise MissingFile(path=path)
    try:
        jobs_file = decode(_KnownFile, read_file(path), "it")
    except DecodeError as error:
        raise BadTrainingSpec(path=path, reason=str(error)) from error
    return [(read_spec(path.resolve().parent / job.step), job.rates) for job in jobs_file.job]
