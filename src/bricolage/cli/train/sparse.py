"""`bricolage train sparse`: a sparse network whose rows are divided between processes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bricolage.cli import arguments as a
from bricolage.cli.guard import guard_command

Files = Annotated[
    list[Path],
    typer.Argument(
        metavar="MODEL|MATRIX...|DIR",
        help="An ONNX model, a matrix (.mtx, .npz) for each layer, or the folder of a plan.",
        show_default=False,
    ),
]


@guard_command
def sparse(
    files: Files,
    processes: Annotated[
        int | None,
        typer.Option(
            "--processes", metavar="N", min=2, max=4096, help="That divide the rows; default: 2, or the plan's."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="A folder for the plan.", show_default=False)
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            "--method", metavar="WORD", help="Of dividing rows: hypergraph, alternate, blocks, residues or random."
        ),
    ] = "hypergraph",
    inputs: Annotated[
        str, typer.Option("--inputs", metavar="WORD", help="Who has the network's inputs: blocks or residues.")
    ] = "blocks",
    depth: Annotated[
        int,
        typer.Option("--depth", metavar="N", min=1, max=64, help="Layers that may follow one exchange, at most."),
    ] = 2,
    ahead: Annotated[
        int,
        typer.Option("--ahead", metavar="N", min=0, max=64, help="Further layers that a hypergraph looks at."),
    ] = 0,
    epsilon: Annotated[
        float,
        typer.Option(
            "--epsilon", metavar="SHARE", min=0.0, max=1.0, help="Excess of the heaviest process, by hypergraph."
        ),
    ] = 0.03,
    activation: Annotated[
        str, typer.Option("--activation", metavar="WORD", help="Behind each matrix: relu, tanh, sigmoid or none.")
    ] = "relu",
    repeat: Annotated[
        int, typer.Option("--repeat", metavar="N", min=1, max=10_000, help="Times that the layers follow one another.")
    ] = 1,
    samples: Annotated[
        int, typer.Option("--samples", metavar="N", min=1, max=1 << 20, help="That go through at once.")
    ] = 16,
    threads: Annotated[
        int | None,
        typer.Option(
            "--threads", metavar="N", min=1, help="Threads of each process; default: cores divided by processes."
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", help="Of random rows, of hypergraphs and of samples.")
    ] = 0,
    run: Annotated[bool, typer.Option("--run/--no-run", help="Run the plan on processes, and check it.")] = True,
    as_json: a.Json = False,
) -> None:
    """Divide the rows of a sparse network between processes, so that little is sent, and run it.

    Printed are words and messages of the partition and of others, by layer and in total; then what a run sent, its error to one
    process in float64, and its times. Messages and bytes that differ from those predicted are an error.
    """
    from bricolage.api.train_sparse import (
        is_sparse_plan,
        make_sparse_options,
        plan_sparse,
        read_sparse_plan,
        run_sparse,
        write_sparse_plan,
    )
    from bricolage.cli import output
    from bricolage.errors import BadOption, NotWritable
    from bricolage.report.sparse_exchange import sparse_json, sparse_parts

    stored = is_sparse_plan(files)
    if out is not None:
        output.make_folder(out)
        output.check_writable(out / "network.npz")
    with output.stdout_kept():
        if stored:
            plan = read_sparse_plan(files[0])
            if processes not in (None, plan.processes):
                advice = f"The plan is for {plan.processes}; make another from its model or matrices"
                raise BadOption(option="--processes", value=processes, advice=advice)
        else:
            options = make_sparse_options(
                processes=processes or 2,
                method=method,
                inputs=inputs,
                depth=depth,
                ahead=ahead,
                epsilon=epsilon,
                seed=seed,
            )
            plan = plan_sparse(files, options, activation=activation, repeat=repeat)
        folder = files[0] if stored else out
        if out is not None:
            try:
                write_sparse_plan(plan, out)
            except OSError as error:
                raise NotWritable(path=out, reason=error.strerror or error) from error
        outcome = run_sparse(plan, folder, samples=samples, threads=threads) if run else None
    if as_json:
        output.show_json(sparse_json(plan, outcome))
        return
    output.show_parts(sparse_parts(plan, outcome))
    if out is not None:
        output.note(f"wrote the plan to {out}")
