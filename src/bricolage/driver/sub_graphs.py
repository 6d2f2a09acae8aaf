"""Sub-graphs of a plan as regions of their own, and what each takes here, in place.

They are the chains between forks and joins of the planned graph, each within one region of the plan.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bricolage.backends import registry
from bricolage.backends.interface import Resources
from bricolage.costs.models.speedup import SpeedupCurve
from bricolage.device.device import Device
from bricolage.device.host import select_device
from bricolage.driver.describe import title
from bricolage.driver.region_schedule import curves_in_place
from bricolage.errors import ForeignArtifact, Refused, UnsupportedType
from bricolage.graph.extract import graph_of
from bricolage.graph.graph import Region
from bricolage.graph.to_work import to_work
from bricolage.graph.work import workload
from bricolage.measure.in_place import step_ms
from bricolage.plan import artifact
from bricolage.plan.number_sets import format_numbers, parse_numbers
from bricolage.plan.plan import Plan
from bricolage.plan.program_step import placement_steps
from bricolage.plan.schedules import PlannedSchedule
from bricolage.plan.shipped_program import PlannedRegion
from bricolage.runtime import signature
from bricolage.runtime.compile import compile_step
from bricolage.runtime.executable import Executable
from bricolage.runtime.load import foreign
from bricolage.runtime.programs import PlanSource, first_implementation
from bricolage.search.devices.subgraphs import chains
from bricolage.verify.inputs import draw_inputs
from bricolage.work import bits
from bricolage.work.implementation import Assignment, Implementation
from bricolage.work.work_graph import WorkGraph

_RUNS = 9
"""Of which a sub-graph's time, on each count of cores, is the median."""


@dataclass(frozen=True)
class Divided:
    """A plan whose only bucket has the sub-graphs as its regions, in executable order."""

    plan: Plan
    directory: Path
    """Of its graphs and weights."""
    inputs: Mapping[str, Any]
    """Of the bucket."""
    graph: WorkGraph
    """Of operators."""
    regions: tuple[int, ...]
    """Bit-sets of them, one for each sub-graph."""
    device: Device
    """That the plan is for."""

    @property
    def cores(self) -> tuple[int, ...]:
        """That the plan may use."""
        options = self.plan.provenance.options
        return self.device.cores[: options.threads]

    def scheduled(self, cores: Sequence[tuple[int, ...]], order: Sequence[int] | None = None) -> Executable:
        """Ready to run with these cores for each sub-graph, which begin in this order (that of `regions`)."""
        order = range(len(self.regions)) if order is None else order
        bucket = self.plan.buckets[0]
        kept = PlannedSchedule(tuple(cores[index] for index in order), "given", 0.0, 0.0, 0.0)
        bucket = bucket.with_regions((bucket.program.regions[index] for index in order), kept)
        return Executable(dataclasses.replace(self.plan, buckets=(bucket,)), self.directory)

    def curves(self, runs: int = _RUNS) -> list[SpeedupCurve]:
        """Of each sub-graph, timed in place on the first core, then on more for as long as that makes it faster; each time is the
        median of that many runs."""
        return curves_in_place(self.plan, 0, self.cores, lambda plan: step_ms(plan, self.directory, self.inputs, runs))


def divide(path: str | Path, inputs: Mapping[str, Any] | None = None) -> Divided:
    """An artifact at its forks and joins. `inputs` choose the bucket; without them it is the first one, with values by chance.

    Raises:
        MissingFile, BadArtifact, NewerArtifact, OlderArtifact, ForeignArtifact: as `load`.
        MissingInput, UnknownInput, WrongType, WrongShape: the inputs do not fit the model.
        UnsupportedType: shapes are known only at run time, or these inputs have one that was not planned.
    """
    plan, directory = artifact.load_artifact(Path(path))
    difference = foreign(plan)
    if difference:
        raise ForeignArtifact(path=path, difference=difference)
    plan, given = _bucket_alone(plan, directory, inputs)
    bucket = plan.buckets[0]
    graph = graph_of(directory / bucket.program.graph)
    whole = to_work(graph)
    regions = chains(whole, [bits.of(parse_numbers(region.operators)) for region in bucket.program.regions])
    options = plan.provenance.options
    cut_plan = _cut(plan, directory, [Region(graph, region) for region in regions])
    return Divided(cut_plan, directory, given, whole, regions, select_device(options.isa, options.cores))


def _bucket_alone(plan: Plan, directory: Path, inputs: Mapping[str, Any] | None) -> tuple[Plan, Mapping[str, Any]]:
    """The plan with the bucket of the inputs alone, and with no schedule, and inputs for it."""
    index: int | None = 0
    if inputs is not None:
        source = PlanSource(plan, directory)
        inputs = source.collect((), inputs)
        overridden = signature.overridden(plan.defaults, inputs)
        index = source.planned(signature.bound_dimensions(plan.inputs, inputs), overridden)
    if index is None:
        raise UnsupportedType(
            name="the inputs", type="shape that was not planned", who="`schedule --devices`", advice="Plan it: --shape"
        )
    bucket = plan.buckets[index].with_schedule(None)
    graph = graph_of(directory / bucket.program.graph)
    if not graph.static:
        raise UnsupportedType(
            name=plan.model,
            type="shapes that are known only at run time",
            who="`schedule --devices`",
            advice="Such a model runs as a whole",
        )
    given = draw_inputs(graph.model) if inputs is None else inputs
    return dataclasses.replace(plan, buckets=(bucket,)), given


def _cut(plan: Plan, directory: Path, regions: Sequence[Region]) -> Plan:
    """The plan with these regions, each run by the backend that runs it now."""
    bucket = plan.buckets[0]
    planned: list[PlannedRegion] = []
    source = PlanSource(plan, directory)
    for region in regions:
        mine = next(
            candidate
            for candidate in bucket.program.regions
            if region.bits & bits.of(parse_numbers(candidate.operators))
        )
        implementation = mine.implementation
        if region.bits != bits.of(parse_numbers(mine.operators)):
            implementation = of_part(source, region, implementation)
        amount = workload(region)
        planned.append(
            PlannedRegion(
                implementation,
                format_numbers(region.numbers),
                count=len(region),
                title=title(region),
                key=mine.key,
                flops=amount.flops,
                bytes=amount.bytes,
                cost_ms=None,
                measured=False,
            )
        )
    return dataclasses.replace(plan, buckets=(bucket.with_regions(planned),))


def of_part(source: PlanSource, region: Region, whole: Implementation) -> Implementation:
    """What a part of a region that runs as `whole` runs as: without what was tuned for the whole; and in the backend's first
    configuration where the whole is a user's file, or where the backend refuses the part in that of the whole (it may have nothing
    that it is for)."""
    if whole.config.as_it_comes:
        return first_implementation(registry.get(whole.backend), source.plan)
    options = source.plan.provenance.options
    device = select_device(options.isa, options.cores)
    plain = dataclasses.replace(whole, config=whole.config.base)
    (step,) = placement_steps(region.graph, (Assignment(region.bits, plain),), source.store)
    try:
        compile_step(step, Resources(options.threads, device))
    except Refused:
        return first_implementation(registry.get(whole.backend), source.plan)
    return plain
