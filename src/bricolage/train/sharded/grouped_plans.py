"""Plans of two levels for a spec: its module in parts, runs of parts as stages on groups of devices, layouts inside each.

Stages are runs of at most `_PARTS` parts, with about a micro-batch for each device: each run is traced, and solved for each size of
a group.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from bricolage.device.collective import Ring
from bricolage.device.description import DescribedDevices
from bricolage.device.device import Link
from bricolage.device.host import host
from bricolage.errors import BadPlan, NoShardingPlan, NotShardable
from bricolage.search.sharding.layouts import REPLICATED
from bricolage.search.sharding.sharding_problem import ShardingPlan, ShardingProblem
from bricolage.train.pipeline.layers import even_blocks
from bricolage.train.pipeline.module_stages import Division, divide_module
from bricolage.train.pipeline.pipeline_problem import PipelineProblem, divisors
from bricolage.train.pipeline.timings import StepTimings
from bricolage.train.sharded.calls import DispatchTimes, slowdown_of
from bricolage.train.sharded.group_pipeline import stage_example
from bricolage.train.sharded.layout_plan import Described, DeviceGroup, share_of_peaks
from bricolage.train.sharded.planned_layouts import GroupedPlan, GroupStage, LayoutPlan
from bricolage.train.sharded.step_graph import JointStep, trace_stage
from bricolage.train.sharded.two_levels import Hosts, LayerRow, ShardedPipeline, plan_sharded
from bricolage.train.step.step import TrainingStep, build

if TYPE_CHECKING:
    from bricolage.train.pipeline.pipeline_problem import PlannedLayer

_PARTS = 4
"""Runs of layers that stages are made of, at most."""
_FEWEST = 4
"""Devices: on fewer, groups of several leave no second stage of several."""
_LIMIT_S = 5.0
"""For the integer programme of each stage, where memory is short."""


def grouped_plan(
    work: StepTimings, problem: PipelineProblem, calls: DispatchTimes
) -> tuple[GroupedPlan | None, tuple[str, ...]]:
    """The best plan of two levels with more than one stage, and why there is none.

    Args:
        work: the step, timed in parts.
        problem: the devices, and what links take.
        calls: of operators and collectives of processes here.
    """
    if problem.devices < _FEWEST:
        return None, ()
    samples = max(1, problem.batch // problem.devices)
    starts = [layer.forward_start_ms + layer.backward_start_ms for layer in problem.layers]
    blocks = even_blocks([samples * ms + start for ms, start in zip(problem.layer_ms, starts, strict=True)], _PARTS)
    if len(blocks) < 2:
        return None, ("no groups of devices: the module is one part",)
    names = tuple(problem.layers[begin].name for begin, _ in blocks[1:])
    hosts = hosts_of(work, problem, calls)
    count = max(divisor for divisor in divisors(work.spec.batch_size) if divisor <= problem.devices)
    try:
        plan = _Parts(work, problem, calls, names, count).plan(hosts, problem.layers)
    except (BadPlan, NotShardable) as error:
        return None, (f"no groups of devices: {error.facts['reason']}",)
    except NoShardingPlan as error:
        return None, (f"no groups of devices: {error}",)
    if len(plan.stages) < 2:
        return None, ("no groups of devices: one group of all takes less than several",)
    return plan, ()


def hosts_of(work: StepTimings, problem: PipelineProblem, calls: DispatchTimes) -> Hosts:
    """The devices of a spec as hosts: what faster links than the slowest join, if that is equal numbers of neighbours; else one
    host of all."""
    memory, count = problem.memory_bytes, problem.devices
    if work.described is not None:
        size, inside, across = described_hosts(work.described)
        processors = all(device.kind == "cpu" for device in work.described.machine.devices)
        measured = calls.described if processors else Ring.described
        return Hosts(count, size, inside, across, memory_bytes=memory, collectives=measured)
    devices = work.spec.devices
    assert devices is not None
    size = devices.host or count
    free = replace(
        problem.link, gbytes=max(problem.link.gbytes, 1e3 / max(calls.conversions["reduce"].ms_per_byte, 1e-9) / 1e9)
    )
    inside = problem.link if devices.host is None else free
    return Hosts(count, size, inside, problem.link, memory_bytes=memory, shared=True, collectives=calls.among)


def described_hosts(described: DescribedDevices) -> tuple[int, Link, Link]:
    """Devices of a host, the slowest link inside, and the slowest across."""
    devices, links = described.machine.devices, described.machine.links
    slowest = min(link.gbytes for link in links)
    latency = max(link.latency_us for link in links)
    across = Link(("0", "1"), slowest, latency)
    place = {device.name: number for number, device in enumerate(devices)}
    home = list(range(len(devices)))
    fast = [link for link in links if link.gbytes > slowest]
    for link in fast:  # the smallest number of a host is its name
        ends = sorted(home[place[name]] for name in link.between)
        home = [ends[0] if number == ends[1] else number for number in home]
    size = home.count(home[0])
    inner = len(devices) * (size - 1) // 2
    if size == 1 or len(devices) % size or len(fast) != inner or home != [n // size * size for n in range(len(home))]:
        return len(devices), across, across
    inside = Link(("0", "1"), min(link.gbytes for link in fast), max(link.latency_us for link in fast))
    return size, inside, across


@dataclass
class _Solved:
    """A run of parts on a group."""

    described: Described
    problem: ShardingProblem
    graph: JointStep


class _Parts:
    """The module's parts for one number of micro-batches."""

    def __init__(
        self,
        work: StepTimings,
        problem: PipelineProblem,
        calls: DispatchTimes,
        names: Sequence[str],
        count: int,
    ) -> None:
        """Raises BadPlan or NotShardable where the module cannot be divided so."""
        self._names, self._count, self._calls = tuple(names), count, calls
        self._samples = work.spec.batch_size // count
        self._step: TrainingStep = build(work.spec)
        example = tuple(tensor[: self._samples] for tensor in self._step.inputs)
        self._division: Division = divide_module(self._step, names, example)
        self._graphs: dict[tuple[int, int], JointStep] = {}
        self._solved: dict[tuple[Hashable, int], _Solved] = {}
        self._memory = problem.memory_bytes
        self._peaks = share_of_peaks(host(), work.threads)
        graphs = [self._graph(number, number + 1) for number in range(len(names) + 1)]
        factor = work.scale * work.crowd(problem)
        self._slowdown = slowdown_of(graphs, self._peaks, calls.operator_ms, factor, work.threads)

    def _graph(self, begin: int, end: int) -> JointStep:
        if (begin, end) not in self._graphs:
            example = stage_example(self._step, self._division, (begin, end), self._samples)
            self._graphs[begin, end] = trace_stage(example)
        return self._graphs[begin, end]

    def _alike(self, begin: int, end: int) -> Hashable:
        """Stages of equal graphs have one problem."""
        graph = self._graph(begin, end)
        shapes = tuple(str(node.meta["val"]) for node in graph.graph.graph.nodes if node.op == "placeholder")
        return graph.graph.code, shapes, graph.carried, graph.outputs

    def _choices(self, begin: int, end: int, ring: Ring) -> tuple[ShardingProblem, Sequence[ShardingPlan]]:
        group = DeviceGroup(
            ring.workers,
            ring,
            self._peaks,
            self._memory,
            start_ms=self._calls.operator_ms,
            update_ms=self._calls.update_ms,
            slowdown=self._slowdown,
        )
        described = Described(self._graph(begin, end), self._step.optimiser, group, self._count)
        try:
            problem, plans = described.choices(_LIMIT_S)
        except NoShardingPlan:
            return described.problem, ()
        self._solved[self._alike(begin, end), ring.workers] = _Solved(described, problem, self._graph(begin, end))
        return problem, plans

    def plan(self, hosts: Hosts, layers: Sequence[PlannedLayer]) -> GroupedPlan:
        """The best stages.

        Raises:
            NoShardingPlan: none fit.
        """
        forward = sum(layer.forward_ms for layer in layers)
        backward = sum(layer.input_gradient_ms + layer.weight_gradient_ms for layer in layers)
        row = LayerRow(
            len(self._names) + 1,
            self._choices,
            self._alike,
            forward / max(forward + backward, 1e-9),
            lambda begin: float(sum(handed.bytes for handed in self._division.handed[begin - 1])),
        )
        pipeline = plan_sharded(row, hosts, self._count, groups=hosts.groups())
        return self._document(pipeline)

    def _document(self, pipeline: ShardedPipeline) -> GroupedPlan:
        stages = [
            GroupStage(
                stage.begin,
                stage.end,
                first,
                stage.devices,
                self._layouts(stage.begin, stage.end, stage.devices, choice),
            )
            for stage, first, choice in zip(pipeline.stages, pipeline.firsts, pipeline.choices, strict=True)
        ]
        return GroupedPlan(
            self._names,
            tuple(stages),
            self._count,
            step_ms=pipeline.step_ms,
            bubble=pipeline.bubble,
            exchange_ms=max(self._count * stage.layouts.conversion_ms for stage in stages),
            peak_bytes=pipeline.peak_bytes,
            messages_ms=pipeline.messages_ms,
        )

    def _layouts(self, begin: int, end: int, devices: int, choice: ShardingPlan) -> LayoutPlan:
        solved = self._solved[self._alike(begin, end), devices]
        try:
            _, whole = solved.described.best(_LIMIT_S, solved.described.kept_to(REPLICATED), relays=False)
            replicas = whole.ms
        except NoShardingPlan:
            replicas = float("inf")
        plan = solved.described.plan(solved.problem, choice, replicas)
        graph = self._graph(begin, end)  # an equal one: only its weights have other names
        parameters = [plan.parameters[name] for name in solved.graph.parameters]
        buffers = [plan.buffers[name] for name in solved.graph.buffers]
        return replace(
            plan,
            parameters=dict(zip(graph.parameters, parameters, strict=True)),
            buffers=dict(zip(graph.buffers, buffers, strict=True)),
        )
