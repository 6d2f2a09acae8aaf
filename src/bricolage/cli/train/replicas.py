"""`bricolage train replicas`: one model trained by several workers, kept in step by one of several methods."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bricolage.cli import arguments as a
from bricolage.cli.guard import guard_command
from bricolage.errors import BadOption

Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        metavar="KIND",
        help="Instead of the file's methods: allreduce, bsp, asp, ssp, easgd, adpsgd, "
        "gosgd, local, postlocal. May be given several times.",
    ),
]


Spec = Annotated[
    Path, typer.Argument(metavar="SPEC", help="Training by replicas, as TOML or JSON.", show_default=False)
]
Out = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="DIR", help="A folder for the weights: METHOD.pt for each method."),
]
Workers = Annotated[int | None, typer.Option("--workers", metavar="N", min=1, max=64, help="Instead of the file's.")]
Threads = Annotated[
    int | None,
    typer.Option("--threads", metavar="N", min=1, help="Threads of each worker; default: cores divided by workers."),
]
Seeds = Annotated[
    int, typer.Option("--seeds", metavar="N", min=1, max=100, help="Runs of each method, with different seeds.")
]
Straggler = Annotated[
    float | None,
    typer.Option("--straggler", metavar="MS", min=0.0, help="Delay added to each step of the last worker."),
]
ToLoss = Annotated[
    float | None,
    typer.Option("--to-loss", metavar="LOSS", help="Also print when each method had this held-out loss."),
]
Simulate = Annotated[
    bool,
    typer.Option(
        "--simulate", help="Compute all workers in one process, and simulate the time that they take; for many workers."
    ),
]
Bandwidth = Annotated[
    float | None,
    typer.Option(
        "--bandwidth",
        metavar="GB/S",
        min=1e-6,
        max=1e9,
        help="With --simulate: of each worker's link; workers have cores of their own. Default: this machine, measured.",
    ),
]
Latency = Annotated[
    float | None,
    typer.Option("--latency", metavar="US", min=0.0, max=1e9, help="With --bandwidth: of a message; default: 0."),
]
StepMs = Annotated[
    float | None,
    typer.Option(
        "--step-ms",
        metavar="MS",
        min=1e-6,
        max=1e9,
        help="With --simulate: of a worker's forward and backward phase; default: as measured here.",
    ),
]


@guard_command
def replicas(
    spec: Spec,
    out: Out = None,
    method: Methods = None,
    workers: Workers = None,
    threads: Threads = None,
    seeds: Seeds = 1,
    straggler: Straggler = None,
    to_loss: ToLoss = None,
    simulate: Simulate = False,
    bandwidth: Bandwidth = None,
    latency: Latency = None,
    step_ms: StepMs = None,
    as_json: a.Json = False,
) -> None:
    """Train one model on several workers, by one method or by several to compare.

    SPEC names a training step, the data, how many workers, and methods. Printed are accuracy, time, samples/s and bytes sent, and
    accuracy by the time at which the fastest was done. Running it runs the Python that SPEC names. With --simulate losses are
    computed, and seconds simulated.
    """
    from bricolage.api.train_replicas import open_machines, open_replicas, train_methods
    from bricolage.base.codec import encode
    from bricolage.cli import output, progress_bars
    from bricolage.report.training_tables import means_note, replica_parts

    replica_spec = open_replicas(spec, methods=method, workers=workers, straggler_ms=straggler)
    if out is not None:
        output.make_folder(out)
        output.check_writable(out / "method.pt")
    for option, number in (("--bandwidth", bandwidth), ("--latency", latency), ("--step-ms", step_ms)):
        if number is not None and not simulate:
            raise BadOption(option=option, value=f"{number:g}", advice="It describes a simulation: add --simulate")
    done = []
    with output.stdout_kept(), progress_bars.show_progress() as shown:
        machines = None
        if simulate:
            machines = open_machines(
                replica_spec, gbytes=bandwidth, latency_us=latency, step_ms=step_ms, threads=threads
            )
        for trained in train_methods(replica_spec, threads=threads, seeds=seeds, progress=shown, machines=machines):
            done.append(trained.report)
            if out is not None and trained.report.seed == replica_spec.step.seed:
                output.write_file(out / f"{trained.report.method.label}.pt", trained.save)
    if note := means_note(done, replica_spec.workers):
        output.note(note)
    if as_json:
        output.show_json([{**encode(outcome), "samples_s": outcome.samples_s} for outcome in done])
        return
    output.show_parts(replica_parts(done, replica_spec.workers, to_loss))
    if out is not None:
        output.note(f"wrote the weights of {len(replica_spec.methods)} methods to {out}")
