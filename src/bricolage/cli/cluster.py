"""`bricolage cluster`: what policies would have made of a cluster's jobs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bricolage import errors
from bricolage.cli import arguments as a
from bricolage.cli import slurm
from bricolage.cli.cluster_estimate import estimate
from bricolage.cli.cluster_outlook import outlook
from bricolage.cli.guard import guard_command
from bricolage.cli.kueue import kueue

if TYPE_CHECKING:
    from bricolage.cluster.history.records import JobHistory
    from bricolage.cluster.machines import ClusterSpec
    from bricolage.cluster.policy_comparison import ClusterComparison

_log = logging.getLogger("bricolage")
app = typer.Typer(
    no_args_is_help=True,
    help="Replay a cluster's jobs under other policies, or on other devices.",
    rich_markup_mode=None,
)
app.add_typer(slurm.app, name="slurm")
app.command()(kueue)

app.command()(estimate)
app.command()(outlook)

History = Annotated[
    Path,
    typer.Argument(metavar="HISTORY", help="Jobs: a CSV table, sacct's output, a published trace.", show_default=False),
]
Machines = Annotated[
    Path, typer.Option("--cluster", metavar="FILE", help="The cluster as TOML or JSON.", show_default=False)
]
PolicyNames = Annotated[
    list[str] | None,
    typer.Option("--policy", metavar="NAME", help="all, or a policy's name. Repeatable; default: all."),
]
Rates = Annotated[
    Path | None, typer.Option("--rates", metavar="FILE", help="Steps a second of kinds of jobs on kinds of devices.")
]
Profiles = Annotated[
    Path | None,
    typer.Option("--profiles", metavar="FILE", help="What batch sizes, processors and memory do to kinds of jobs."),
]
Format = Annotated[
    str,
    typer.Option("--format", metavar="WORD", help="auto, table, sacct, gavel, elasticflow, tiresias, helios, philly."),
]
Error = Annotated[
    float,
    typer.Option(
        "--error",
        metavar="S",
        min=0.0,
        max=5.0,
        help="Predicted lengths are wrong by exp(S) either way, usually; default: exact.",
    ),
]
RateError = Annotated[
    float | None,
    typer.Option(
        "--rate-error",
        metavar="S",
        min=0.0,
        max=5.0,
        help="So are rates on kinds of device that a job has not run on yet; default: as the intervals of --rates say, else exact.",
    ),
]
Fitted = Annotated[
    bool,
    typer.Option("--fitted", help="Policies know of batch sizes only what was fitted from a job's own running."),
]
Seeds = Annotated[int, typer.Option("--seeds", metavar="N", min=1, max=1000, help="Draws of these errors.")]
Why = Annotated[list[str] | None, typer.Option("--why", metavar="JOB", help="Say why this job waited. Repeatable.")]
Page = Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write a page (HTML), too.")]


@app.command()
@guard_command
def replay(
    history: History,
    cluster: Machines,
    policy: PolicyNames = None,
    rates: Rates = None,
    profiles: Profiles = None,
    form: Format = "auto",
    error: Error = 0.0,
    rate_error: RateError = None,
    fitted: Fitted = False,
    seeds: Seeds = 1,
    why: Why = None,
    out: Page = None,
    as_json: a.Json = False,
) -> None:
    """Say what each policy would have made of these jobs."""
    from bricolage.cli import output

    output.check_writable(out)
    spec, job_history = _read(history, cluster, (rates, profiles), form)
    asked = _resolve_asked_jobs(why, job_history)
    off = error, _rate_error(rate_error, rates, spec)
    compared = _compare_policies(
        job_history, spec, policy, off, seeds, list(dict.fromkeys(asked.values())), fitted=fitted
    )
    compared = _named_as_asked(compared, asked)
    if out is not None:
        from bricolage.report.policies import Whole, cluster_page

        output.write_text(out, cluster_page([Whole("As it is", compared)], history.name))
        output.note(f"wrote {out}")
    if as_json:
        from bricolage.base.codec import encode

        output.show_json(encode(compared))
        return
    _show(compared, None, bool(asked))


@app.command()
@guard_command
def whatif(
    history: History,
    cluster: Machines,
    add: Annotated[
        list[str] | None,
        typer.Option("--add", metavar="KIND=N", help="N devices more of a kind; fewer where negative. Repeatable."),
    ] = None,
    restart: Annotated[
        float | None, typer.Option("--restart", metavar="SECONDS", min=0.0, help="What a restart costs.")
    ] = None,
    round_: Annotated[
        float | None, typer.Option("--round", metavar="SECONDS", min=1.0, help="Length of a round.")
    ] = None,
    quota: Annotated[
        list[str] | None,
        typer.Option("--quota", metavar="QUEUE=N", help="Devices that jobs of a queue may have at a time; none: any."),
    ] = None,
    weight: Annotated[
        list[str] | None,
        typer.Option("--weight", metavar="WHO=W", help="Weight of the jobs of a queue, or of a user. Repeatable."),
    ] = None,
    policy: PolicyNames = None,
    rates: Rates = None,
    profiles: Profiles = None,
    form: Format = "auto",
    error: Error = 0.0,
    rate_error: RateError = None,
    fitted: Fitted = False,
    seeds: Seeds = 1,
    out: Page = None,
    as_json: a.Json = False,
) -> None:
    """Say what other devices, restart costs, rounds, quotas or weights would change."""
    from bricolage.cli import output
    from bricolage.cli.cluster_changes import change_weight, with_changes

    output.check_writable(out)
    if not add and not quota and not weight and restart is None and round_ is None:
        advice = "Say what changes: --add KIND=N, --restart, --round, --quota QUEUE=N, --weight WHO=W"
        raise errors.BadOption(option="--add", value="", advice=advice)
    spec, job_history = _read(history, cluster, (rates, profiles), form)
    changed = with_changes(spec, job_history.jobs, add or (), quota or (), restart, round_)
    # Jobs of which only run times are known run on the new kinds, too.
    jobs_after = (
        job_history
        if changed.kinds == spec.kinds
        else _same_jobs(job_history, history, changed, (rates, profiles), form)
    )
    for word in weight or ():
        jobs_after = replace(jobs_after, jobs=change_weight(jobs_after.jobs, word))
    off = error, _rate_error(rate_error, rates, spec)
    before = _compare_policies(job_history, spec, policy, off, seeds, None, fitted=fitted)
    after = _compare_policies(jobs_after, changed, policy, off, seeds, None, fitted=fitted)
    if out is not None:
        from bricolage.report.policies import Whole, cluster_page

        output.write_text(out, cluster_page([Whole("Changed", after), Whole("As it is", before)], history.name))
        output.note(f"wrote {out}")
    if as_json:
        from bricolage.base.codec import encode

        output.show_json({"before": encode(before), "after": encode(after)})
        return
    _show(after, before, False)


def _read(
    history: Path, cluster: Path, known: tuple[Path | None, Path | None], form: str
) -> tuple[ClusterSpec, JobHistory]:
    from bricolage.cluster.machines import read_cluster

    spec = read_cluster(cluster)
    return spec, _history(history, spec, known, form)


def _history(history: Path, spec: ClusterSpec, known: tuple[Path | None, Path | None], form: str) -> JobHistory:
    """Jobs, with what is known of their rates, and of batch sizes, processors and memory."""
    from bricolage.cluster.history.profiles import read_profiles, with_profiles
    from bricolage.cluster.history.rates import read_rates
    from bricolage.cluster.history.read import FORMATS, read_history

    if form not in FORMATS:
        raise errors.BadOption(option="--format", value=form, advice=f"Use one of {', '.join(FORMATS)}")
    rates, profiles = known
    job_history = read_history(history, spec, None if rates is None else read_rates(rates, spec.kinds), form)
    if profiles is not None:
        job_history = replace(job_history, jobs=with_profiles(job_history.jobs, read_profiles(profiles, spec), spec))
    return job_history


def _rate_error(given: float | None, rates: Path | None, spec: ClusterSpec) -> float:
    """What the user says, else what the intervals of predicted rates say."""
    from bricolage.cli import output
    from bricolage.cluster.history.rates import read_rates

    if given is not None or rates is None:
        return given or 0.0
    rate_error = read_rates(rates, spec.kinds).error
    if rate_error:
        output.note(
            f"the rates of {rates.name} are predictions: policies believe them off by exp({rate_error:.2g}) on kinds not run on"
        )
    return rate_error


def _resolve_asked_jobs(why: list[str] | None, found: JobHistory) -> dict[str, str]:
    """By each name that is asked about, the name of the job: a component of a heterogeneous job is part of one."""
    from bricolage.cli import output

    names = {job.name for job in found.jobs}
    asked = {}
    for name in why or ():
        job = found.components.get(name, name)
        if not job:
            output.note(f"{name} is left out: it cannot start together with the other components of its job")
        elif job not in names:
            raise errors.BadOption(option="--why", value=name, advice="Give the name of a job of the history")
        else:
            asked[name] = job
    return asked


def _named_as_asked(compared: ClusterComparison, asked: Mapping[str, str]) -> ClusterComparison:
    """Says of each name that was asked about why it waited."""
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


def _same_jobs(
    before: JobHistory, history: Path, changed: ClusterSpec, known: tuple[Path | None, Path | None], form: str
) -> JobHistory:
    """The jobs for a changed cluster. A change is judged on the same jobs.

    Raises:
        BadHistory: a line that can be used before the change cannot be used after it.
    """
    after = _history(history, changed, known, form)
    if len(after.jobs) < len(before.jobs) and after.odd.count > before.odd.count and after.odd.first is not None:
        raise after.odd.first
    return after


def _compare_policies(
    found: JobHistory,
    spec: ClusterSpec,
    policy: list[str] | None,
    errors_: tuple[float, float],
    seeds: int,
    why: list[str] | None,
    *,
    fitted: bool,
) -> ClusterComparison:
    from bricolage.cluster.policy_comparison import compare_policies

    return compare_policies(
        found.jobs,
        spec,
        policy or ["all"],
        error=errors_[0],
        rate_error=errors_[1],
        fitted=fitted,
        seeds=seeds,
        why=why or (),
        history=found,
        told=lambda name: _log.info("replaying under %s", name),
    )


def _show(found: ClusterComparison, before: ClusterComparison | None, why: bool) -> None:
    from bricolage.cli import output
    from bricolage.report import words
    from bricolage.report.policies import notes, policy_table, rank_policies, span

    devices = ", ".join(f"{count} {kind}" for kind, count in found.devices.items())
    print(f"{words.count(found.jobs, 'job')} on {devices}")
    output.show_result(policy_table(found, before))
    for note in notes(found):
        output.note(note)
    for result in rank_policies(found) if why else ():
        for waited in result.waits:
            waits = waited.start_s > waited.submit_s
            line = f"{waited.job} under {result.outcome.policy}: submitted at {span(waited.submit_s)}, "
            line += f"started at {span(waited.start_s)}, ended at {span(waited.finish_s)}; "
            line += f"it waited for {waited.reason}" if waits else "it did not wait"
            print(errors.plain(line + (f". It would have started with {waited.change}" if waited.change else "")))
            if waited.expected is not None:
                start, end = (
                    f"{span(middle)} ({span(low)} to {span(high)})"
                    for middle, (low, high) in (
                        (waited.expected.start_s, waited.expected.start_interval_s),
                        (waited.expected.end_s, waited.expected.end_interval_s),
                    )
                )
                print(f"  predicted when it came: start at {start}, end at {end}")
