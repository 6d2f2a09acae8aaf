"""`bricolage train replicas`: one model trained by several workers, kept in step by one of several methods."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bricolage.cli import arguments as a
from bricolage.cli.guard import guard_command

Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        metavar="KIND",
        help="Instead of the file's methods: allreduce, bsp, asp, ssp, easgd, adpsgd, "
        "gosgd, local, postlocal. May be given several times.",
    ),
]


@guard_command
def replicas(
    spec: Annotated[
        Path, typer.Argument(metavar="SPEC", help="Training by replicas, as TOML or JSON.", show_default=False)
    ],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="A folder for the weights: METHOD.pt for each method."),
    ] = None,
    method: Methods = None,
    workers: Annotated[
        int | None, typer.Option("--workers", metavar="N", min=1, max=64, help="Instead of the file's.")
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads", metavar="N", min=1, help="Threads of each worker; default: cores divided by workers."
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option("--seeds", metavar="N", min=1, max=100, help="Runs of each method, with different seeds.")
    ] = 1,
    straggler: Annotated[
        float | None,
        typer.Option("--straggler", metavar="MS", min=0.0, help="Delay added to each step of the last worker."),
    ] = None,
    as_json: a.Json = False,
) -> None:
    """Train one model on several workers, by one method or by several to compare.

    SPEC names a training step, the data, how many workers, and methods. Printed are accuracy, time, samples/s and bytes sent, and
    accuracy by the time at which the fastest was done. Running it runs the Python that SPEC names.
    """
    from bricolage.api.train_replicas import open_replicas, train_methods
    from bricolage.base.codec import encode
    from bricolage.cli import output, progress_bars
    from bricolage.report.training_tables import means_note, replica_parts

    replica_spec = open_replicas(spec, methods=method, workers=workers, straggler_ms=straggler)
    if out is not None:
        output.make_folder(out)
        output.check_writable(out / "method.pt")
    done = []
    with output.stdout_kept(), progress_bars.show_progress() as shown:
        for trained in train_methods(replica_spec, threads=threads, seeds=seeds, progress=shown):
            done.append(trained.report)
            if out is not None and trained.report.seed == replica_spec.step.seed:
                output.write_file(out / f"{trained.report.method.label}.pt", trained.save)
    if note := means_note(done, replica_spec.workers):
        output.note(note)
    if as_json:
        output.show_json([{**encode(outcome), "samples_s": outcome.samples_s} for outcome in done])
        return
    output.show_parts(replica_parts(done, replica_spec.workers))
    if out is not None:
        output.note(f"wrote the weights of {len(replica_spec.methods)} methods to {out}")
