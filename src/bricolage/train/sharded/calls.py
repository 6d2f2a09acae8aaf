"""What partitioned steps take but for computing and sending: measured once on processes of this machine, all at the same time.

A call of an operator passes Python and PyTorch's dispatcher, a conversion also a collective with its wait. With small tensors that
is all there is; with larger ones the line through their times is that of gloo's own algorithm.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from bricolage.device.collective import CallTimes, Ring
from bricolage.device.device import Link, Peaks
from bricolage.search.sharding.layouts import REPLICATED, Layout
from bricolage.train.pipeline.layers import line
from bricolage.train.run.process_group import run_group
from bricolage.train.run.rank import Rank
from bricolage.train.sharded.layout_plan import roofline_ms
from bricolage.train.sharded.planned_layouts import LayoutPlan, OperatorLayouts
from bricolage.train.sharded.signatures import to_placement
from bricolage.train.sharded.step_graph import JointStep, trace_joint
from bricolage.train.step.spec import Optimiser
from bricolage.train.step.step import TrainingStep, make_optimiser

if TYPE_CHECKING:
    import torch
    from torch.distributed.tensor import DTensor

_RUNS = 4
"""Of a graph whose time is taken."""
_LONGEST_S = 120.0
_SIZES = (1 << 12, 1 << 16, 1 << 19, 1 << 22)
"""Bytes of the whole tensors that are converted."""
_COUNTS = (5, 200)
"""Calls that are timed, at least and at most."""
_CONVERSIONS = {"reduce": ("P", "R"), "gather": ("S(0)", "R"), "scatter": ("P", "S(0)"), "exchange": ("S(0)", "S(1)")}
_LAYERS, _WIDTH = 6, 8


@dataclass(frozen=True)
class CallsJob:
    """Of each process."""

    optimiser: Optimiser
    seconds: float


@dataclass(frozen=True)
class CallsAnswer:
    """What a process saw, milliseconds."""

    operator_ms: float
    update_ms: float
    conversions: Mapping[str, tuple[tuple[int, float], ...]]
    """By kind, bytes of the whole tensor and milliseconds."""


@dataclass(frozen=True)
class DispatchTimes:
    """What calls take among processes that all run; milliseconds."""

    operator_ms: float
    """Of each operator, until it runs."""
    update_ms: float
    """Of the update of each parameter."""
    conversions: Mapping[str, CallTimes]
    """By kind: "reduce", "gather", "scatter", "exchange"."""
    workers: int = 2
    """Among which conversions were measured."""

    def on(self, ring: Ring) -> Ring:
        """A ring of these workers with collectives as they were measured."""
        reduce = self.conversions["reduce"]
        return replace(
            ring,
            latency_ms=reduce.start_ms,
            ms_per_byte=max(reduce.ms_per_byte, ring.ms_per_byte),
            gather=self.conversions["gather"],
            scatter=self.conversions["scatter"],
            exchange=self.conversions["exchange"],
        )

    def among(self, workers: int, link: Link) -> Ring:
        """A ring of some of these workers on links of a bandwidth: starts grow with the messages, bytes with their share of a
        tensor, and what links take longer than was measured counts."""
        if workers < 2:
            return Ring.described(1, link)
        steps, share = (workers - 1) / (self.workers - 1), (workers - 1) / workers * self.workers / (self.workers - 1)
        scaled = replace(
            self,
            workers=workers,
            conversions={
                kind: CallTimes(steps * call_times.start_ms, share * call_times.ms_per_byte)
                for kind, call_times in self.conversions.items()
            },
        )
        return scaled.held(workers, link.gbytes).on(Ring.described(workers, link))

    def described(self, workers: int, link: Link) -> Ring:
        """The same on described links, whose latency comes on top of a call's start."""
        ring = self.among(workers, link)
        if workers < 2:
            return ring
        ways = {"latency_ms": 2.0, "gather": 1.0, "scatter": 1.0, "exchange": 1.0}
        wait = {name: ways_ * (workers - 1) * link.latency_us / 1e3 for name, ways_ in ways.items()}
        assert ring.gather is not None and ring.scatter is not None and ring.exchange is not None
        return replace(
            ring,
            latency_ms=ring.latency_ms + wait["latency_ms"],
            gather=replace(ring.gather, start_ms=ring.gather.start_ms + wait["gather"]),
            scatter=replace(ring.scatter, start_ms=ring.scatter.start_ms + wait["scatter"]),
            exchange=replace(ring.exchange, start_ms=ring.exchange.start_ms + wait["exchange"]),
        )

    def held(self, workers: int, gbytes: float) -> DispatchTimes:
        """The same where links have less bandwidth than was measured."""
        other = (workers - 1) / workers
        shares = {"reduce": 2 * other, "gather": other, "scatter": other, "exchange": other}
        return replace(
            self,
            conversions={
                kind: replace(call_times, ms_per_byte=max(call_times.ms_per_byte, shares[kind] / gbytes / 1e6))
                for kind, call_times in self.conversions.items()
            },
        )


def measure_calls(workers: int, threads: int, optimiser: Optimiser, seconds: float) -> DispatchTimes:
    """On a number of processes of this machine.

    Args:
        workers: at least 2.
        threads: of each.
        optimiser: whose updates are timed.
        seconds: for all of it, but for starting the processes.

    Raises:
        TrainingWorkerFailed: one of them ends, or does not answer.
    """
    answers = run_group(work, [CallsJob(optimiser, seconds)] * workers, CallsAnswer, threads, _LONGEST_S + 10 * seconds)
    lines = {}
    for kind in _CONVERSIONS:
        sizes = [size for size, _ in answers[0].conversions[kind]]
        seen = {size: max(dict(answer.conversions[kind])[size] for answer in answers) for size in sizes}
        per_byte, start = line(seen)
        lines[kind] = CallTimes(start, per_byte)
    return DispatchTimes(
        max(answer.operator_ms for answer in answers), max(answer.update_ms for answer in answers), lines, workers
    )


def work(job: CallsJob, rank: Rank) -> CallsAnswer:
    """What each process does."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import distribute_tensor

    from bricolage.train.sharded.dtensor_step import distribute
    from bricolage.train.sharded.partitioned_step import PartitionedStep

    mesh = init_device_mesh("cpu", (rank.size,))
    share = job.seconds / (len(_CONVERSIONS) * len(_SIZES) + 2)
    step = _small(job.optimiser)
    joint = trace_joint(step)
    nodes = [node for node in joint.graph.graph.nodes if node.name in set(joint.calls)]
    plan = _whole(joint.parameters, [(node.name, len(node.all_input_nodes), node) for node in nodes], rank.size)
    given = distribute(joint, plan, dict(step.module.named_parameters()), [*step.inputs, *step.targets], mesh)
    program = PartitionedStep(joint, plan, given)
    parts = [tensor.to_local() for tensor in given]
    parameters = [torch.nn.Parameter(part) for part in parts[: len(joint.parameters)]]
    optimiser = make_optimiser(replace(job.optimiser, lr=0.0), parameters)
    now = [*parameters, *parts[len(parameters) :]]
    gradients = program.run(now).gradients
    for parameter, name in zip(parameters, joint.parameters, strict=True):
        parameter.grad = gradients[name]
    operators = _median(lambda: program.run(now), share, rank) / len(nodes)
    updates = _median(optimiser.step, share, rank) / len(parameters)
    conversions: dict[str, tuple[tuple[int, float], ...]] = {}
    for kind, (source, target) in _CONVERSIONS.items():
        seen = []
        for size in _SIZES:
            rows = 4 * rank.size
            whole = torch.zeros(rows, max(rank.size, size // 4 // rows // rank.size * rank.size))
            placed = distribute_tensor(whole, mesh, [to_placement(source)])
            ms = _median(_convert(placed, target), share, rank)
            seen.append((whole.numel() * 4, ms))
        conversions[kind] = tuple(seen)
    return CallsAnswer(operators, updates, conversions)


def _convert(placed: DTensor, target: Layout) -> Callable[[], object]:
    """A call that converts a tensor as a partitioned step does."""
    from torch.distributed.tensor import DTensor
    from torch.fx.experimental.proxy_tensor import make_fx

    def redistribute(part: torch.Tensor) -> torch.Tensor:
        tensor = DTensor.from_local(part, placed.device_mesh, placed.placements, run_check=False)
        return tensor.redistribute(placements=[to_placement(target)]).to_local().contiguous()

    part = placed.to_local()
    return partial(make_fx(redistribute)(part), part)


def _small(optimiser: Optimiser) -> TrainingStep:
    """Operators that take next to nothing by themselves."""
    import torch

    torch.manual_seed(0)
    layers = [layer for _ in range(_LAYERS) for layer in (torch.nn.Linear(_WIDTH, _WIDTH), torch.nn.ReLU())]
    batch = torch.zeros(2, _WIDTH)
    return TrainingStep(torch.nn.Sequential(*layers), torch.nn.functional.mse_loss, (batch,), (batch,), optimiser)


def _whole(parameters: tuple[str, ...], nodes: list[tuple[str, int, object]], workers: int) -> LayoutPlan:
    """All whole on each process."""
    from bricolage.train.sharded.step_graph import tensor_arguments

    operators = tuple(
        OperatorLayouts(name, (REPLICATED,) * len(tensor_arguments(node)), (REPLICATED,))  # type: ignore[arg-type]
        for name, _, node in nodes
    )
    lying = dict.fromkeys(parameters, REPLICATED)
    return LayoutPlan(
        workers,
        parameters=lying,
        buffers={},
        batch=(REPLICATED, REPLICATED),
        operators=operators,
        relays={},
        ms=0.0,
        conversion_ms=0.0,
        bound_ms=0.0,
        peak_bytes=0.0,
        replicas_ms=0.0,
        single_ms=0.0,
        method="whole",
    )


def _median(act: Callable[[], object], seconds: float, rank: Rank) -> float:
    """Milliseconds of a call that all processes make, as often in each."""
    import torch

    act()
    begun = time.perf_counter()
    act()
    count = torch.tensor([seconds / max(time.perf_counter() - begun, 1e-6)])
    rank.dist.all_reduce(count, op=rank.dist.ReduceOp.MIN)
    times = []
    for _ in range(int(min(max(float(count), _COUNTS[0]), _COUNTS[1]))):
        begun = time.perf_counter()
        act()
        times.append((time.perf_counter() - begun) * 1e3)
    return sorted(times)[len(times) // 2]


def slowdown_of(joints: Sequence[JointStep], peaks: Peaks, operator_ms: float, factor: float, threads: int) -> float:
    """How much longer than their rooflines graphs take that are run here, on zeros, beyond the start of each operator.

    Args:
        joints: the graphs.
        peaks: of this process.
        operator_ms: of an operator, until it runs.
        factor: by which the planned devices take longer.
        threads: of each process.
    """
    roofline = sum(roofline_ms(joint, peaks) for joint in joints)
    starts = operator_ms * sum(len(joint.calls) for joint in joints)
    measured = sum(_graph_ms(joint, threads) for joint in joints)
    return max(1.0, factor * (measured - starts) / max(roofline, 1e-9))


def _graph_ms(joint: JointStep, threads: int) -> float:
    """The least of a few runs in this process."""
    import torch

    values = [node.meta["val"] for node in joint.graph.graph.nodes if node.op == "placeholder"]
    given = [torch.zeros(tuple(value.shape), dtype=value.dtype) for value in values]
    before, least = torch.get_num_threads(), math.inf
    torch.set_num_threads(threads)
    try:
        with torch.no_grad():
            for _ in range(_RUNS):
                begun = time.perf_counter()
                joint.graph(*given)
                least = min(least, (time.perf_counter() - begun) * 1e3)
    finally:
        torch.set_num_threads(before)
    return least
