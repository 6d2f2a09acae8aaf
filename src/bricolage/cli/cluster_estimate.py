"""`bricolage cluster estimate`: what a job would do on each kind and number of devices, or how long it will take."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bricolage import errors
from bricolage.cli import arguments as a
from bricolage.cli.guard import guard_command

if TYPE_CHECKING:
    from bricolage.cluster.machines import ClusterSpec
    from bricolage.cluster.run_times import RunTime
    from bricolage.train.predict.job_rates import JobOnDevices


@guard_command
def estimate(
    cluster: Annotated[
        Path, typer.Option("--cluster", metavar="FILE", help="The cluster as TOML or JSON.", show_default=False)
    ],
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
    from bricolage.cluster.machines import read_cluster

    if (step is None) == (history is None):
        raise errors.BadOption(option="STEP", value="", advice="Give a training step, or --history; not both")
    if out is not None and (step is None or not name):
        raise errors.BadOption(option="--output", value=out, advice="Give STEP, and the kind of job with --name")
    spec = read_cluster(cluster)
    if history is not None:
        _show_length(_length(history, spec, user, name, devices), as_json)
        return
    assert step is not None
    _show_step(
        step, spec, measured=measured, known=known, most=most, seconds=seconds, out=out, name=name, as_json=as_json
    )


def _show_step(
    step: Path, spec: ClusterSpec, measured: list[str] | None, known: Path | None, most: int, seconds: float,
    out: Path | None, name: str, as_json: bool,
) -> None:  # fmt: skip
    from bricolage.api.job_estimates import estimate_job
    from bricolage.cli import output, progress_bars

    output.check_writable(out)
    with output.stdout_kept(), progress_bars.show_progress() as shown:
        estimates = estimate_job(
            step, spec, measured=_rates(measured), known=known, most=most, seconds=seconds, progress=shown
        )
    if out is not None:
        _write(out, name, estimates)
    if as_json:
        from bricolage.base.codec import encode

        output.show_json(encode(tuple(estimates)))
        return
    _show(estimates)


def _write(path: Path, name: str, found: list[JobOnDevices]) -> None:
    from bricolage.cli import output
    from bricolage.cluster.history.rates import PredictedRate, write_rates

    rows = [
        PredictedRate(
            estimate.kind,
            estimate.devices,
            (estimate.steps_per_s, 1e3 / estimate.step.high_ms, 1e3 / estimate.step.low_ms),
        )
        for estimate in found
        if estimate.step is not None and estimate.fits
    ]
    if not rows:
        raise errors.BadOption(
            option="--output", value=path, advice="Nothing is known of the job on any kind of device"
        )
    try:
        write_rates(path, name, rows)
    except OSError as error:
        raise errors.NotWritable(path=path, reason=error.strerror or error) from error
    output.note(f"wrote {len(rows)} rates of '{name}' to {path}; `cluster replay --rates` reads them")


def _length(history: Path, spec: ClusterSpec, user: str, name: str, devices: int) -> RunTime:
    from bricolage.cli import output
    from bricolage.cluster.estimates import Rolling
    from bricolage.cluster.history.read import read_history
    from bricolage.cluster.run_times import run_time

    rolling = Rolling()
    # Jobs that ended may have been larger than what is there now.
    large = tuple(replace(group, nodes=1 << 10, devices=1 << 12, cpus=None, host_gb=None) for group in spec.group)
    once = replace(spec, group=large, failure=())
    past = read_history(history, once)
    for job in (*past.jobs, *past.unfinished):
        rolling.learn_from(job, job.kinds[0])
    for reason, count in past.no_lengths().items():
        output.note(f"{count} {reason}: no run time is learnt from them")
    return run_time(rolling, user, name, devices, 0.0, math.inf)


def _rates(words: list[str] | None) -> dict[str, float]:
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


def _show_length(found: RunTime, as_json: bool) -> None:
    from bricolage.base.codec import encode
    from bricolage.cli import output
    from bricolage.report import words
    from bricolage.report.policies import span

    if as_json:
        output.show_json(encode(found))
        return
    low, high = (span(seconds) for seconds in found.interval_s)
    alike = "all users, since its user has none" if found.likeness == "nothing" else f"the same {found.likeness}"
    print(f"{span(found.seconds)}, the mean of {words.count(found.all_runs, 'job')} of {alike}")
    print(f"Eight of ten of them took between {low} and {high}")
    if found.cut_runs:
        output.note(
            f"{words.count(found.cut_runs, 'run')} of this user and name did not complete, and took as long at least"
        )


def _show(found: list[JobOnDevices]) -> None:
    from bricolage.cli import output
    from bricolage.report import words
    from bricolage.report.tables import plain_table

    heads = [("Kind", "left"), ("Devices", "right"), ("Steps/s", "right"), ("between", "left"), ("Samples/s", "right")]
    heads += [("Memory", "right"), ("Cost", "right"), ("From", "left")]
    rows = []
    for estimate in found:
        if estimate.step is None:
            rows.append([estimate.kind, str(estimate.devices), *[words.MISSING] * 6])
            continue
        low, high = 1e3 / estimate.step.high_ms, 1e3 / estimate.step.low_ms
        size = words.size(estimate.peak_bytes) if estimate.peak_bytes else words.MISSING
        memory = size if estimate.fits else f"{size}!"
        rates = f"{estimate.steps_per_s:.3g}", f"{low:.3g}–{high:.3g}", f"{estimate.samples_per_s:,.0f}"
        rows.append(
            [
                estimate.kind,
                str(estimate.devices),
                *rates,
                memory,
                f"{estimate.cost_per_1000_steps:.3g}",
                estimate.step.source,
            ]
        )
    output.show_result(plain_table(heads, rows))
    output.note("Cost: of a thousand steps, device-hours times price.")
    for reason in dict.fromkeys(f"{estimate.kind}: {estimate.reason}" for estimate in found if estimate.reason):
        output.note(reason)
    if any(estimate.step is not None and not estimate.fits for estimate in found):
        output.note("!: more than a device's memory; `train predict --memory` says what to recompute.")
