"""Files that describe jobs to be run.

    name = "digits"
    command = ["python", "train.py"]    # keeps the contract of docs/manual/cluster-serve.md
    devices = 2                         # of one kind, all or none
    steps = 10000                       # (or `step = "step.toml"` instead of a command)
    seconds = 3600.0                    # for all steps, on a kind whose speed is 1; or, kind by kind:
    rates = { a100 = 9.5, t4 = 2.1 }    # steps a second

or several of these as `[[job]]`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, TypeAlias

from bricolage.base.codec import DecodeError, Length, Matching, Within, decode, read_file
from bricolage.cluster.jobs import TrainingJob, WorkPhase
from bricolage.cluster.machines import ClusterSpec
from bricolage.errors import BadJob, JobRefused, MissingFile

_MOST_S = 1e10
_TRAINER = (sys.executable, "-m", "bricolage.train.job")
JobName: TypeAlias = Annotated[str, Matching(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", "name of a job")]
Word: TypeAlias = Annotated[str, Matching(r"[^\0]{0,4000}", "word of a command")]
Variable: TypeAlias = Annotated[str, Matching(r"[^\0]{0,30000}", "value of a variable")]
Rate: TypeAlias = Annotated[float, Within(1e-9, 1e12)]


@dataclass(frozen=True)
class JobSpec:
    """A job as its user describes it."""

    name: JobName
    steps: Annotated[float, Within(1.0, 1e15)]
    command: Annotated[tuple[Word, ...], Length(0, 1000)] = ()
    step: Word = ""
    """Instead of a command: the file of a training step, which is trained by `bricolage.train.job`."""
    devices: Annotated[int, Within(1, 1 << 20)] = 1
    rates: Mapping[str, Rate] = field(default_factory=dict)
    """Steps a second of the gang on each kind that it can use."""
    seconds: Annotated[float, Within(0.0, _MOST_S)] = 0.0
    """Where there are no rates: what all steps take on a kind whose speed is 1."""
    user: str = ""
    kind: str = ""
    queue: str = ""
    deadline: Annotated[float, Within(0.0, _MOST_S)] = 0.0
    """Seconds from its submission; 0: none."""
    limit: Annotated[float, Within(0.0, _MOST_S)] = 0.0
    """Seconds that it may run; backfilling trusts it. 0: none."""
    weight: Annotated[float, Within(1e-6, 1e6)] = 1.0
    scaling: tuple[tuple[int, float], ...] = ()
    """Numbers of devices that it can run on, too, with its speed there relative to that on `devices`."""
    directory: str = ""
    """In which its command runs; the folder of its file by default."""
    environment: Mapping[str, Variable] = field(default_factory=dict)
    grace: Annotated[float, Within(0.0, 3600.0)] = 30.0
    """Seconds from being asked to save to being killed."""

    def __post_init__(self) -> None:
        if bool(self.command) == bool(self.step):
            raise ValueError("it gives either 'command' or 'step'")
        if bool(self.rates) == bool(self.seconds):
            raise ValueError("it gives either 'rates' or 'seconds'")
        if any("=" in name or not name for name in self.environment):
            raise ValueError("a variable of 'environment' has a name with '=', or none")

    def training_job(self, submit_s: float, cluster: ClusterSpec) -> TrainingJob:
        """As a policy sees it.

        Raises:
            JobRefused: the cluster has none of the kinds that it names.
        """
        if self.rates:
            rates = {kind: rate for kind, rate in self.rates.items() if kind in cluster.kinds}
        else:
            rates = {kind: self.steps / self.seconds * cluster.speed(kind) for kind in cluster.kinds}
        if not rates:
            offered_kinds = ", ".join(cluster.kinds)
            raise JobRefused(
                name=self.name, reason=f"it names rates on {', '.join(self.rates)}, and there are {offered_kinds}"
            )
        return TrainingJob(
            self.name,
            submit_s,
            phases=(WorkPhase(self.steps, rates),),
            devices=self.devices,
            user=self.user,
            kind=self.kind,
            queue=self.queue,
            deadline_s=submit_s + self.deadline if self.deadline else math.inf,
            weight=self.weight,
            scaling=tuple(sorted(self.scaling)),
            limit_s=self.limit or math.inf,
        )


@dataclass(frozen=True)
class _JobFile:
    job: Annotated[tuple[JobSpec, ...], Length(1, 10_000)]


def read_jobs(path: Path) -> list[JobSpec]:
    """The jobs that a file describes. Their commands run in the file's folder, or in `directory` from there.

    Raises:
        MissingFile: there is no such file.
        BadJob: it cannot be read, or describes no job.
    """
    if not path.is_file():
        raise MissingFile(path=path)
    folder = path.resolve().parent
    try:
        content = read_file(path)
        specs = decode(_JobFile, content, "it").job if isinstance(content, dict) and "job" in content else None
        specs = (decode(JobSpec, content, "it"),) if specs is None else specs
    except DecodeError as error:
        raise BadJob(path=path, reason=str(error)) from error
    names = [spec.name for spec in specs]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise BadJob(path=path, reason=f"two jobs have the name '{twice}'")
    placed = [_resolve_paths(spec, folder) for spec in specs]
    for spec in placed:
        if not Path(spec.directory).is_dir():
            raise BadJob(path=path, reason=f"there is no folder '{spec.directory}' for job {spec.name} to run in")
        if spec.command[:-1] == _TRAINER and not Path(spec.command[-1]).is_file():
            raise BadJob(
                path=path, reason=f"there is no file '{spec.command[-1]}' of a training step for job {spec.name}"
            )
    return placed


def _resolve_paths(spec: JobSpec, folder: Path) -> JobSpec:
    directory = folder / spec.directory
    command = spec.command or (*_TRAINER, str(directory / spec.step))
    return replace(spec, directory=str(directory), command=command, step="")
