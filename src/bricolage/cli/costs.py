"""`bricolage costs`: the database of measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bricolage import errors
from bricolage.cli import arguments as a
from bricolage.cli.guard import guard_command

app = typer.Typer(
    no_args_is_help=True,
    help="List, exchange, prune and learn from the measurements that plans rest on.",
    rich_markup_mode=None,
)


@app.command("list")
@guard_command
def list_costs(
    backend: Annotated[str | None, typer.Option("--backend", metavar="NAME", help="Only this backend.")] = None,
    region: Annotated[str | None, typer.Option("--region", metavar="KEY", help="Only this region.")] = None,
    failures: Annotated[bool, typer.Option("--failures", help="Failures only, each with its reason.")] = False,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, help="Number of measurements to list, newest first.")
    ] = 50,
    as_json: a.Json = False,
) -> None:
    """List measurements, newest first."""
    from bricolage.api import cost_records
    from bricolage.base.codec import encode
    from bricolage.cli import output

    listed = cost_records.read_costs(backend, region, failures=failures, limit=limit)
    if as_json:
        output.show_json({"costs": encode(listed.entries), "more": listed.more})
        return
    from bricolage.report.cost_rows import costs_table

    output.show_result(costs_table(listed, failures=failures, width=output.console().width))
    if listed.more:
        output.note(f"there are more; --limit {limit * 10} shows them")


@app.command("export")
@guard_command
def export_costs(
    out: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="File to write; default: stdout.")
    ] = None,
    as_json: a.Json = False,
) -> None:
    """Write the measurements as lines of JSON, to be imported on a machine of the same device class."""
    del as_json  # lines of JSON are what it prints anyway
    from bricolage.api import cost_records
    from bricolage.cli import output

    output.check_writable(out)
    if out is None:
        for line in cost_records.export_costs():
            print(line)
        return
    lines = list(cost_records.export_costs())
    output.write_text(out, "".join(f"{line}\n" for line in lines))
    output.note(f"wrote {out}: {len(lines)} measurements")


@app.command("import")
@guard_command
def import_costs(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A file that `bricolage costs export` wrote.", show_default=False)
    ],
    as_json: a.Json = False,
) -> None:
    """Import measurements; of two of the same, the one with more samples is kept."""
    from bricolage.api import cost_records
    from bricolage.cli import output

    done = cost_records.import_costs(file)
    for number, reason in done.bad[:10]:
        output.note(f"line {number} was left out: {reason}")
    if done.bad and not (done.added or done.improved or done.kept):
        raise errors.BadOption(option="FILE", value=file, advice="Give a file that `bricolage costs export` wrote")
    if as_json:
        output.show_json({"added": done.added, "improved": done.improved, "kept": done.kept, "bad": len(done.bad)})
        return
    print(f"{done.added} added, {done.improved} improved, {done.kept} known already, {len(done.bad)} left out")


@app.command("prune")
@guard_command
def prune_costs(
    older_than: Annotated[
        float | None, typer.Option("--older-than", metavar="DAYS", min=0, help="Include older measurements.")
    ] = None,
    other_versions: Annotated[
        bool, typer.Option("--other-versions", help="Include measurements of versions that are not installed.")
    ] = False,
    other_hardware: Annotated[
        bool, typer.Option("--other-hardware", help="Include measurements from other machines.")
    ] = False,
    failures: Annotated[
        bool, typer.Option("--failures", help="Also every failure, so that it is tried again.")
    ] = False,
    as_json: a.Json = False,
) -> None:
    """Remove expired failures, measurements of older formats, and those that the options name."""
    from bricolage.api import cost_records
    from bricolage.cli import output

    removed = cost_records.prune_costs(
        older_than, other_versions=other_versions, other_hardware=other_hardware, failures=failures
    )
    if as_json:
        output.show_json({"removed": removed})
        return
    print(f"{removed} removed")


@app.command("train")
@guard_command
def train_model(
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="A file of JSON; by default the model that decisions use from now on.",
        ),
    ] = None,
    as_json: a.Json = False,
) -> None:
    """Train the cost model on the stored measurements, and report its error on networks that it has not seen."""
    from bricolage.api.cost_model import place_of_model, to_json, train_on_records
    from bricolage.cli import output
    from bricolage.report.cost_rows import model_errors, trained_json

    out = place_of_model(out)
    output.check_writable(out)
    trained = train_on_records()
    output.write_text(out, to_json(trained.model))
    if as_json:
        output.show_json(trained_json(trained, out))
        return
    output.show_result(model_errors(trained))
    output.note(f"wrote {out}: trained on {trained.samples} measurements of {trained.networks} networks")
