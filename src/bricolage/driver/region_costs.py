"""Costs of the regions of a graph: which are worth measuring, in which order, and what the model of costs leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from bricolage.costs.entries import Cost
from bricolage.costs.measurements import Measurement
from bricolage.driver.candidates import LARGE, CandidateGroup
from bricolage.driver.profile import NEAR, Profile
from bricolage.graph.graph import Region
from bricolage.graph.work import workload
from bricolage.measure.specs import CandidateSpec, RegionTask, Stop
from bricolage.plan.program_step import Step
from bricolage.work.implementation import Implementation

_BATCH = 12
"""Groups measured together by one machine: few enough to stop in time, enough to keep the compiling workers busy."""


def measure_regions(profile: Profile, stop: Stop) -> None:
    """Times region groups until `stop` says so: in their order or, with a model of costs, those first that may gain most, and
    none on implementations that are surely slow there."""
    groups = _worth_measuring(profile)
    batch = _BATCH * profile.session.machines
    while groups:
        profile.session.progress.start("regions on each backend", sum(len(group.implementations) for group in groups))
        for start in range(0, len(groups), batch):
            if stop():
                break
            profile.regions.add(measure_groups(profile, groups[start : start + batch], stop))
        profile.session.progress.finish()
        if stop() or not profile.left_out:
            break
        # Who was predicted to be fast may have failed: then others are worth measuring after all.
        before = set(profile.left_out)
        groups = [
            replace(group, implementations=remaining)
            for group in _worth_measuring(profile)
            if (
                remaining := tuple(
                    implementation
                    for implementation in group.implementations
                    if (group.key, implementation) in before - profile.left_out
                )
            )
        ]


def measure_segments(profile: Profile, implementations: Sequence[Implementation], stop: Stop) -> None:
    """Times the segments of the graph on these alone, until `stop` says so."""
    keys = {profile.region_key(Region(profile.graph, bits)) for bits in profile.candidates.segments}
    groups = [
        replace(group, implementations=selected)
        for group in profile.candidates.groups
        if group.key in keys
        and (
            selected := tuple(
                implementation for implementation in group.implementations if implementation in implementations
            )
        )
    ]
    profile.session.progress.start("segments in a low precision", sum(len(group.implementations) for group in groups))
    profile.regions.add(measure_groups(profile, groups, stop))
    profile.session.progress.finish()


def _worth_measuring(profile: Profile) -> list[CandidateGroup]:
    """Groups with the implementations that are worth measuring; the others are left out from now on."""
    groups, fastest = list(profile.candidates.groups), profile.fastest
    if profile.session.costs is None or fastest is None:
        return groups
    standing, right = fastest[0], profile.times
    expected = profile.forecast.corrected(right)
    kept: list[CandidateGroup] = []
    profile.left_out.clear()
    for group in groups:
        worthwhile = expected.worth_measuring(group.key, group.implementations, standing, right, profile.regions)
        profile.left_out |= {
            (group.key, implementation) for implementation in group.implementations if implementation not in worthwhile
        }
        kept.append(replace(group, implementations=worthwhile))
    gains = {
        group.key: len(group.regions) * expected.gain_ms(group.key, group.implementations, standing, right)
        for group in groups
    }
    return sorted(kept, key=lambda group: (group.level not in LARGE, -gains[group.key]))


def is_measured(profile: Profile) -> bool:
    """Whether everything was measured of regions that may be part of the best placement: all but what is surely slow there, and
    what is not worth compiling one by one."""
    return all(
        implementation in profile.regions.of(group.key)
        or (group.key, implementation) in profile.left_out
        or not _promising(profile, implementation)
        for group in profile.candidates.groups
        for implementation in group.implementations
    )


def _promising(profile: Profile, implementation: Implementation) -> bool:
    """Whether compiling regions one by one is worth the time: quick compilers always, slow ones (at `quick` effort) if
    they come near the best on the whole model."""
    if not profile.session.backend(implementation.backend).compiles_slowly:
        return True
    if profile.session.options.profile.slow_compilers_per_region:
        return True
    whole_ms = profile.times.get(implementation)
    return whole_ms is not None and whole_ms <= NEAR * min(profile.times.values())


def measure_groups(
    profile: Profile, groups: Sequence[CandidateGroup], stop: Stop, cores: int | None = None
) -> list[Measurement]:
    """Costs of regions, on `cores` of the cores, by default on all; what `stop` cut off is absent."""
    device, threads = profile.session.device, profile.session.options.threads
    if cores is not None and cores < threads:
        device, threads = device.group(device.cores[:cores]), cores
    measurer = profile.session.measurer
    asked: list[tuple[int, CandidateSpec, str]] = []
    regions = [Region(profile.graph, group.regions[0]) for group in groups]
    for number, (group, region) in enumerate(zip(groups, regions, strict=True)):
        outputs = tuple(value.name or "" for value in region.outputs)
        path, data = profile.session.store.region(region, group.key), profile.oracle.data(region)
        for implementation in filter(partial(_promising, profile), group.implementations):
            spec = CandidateSpec(group.key, (Step(implementation, path),), outputs, threads, alone=False, device=device)
            asked.append((number, spec, data))
    cached_costs = measurer.cached([(spec, data) for _, spec, data in asked], profile.oracle.accepted)
    spec_costs: dict[CandidateSpec, Cost] = {}
    missing: dict[int, list[CandidateSpec]] = {}
    for (number, spec, _), cost in zip(asked, cached_costs, strict=True):
        if cost is not None and cost.outcome != "wrong":
            spec_costs[spec] = cost
            profile.session.progress.advance()
        else:
            missing.setdefault(number, []).append(spec)
    profile.oracle.remember(regions[number] for number in missing)
    tasks: list[RegionTask] = []
    for number, specs in missing.items():
        region = regions[number]
        inputs, expected, bound = profile.oracle.files(region)
        data, limits = profile.oracle.data(region), partial(profile.oracle.limits, region)
        described = partial(workload, region, profile.session.network)
        tasks.append(RegionTask(inputs, expected, bound, tuple(specs), data, limits, described))
    spec_costs |= measurer.measure(tasks, profile.note, stop)
    return [Measurement(spec.region_key, spec.steps[0].implementation, cost) for spec, cost in spec_costs.items()]
