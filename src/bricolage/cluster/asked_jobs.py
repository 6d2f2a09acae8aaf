"""Jobs that are asked about by name. What is asked of a component of a heterogeneous job is asked of the job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from bricolage.cluster.history.records import JobHistory
from bricolage.cluster.policy_comparison import ClusterComparison
from bricolage.cluster.prospects import Scene
from bricolage.errors import BadOption


def resolve_asked_jobs(names: Sequence[str], history: JobHistory, note: Callable[[str], None]) -> dict[str, str]:
    """By each name that is asked about, the name of its job.

    Args:
        names: of jobs, or of components.
        history: with the jobs.
        note: called with each name that is left out, and why.

    Raises:
        BadOption: there is no such job.
    """
    there = {job.name for job in history.jobs}
    asked = {}
    for name in names:
        job = history.components.get(name, name)
        if not job:
            note(f"{name} is left out: it cannot start together with the other components of its job")
        elif job not in there:
            raise BadOption(option="--why", value=name, advice="Give the name of a job of the history")
        else:
            asked[name] = job
    return asked


def rename_waits(compared: ClusterComparison, asked: Mapping[str, str]) -> ClusterComparison:
    """Says of each name that was asked about why it waited, not of its job."""
    if all(name == job for name, job in asked.items()):
        return compared
    results = tuple(
        replace(
            result,
            waits=tuple(
                replace(waited, job=name) for name, job in asked.items() for waited in result.waits if waited.job == job
            ),
        )
        for result in compared.results
    )
    return replace(compared, results=results)


def number_asked_jobs(names: Sequence[str], history: JobHistory, scene: Scene) -> list[int]:
    """The numbers in a scene of the jobs that are asked about; without names of all that are there.

    Raises:
        BadOption: a job is not there at that time.
    """
    there = [job.name for job in scene.jobs]
    asked = [history.components.get(name) or name for name in names]
    for name in asked:
        if name not in there:
            raise BadOption(option="--job", value=name, advice=f"Give one that is there at {scene.now:g} s")
    return [number for number, job in enumerate(there) if not asked or job in asked]
