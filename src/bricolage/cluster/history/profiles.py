"""Profiles of kinds of jobs: what batch sizes, processors and host memory do to their speed (`adaptive.py`). TOML, or JSON of the
same structure:

    [[job]]
    kind = "bert"                  # of the history; else a job's name

    [job.host]                     # Synergy: a row for each of cpus, a column for each of gb, both for each device
    cpus = [1, 3, 6]
    gb = [20, 62.5]
    speed = [[0.3, 0.4], [0.9, 1.0], [0.9, 1.5]]

    [job.batches]                  # Pollux, Sia
    batch = 128
    most_batch = 4096
    most_local = 64
    noise = [[0.0, 2.0], [0.5, 8.0]]

    [job.batches.times.a100]
    grad_s = 0.02
    sample_s = 0.001
    sync_s = 0.01
    network_s = 0.05
    overlap = 2.0
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from bricolage.base.codec import DecodeError, Length, decode, read_file
from bricolage.cluster.adaptive import BatchProfile, HostProfile
from bricolage.cluster.jobs import TrainingJob
from bricolage.cluster.machines import ClusterSpec
from bricolage.errors import BadProfiles, MissingFile


@dataclass(frozen=True)
class JobProfile:
    """Of a kind of job."""

    kind: Annotated[str, Length(1, 256)]
    host: HostProfile | None = None
    batches: BatchProfile | None = None


@dataclass(frozen=True)
class _File:
    job: Annotated[tuple[JobProfile, ...], Length(1, 4096)]

    def __post_init__(self) -> None:
        kinds = [profile.kind for profile in self.job]
        if len(set(kinds)) < len(kinds):
            raise ValueError(f"kind '{next(kind for kind in kinds if kinds.count(kind) > 1)}' has two profiles")


def read_profiles(path: Path, cluster: ClusterSpec) -> Mapping[str, JobProfile]:
    """By kind of job.

    Raises:
        MissingFile: there is no such file.
        BadProfiles: it cannot be read, or names a kind of device that the cluster does not have.
    """
    if not path.is_file():
        raise MissingFile(path=path)
    try:
        profiles = decode(_File, read_file(path), "it")
    except DecodeError as error:
        raise BadProfiles(path=path, reason=str(error)) from error
    for profile in profiles.job:
        for device in profile.batches.times if profile.batches is not None else ():
            if device not in cluster.kinds:
                there = ", ".join(cluster.kinds)
                raise BadProfiles(
                    path=path, reason=f"job '{profile.kind}' has times on '{device}', and the cluster has {there}"
                )
    return {profile.kind: profile for profile in profiles.job}


def with_profiles(
    jobs: Sequence[TrainingJob], profiles: Mapping[str, JobProfile], cluster: ClusterSpec
) -> tuple[TrainingJob, ...]:
    """Jobs with their profiles; one with batch sizes, and no scaling of its own, gets that of its profile at the initial batch
    size."""
    profiled = []
    for job in jobs:
        profile = profiles.get(job.kind) or profiles.get(job.name)
        if profile is None:
            profiled.append(job)
            continue
        scaling = job.scaling
        kind = next((kind for kind in job.kinds if profile.batches is not None and kind in profile.batches.times), "")
        if profile.batches is not None and kind and not scaling:
            scaling = profile.batches.scaling(job.devices, max(cluster.nodes(kind)), kind)
        profiled.append(replace(job, host=profile.host, batches=profile.batches, scaling=scaling))
    return tuple(profiled)
