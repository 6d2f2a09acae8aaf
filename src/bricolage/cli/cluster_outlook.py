"""`bricolage cluster outlook`: when the jobs that are there at a time will start and end, and why not sooner."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bricolage import errors
from bricolage.cli import arguments as a
from bricolage.cli.guard import guard_command

if TYPE_CHECKING:
    from bricolage.cluster.history.records import JobHistory
    from bricolage.cluster.prospects import Prospect


@guard_command
def outlook(
    history: Annotated[
        Path,
        typer.Argument(
            metavar="HISTORY", help="Jobs: a CSV table, sacct's output, a published trace.", show_default=False
        ),
    ],
    cluster: Annotated[
        Path, typer.Option("--cluster", metavar="FILE", help="The cluster as TOML or JSON.", show_default=False)
    ],
    at: Annotated[
        float, typer.Option("--at", metavar="SECONDS", min=0.0, help="After the first submission.", show_default=False)
    ],
    policy: Annotated[str, typer.Option("--policy", metavar="NAME", help="Under which the cluster runs.")] = "easy",
    job: Annotated[
        list[str] | None, typer.Option("--job", metavar="NAME", help="Only this job. Repeatable; default: all there.")
    ] = None,
    rates: Annotated[
        Path | None,
        typer.Option("--rates", metavar="FILE", help="Steps a second of kinds of jobs on kinds of devices."),
    ] = None,
    error: Annotated[
        float, typer.Option("--error", metavar="S", min=0.0, max=5.0, help="Lengths may be off by exp(S) either way.")
    ] = 0.5,
    rate_error: Annotated[
        float, typer.Option("--rate-error", metavar="S", min=0.0, max=5.0, help="So may rates on kinds not run on yet.")
    ] = 0.1,
    draws: Annotated[int, typer.Option("--draws", metavar="N", min=1, max=1000, help="Futures that are drawn.")] = 20,
    as_json: a.Json = False,
) -> None:
    """Say of each job that is there at a time when it will start and end, what it waits for, and what would change that.

    The history is replayed under the policy up to that time. From there on lengths are those of the history, believed to
    be off by --error; as many jobs as were submitted before are expected to come in as long a time again.
    """
    from bricolage.cluster.event_loop import ReplayLoop
    from bricolage.cluster.history.rates import read_rates
    from bricolage.cluster.history.read import read_history
    from bricolage.cluster.machines import read_cluster
    from bricolage.cluster.policy_catalogue import find_policy
    from bricolage.cluster.prospects import Doubt, prospects, scene_of

    spec, entry = read_cluster(cluster), find_policy(policy)
    read = read_history(history, spec, None if rates is None else read_rates(rates, spec.kinds))
    jobs = read.jobs
    _tell(read)
    if reason := entry.refuses(jobs, spec):
        raise errors.PolicyRefuses(name=policy, reason=reason)
    scene = scene_of(ReplayLoop(jobs, spec, entry.make(jobs, spec), entry.estimator(0.0, 0)), entry, at)
    wanted = [read.components.get(name) or name for name in job or []]
    asked = _find_asked_jobs([scene_job.name for scene_job in scene.jobs], wanted, at)
    past = [past_job for past_job in jobs if past_job.submit_s <= at]
    outlooks = prospects(scene, Doubt(error, rate_error), draws=draws, past=past, asked=asked)
    if as_json:
        from bricolage.base.codec import encode
        from bricolage.cli import output

        output.show_json(encode(tuple(outlooks)))
        return
    _show(outlooks, at)


def _tell(read: JobHistory) -> None:
    from bricolage.cli import output

    for line in (*(f"{count} {reason}: left out" for reason, count in read.left_out.items()), *read.notes()):
        output.note(line)


def _find_asked_jobs(there: list[str], names: list[str], at: float) -> list[int]:
    for name in names:
        if name not in there:
            raise errors.BadOption(option="--job", value=name, advice=f"Give one that is there at {at:g} s")
    return [number for number, job in enumerate(there) if not names or job in names]


def _show(found: list[Prospect], at: float) -> None:
    from bricolage.cli import output
    from bricolage.report import words
    from bricolage.report.policies import span
    from bricolage.report.tables import plain_table

    waiting = [prospect for prospect in found if not prospect.kind]
    print(f"{words.count(len(found), 'job')} at {span(at)}, {len(waiting)} of them waiting; times from now")
    heads = [("Job", "fold"), ("Devices", "right"), ("Place", "right"), ("Start", "right"), ("between", "left")]
    heads += [("End", "right"), ("between", "left")]
    rows = []
    for prospect in sorted(found, key=lambda o: o.expected.place):
        expected = prospect.expected
        start = ["runs", ""] if prospect.kind else _times(expected.start_s, expected.start_interval_s, at)
        place = str(expected.place) if expected.place else words.MISSING
        rows.append(
            [prospect.job, str(prospect.devices), place, *start, *_times(expected.end_s, expected.end_interval_s, at)]
        )
    output.show_result(plain_table(heads, rows))
    for prospect in waiting:
        line = (
            f"{prospect.job} waits for {prospect.reason}. It would start now with {prospect.change}"
            if prospect.reason
            else ""
        )
        print(errors.plain(line or f"{prospect.job} starts now"))
    output.note("Eight of ten futures that were drawn lie between the two times.")


def _times(middle: float, interval: tuple[float, float], at: float) -> list[str]:
    from bricolage.report.policies import span

    low, high = (span(max(bound - at, 0.0)) for bound in interval)
    return [span(max(middle - at, 0.0)), f"{low} – {high}"]
