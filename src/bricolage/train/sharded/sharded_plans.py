"""Plans of a step that divide its operators or its weights: layouts for all devices as one group or inside stages, and FSDP2."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from bricolage.device.collective import Ring
from bricolage.device.host import host
from bricolage.errors import NoShardingPlan, NotShardable
from bricolage.train.pipeline.pipeline_problem import PipelineProblem
from bricolage.train.pipeline.timings import StepTimings
from bricolage.train.run.document import FullyShardedPlan
from bricolage.train.sharded.calls import DispatchTimes, measure_calls, slowdown_of
from bricolage.train.sharded.dtensor_step import sharded_modules
from bricolage.train.sharded.grouped_plans import grouped_plan
from bricolage.train.sharded.layout_plan import DeviceGroup, plan_layouts, share_of_peaks
from bricolage.train.sharded.planned_layouts import GroupedPlan, LayoutPlan
from bricolage.train.sharded.program_times import ProgramsJob, price_programs
from bricolage.train.sharded.step_graph import JointStep, trace_joint
from bricolage.train.step.step import build

_PROGRAMME_S = 10.0
"""For the integer programme, where memory is short."""


@dataclass(frozen=True)
class DividedPlans:
    """What was found, and why something was not."""

    layouts: LayoutPlan | None = None
    fully_sharded: FullyShardedPlan | None = None
    grouped: GroupedPlan | None = None
    notes: tuple[str, ...] = ()

    @property
    def any(self) -> bool:
        """Whether there is a plan."""
        return self.layouts is not None or self.fully_sharded is not None or self.grouped is not None


def divided_plans(work: StepTimings, problem: PipelineProblem, known_ms: float = math.inf) -> DividedPlans:
    """Layouts of a step on the devices of a problem; and FSDP2, where plain data parallelism does not fit.

    Args:
        work: the step, timed in parts.
        problem: the devices, and what links take.
        known_ms: of the best other plan. Layouts are not looked for where calling the operators alone takes as long.

    Raises:
        TrainingWorkerFailed: a process that takes part in measuring ends.
    """
    if problem.devices < 2:
        return DividedPlans()
    try:
        joint = trace_joint(build(work.spec))
    except NotShardable as error:
        return _with_weights(work, problem, None, f"no divided operators: {error.facts['reason']}")
    here = work.described is None
    # Described devices have links of their own; what Python takes is measured on two processes here.
    calls = measure_calls(problem.devices if here else 2, work.threads, work.spec.optimiser, work.seconds)
    if here and work.spec.devices is not None and work.spec.devices.gbytes is not None:
        held = calls.held(problem.devices, work.spec.devices.gbytes)
    else:
        held = calls
    grouped, reasons = grouped_plan(work, problem, calls)
    layouts, notes = _one_group(joint, work, problem, held, known_ms)
    plans = _with_weights(work, problem, held, *notes, *reasons)
    if layouts is None and grouped is None:
        return plans
    job = ProgramsJob(work.spec, layouts, grouped, work.seconds, together=here)
    priced = price_programs(job, problem.devices, work.threads, work.scale, problem.start_ms)
    return replace(plans, layouts=priced.layouts, grouped=priced.grouped)


def _one_group(
    joint: JointStep, work: StepTimings, problem: PipelineProblem, calls: DispatchTimes, known_ms: float
) -> tuple[LayoutPlan | None, tuple[str, ...]]:
    """Layouts for all devices as one group, and why there are none."""
    least = calls.operator_ms * len(joint.calls)
    if least >= known_ms:
        reason = f"calling {len(joint.calls)} operators takes {least:.3g} ms, and another plan less in all"
        return None, (f"no divided operators: {reason}",)
    peaks = share_of_peaks(host(), work.threads)
    group = DeviceGroup(
        problem.devices,
        _collectives(work, problem, calls),
        peaks,
        problem.memory_bytes,
        start_ms=calls.operator_ms,
        update_ms=calls.update_ms,
        slowdown=slowdown_of([joint], peaks, calls.operator_ms, work.scale * work.crowd(problem), work.threads),
    )
    try:
        layouts = plan_layouts(joint, work.spec.optimiser, group, limit_s=_PROGRAMME_S)
    except NoShardingPlan as error:
        return None, (f"no divided operators: {error}",)
    if not layouts.divides:
        return None, ("no divided operators: what devices would exchange takes longer",)
    return layouts, ()


def _collectives(work: StepTimings, problem: PipelineProblem, calls: DispatchTimes | None) -> Ring:
    """Of all devices: as measured; on described processors their links with the starts of calls here; else their links alone."""
    if problem.ring is not None:
        return problem.ring if calls is None else calls.on(problem.ring)
    processors = work.described is not None and all(d.kind == "cpu" for d in work.described.machine.devices)
    if calls is not None and processors:
        return calls.described(problem.devices, problem.link)
    return Ring.described(problem.devices, problem.link)


def _with_weights(
    work: StepTimings, problem: PipelineProblem, calls: DispatchTimes | None, *notes: str
) -> DividedPlans:
    """FSDP2, where it is needed, and may be had."""
    whole, workers = work.whole, problem.devices
    samples, rest = divmod(work.spec.batch_size, workers)
    if rest or fits_whole(work, problem):
        return DividedPlans(notes=notes)
    modules = sharded_modules(build(work.spec).module)
    seen: set[int] = set()
    units = []
    for unit_module in modules:
        weights = [parameter for parameter in unit_module.parameters() if id(parameter) not in seen]
        seen.update(map(id, weights))
        units.append(sum(weight.numel() * weight.element_size() for weight in weights))
    peak = sum(layer.lasting_bytes / workers + samples * layer.kept_bytes for layer in whole) + 2 * max(units)
    if peak > problem.memory_bytes:
        refusal = f"weights divided by FSDP2 need {peak / 1e9:.3g} GB of each device, which has {problem.memory_bytes / 1e9:.3g}"
        return DividedPlans(notes=(*notes, refusal))
    ring = _collectives(work, problem, calls)
    # A module's weights are gathered for each pass, and its gradients added up behind the second.
    moving = sum(2 * ring.all_gather_ms(size) + ring.reduce_scatter_ms(size) for size in units if size)
    crowd = work.crowd(problem)
    update = sum(layer.update_ms for layer in whole) / workers + (
        calls.update_ms * len(seen) if calls is not None else 0.0
    )
    return DividedPlans(
        fully_sharded=FullyShardedPlan(crowd * (work.passes_ms(samples) + update) + moving, moving, peak), notes=notes
    )


def fits_whole(work: StepTimings, problem: PipelineProblem) -> bool:
    """Whether each device can hold all weights and its part of the batch, as plain data parallelism needs."""
    samples = work.spec.batch_size // problem.devices
    held = sum(layer.lasting_bytes + samples * layer.kept_bytes for layer in work.whole)
    return held <= problem.memory_bytes
