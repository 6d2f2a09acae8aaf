"""`bricolage cluster estimate`: what a job would do on each kind and number of devices, or how long it will take."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bricolage import errors
from bricolage.cli import arguments as a
from bricolage.cli.cluster_arguments import Machines
from bricolage.cli.guard import guard_command

if TYPE_CHECKING:
    from bricolage.api.job_estimates import JobOnDevices
    from bricolage.api.job_prospects import RunTime


@guard_command
def estimate(
    cluster: Machines,
    step: Annotated[
        Path | None, typer.Argument(metavar="[STEP]", help="A training step as TOML or JSON.", show_default=False)
    ] = None,
    measured: Annotated[
        list[str] | None,
        typer.Option(
            "--measured", metavar="KIND=RATE", help="Steps a second that it made on one device of a kind. Repeatable."
        ),
    ] = None,
    known: Annotated[
        Path | None, typer.Option("--known", metavar="FILE", help="Other jobs: their steps, and rates on kinds.")
    ] = None,
    most: Annotated[int, typer.Option("--most", metavar="N", min=1, max=4096, help="Devices at most.")] = 8,
    history: Annotated[
        Path | None, typer.Option("--history", metavar="FILE", help="Without STEP: jobs that ended, as `replay` reads.")
    ] = None,
    user: Annotated[str, typer.Option("--user", metavar="NAME", help="Whose job it is, with --history.")] = "",
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="Its name, with --history; its kind, with -o.")
    ] = "",
    devices: Annotated[int, typer.Option("--devices", metavar="N", min=1, help="Its gang, with --history.")] = 1,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="S", min=0.1, help="Seconds for the profile of the step.")
    ] = 4.0,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write the rates as a table for --rates, under --name."),
    ] = None,
    as_json: a.Json = False,
) -> None:
    """Say what a job would do on each kind and number of devices.

    With STEP, its operators are timed here for some seconds and priced on each kind of device that the cluster's file
    describes (gflops, gbytes; link_gbytes, network_gbytes between devices). With --history, its length comes from what
    jobs of this user, name and size took. Running STEP runs the Python that it names.
    """
    if (step is None) == (history is None):
        raise errors.BadOption(option="STEP", value="", advice="Give a training step, or --history; not both")
    if out is not None and (step is None or not name):
        raise errors.BadOption(option="--output", value=out, advice="Give STEP, and the kind of job with --name")
    if history is not None:
        from bricolage.api.job_prospects import estimate_run_time
        from bricolage.cli import output

        _show_run_time(estimate_run_time(history, cluster, user, name, devices, note=output.note), as_json)
        return
    assert step is not None
    estimates = _estimate_step(step, cluster, measured, known, most, seconds, out)
    if out is not None:
        _write(out, name, estimates)
    _show_estimates(estimates, as_json)


def _estimate_step(
    step: Path, cluster: Path, measured: list[str] | None, known: Path | None, most: int, seconds: float,
    out: Path | None,
) -> list[JobOnDevices]:  # fmt: skip
    from bricolage.api.job_estimates import estimate_job, read_cluster
    from bricolage.cli import output, progress_bars

    spec = read_cluster(cluster)
    output.check_writable(out)
    with output.stdout_kept(), progress_bars.show_progress() as shown:
        return estimate_job(
            step, spec, measured=_parse_rates(measured), known=known, most=most, seconds=seconds, progress=shown
        )


def _write(path: Path, name: str, estimates: list[JobOnDevices]) -> None:
    from bricolage.api.job_estimates import write_estimated_rates
    from bricolage.cli import output

    count = write_estimated_rates(path, name, estimates)
    output.note(f"wrote {count} rates of '{name}' to {path}; `cluster replay --rates` reads them")


def _parse_rates(words: list[str] | None) -> dict[str, float]:
    rates = {}
    for word in words or ():
        kind, _, rate = word.rpartition("=")
        try:
            value = float(rate)
            if not kind or not 0.0 < value < 1e9:
                raise ValueError(word)
        except ValueError:
            raise errors.BadOption(option="--measured", value=word, advice="Write KIND=RATE, as in v100=12.5") from None
        rates[kind] = value
    return rates


def _show_run_time(time: RunTime, as_json: bool) -> None:
    from bricolage.base.codec import encode
    from bricolage.cli import output
    from bricolage.report.job_forecasts import run_time_notes, run_time_sentences

    if as_json:
        output.show_json(encode(time))
        return
    for sentence in run_time_sentences(time):
        output.show_text(sentence)
    for note in run_time_notes(time):
        output.note(note)


def _show_estimates(estimates: list[JobOnDevices], as_json: bool) -> None:
    from bricolage.base.codec import encode
    from bricolage.cli import output
    from bricolage.report.job_forecasts import estimate_notes, estimate_table

    if as_json:
        output.show_json(encode(tuple(estimates)))
        return
    output.show_result(estimate_table(estimates))
    for note in estimate_notes(estimates):
        output.note(note)
