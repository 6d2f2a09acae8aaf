"""A program with some of its changes in force: the steps that run it. What is not in force, the float64 reference stands in for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import onnx_ir as ir

from bricolage.backends import registry
from bricolage.backends.interface import RegionModel, Resources
from bricolage.backends.reference import REFERENCE
from bricolage.errors import EndlessRewriting
from bricolage.graph.graph import Graph, Region
from bricolage.graph.identity import Identities
from bricolage.graph.store import Store
from bricolage.plan.program_step import Step
from bricolage.rewrite.engine.retrace import Retraced
from bricolage.search.isolate import Subset
from bricolage.trust.changes import Change, Subject, list_changes
from bricolage.work import bits
from bricolage.work.implementation import Implementation, KernelConfig


class Impossible(Exception):
    """A subset of the changes cannot be in force without the others."""


class SubjectProgram:
    """The variations of one subject. Numbers of changes are those of the list."""

    def __init__(self, subject: Subject, store: Store, resources: Resources) -> None:
        """`store` holds the graph as it came."""
        self.subject, self._store = subject, store
        retraced = subject.retrace.made() if subject.retrace is not None else None
        self.graph = subject.graph if retraced is None else self._written(retraced.model)
        """With all rewrites."""
        self._regions = [Region(self.graph, assignment.region) for assignment in subject.placement]
        identities = Identities(self.graph)
        models = {
            i: RegionModel(store.region(region, identities.key(region))) for i, region in enumerate(self._regions)
        }
        self.models = models
        """The files of the regions."""
        self.changes = list_changes(retraced, self.graph, subject.placement, models, resources)
        self.everything: Subset = frozenset(change.number for change in self.changes)
        self.outputs = tuple(info.name for info in self.graph.outputs)
        self._rewrites = self._of("rewrite")
        self._graphs: dict[Subset, Graph] = {frozenset(rewrite.number for rewrite in self._rewrites): self.graph}
        self._owner = {
            value.name: i for i, region in enumerate(self._regions) for op in region.operators for value in op.outputs
        }

    def change(self, number: int) -> Change:
        """The change of a number."""
        return self.changes[number - 1]

    def steps(self, in_force: Subset, partly: tuple[int, Subset] | None = None) -> tuple[Step, ...]:
        """The program with these changes alone. With `partly`, a region by its index and numbers of operators of the rewritten
        graph, only these of the region's operators run on its backend, apart from what else is in force.

        Raises:
            Impossible: they need others.
        """
        graph = self._graph(in_force)
        if partly is not None and graph is not self.graph:
            raise Impossible
        program_steps: list[Step] = []
        identities = Identities(graph)
        for region, implementation in self._place_regions(graph, in_force, partly):
            program_steps.append(Step(implementation, self._store.region(region, identities.key(region))))
        return tuple(program_steps)

    def before(self, change: Change) -> Graph | None:
        """The graph to which a rewrite was applied."""
        retrace = self.subject.retrace
        return None if retrace is None else self._graph(frozenset(range(1, change.number)))

    def _place_regions(
        self, graph: Graph, in_force: Subset, partly: tuple[int, Subset] | None
    ) -> Iterator[tuple[Region, Implementation]]:
        if graph is not self.graph:
            chosen = {i: self._implementation(i, in_force, whole=False) for i in range(len(self._regions))}
            for numbers, implementation in _runs(range(len(graph)), [chosen[i] for i in self._owners(graph)]):
                yield Region(graph, bits.of(numbers)), implementation
            return
        for i, region in enumerate(self._regions):
            if partly is not None and partly[0] == i:
                configured = self._configure_region(i, self.subject.placement[i].implementation, in_force, fused=())
                sides = [configured if number in partly[1] else REFERENCE for number in region.numbers]
                for numbers, implementation in _runs(region.numbers, sides):
                    yield Region(graph, bits.of(numbers)), implementation
            else:
                yield region, self._implementation(i, in_force, whole=True)

    def _implementation(self, i: int, in_force: Subset, *, whole: bool) -> Implementation:
        """Who runs a region; where it is not there as a `whole`, its kernels are fused all or not at all."""
        region_change = next((change for change in self._of("region") if change.region == i), None)
        if region_change is None or region_change.number not in in_force:
            return REFERENCE
        implementation = self.subject.placement[i].implementation
        kernels = [change for change in self._of("kernel") if change.region == i]
        if all(kernel.number in in_force for kernel in kernels):
            return self._configure_region(i, implementation, in_force, fused=None)
        kept = (
            [kernel.kernel for kernel in kernels if kernel.kernel is not None and kernel.number in in_force]
            if whole
            else []
        )
        return self._configure_region(i, implementation, in_force, fused=kept)

    def _configure_region(
        self, i: int, implementation: Implementation, in_force: Subset, *, fused: Sequence[int] | None
    ) -> Implementation:
        """With the parameters in force; `fused` kernels alone where given, which leaves no parameters."""
        config = implementation.config
        if fused is not None and any(change.region == i for change in self._of("kernel")):
            apart = registry.get(implementation.backend).fusing(config, fused)
            return replace(implementation, config=apart)
        kept = {
            change.parameter for change in self._of("parameter") if change.region == i and change.number in in_force
        }
        parameters = tuple((name, value) for name, value in config.parameters if name in kept)
        return replace(implementation, config=KernelConfig(config.name, parameters))

    def _graph(self, in_force: Subset) -> Graph:
        """With the rewrites in force.

        Raises:
            Impossible: some cannot be left out.
        """
        kept = frozenset(rewrite.number for rewrite in self._rewrites if rewrite.number in in_force)
        if kept not in self._graphs:
            self._graphs[kept] = self._written(self._retrace_rewrites(kept).model)
        return self._graphs[kept]

    def _retrace_rewrites(self, kept: Subset) -> Retraced:
        retrace = self.subject.retrace
        assert retrace is not None
        try:
            if kept == frozenset(range(1, len(kept) + 1)):
                return retrace.made(len(kept))
            out = [
                rewrite.site for rewrite in self._rewrites if rewrite.number not in kept and rewrite.site is not None
            ]
            retraced = retrace.made(None, out)
        except EndlessRewriting as error:
            raise Impossible from error
        if not retraced.exact:
            raise Impossible
        return retraced

    def _written(self, model: ir.Model) -> Graph:
        """A graph whose large constants are in the store."""
        graph = Graph(model)
        self._store.share([model], f"weights-again-{Identities(graph).key(graph.everything)[:16]}.data")
        return graph

    def _owners(self, graph: Graph) -> list[int]:
        """The region of each operator of a graph that was rewritten less: its own by the names of what it computes, else the one
        of an operator that reads it."""
        owners = [0] * len(graph)
        for operator in reversed(graph.operators):
            candidates = [self._owner[value.name] for value in operator.outputs if value.name in self._owner]
            candidates += [owners[reader] for value in operator.outputs for reader in graph.readers(value)]
            owners[operator.number] = candidates[0] if candidates else 0
        return owners

    def _of(self, kind: str) -> list[Change]:
        return [change for change in self.changes if change.kind == kind]


def _runs(numbers: Sequence[int], sides: Sequence[Implementation]) -> Iterator[tuple[tuple[int, ...], Implementation]]:
    """Consecutive numbers with the same implementation: what lies between two numbers of operators is convex."""
    for implementation, members in groupby(zip(numbers, sides, strict=True), key=lambda pair: pair[1]):
        yield tuple(number for number, _ in members), implementation
