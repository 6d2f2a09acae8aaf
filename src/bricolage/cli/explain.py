"""`bricolage explain` and `bricolage report`. Both read an artifact of any machine, and compile nothing but the kernels that
`--kernels` and `--dump-kernels` ask for."""

from __future__ import annotations

import shlex
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bricolage.base.codec import JsonObject, encode
from bricolage.cli import arguments as a
from bricolage.cli.guard import guard_command
from bricolage.errors import MissingFile

if TYPE_CHECKING:
    from bricolage.backends.interface import Anatomy
    from bricolage.graph.graph import Graph
    from bricolage.plan.plan import Plan

_NOTHING_INSIDE = "none of these regions is on a backend that shows its kernels (native does)"

Operator = Annotated[
    str | None, typer.Option("--op", metavar="NAME", help="Only the region with this operator, in full.")
]
Everything = Annotated[bool, typer.Option("--all", help="List every region, not only the slowest.")]
Kernels = Annotated[
    bool, typer.Option("--kernels", help="Compile, time and list here the kernels of regions that run on `native`.")
]
Dump = Annotated[Path | None, typer.Option("--dump-kernels", metavar="DIR", help="Folder for the C of these kernels.")]
Rules = Annotated[
    bool,
    typer.Option(
        "--rules", help="Show instead the rewrites that apply, or nearly apply, to its graph. Takes an ONNX model too."
    ),
]


@guard_command
def explain(
    artifact: a.Artifact,
    op: Operator = None,
    everything: Everything = False,
    kernels: Kernels = False,
    dump: Dump = None,
    rules: Rules = False,
    target: a.Target = "",
    as_json: a.Json = False,
) -> None:
    """Explain why each region runs on its backend: the choice, the runner-up, the margin and its certainty. Of a pack: for each
    target, or for that of --target."""
    if rules:
        _explain_rules(artifact, as_json)
        return
    from bricolage.cli import output
    from bricolage.report.tables import plain_text

    if dump is not None:
        output.make_folder(dump)
    plans, directory = _read(artifact, target)
    explanations: list[JsonObject] = []
    for name, plan in plans.items():
        if name and not as_json:
            output.show_result(plain_text(f"target '{name}'", "bold"))
        prefix = f"{name}-" if name else ""
        explanations.append(
            ({"target": name} if name else {})
            | _explain_plan(
                plan,
                directory,
                op=op,
                everything=everything,
                kernels=kernels,
                dump=dump,
                prefix=prefix,
                as_json=as_json,
            )
        )
    if as_json:
        output.show_json(explanations[0] if "" in plans else {"targets": explanations})


def _explain_plan(
    plan: Plan,
    directory: Path,
    op: str | None,
    everything: bool,
    kernels: bool,
    dump: Path | None,
    prefix: str,
    as_json: bool,
) -> JsonObject:
    """Shows a plan, or gives what JSON is to hold of it. `prefix`: of files with the C of its kernels."""
    from bricolage.api.kernel_report import kernel_report
    from bricolage.cli import output
    from bricolage.report import explain as because
    from bricolage.report import words
    from bricolage.report.facts import region_facts
    from bricolage.report.tables import plain_text

    graphs, look_inside = _graphs(plan, directory), kernels or dump is not None
    documents: list[JsonObject] = []
    if plan.throughput is not None and not as_json and op is None:
        from bricolage.report.operating_points import points_overview

        output.show_result(points_overview(plan.throughput, plan.operating_point, output.console().width))
        output.show_result("")
    if plan.constants and not as_json and op is None:
        output.show_result(plain_text(f"constant inputs: {', '.join(map(str, plan.constants))}"))
    for number, (bucket, graph) in enumerate(zip(plan.buckets, graphs, strict=True)):
        facts = region_facts(bucket, graph)
        chosen = because.find_regions(facts, op) if op is not None else list(facts)
        wanted = {f.number: f.planned for f in chosen} if look_inside else {}
        shown = kernel_report(graph, wanted, plan.provenance.options.threads, directory)
        if dump is not None:
            _write_sources(dump, prefix + f"bucket-{number}-" if len(plan.buckets) > 1 else "", shown)
        if as_json:
            regions = [because.region_json(f) | (_inside(shown[f.number]) if f.number in shown else {}) for f in chosen]
            kept = {"provisional": list(bucket.record.provisional), "disturbance": encode(bucket.race.disturbance)}
            documents.append({"sizes": dict(bucket.program.sizes), **kept, "regions": regions})
            continue
        if bucket.program.sizes:
            output.show_result(plain_text(words.format_shape(bucket.program.sizes), "bold"))
        if op is None:
            output.show_result(because.overview(bucket, graph, everything, plan.provenance.options.threads))
        for region in chosen if op is not None else ():
            output.show_result(because.details(region, len(facts)))
        if kernels:
            for region_number, anatomy in shown.items():
                output.show_result(because.kernel_table(region_number, anatomy, everything))
        if look_inside and not shown:
            output.note(_NOTHING_INSIDE)
    from bricolage.report.operating_points import points_json

    served = {} if plan.throughput is None else points_json(plan.throughput, plan.operating_point)
    constants = {"constants": {constant.name: constant.value for constant in plan.constants}} if plan.constants else {}
    return (documents[0] if len(documents) == 1 else {"buckets": documents}) | served | constants


def _explain_rules(source: Path, as_json: bool) -> None:
    """Which rules apply to a model, or to the graph of an artifact's first bucket (they differ in sizes alone)."""
    from bricolage.cli import output

    if not source.exists():
        raise MissingFile(path=source)
    with output.stdout_kept():
        from bricolage.api.rewrite import list_rule_uses
        from bricolage.report import rewrites

        if zipfile.is_zipfile(source):
            from bricolage.plan import artifact

            plan, directory = artifact.load_artifact(source)
            source = directory / plan.buckets[0].program.graph
        uses = list_rule_uses(source)
    if as_json:
        output.show_json(rewrites.uses_json(uses))
    else:
        output.show_result(rewrites.uses_table(uses))


def _inside(made: Anatomy) -> JsonObject:
    from bricolage.base.codec import encode

    return {"kernels": encode(made.kernels), "peaks": encode(made.peaks)}


def _write_sources(folder: Path, prefix: str, shown: Mapping[int, Anatomy]) -> None:
    from bricolage.cli import output

    for region_number, anatomy in shown.items():
        target = folder / f"{prefix}region-{region_number}.c"
        output.write_text(target, anatomy.source)
        output.note(f"wrote {target}")


@guard_command
def report(
    artifact: a.Artifact,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="The page; the artifact's name with .html by default."),
    ] = None,
    kernels: Annotated[
        bool, typer.Option("--kernels", help="Compile, time and show here the kernels of regions that run on `native`.")
    ] = False,
    target: a.Target = "",
    as_json: a.Json = False,
) -> None:
    """Write a self-contained HTML page: contestants, region graph, times, transfer costs, errors. Of a pack the page has that of
    each target, or of that of --target alone."""
    from bricolage.cli import output

    written = out if out is not None else Path(artifact.with_suffix(".html").name)
    output.check_writable(written)
    plans, directory = _read(artifact, target)
    pages: dict[str, str] = {}
    for name, plan in plans.items():
        graphs = _graphs(plan, directory)
        insides = _insides(plan, graphs, directory) if kernels else []
        if kernels and not any(insides):
            output.note(_NOTHING_INSIDE)
        pages[name] = page(plan, graphs, insides)
    text = pages.get("") or _of_targets(artifact, directory, pages)
    output.write_text(written, text)
    if as_json:
        output.show_json({"report": str(written), "bytes": len(text.encode())})
    output.note(f"wrote {written}")


def _of_targets(path: Path, directory: Path, pages: Mapping[str, str]) -> str:
    from bricolage.plan import artifact
    from bricolage.report.pack import pack_page as pack_page

    pack = artifact.read_pack(directory)
    assert pack is not None, "only a pack's plans have names"
    return pack_page(path.name, [entry for entry in pack.entries if entry.target.name in pages], pages)


def page(plan: Plan, graphs: Sequence[Graph], insides: Sequence[Mapping[int, Anatomy]] = ()) -> str:
    """The HTML report, with the command that is running."""
    from bricolage.report.html import render

    return render(plan, graphs, shlex.join(["bricolage", *sys.argv[1:]]), insides)


def _insides(plan: Plan, graphs: Sequence[Graph], directory: Path) -> list[dict[int, Anatomy]]:
    """The kernels of each bucket's regions, by the regions' numbers."""
    from bricolage.api.kernel_report import kernel_report
    from bricolage.report.facts import region_facts

    return [
        kernel_report(
            graph,
            {f.number: f.planned for f in region_facts(bucket, graph)},
            plan.provenance.options.threads,
            directory,
        )
        for bucket, graph in zip(plan.buckets, graphs, strict=True)
    ]


def _read(path: Path, target: str = "") -> tuple[dict[str, Plan], Path]:
    """An artifact's plan, or those of a pack by target, and the folder that they were unpacked to.

    Raises:
        MissingFile, BadArtifact, NewerArtifact; NoTarget, NotPack: as `artifact.plans` has it.
    """
    from bricolage.cli import crash
    from bricolage.plan import artifact

    plans, directory = artifact.plans(path, target)
    crash.remember(next(iter(plans.values())))
    return plans, directory


def _graphs(plan: Plan, directory: Path) -> list[Graph]:
    """Of its buckets."""
    from bricolage.graph.extract import graph_of

    return [graph_of(directory / bucket.program.graph) for bucket in plan.buckets]
