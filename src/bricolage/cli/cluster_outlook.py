"""`bricolage cluster outlook`: when the jobs that are there at a time will start and end, and why not sooner."""

from __future__ import annotations

from typing import Annotated

import typer

from bricolage.cli import arguments as a
from bricolage.cli.cluster_arguments import History, Machines, Rates
from bricolage.cli.guard import guard_command


@guard_command
def outlook(
    history: History,
    cluster: Machines,
    at: Annotated[
        float, typer.Option("--at", metavar="SECONDS", min=0.0, help="After the first submission.", show_default=False)
    ],
    policy: Annotated[str, typer.Option("--policy", metavar="NAME", help="Under which the cluster runs.")] = "easy",
    job: Annotated[
        list[str] | None, typer.Option("--job", metavar="NAME", help="Only this job. Repeatable; default: all there.")
    ] = None,
    rates: Rates = None,
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
    from bricolage.api.job_prospects import HistoryFiles, OutlookOptions, forecast_jobs
    from bricolage.cli import output
    from bricolage.report.job_forecasts import outlook_heading, outlook_sentences, outlook_table

    options = OutlookOptions(policy, tuple(job or ()), error, rate_error, draws)
    prospects = forecast_jobs(HistoryFiles(history, rates), cluster, at, options, note=output.note)
    if as_json:
        from bricolage.base.codec import encode

        output.show_json(encode(prospects))
        return
    output.show_text(outlook_heading(prospects, at))
    output.show_result(outlook_table(prospects, at))
    for sentence in outlook_sentences(prospects):
        output.show_text(sentence)
    output.note("Eight of ten futures that were drawn lie between the two times.")
