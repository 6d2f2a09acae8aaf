"""`bricolage train sparse`: a sparse network whose rows are divided between processes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bricolage.cli import arguments as a
from bricolage.cli.guard import guard_command

Network = Annotated[
    list[Path],
    typer.Argument(
        metavar="NETWORK",
        help="An ONNX model, a matrix (.mtx, .npz) for each layer, or the folder of a plan.",
        show_default=False,
    ),
]
Processes = Annotated[
    int | None,
    typer.Option("--processes", metavar="N", min=2, max=4096, help="That divide the rows; default: 2, or the plan's."),
]
Folder = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="DIR", help="A folder for the plan.", show_default=False)
]
Method = Annotated[
    str,
    typer.Option(
        "--method", metavar="WORD", help="Of dividing rows: hypergraph, alternate, blocks, residues or random."
    ),
]
Holders = Annotated[
    str, typer.Option("--inputs", metavar="WORD", help="Who has the network's inputs: blocks or residues.")
]
Depth = Annotated[
    int, typer.Option("--depth", metavar="N", min=1, max=64, help="Layers that may follow one exchange, at most.")
]
Ahead = Annotated[
    int, typer.Option("--ahead", metavar="N", min=0, max=64, help="Further layers that a hypergraph looks at.")
]
Epsilon = Annotated[
    float,
    typer.Option("--epsilon", metavar="SHARE", min=0.0, max=1.0, help="Excess of the heaviest process, by hypergraph."),
]
Function = Annotated[
    str, typer.Option("--activation", metavar="WORD", help="Behind each matrix: relu, tanh, sigmoid or none.")
]
Repeat = Annotated[
    int, typer.Option("--repeat", metavar="N", min=1, max=10_000, help="Times that the layers follow one another.")
]
Samples = Annotated[int, typer.Option("--samples", metavar="N", min=1, max=1 << 20, help="That go through at once.")]
Threads = Annotated[
    int | None,
    typer.Option("--threads", metavar="N", min=1, help="Threads of each process; default: cores divided by processes."),
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Of random rows, of hypergraphs and of samples.")]
Run = Annotated[bool, typer.Option("--run/--no-run", help="Run the plan on processes, and check it.")]


@guard_command
def sparse(
    network: Network,
    processes: Processes = None,
    out: Folder = None,
    method: Method = "hypergraph",
    inputs: Holders = "blocks",
    depth: Depth = 2,
    ahead: Ahead = 0,
    epsilon: Epsilon = 0.03,
    activation: Function = "relu",
    repeat: Repeat = 1,
    samples: Samples = 16,
    threads: Threads = None,
    seed: Seed = 0,
    run: Run = True,
    as_json: a.Json = False,
) -> None:
    """Divide the rows of a sparse network between processes, so that little is sent, and run it.

    Printed are words and messages of the partition and of others, by layer and in total; then what a run sent, its error to one
    process in float64, and its times. Messages and bytes that differ from those predicted are an error.
    """
    from bricolage.api.train_sparse import is_sparse_plan, make_sparse_options, open_sparse, plan_sparse, run_sparse
    from bricolage.cli import output
    from bricolage.report.sparse_exchange import sparse_json, sparse_parts

    stored = is_sparse_plan(network)
    if out is not None:
        output.make_folder(out)
        output.check_writable(out / "network.npz")
    with output.stdout_kept():
        if stored:
            plan = open_sparse(network[0], processes)
        else:
            values = {
                "method": method,
                "inputs": inputs,
                "depth": depth,
                "ahead": ahead,
                "epsilon": epsilon,
                "seed": seed,
            }
            options = make_sparse_options(processes=processes or 2, **values)
            plan = plan_sparse(network, options, activation=activation, repeat=repeat)
        if out is not None:
            plan.write(out)
        folder = network[0] if stored else out
        outcome = run_sparse(plan, folder, samples=samples, threads=threads) if run else None
    if as_json:
        output.show_json(sparse_json(plan, outcome))
        return
    output.show_parts(sparse_parts(plan, outcome))
    if out is not None:
        output.note(f"wrote the plan to {out}")
