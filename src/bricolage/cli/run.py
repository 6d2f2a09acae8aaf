"""`bricolage run` and `bricolage bench`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bricolage.cli import arguments as a
from bricolage.cli.guard import guarded
from bricolage.options import Options

if TYPE_CHECKING:
    from collections.abc import Mapping


@guarded
def run(
    artifact: a.Artifact,
    data: Annotated[
        Path, typer.Option("--input", metavar="FILE", help="Inputs (.npz), by input name.", show_default=False)
    ],
    out: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Outputs (.npz), by output name.")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace", metavar="FILE", help="Run twice, and write when each region ran and where (Chrome, Perfetto)."
        ),
    ] = None,
    any_machine: Annotated[
        bool, typer.Option("--any-machine", help="Run an artifact from other hardware or versions all the same.")
    ] = False,
    as_json: a.Json = False,
) -> None:
    """Run ARTIFACT once on the inputs given."""
    from bricolage.cli import output, values

    inputs = values.read_arrays(data)
    output.check_writable(out, trace)
    with output.stdout_kept():
        from bricolage.runtime.load import load

        executable = load(artifact, any_machine=any_machine)
        results: Mapping[str, Any] = executable.run(inputs)
        traced = executable.trace(inputs) if trace is not None else None  # of the second run: the first one warms up
    if out is not None:
        values.write_arrays(out, results)
        output.note(f"wrote {out}")
    if trace is not None and traced is not None:
        from bricolage.report.trace import chrome_trace

        plan = executable.plan
        bucket = None if traced.bucket is None else plan.buckets[traced.bucket]
        output.write_text(trace, json.dumps(chrome_trace(plan.model, bucket, traced.spans)))
        output.note(f"wrote {trace}: {len(traced.spans)} regions; open it at https://ui.perfetto.dev or about:tracing")
    if as_json:
        output.show_json({"outputs": {name: _describe(array) for name, array in results.items()}})
    else:
        _table(results)


@guarded
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
    as_json: a.Json = False,
    *,
    options: Options,
) -> None:
    """Race every backend on MODEL side by side, with intervals and a Match column; an artifact's plan takes part."""
    from bricolage.cli import crash, output, progress

    options, inputs = a.opened(model, data, options)
    with output.stdout_kept(), progress.shown() as shown:
        from bricolage.api.bench import bench as race

        plan = race(model, options, inputs=inputs, rivals=rival or (), progress=shown)
        crash.remember(plan)
    if as_json:
        from bricolage.report.summary import summary

        output.show_json(summary(plan))
    else:
        from bricolage.report.tables import result

        output.show(result(plan, output.console().width, ships=False))


def _describe(array: Any) -> dict[str, Any]:
    """Type, shape and, for numbers, range and mean."""
    import numpy as np

    if not isinstance(array, np.ndarray):
        return {"type": type(array).__name__, "length": len(array)}
    facts: dict[str, Any] = {"type": array.dtype.name, "shape": list(array.shape)}
    if array.size and array.dtype.kind in "fiubV":
        wide = array.astype(np.float64)
        facts |= {"min": float(wide.min()), "max": float(wide.max()), "mean": float(wide.mean())}
    return facts


def _table(results: Mapping[str, Any]) -> None:
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
    output.show(plain_table(heads, rows))
