"""`bricolage explain` and `bricolage report`. Both read an artifact of any machine, and compile nothing but the kernels that
`--kernels` and `--dump-kernels` ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bricolage.base.codec import JsonObject
from bricolage.cli import arguments as a
from bricolage.cli.guard import guard_command
from bricolage.errors import BadOption

if TYPE_CHECKING:
    from bricolage.api.explain_plan import UnpackedPlan
    from bricolage.api.result_types import Anatomy, Graph

_MOST_THREADS = 1024
_NOTHING_INSIDE = "none of these regions is on a backend that shows its kernels (native does)"

Operator = Annotated[
    str | None, typer.Option("--op", metavar="NAME", help="Only the region with this operator, in full.")
]
Everything = Annotated[bool, typer.Option("--all", help="List every region, not only the slowest.")]
Kernels = Annotated[
    bool, typer.Option("--kernels", help="Compile, time and list here the kernels of regions that run on `native`.")
]
Traffic = Annotated[
    bool,
    typer.Option(
        "--traffic",
        help="List the bytes that these kernels move, those of their operators one by one, and what the best groups of layers "
        "would move by a model. It compiles nothing.",
    ),
]
Dump = Annotated[Path | None, typer.Option("--dump-kernels", metavar="DIR", help="Folder for the C of these kernels.")]
OnThreads = Annotated[
    str | None,
    typer.Option(
        "--on-threads",
        metavar="N,N",
        help="Simulate what regions on `native` would take on other numbers of threads, by the order of their kernels.",
    ),
]
Rules = Annotated[
    bool,
    typer.Option(
        "--rules", help="Show instead the rewrites that apply, or nearly apply, to its graph. Takes an ONNX model too."
    ),
]


@guard_command
def explain(
    artifact: a.AnyArtifact,
    op: Operator = None,
    everything: Everything = False,
    kernels: Kernels = False,
    traffic: Traffic = False,
    dump: Dump = None,
    on_threads: OnThreads = None,
    rules: Rules = False,
    target: a.Target = "",
    as_json: a.Json = False,
) -> None:
    """Explain why each region runs on its backend: the choice, the runner-up, the margin and its certainty. Of a pack: for each
    target, or for that of --target. Of a language model: who runs prompts and steps, and their races."""
    if _explain_language_model(artifact, as_json):
        return
    if rules:
        _explain_rules(artifact, as_json)
        return
    from bricolage.cli import output
    from bricolage.report.tables import plain_text

    if dump is not None:
        output.make_folder(dump)
    view = _View(op, everything, kernels, traffic, dump, as_json, _read_threads(on_threads))
    plans = _read(artifact, target)
    explanations: list[JsonObject] = []
    for name, opened in plans.items():
        if name and not as_json:
            output.show_result(plain_text(f"target '{name}'", "bold"))
        explanation = _explain_plan(opened, view, prefix=f"{name}-" if name else "")
        explanations.append(({"target": name} if name else {}) | explanation)
    if as_json:
        output.show_json(explanations[0] if "" in plans else {"targets": explanations})


def _explain_language_model(artifact: Path, as_json: bool) -> bool:
    """Shows the decision in an artifact of a language model; whether it is one."""
    from bricolage.api.optimize_decoder import read_decision
    from bricolage.cli import output
    from bricolage.report.decoder_tables import decoder_decision, decoder_json

    plan = read_decision(artifact)
    if plan is None:
        return False
    if as_json:
        output.show_json(decoder_json(plan))
    else:
        output.show_result(decoder_decision(plan))
    return True


@dataclass(frozen=True)
class _View:
    """What of a plan is shown, and how."""

    op: str | None
    everything: bool
    kernels: bool
    traffic: bool
    dump: Path | None
    as_json: bool
    threads: tuple[int, ...]
    """On which regions are simulated."""


def _read_threads(text: str | None) -> tuple[int, ...]:
    """Numbers of threads, which are separated by commas.

    Raises:
        BadOption: one of them is no number from 2 to 1,024.
    """
    words = [] if text is None else text.split(",")
    if any(not word.strip().isdecimal() or not 2 <= int(word) <= _MOST_THREADS for word in words):
        raise BadOption(option="--on-threads", value=text or "", advice="Give numbers from 2 to 1024, such as 4,8,16")
    return tuple(int(word) for word in words)


def _explain_plan(opened: UnpackedPlan, view: _View, prefix: str) -> JsonObject:
    """Shows a plan, or gives what JSON is to hold of it. `prefix`: of files with the C of its kernels."""
    from bricolage.cli import output
    from bricolage.report import explain as because
    from bricolage.report import words
    from bricolage.report.facts import region_facts
    from bricolage.report.operating_points import points_json, points_overview
    from bricolage.report.tables import plain_text
    from bricolage.report.traffic import traffic_json, traffic_table

    plan, look_inside = opened.plan, view.kernels or view.dump is not None
    graphs = opened.graphs()
    documents: list[JsonObject] = []
    if plan.throughput is not None and not view.as_json and view.op is None:
        output.show_result(points_overview(plan.throughput, plan.operating_point, output.console().width))
        output.show_result("")
    if plan.constants and not view.as_json and view.op is None:
        output.show_result(plain_text(f"constant inputs: {', '.join(map(str, plan.constants))}"))
    for number, (bucket, graph) in enumerate(zip(plan.buckets, graphs, strict=True)):
        facts = region_facts(bucket, graph)
        chosen = because.find_regions(facts, view.op) if view.op is not None else list(facts)
        numbered = {facts_of_region.number: facts_of_region.planned for facts_of_region in chosen}
        shown = opened.kernels(graph, numbered if look_inside else {})
        moved = opened.traffic(graph, numbered if view.traffic else {})
        orders = opened.kernel_orders(graph, numbered if view.threads else {}, view.threads)
        if view.dump is not None:
            stem = prefix + f"bucket-{number}-" if len(plan.buckets) > 1 else ""
            _write_sources(view.dump, stem, {region: anatomy.source for region, anatomy in shown.items()})
        if view.as_json:
            documents.append(because.bucket_json(bucket, chosen, shown, orders) | traffic_json(moved))
            continue
        if bucket.program.sizes:
            output.show_result(plain_text(words.format_shape(bucket.program.sizes), "bold"))
        if view.op is None:
            output.show_result(because.overview(bucket, graph, view.everything, plan.provenance.options.threads))
        for region in chosen if view.op is not None else ():
            output.show_result(because.details(region, len(facts)))
        for region_number, anatomy in (shown if view.kernels else {}).items():
            output.show_result(because.kernel_table(region_number, anatomy, view.everything))
        for region_number, region_traffic in moved.items():
            output.show_result(traffic_table(region_number, region_traffic, view.everything))
        for region_number, compared in orders.items():
            output.show_result(because.orders_table(region_number, compared))
        if (look_inside or view.traffic or view.threads) and not (shown or moved or orders):
            output.note(_NOTHING_INSIDE)
    served = {} if plan.throughput is None else points_json(plan.throughput, plan.operating_point)
    constants = {"constants": {constant.name: constant.value for constant in plan.constants}} if plan.constants else {}
    return (documents[0] if len(documents) == 1 else {"buckets": documents}) | served | constants


def _explain_rules(source: Path, as_json: bool) -> None:
    """Which rules apply to a model, or to the graph of an artifact's first bucket."""
    from bricolage.cli import output

    with output.stdout_kept():
        from bricolage.api.rewrite_file import find_rule_uses
        from bricolage.report import rewrites

        uses = find_rule_uses(source)
    if as_json:
        output.show_json(rewrites.uses_json(uses))
    else:
        output.show_result(rewrites.uses_table(uses))


def _write_sources(folder: Path, prefix: str, sources: Mapping[int, str]) -> None:
    """Writes the C of kernels by their regions' numbers."""
    from bricolage.cli import output

    for region_number, source in sources.items():
        target = folder / f"{prefix}region-{region_number}.c"
        output.write_text(target, source)
        output.note(f"wrote {target}")


@guard_command
def report(
    artifact: a.AnyArtifact,
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
    each target, or of that of --target alone. Of a language model: the races of prompts and steps."""
    from bricolage.cli import output
    from bricolage.report.html import render
    from bricolage.report.pack import pack_page

    written = out if out is not None else Path(artifact.with_suffix(".html").name)
    output.check_writable(written)
    page = _language_model_page(artifact)
    if page is not None:
        _write_page(written, page, as_json=as_json)
        return
    plans = _read(artifact, target)
    pages: dict[str, str] = {}
    for name, opened in plans.items():
        graphs = opened.graphs()
        insides = _insides(opened, graphs) if kernels else []
        if kernels and not any(insides):
            output.note(_NOTHING_INSIDE)
        pages[name] = render(opened.plan, graphs, output.command_line(), insides)
    entries = [opened.entry for opened in plans.values() if opened.entry is not None]
    text = pages.get("") or pack_page(artifact.name, entries, pages)
    _write_page(written, text, as_json=as_json)


def _language_model_page(artifact: Path) -> str | None:
    """The page of an artifact of a language model; None of any other path."""
    from bricolage.api.optimize_decoder import read_decision
    from bricolage.cli import output
    from bricolage.report.decoder_page import decoder_page

    plan = read_decision(artifact)
    return None if plan is None else decoder_page(plan, output.command_line())


def _write_page(path: Path, text: str, *, as_json: bool) -> None:
    from bricolage.cli import output

    output.write_text(path, text)
    if as_json:
        output.show_json({"report": str(path), "bytes": len(text.encode())})
    output.note(f"wrote {path}")


def _insides(opened: UnpackedPlan, graphs: Sequence[Graph]) -> list[dict[int, Anatomy]]:
    """The kernels of each bucket's regions, by the regions' numbers."""
    from bricolage.report.facts import region_facts

    return [
        opened.kernels(graph, {f.number: f.planned for f in region_facts(bucket, graph)})
        for bucket, graph in zip(opened.plan.buckets, graphs, strict=True)
    ]


def _read(path: Path, target: str = "") -> dict[str, UnpackedPlan]:
    """The plans of an artifact or a pack, as `unpack_plans` has it; the first of them is the plan at work."""
    from bricolage.api.explain_plan import unpack_plans
    from bricolage.cli import crash

    plans = unpack_plans(path, target)
    crash.remember(next(iter(plans.values())).plan)
    return plans
