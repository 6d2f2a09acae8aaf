"""A cluster that is served, and what its users ask: `bricolage cluster serve`, `submit`, `list`, `why` and `cancel`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bricolage.base.codec import decode, encode
from bricolage.cluster.engines.local import LocalEngine
from bricolage.cluster.machines import read_cluster
from bricolage.cluster.serve.job_answers import Listed, WhyAnswer
from bricolage.cluster.serve.service import MakeEngine, Service
from bricolage.cluster.serve.spool import ask
from bricolage.cluster.serve.submission import read_jobs

__all__ = [
    "Listed",
    "ServeOptions",
    "ServedCluster",
    "WhyAnswer",
    "cancel_job",
    "explain_served_job",
    "list_served_jobs",
    "serve_cluster",
    "submit_jobs",
]


@dataclass(frozen=True)
class ServeOptions:
    """How a cluster is served."""

    policy: str = "easy"
    ray: str | None = None
    """Address of a Ray cluster (auto, HOST:6379, local); None: jobs are processes of this machine."""


@dataclass(frozen=True)
class ServedCluster:
    """What is served, when it begins."""

    devices: Mapping[str, int]
    """Of each kind."""
    left: int
    """Jobs that an earlier process left, to go on with."""


def serve_cluster(
    cluster: Path,
    state: Path,
    options: ServeOptions = ServeOptions(),
    *,
    begun: Callable[[ServedCluster], None] = lambda _: None,
    over: Callable[[], bool] = lambda: False,
) -> None:
    """Runs jobs that are submitted under a policy; started again from the same folder, it goes on.

    Args:
        cluster: its file, as TOML or JSON.
        state: folder of the log, requests and checkpoints; all nodes see it.
        options: the policy, and where jobs run.
        begun: called once jobs can be submitted.
        over: asked after each turn whether it is enough; by default it serves until the process is ended.

    Raises:
        MissingFile, BadCluster: the cluster's file cannot be used, or names failures, which are for replays.
        AlreadyServed, UnsafeState, BrokenJournal, NotWritable: the folder cannot be served from; nothing was changed.
        UnknownPolicy, PolicyRefuses: there is no such policy, or it can serve no jobs on this cluster.
        MissingLibrary, UnreachableCluster, EngineUnusable: the Ray cluster cannot be used.
    """
    spec = read_cluster(cluster)
    make: MakeEngine = LocalEngine
    if options.ray is not None:
        from bricolage.cluster.engines.ray_cluster import RayEngine

        make = partial(RayEngine, options.ray, state.resolve())
    service = Service(state, spec, options.policy, make)
    try:
        begun(ServedCluster(spec.capacity, service.left))
        service.serve(over)
    finally:
        service.close()


def submit_jobs(jobs: Path, state: Path) -> tuple[str, ...]:
    """Submits the jobs of a file to the process that serves from a folder: all of them, or none.

    Returns:
        The jobs' names.

    Raises:
        MissingFile, BadJob: the file cannot be read, or describes no job.
        JobRefused, JobFitsNowhere, PolicyRefuses: a job cannot be served.
        NotServed, NoAnswer, UnsafeState: as `ask` has it.
    """
    reply = ask(state, {"submit": encode(read_jobs(jobs))})
    return decode(tuple[str, ...], reply["submitted"], "answer")


def list_served_jobs(state: Path) -> Listed:
    """All jobs of the cluster that is served from a folder. Times are in seconds since it was first served.

    Raises:
        NotServed, NoAnswer, UnsafeState: as `ask` has it.
    """
    return decode(Listed, ask(state, {"list": {}}), "answer")


def explain_served_job(job: str, state: Path) -> WhyAnswer:
    """Why a job waits, and in how many seconds from now it starts and ends.

    Raises:
        UnknownJob: there is none of this name.
        ClusterStuck: it will never start as things are.
        NotServed, NoAnswer, UnsafeState: as `ask` has it.
    """
    return decode(WhyAnswer, ask(state, {"why": job})["why"], "answer")


def cancel_job(job: str, state: Path) -> bool:
    """Takes a job back; if it runs, it saves and ends. False where it was over already.

    Raises:
        UnknownJob: there is none of this name.
        NotServed, NoAnswer, UnsafeState: as `ask` has it.
    """
    return "over" not in ask(state, {"cancel": job})
