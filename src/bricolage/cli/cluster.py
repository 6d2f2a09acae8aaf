"""`bricolage cluster`: what policies would have made of a cluster's jobs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bricolage.cli import arguments as a
from bricolage.cli import slurm
from bricolage.cli.cluster_arguments import History, Machines, Rates
from bricolage.cli.cluster_estimate import estimate
from bricolage.cli.cluster_outlook import outlook
from bricolage.cli.guard import guard_command
from bricolage.cli.kueue import kueue

if TYPE_CHECKING:
    from bricolage.api.cluster_replay import ClusterComparison

app = typer.Typer(
    no_args_is_help=True,
    help="Replay a cluster's jobs under other policies, or on other devices.",
    rich_markup_mode=None,
)
app.add_typer(slurm.app, name="slurm")
app.command()(kueue)

app.command()(estimate)
app.command()(outlook)

PolicyNames = Annotated[
    list[str] | None,
    typer.Option("--policy", metavar="NAME", help="all, or a policy's name. Repeatable; default: all."),
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
def catalogue(as_json: a.Json = False) -> None:
    """List the policies: what each does, and what its rule was written from."""
    from bricolage.api.cluster_replay import list_policies
    from bricolage.cli import output
    from bricolage.report.policies import catalogue_table, source_sentences

    policies = list_policies()
    if as_json:
        from bricolage.base.codec import encode

        output.show_json(encode(policies))
        return
    output.show_result(catalogue_table(policies))
    for sentence in source_sentences():
        output.show_text(sentence)


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
    from bricolage.api.cluster_replay import HistoryFiles, ReplayOptions, replay_history
    from bricolage.cli import output

    output.check_writable(out)
    compared = replay_history(
        HistoryFiles(history, rates, profiles, form),
        cluster,
        ReplayOptions(tuple(policy or ("all",)), error, rate_error, fitted, seeds),
        why=why or (),
        note=output.note,
    )
    if out is not None:
        _write_page(out, history, {"As it is": compared})
    if as_json:
        from bricolage.base.codec import encode

        output.show_json(encode(compared))
        return
    _show(compared)


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
    from bricolage.api.cluster_replay import ClusterChanges, HistoryFiles, ReplayOptions, replay_changed_history
    from bricolage.cli import output

    output.check_writable(out)
    compared = replay_changed_history(
        HistoryFiles(history, rates, profiles, form),
        cluster,
        ClusterChanges(tuple(add or ()), tuple(quota or ()), tuple(weight or ()), restart, round_),
        ReplayOptions(tuple(policy or ("all",)), error, rate_error, fitted, seeds),
        note=output.note,
    )
    if out is not None:
        _write_page(out, history, {"Changed": compared.after, "As it is": compared.before})
    if as_json:
        from bricolage.base.codec import encode

        output.show_json(encode(compared))
        return
    _show(compared.after, compared.before)


def _write_page(path: Path, history: Path, comparisons: dict[str, ClusterComparison]) -> None:
    from bricolage.cli import output
    from bricolage.report.policies import Whole, cluster_page

    wholes = [Whole(name, compared) for name, compared in comparisons.items()]
    output.write_text(path, cluster_page(wholes, history.name))
    output.note(f"wrote {path}")


def _show(compared: ClusterComparison, before: ClusterComparison | None = None) -> None:
    from bricolage.cli import output
    from bricolage.report.policies import comparison_heading, notes, policy_table, wait_sentences

    output.show_text(comparison_heading(compared))
    output.show_result(policy_table(compared, before))
    for note in notes(compared):
        output.note(note)
    for sentence in wait_sentences(compared):
        output.show_text(sentence)
