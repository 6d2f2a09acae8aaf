"""`bricolage run` and `bricolage bench`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bricolage.base.codec import encode
from bricolage.base.options import Options
from bricolage.cli import arguments as a
from bricolage.cli.guard import guard_command
from bricolage.errors import BadOption
from bricolage.plan.operating_point import OperatingPoint
from bricolage.work.values import ModelValue

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bricolage.api.serve import ServedRequests
    from bricolage.plan.plan import Plan

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
    from bricolage.cli import output, user_files

    chosen = None if point is None else OperatingPoint.parse(point)
    if chosen is not None and not requests:
        raise BadOption(option="--operating-point", value=point, advice="It is for requests: add --requests 200")
    inputs = user_files.load_arrays(data)
    output.check_writable(out, trace)
    with output.stdout_kept():
        from bricolage.api.serve import serve
        from bricolage.runtime.load import load

        executable = load(artifact, any_machine=any_machine, target=target)
        if executable.choice is not None:
            output.note(f"plan '{executable.choice.entry.target.name}', {executable.choice.because}")
        results: Mapping[str, ModelValue] = executable.run(inputs)
        traced = executable.trace(inputs) if trace is not None else None  # of the second run: the first one warms up
        served = serve(executable, inputs, requests, concurrency, chosen) if requests else None
    if out is not None:
        user_files.write_arrays(out, results)
        output.note(f"wrote {out}")
    if trace is not None and traced is not None:
        from bricolage.report.perfetto import chrome_trace

        plan = executable.plan
        bucket = None if traced.bucket is None else plan.buckets[traced.bucket]
        output.write_text(trace, json.dumps(chrome_trace(plan.model, bucket, traced.spans)))
        output.note(f"wrote {trace}: {len(traced.spans)} regions; open it at https://ui.perfetto.dev or about:tracing")
    if as_json:
        document: dict[str, Any] = {"outputs": {name: _describe(array) for name, array in results.items()}}
        if served is not None:
            document["served"] = {**encode(served), "requests_per_s": served.requests_per_s}
        output.show_json(document)
    else:
        _table(results)
        if served is not None:
            _show_serving(served)


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
    from bricolage.cli import crash, output, progress_bars

    options, inputs = a.open_options(model, data, options)
    given = _targets(model, target, options)
    raced: dict[str, Plan] = {}
    with output.stdout_kept(), progress_bars.show_progress() as shown:
        from bricolage.api.bench import bench as race

        for name, target_options in given.items():
            raced[name] = race(model, target_options, inputs=inputs, rivals=rival or (), progress=shown, target=name)
            crash.remember(raced[name])
    if as_json:
        from bricolage.report.summary import summary

        summaries = [({"target": name} if name else {}) | summary(plan) for name, plan in raced.items()]
        output.show_json(summaries[0] if "" in raced else {"targets": summaries})
        return
    from bricolage.report.tables import plain_text

    for name, plan in raced.items():
        if name:
            output.show_result(plain_text(f"target '{name}'", "bold"))
        _show_race(plan)


def _targets(model: Path, target: str, options: Options) -> dict[str, Options]:
    """The plans that race by their targets' names, each with what it was planned for; under the empty name what has no targets.

    Raises:
        NotPack: a target is named, and there is one plan.
    """
    from dataclasses import replace

    from bricolage.cli import user_files

    if not user_files.is_artifact(model):
        if target:
            raise BadOption(option="--target", value=target, advice="It is for packs")
        return {"": options}
    from bricolage.plan.artifact import plans

    targets = {}
    for name, plan in plans(model, target)[0].items():
        plan_options = plan.provenance.options
        there = replace(options, threads=plan_options.threads, isa=plan_options.isa)
        there = replace(there, precision=plan_options.precision, memory_limit_mb=plan_options.memory_limit_mb)
        targets[name] = there if name else options
    return targets


def _show_race(plan: Plan) -> None:
    from bricolage.cli import output
    from bricolage.report.operating_points import points_overview
    from bricolage.report.tables import header, result

    width = output.console().width
    if plan.throughput is not None:
        output.show_result(header(plan))
        output.show_result("")
        output.show_result(points_overview(plan.throughput, None, width, ships=False))
    else:
        output.show_result(result(plan, width, ships=False))


def _show_serving(served: ServedRequests) -> None:
    from bricolage.cli import output
    from bricolage.report.tables import plain_table, plain_text

    statistics = served.statistics
    each = statistics.rows / statistics.batches
    output.show_result(
        plain_text(f"{served.point}; {served.requests} requests, {served.concurrency} under way at a time")
    )
    output.show_result(
        plain_text(f"{served.requests_per_s:.4g} requests/s; {statistics.batches} runs of {each:.3g} rows on average")
    )
    heads = [("ms", "left"), ("Mean", "right"), ("p50", "right"), ("p99", "right"), ("Max", "right")]
    times = (("latency", statistics.latency), ("queueing", statistics.queueing), ("service", statistics.service))
    rows = [
        [name, *(f"{value:.3g}" for value in (quantiles.mean_ms, quantiles.p50_ms, quantiles.p99_ms, quantiles.max_ms))]
        for name, quantiles in times
    ]
    output.show_result(plain_table(heads, rows))


def _describe(array: ModelValue) -> dict[str, Any]:
    """Type, shape and, for numbers, range and mean."""
    import numpy as np

    if not isinstance(array, np.ndarray):
        return {"type": type(array).__name__, "length": len(array)}
    facts: dict[str, Any] = {"type": array.dtype.name, "shape": list(array.shape)}
    if array.size and array.dtype.kind in "fiubV":
        wide = array.astype(np.float64)
        facts |= {"min": float(wide.min()), "max": float(wide.max()), "mean": float(wide.mean())}
    return facts


def _table(results: Mapping[str, ModelValue]) -> None:
    from bricolage.cli import output
    from bricolage.report.tables import plain_table

    heads = [
        ("Output", "fold"),
        ("Type", "left"),
        ("Shape", "left"),
        ("Min", "right"),
        ("Max", "right"),
        ("Mean", "right"),
    ]
    rows = []
    for name, array in results.items():
        facts = _describe(array)
        shape = "x".join(map(str, facts["shape"])) or "scalar" if "shape" in facts else str(facts["length"])
        rows.append(
            [name, facts["type"], shape, *(f"{facts[k]:.6g}" if k in facts else "-" for k in ("min", "max", "mean"))]
        )
    output.show_result(plain_table(heads, rows))
