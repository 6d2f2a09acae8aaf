"""`bricolage run` and `bricolage bench`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bricolage.base.options import Options
from bricolage.cli import arguments as a
from bricolage.cli.guard import guard_command

if TYPE_CHECKING:
    from bricolage.api.result_types import Plan

Data = Annotated[
    Path, typer.Option("--input", metavar="FILE", help="Inputs (.npz), by input name.", show_default=False)
]
Output = Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Outputs (.npz), by output name.")]
Trace = Annotated[
    Path | None,
    typer.Option(
        "--trace", metavar="FILE", help="Run twice, and write when each region ran and where (Chrome, Perfetto)."
    ),
]
Requests = Annotated[
    int,
    typer.Option(
        "--requests", metavar="N", help="Number of requests to serve; prints rate, latency and errors.", min=0
    ),
]
Concurrency = Annotated[int, typer.Option("--concurrency", metavar="N", help="Requests in flight at once.", min=1)]
Point = Annotated[
    str | None,
    typer.Option(
        "--operating-point",
        metavar="FIELDS",
        help="Operating point: streams=2,threads=1,batch=8,max_delay_ms=2,queue=64. Default: the plan's.",
    ),
]
AnyMachine = Annotated[
    bool, typer.Option("--any-machine", help="Run an artifact that was made on other hardware or versions.")
]


@guard_command
def run(
    artifact: a.Artifact,
    data: Data,
    out: Output = None,
    trace: Trace = None,
    requests: Requests = 0,
    concurrency: Concurrency = 8,
    point: Point = None,
    any_machine: AnyMachine = False,
    target: a.Target = "",
    as_json: a.Json = False,
) -> None:
    """Run ARTIFACT, or the plan of a pack for this machine, once on the given inputs, or serve requests with them."""
    from bricolage.api.array_files import load_arrays
    from bricolage.api.run_artifact import RunRequest, answer_inputs
    from bricolage.cli import output
    from bricolage.report.run_results import run_json, run_parts, run_trace

    request = RunRequest(trace is not None, requests, concurrency, point)
    inputs = load_arrays(data)
    output.check_writable(out, trace)
    with output.stdout_kept():
        outcome = answer_inputs(
            artifact,
            inputs,
            request,
            any_machine=any_machine,
            target=target,
            chosen=lambda choice: output.note(f"plan '{choice.entry.target.name}', {choice.because}"),
        )
    if out is not None:
        output.write_arrays(out, outcome.outputs)
        output.note(f"wrote {out}")
    if trace is not None and outcome.traced is not None:
        output.write_text(trace, json.dumps(run_trace(outcome)))
        regions = len(outcome.traced.spans)
        output.note(f"wrote {trace}: {regions} regions; open it at https://ui.perfetto.dev or about:tracing")
    if as_json:
        output.show_json(run_json(outcome))
    else:
        output.show_parts(run_parts(outcome))


@guard_command
@a.decision_options()
def bench(
    model: a.ModelOrArtifact,
    data: a.Inputs = None,
    rival: Annotated[
        list[Path] | None,
        typer.Option(
            "--rival", metavar="ARTIFACT", help="Another artifact of the same model, to race too. Repeatable."
        ),
    ] = None,
    target: a.Target = "",
    as_json: a.Json = False,
    *,
    options: Options,
) -> None:
    """Race all backends on MODEL, with intervals and accuracy; of an artifact, its plan takes part.

    Of a pack each plan races by itself, with its target's threads, instructions, precision and memory, or that of --target alone.
    """
    from bricolage.api.bench import bench as race
    from bricolage.api.bench import planned_targets
    from bricolage.cli import crash, output, progress_bars

    options, inputs = a.open_options(model, data, options)
    raced: dict[str, Plan] = {}
    given = planned_targets(model, target, options)
    with output.stdout_kept(), progress_bars.show_progress() as shown:
        for name, target_options in given.items():
            raced[name] = race(model, target_options, inputs=inputs, rivals=rival or (), progress=shown, target=name)
            crash.remember(raced[name])
    if as_json:
        from bricolage.report.summary import summary

        summaries = [({"target": name} if name else {}) | summary(plan) for name, plan in raced.items()]
        output.show_json(summaries[0] if "" in raced else {"targets": summaries})
        return
    from bricolage.report.run_results import race_parts
    from bricolage.report.tables import plain_text

    for name, plan in raced.items():
        if name:
            output.show_result(plain_text(f"target '{name}'", "bold"))
        output.show_parts(race_parts(plan, output.console().width))
