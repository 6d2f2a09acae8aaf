"""`estimate_job`: what a job would do on each kind and number of devices of a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bricolage.base.progress import Progress
from bricolage.cluster.device_counts import list_device_counts
from bricolage.cluster.machines import ClusterSpec
from bricolage.errors import BadOption
from bricolage.train.predict.job_rates import JobOnDevices, RatedJob, rate_job, read_known_jobs
from bricolage.train.step.spec import read_spec


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
