"""Costs of the regions of a graph: which are worth measuring, in which order, and what the model of costs leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from bricolage.costs.entries import Cost
from bricolage.costs.measurements import Measurement
from bricolage.driver.candidates import LARGE, CandidateGroup
from bricolage.driver.timed_variant import NEAR, TimedVariant
from bricolage.graph.graph import Region
from bricolage.graph.work import workload
from bricolage.measure.specs import CandidateSpec, RegionTask, Stop
from bricolage.plan.program_step import Step
from bricolage.work.implementation import Implementation

_BATCH = 12
"""Groups measured together by one machine: few enough to stop in time, enough to keep the compiling workers busy."""


def measure_regions(variant: TimedVariant, stop: Stop) -> None:
    """Times region groups until `stop` says so: in their order or, with a model of costs, those first that may gain most, and
    none on implementations that are surely slow there."""
    groups = _worth_measuring(variant)
    batch = _BATCH * variant.session.machines
    while groups:
        variant.session.progress.start("regions on each backend", sum(len(group.implementations) for group in groups))
        for start in range(0, len(groups), batch):
            if stop():
                break
            variant.regions.add(measure_groups(variant, groups[start : start + batch], stop))
        variant.session.progress.finish()
        if stop() or not variant.left_out:
            break
        # Who was predicted to be fast may have failed: then others are worth measuring after all.
        before = set(variant.left_out)
        groups = [
            replace(group, implementations=remaining)
            for group in _worth_measuring(variant)
            if (
                remaining := tuple(
                    implementation
                    for implementation in group.implementations
                    if (group.key, implementation) in before - variant.left_out
                )
            )
        ]


def measure_segments(variant: TimedVariant, implementations: Sequence[Implementation], stop: Stop) -> None:
    """Times the segments of the graph on these alone, until `stop` says so."""
    keys = {variant.region_key(Region(variant.graph, bits)) for bits in variant.candidates.segments}
    groups = [
        replace(group, implementations=selected)
        for group in variant.candidates.groups
        if group.key in keys
        and (
            selected := tuple(
                implementation for implementation in group.implementations if implementation in implementations
            )
        )
    ]
    variant.session.progress.start("segments in a low precision", sum(len(group.implementations) for group in groups))
    variant.regions.add(measure_groups(variant, groups, stop))
    variant.session.progress.finish()


def _worth_measuring(variant: TimedVariant) -> list[CandidateGroup]:
    """Groups with the implementations that are worth measuring; the others are left out from now on."""
    groups, fastest = list(variant.candidates.groups), variant.fastest
    if variant.session.costs is None or fastest is None:
        return groups
    standing, right = fastest[0], variant.times
    expected = variant.forecast.corrected(right)
    kept: list[CandidateGroup] = []
    variant.left_out.clear()
    for group in groups:
        worthwhile = expected.worth_measuring(group.key, group.implementations, standing, right, variant.regions)
        variant.left_out |= {
            (group.key, implementation) for implementation in group.implementations if implementation not in worthwhile
        }
        kept.append(replace(group, implementations=worthwhile))
    gains = {
        group.key: len(group.regions) * expected.gain_ms(group.key, group.implementations, standing, right)
        for group in groups
    }
    return sorted(kept, key=lambda group: (group.level not in LARGE, -gains[group.key]))


def is_measured(variant: TimedVariant) -> bool:
    """Whether everything was measured of regions that may be part of the best placement: all but what is surely slow there, and
    what is not worth compiling one by one."""
    return all(
        implementation in variant.regions.of(group.key)
        or (group.key, implementation) in variant.left_out
        or not _promising(variant, implementation)
        for group in variant.candidates.groups
        for implementation in group.implementations
    )


def _promising(variant: TimedVariant, implementation: Implementation) -> bool:
    """Whether compiling regions one by one is worth the time: quick compilers always, slow ones (at `quick` effort) if
    they come near the best on the whole model."""
    if not variant.session.backend(implementation.backend).compiles_slowly:
        return True
    if variant.session.profile.slow_compilers_per_region:
        return True
    whole_ms = variant.times.get(implementation)
    return whole_ms is not None and whole_ms <= NEAR * min(variant.times.values())


def measure_groups(
    variant: TimedVariant, groups: Sequence[CandidateGroup], stop: Stop, cores: int | None = None
) -> list[Measurement]:
    """Costs of regions, on `cores` of the cores, by default on all; what `stop` cut off is absent."""
    device, threads = variant.session.device, variant.session.options.threads
    if cores is not None and cores < threads:
        device, threads = device.group(device.cores[:cores]), cores
    measurer = variant.session.measurer
    asked: list[tuple[int, CandidateSpec, str]] = []
    regions = [Region(variant.graph, group.regions[0]) for group in groups]
    for number, (group, region) in enumerate(zip(groups, regions, strict=True)):
        outputs = tuple(value.name or "" for value in region.outputs)
        path, data = variant.session.store.region(region, group.key), variant.oracle.data(region)
        for implementation in filter(partial(_promising, variant), group.implementations):
            spec = CandidateSpec(group.key, (Step(implementation, path),), outputs, threads, alone=False, device=device)
            asked.append((number, spec, data))
    cached_costs = measurer.cached([(spec, data) for _, spec, data in asked], variant.oracle.accepted)
    spec_costs: dict[CandidateSpec, Cost] = {}
    missing: dict[int, list[CandidateSpec]] = {}
    for (number, spec, _), cost in zip(asked, cached_costs, strict=True):
        if cost is not None and cost.outcome != "wrong":
            spec_costs[spec] = cost
            variant.session.progress.advance()
        else:
            missing.setdefault(number, []).append(spec)
    variant.oracle.remember(regions[number] for number in missing)
    tasks: list[RegionTask] = []
    for number, specs in missing.items():
        region = regions[number]
        inputs, expected, bound = variant.oracle.files(region)
        data, limits = variant.oracle.data(region), partial(variant.oracle.limits, region)
        described = partial(workload, region, variant.session.network)
        tasks.append(RegionTask(inputs, expected, bound, tuple(specs), data, limits, described))
    spec_costs |= measurer.measure(tasks, variant.note, stop)
    return [Measurement(spec.region_key, spec.steps[0].implementation, cost) for spec, cost in spec_costs.items()]
