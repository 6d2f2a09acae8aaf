"""`estimate_job`: what a job would do on each kind and number of devices of a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bricolage.base.progress import Progress
from bricolage.cluster.device_counts import list_device_counts
from bricolage.cluster.history.rates import PredictedRate, write_rates
from bricolage.cluster.machines import ClusterSpec, read_cluster
from bricolage.errors import BadOption, NotWritable
from bricolage.train.predict.job_rates import JobOnDevices, RatedJob, rate_job, read_known_jobs
from bricolage.train.step.spec import read_spec

__all__ = ["JobOnDevices", "estimate_job", "read_cluster", "write_estimated_rates"]


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
    for kind in measured or {}:
        if kind not in cluster.kinds:
            raise BadOption(option="--measured", value=kind, advice=f"The cluster has {', '.join(cluster.kinds)}")
    job = RatedJob(read_spec(step), measured or {})
    others = [] if known is None else read_known_jobs(known)
    return rate_job(job, others, list_device_counts(cluster, most), seconds=seconds, progress=progress)


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
