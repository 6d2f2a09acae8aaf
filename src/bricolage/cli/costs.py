"""`bricolage costs`: the database of measurements."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bricolage import errors
from bricolage.cli import arguments as a
from bricolage.cli.guard import guard_command

if TYPE_CHECKING:
    from bricolage.api.cost_model import TrainedCostModel
    from bricolage.costs.entries import Entry

app = typer.Typer(
    no_args_is_help=True,
    help="List, exchange, prune and learn from the measurements that plans rest on.",
    rich_markup_mode=None,
)
_DAY = 86400.0


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
    from bricolage.cli import output
    from bricolage.costs.database import Database

    with Database() as database:
        entries = list(itertools.islice(database.entries(backend, region, failures), limit + 1))
    more, entries = len(entries) > limit, entries[:limit]
    if as_json:
        from bricolage.base.codec import encode

        output.show_json({"costs": [encode(entry) for entry in entries], "more": more})
        return
    _show(entries, failures)
    if more:
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
    from bricolage.cli import output
    from bricolage.costs.database import Database

    output.check_writable(out)
    with Database() as database:
        if out is None:
            for line in database.export_lines():
                print(line)
            return
        lines = list(database.export_lines())
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
    from bricolage.cli import output
    from bricolage.costs.database import Database

    if not file.is_file():
        raise errors.MissingFile(path=file)
    with file.open(errors="replace", encoding="utf-8") as lines, Database() as database:
        done = database.import_lines(lines)
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
    from bricolage.cli import output
    from bricolage.costs.database import Database
    from bricolage.device.host import host

    with Database() as database:
        removed = database.prune(
            older_than_s=None if older_than is None else older_than * _DAY,
            versions=_read_installed_versions() if other_versions else None,
            device=host().fingerprint() if other_hardware else None,
            failures=failures,
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
    from bricolage.api.cost_model import to_json, train_costs
    from bricolage.cli import output
    from bricolage.costs.database import Database
    from bricolage.costs.models.learned.installed import own_model

    out = out if out is not None else own_model()
    output.check_writable(out)
    with Database() as database:
        trained = train_costs(database)
    output.write_text(out, to_json(trained.model))
    if as_json:
        from bricolage.base.codec import encode

        counts = {"samples": trained.samples, "networks": trained.networks}
        errors_ = {"by_network": encode(trained.by_network), "by_machine": encode(trained.by_machine)}
        output.show_json({"file": str(out), **counts, **errors_, "spread": dict(trained.model.spread)})
        return
    _show_errors(trained)
    output.note(f"wrote {out}: trained on {trained.samples} measurements of {trained.networks} networks")


def _show_errors(trained: TrainedCostModel) -> None:
    from bricolage.cli import output
    from bricolage.report.tables import plain_table

    heads = [
        ("Left out, each once", "left"),
        ("Measurements", "right"),
        ("Mean error", "right"),
        ("Rank correlation", "right"),
    ]
    heads += [("Regret, median", "right"), ("worst", "right"), ("In the interval", "right")]
    rows = [
        [
            f"{evaluation.groups} {what}",
            str(evaluation.samples),
            f"{evaluation.mape:.1%}",
            f"{evaluation.rank_correlation:.3f}",
            f"{evaluation.regret:.1%}",
            f"{evaluation.worst_regret:.1%}",
            f"{evaluation.covered:.0%}",
        ]
        for what, evaluation in (("networks", trained.by_network), ("machines", trained.by_machine))
        if evaluation is not None
    ]
    output.show_result(
        plain_table(heads, rows)
        if rows
        else "too few networks and machines to leave one out: how far off it is cannot be said"
    )


def _read_installed_versions() -> dict[str, str]:
    from bricolage.backends import registry
    from bricolage.backends.interface import Available

    statuses = {name: registry.get(name).status() for name in registry.names()}
    return {name: status.version for name, status in statuses.items() if isinstance(status, Available)}


def _show(entries: list[Entry], failures: bool) -> None:
    from bricolage.cli import output
    from bricolage.report import words
    from bricolage.report.tables import WIDE, plain_table

    wide = output.console().width >= WIDE
    heads = [("Region", "left"), ("Backend", "fold"), ("Config", "left"), ("Result", "right"), ("Measured", "left")]
    heads += [("Reason", "fold")] if failures else [("95 % interval", "right")] * wide
    rows: list[list[Any]] = []
    for entry in entries:
        key, cost = entry.key, entry.cost
        result = words.milliseconds(cost.ms) if cost.ms is not None else cost.outcome
        when = time.strftime("%Y-%m-%d", time.localtime(cost.date))
        row = [key.region[:8], f"{key.backend} {key.version}", key.config, result, when]
        bounds = (cost.latency.low_ms, cost.latency.high_ms) if cost.latency else None
        rows.append(row + ([cost.reason] if failures else [words.interval(bounds)] * wide))
    output.show_result(plain_table(heads, rows) if rows else "no measurements")
