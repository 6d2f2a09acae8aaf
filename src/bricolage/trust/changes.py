"""Everything that changed a program, in one list: applications of rules, regions on backends, fused kernels, tuned parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bricolage.backends import registry
from bricolage.backends.interface import FusedKernel, RegionModel, Resources
from bricolage.backends.reference import REFERENCE
from bricolage.errors import Refused
from bricolage.graph.graph import Graph, Region
from bricolage.rewrite.engine.fuel import Site
from bricolage.rewrite.engine.retrace import Retrace, Retraced
from bricolage.work.implementation import Implementation, Placement

Kind = Literal["rewrite", "region", "kernel", "parameter"]


@dataclass(frozen=True)
class Subject:
    """A program in question: a graph, how it was rewritten, and who runs which region of what came of it."""

    name: str
    graph: Graph
    """As it came."""
    retrace: Retrace | None
    """None where it was not rewritten."""
    placement: Placement
    """Of the rewritten graph, in executable order."""


@dataclass(frozen=True)
class Change:
    """One entry of the list."""

    number: int
    """From 1, in the order in which changes come into force."""
    kind: Kind
    title: str
    """In words."""
    operators: tuple[str, ...]
    """That it replaced, or that it computes."""
    rule: str = ""
    site: Site | None = None
    """Where a rule was applied."""
    region: int | None = None
    """Index in the placement."""
    implementation: Implementation | None = None
    """Of a region."""
    kernel: int | None = None
    """Number among the kernels of a region."""
    parameter: str = ""
    """Name of a tuned parameter."""


def list_changes(
    retraced: Retraced | None, graph: Graph, placement: Placement, models: dict[int, RegionModel], resources: Resources
) -> tuple[Change, ...]:
    """The list for a graph and what rewriting made of it. `models` are the files of the placement's regions."""
    changes: list[Change] = []

    def add(kind: Kind, title: str, operators: tuple[str, ...], **facts: object) -> None:
        changes.append(Change(len(changes) + 1, kind, title, operators, **facts))  # type: ignore[arg-type]

    for application in retraced.applications if retraced is not None else ():
        what = ", ".join(application.removed) or "the whole model"
        add(
            "rewrite",
            f"rule {application.rule} at {what}",
            application.removed,
            rule=application.rule,
            site=application.site,
        )
    placed = [
        (i, assignment.implementation)
        for i, assignment in enumerate(placement)
        if assignment.implementation != REFERENCE
    ]
    for i, implementation in placed:
        region = Region(graph, placement[i].region)
        names = tuple(operator.name for operator in region.operators)
        add("region", f"region {i + 1} {region} on {implementation}", names, region=i, implementation=implementation)
    for i, implementation in placed:
        for number, kernel in enumerate(fused_kernels(models[i], implementation, resources)):
            if len(kernel.operators) > 1:
                title = f"region {i + 1}: fused {kernel.name} ({kernel.kind}) of {', '.join(kernel.operators)}"
                add("kernel", title, kernel.operators, region=i, implementation=implementation, kernel=number)
    for i, implementation in placed:
        for name, value in implementation.config.parameters:
            title = f"region {i + 1}: parameter {name} = {value}"
            add("parameter", title, (), region=i, implementation=implementation, parameter=name)
    return tuple(changes)


def fused_kernels(model: RegionModel, implementation: Implementation, resources: Resources) -> tuple[FusedKernel, ...]:
    """The kernels of a region, where its backend shows them and lets them be taken apart."""
    backend = registry.get(implementation.backend)
    if backend.fusing(implementation.config, ()) == implementation.config:
        return ()
    try:
        region_report = backend.kernel_report(model, implementation.config, resources, timed=False)
    except Refused:
        return ()
    return region_report.kernels if region_report is not None else ()
