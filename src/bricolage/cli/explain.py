"""`bricolage explain` and `bricolage report`. Both read an artifact of any machine, and compile nothing."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bricolage.cli import arguments as a
from bricolage.cli.guard import guarded

if TYPE_CHECKING:
    from bricolage.graph.graph import Graph
    from bricolage.plan.plan import Plan


@guarded
def explain(
    artifact: a.Artifact,
    op: Annotated[
        str | None, typer.Option("--op", metavar="NAME", help="Only the region with this operator, in full.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="List every region, not only the slowest.")] = False,
    as_json: a.Json = False,
) -> None:
    """Say why each region is where it is: the choice, the runner-up, the margin and how sure it is."""
    from bricolage.cli import output
    from bricolage.report import explain as because
    from bricolage.report import words
    from bricolage.report.facts import regions
    from bricolage.report.tables import plain

    plan, graphs = _read(artifact)
    found: list[dict[str, Any]] = []
    for bucket, graph in zip(plan.buckets, graphs, strict=True):
        facts = regions(bucket, graph)
        chosen = because.find(facts, op) if op is not None else list(facts)
        if as_json:
            found.append({"sizes": dict(bucket.sizes), "regions": [because.as_json(f) for f in chosen]})
            continue
        if bucket.sizes:
            output.show(plain(words.shape(bucket.sizes), "bold"))
        if op is None:
            output.show(because.overview(bucket, graph, everything))
        for region in chosen if op is not None else ():
            output.show(because.details(region, len(facts)))
    if as_json:
        output.show_json(found[0] if len(found) == 1 else {"buckets": found})


@guarded
def report(
    artifact: a.Artifact,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="The page; the artifact's name with .html by default."),
    ] = None,
    as_json: a.Json = False,
) -> None:
    """Write a self-contained HTML page: contestants, region graph, times, boundary costs, errors."""
    from bricolage.cli import output

    target = out if out is not None else Path(artifact.with_suffix(".html").name)
    output.check_writable(target)
    plan, graphs = _read(artifact)
    text = page(plan, graphs)
    output.write_text(target, text)
    if as_json:
        output.show_json({"report": str(target), "bytes": len(text.encode())})
    output.note(f"wrote {target}")


def page(plan: Plan, graphs: Sequence[Graph]) -> str:
    """The HTML report, with the command that is running."""
    from bricolage.report.html import render

    return render(plan, graphs, shlex.join(["bricolage", *sys.argv[1:]]))


def _read(path: Path) -> tuple[Plan, list[Graph]]:
    """An artifact's plan and the graphs of its buckets.

    Raises:
        MissingFile, BadArtifact, NewerArtifact
    """
    from bricolage.cli import crash
    from bricolage.graph.extract import graph_of
    from bricolage.plan import artifact

    plan, directory = artifact.load(path)
    crash.remember(plan)
    return plan, [graph_of(directory / bucket.graph) for bucket in plan.buckets]
