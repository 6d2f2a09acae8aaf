"""The layouts of a training step's operators on a group of alike devices that take least, as data.

    joint = trace_joint(step)
    plan = plan_layouts(joint, step.optimiser, DeviceGroup(4, ring, peaks, memory_bytes=16e9))
    plan.parameters            # {"0.weight": "S(0)", ...}
    plan.replicas_ms           # what plain data parallelism is predicted to take

A time is the roofline of what each device computes and reads, and what conversions send; nothing overlaps. Weights may lie
divided and be gathered when they are read (as FSDP does), products may be divided by columns and rows (as Megatron does), or by
samples: all are choices of one programme.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from bricolage.device.collective import Ring
from bricolage.device.device import Device, Peaks
from bricolage.errors import NoShardingPlan
from bricolage.frontends.torch_operators import flops_of, is_view, operator_name, size_of, tensors_of
from bricolage.search.sharding.joint import RELAY, shared_conversions
from bricolage.search.sharding.layout_programme import best_sharding, frontier
from bricolage.search.sharding.layouts import MEAN, PARTIAL, REPLICATED, Layout, held_bytes, split_axis, splits
from bricolage.search.sharding.sharding_problem import (
    DividedOperator,
    DividedTensor,
    ShardingPlan,
    ShardingProblem,
    Signature,
)
from bricolage.train.sharded.planned_layouts import LayoutPlan, OperatorLayouts, message_layout
from bricolage.train.sharded.signatures import Pair, signatures_on
from bricolage.train.sharded.step_graph import JointStep, called_with, tensor_arguments
from bricolage.train.step.spec import Optimiser

if TYPE_CHECKING:
    import torch


_RELAYS_S = 10.0
"""For which graphs with shared conversions are looked for."""


@dataclass(frozen=True)
class DeviceGroup:
    """Alike devices that share one step."""

    workers: int
    ring: Ring
    peaks: Peaks
    """Of each."""
    memory_bytes: float = math.inf
    """Of each."""
    start_ms: float = field(default=0.002, kw_only=True)
    """Of each operator, views too: until it runs."""
    update_ms: float = field(default=0.0, kw_only=True)
    """Of the update of each parameter, but for its bytes."""
    slowdown: float = field(default=1.0, kw_only=True)
    """By which operators take longer than their rooflines."""

    def ms(self, flops: float, size: float) -> float:
        """Of an operator on one device, by its operations and the bytes that it reads and writes there."""
        return self.slowdown * self.peaks.floor_ms(flops, size)


def plan_layouts(joint: JointStep, optimiser: Optimiser, group: DeviceGroup, *, limit_s: float = 60.0) -> LayoutPlan:
    """The best layouts of a traced step.

    Args:
        joint: the step.
        optimiser: whose state lies as the weights do.
        group: the devices.
        limit_s: seconds for the integer programme, which runs where memory is short.

    Raises:
        NoShardingPlan: no layouts fit into the devices' memory.
    """
    described = Described(joint, optimiser, group)
    problem, best = described.best(limit_s)
    try:
        replicas = described.best(limit_s, described.kept_to(REPLICATED), relays=False)[1].ms
    except NoShardingPlan:
        replicas = math.inf
    return described.plan(problem, best, replicas)


def node_flops(node: torch.fx.Node) -> float:
    """Operations of an operator, whole."""
    args, kwargs = called_with(node, lambda argument: argument.meta["val"])
    return flops_of(node.target, args, kwargs, node.meta["val"])  # type: ignore[arg-type]


def roofline_ms(joint: JointStep, peaks: Peaks) -> float:
    """Of a step's forward and backward phase on one device, by operations and bytes alone."""
    import operator as python

    total = 0.0
    for node in joint.graph.graph.nodes:
        if node.op == "call_function" and node.target is not python.getitem and not is_view(node.target):
            touched = tensors_of(([argument.meta["val"] for argument in tensor_arguments(node)], node.meta["val"]))
            total += peaks.floor_ms(node_flops(node), sum(map(size_of, touched)))
    return total


def share_of_peaks(device: Device, threads: int, workers: int = 1) -> Peaks:
    """Of one of several processes on a device, at a number of threads."""
    return Peaks(device.peaks.gflops * min(1.0, threads / device.threads), device.peaks.gbytes / workers)


class Described:
    """A traced step as numbers: tensors, and operators with their signatures."""

    def __init__(self, joint: JointStep, optimiser: Optimiser, group: DeviceGroup, micro_batches: int = 1) -> None:
        """`micro_batches`: of a step, of which `joint` is one; gradients are added up and weights updated once."""
        self._joint, self._group, self._micro_batches = joint, group, micro_batches
        self._signatures = signatures_on(group.workers)
        self._refuted: set[str] = set()
        self._tensors: list[DividedTensor] = []
        self._operators: list[DividedOperator] = []
        self._names: list[str] = []
        self._nodes: list[torch.fx.Node | None] = []
        self._of: dict[tuple[str, int], int] = {}
        self._single = 0.0
        states = 1 if optimiser.kind == "sgd" else 2
        self._states = states if optimiser.kind != "sgd" or optimiser.momentum else 0
        self._given: list[str] = []
        nodes = list(joint.graph.graph.nodes)
        for number, node in enumerate(graph_node for graph_node in nodes if graph_node.op == "placeholder"):
            self._placeholder(number, node)
        for node in nodes:
            if node.op == "call_function":
                self._call(node)
        output = next(graph_node for graph_node in nodes if graph_node.op == "output")
        self._updates(output)
        self._leave(output)
        self.problem = ShardingProblem(tuple(self._operators), tuple(self._tensors), group.ring, group.memory_bytes)

    def _add(self, node: str, output: int, shape: torch.Tensor, lasting: float = 0.0, root: int = -1) -> int:
        number = self._of[node, output] = len(self._tensors)
        size = float(shape.numel() * shape.element_size())
        self._tensors.append(DividedTensor(f"{node}.{output}", size, lasting * size, root))
        return number

    def _placeholder(self, number: int, node: torch.fx.Node) -> None:
        """A parameter lies whole or divided, and so does a part of the batch."""
        value = node.meta["val"]
        trained, kept = len(self._joint.parameters), len(self._joint.parameters) + len(self._joint.buffers)
        lasting = 1.0 + self._states if number < trained else 1.0
        tensor = self._add(node.name, 0, value, lasting)
        layouts = [REPLICATED]
        if number >= kept + self._joint.batch:
            layouts = [self._message(value)]
        elif self._group.workers > 1 and (number < trained or number >= kept):
            layouts += splits(tuple(value.shape), self._group.workers)
        self._given.append(node.name)
        ways = tuple(Signature((), (layout,), 0.0) for layout in layouts)
        self._operators.append(DividedOperator(node.name, (), (tensor,), ways))
        self._names.append(node.name)
        self._nodes.append(None)

    def _call(self, node: torch.fx.Node) -> None:
        import operator as python

        if node.target is python.getitem:
            source, output = node.args
            place = (source.name, int(str(output)))  # type: ignore[union-attr]
            if place in self._of:
                self._of[node.name, 0] = self._of[place]
            return
        read = tensor_arguments(node)
        value = node.meta["val"]
        outputs = {
            n: tensor
            for n, tensor in enumerate(value if isinstance(value, (list, tuple)) else [value])
            if tensor is not None
        }
        shapes = [tuple(tensor.shape) for tensor in outputs.values()]
        whole: Pair = ((REPLICATED,) * len(read), (REPLICATED,) * len(shapes))
        pairs = self._signatures.of(node, shapes) if self._group.workers > 1 else [whole]
        reads = tuple(self._of[argument.name, 0] for argument in read)
        view = is_view(node.target) and bool(reads)  # type: ignore[arg-type]
        writes = tuple(self._add(node.name, n, tensor, root=reads[0] if view else -1) for n, tensor in outputs.items())
        flops = 0.0 if view else node_flops(node)
        ways = tuple(self._way(pair, reads, writes, flops, view=view) for pair in pairs)
        self._single += ways[0].ms
        self._operators.append(DividedOperator(operator_name(node.target), reads, writes, ways))  # type: ignore[arg-type]
        self._names.append(node.name)
        self._nodes.append(node)

    def _way(
        self, pair: Pair, reads: tuple[int, ...], writes: tuple[int, ...], flops: float, *, view: bool
    ) -> Signature:
        """With its time: operations are divided where something is, bytes as they lie."""
        inputs, outputs = pair
        workers = self._group.workers
        divided = any(split_axis(source) is not None for source in (*inputs, *outputs))
        held = sum(
            held_bytes(layout, self._tensors[tensor].bytes, workers)
            for layout, tensor in zip((*inputs, *outputs), (*reads, *writes), strict=True)
        )
        ms = 0.0 if view else self._group.ms(flops / (workers if divided else 1), held)
        return Signature(inputs, outputs, ms + self._group.start_ms)

    def _updates(self, output: torch.fx.Node) -> None:
        """Each parameter is updated where it lies, by a gradient that lies so."""
        gradients = list(output.args[0])[self._joint.outputs :][: len(self._joint.parameters)]  # type: ignore[arg-type]
        for name, gradient in zip(self._given, gradients, strict=False):
            if gradient is None:
                continue
            parameter = self._of[name, 0]
            size, workers = self._tensors[parameter].bytes * (3 + 2 * self._states), self._group.workers
            layouts = [signature.outputs[0] for signature in self._operators[self._given.index(name)].signatures]
            ways = tuple(
                Signature(
                    (layout, layout), (), self._group.ms(0.0, held_bytes(layout, size, workers)) + self._group.update_ms
                )
                for layout in layouts
            )
            self._single += ways[0].ms
            reads = (parameter, self._of[gradient.name, 0])
            weight = 1.0 / self._micro_batches
            if self._micro_batches > 1:
                reads = (parameter, self._sum(self._of[gradient.name, 0], name))
            self._operators.append(DividedOperator("update", reads, (), ways, in_place=(0,), weight=weight))
            self._names.append("")
            self._nodes.append(None)

    def _sum(self, gradient: int, name: str) -> int:
        """Gradients of micro-batches are added up as operators lay them out."""
        size = self._tensors[gradient].bytes
        total = len(self._tensors)
        self._tensors.append(DividedTensor(f"{name} gradient", size, size))
        axes = {layout for way in self._operators[self._given.index(name)].signatures for layout in way.outputs}
        ways = [
            Signature((layout,), (layout,), self._group.ms(0.0, 3 * held_bytes(layout, size, self._group.workers)))
            for layout in sorted({*axes, PARTIAL, MEAN})
        ]
        self._operators.append(DividedOperator("sum", (gradient,), (total,), tuple(ways)))
        self._names.append("")
        self._nodes.append(None)
        return total

    def _leave(self, output: torch.fx.Node) -> None:
        """What a stage hands on, and gradients that go back, leave as messages lie."""
        results = list(output.args[0])  # type: ignore[arg-type]
        count = self._joint.outputs
        sent = [*(results[:count] if self._joint.cotangents else ()), *results[count + len(self._joint.parameters) :]]
        for result in sent:
            if result is None:
                continue
            way = Signature((self._message(result.meta["val"]),), (), 0.0)
            self._operators.append(DividedOperator("message", (self._of[result.name, 0],), (), (way,)))
            self._names.append("")
            self._nodes.append(None)

    def _message(self, value: torch.Tensor) -> Layout:
        return message_layout(value.shape[0] if value.dim() else None, self._group.workers)

    def choices(self, limit_s: float) -> tuple[ShardingProblem, list[ShardingPlan]]:
        """Choices of signatures that hold, with their problem: the fastest alone where all micro-batches at once would fit with it,
        else those from the fastest to one that keeps little (`frontier`).

        Raises:
            NoShardingPlan: no layouts fit into the devices' memory.
        """
        now, fastest = self.best(limit_s, relays=False)
        if self._micro_batches * fastest.peak_bytes <= now.memory_bytes:
            return now, [fastest]
        while True:
            plans = frontier(now)
            refused = [held for held in (self._held(now, plan) for plan in plans) if held is not None]
            if not refused:
                return now, plans
            now = refused[0]

    def best(
        self, limit_s: float, problem: ShardingProblem | None = None, *, relays: bool = True
    ) -> tuple[ShardingProblem, ShardingPlan]:
        """The best choice of signatures that hold: those that do not are left out, and it is chosen again. Returned with what it is
        a choice of: where conversions are shared that has relays. `problem`: with fewer signatures than this one has, as
        `kept_to` gives it; `relays`: whether conversions may be shared."""
        now = problem or self.problem
        while True:
            sharding_plan = best_sharding(now, limit_s=limit_s)
            held = self._held(now, sharding_plan)
            if held is None:
                break
            now = held
        if not relays:
            return now, sharding_plan
        shared, better = shared_conversions(
            now, sharding_plan, lambda candidate: best_sharding(candidate, limit_s=0.0), limit_s=_RELAYS_S
        )
        return (shared, better) if self._held(shared, better) is None else (now, sharding_plan)

    def _held(self, problem: ShardingProblem, found: ShardingPlan) -> ShardingProblem | None:
        """The problem without the signatures of a choice that do not hold; None where all do."""
        operators, holds, nodes = list(problem.operators), True, iter(self._nodes)
        for number, choice in enumerate(found.choices):
            divided_operator = problem.operators[number]
            node = next(nodes) if divided_operator.name != RELAY else None
            way = divided_operator.signatures[choice]
            if node is not None and not self._signatures.holds(node, (way.inputs, way.outputs)):
                self._refuted.add(divided_operator.name)
                operators[number] = replace(
                    divided_operator, signatures=tuple(w for w in divided_operator.signatures if w != way)
                )
                holds = False
        return None if holds else replace(problem, operators=tuple(operators))

    def kept_to(self, weights: Layout) -> ShardingProblem:
        """The problem of plain data parallelism: weights whole; samples, and with them what is made of them, divided where that is
        possible. With "S(0)" weights lie divided where their first axis is."""
        trained, kept = len(self._joint.parameters), len(self._joint.parameters) + len(self._joint.buffers)
        changed = list(self._operators)
        for number, divided_operator in enumerate(changed[: len(self._given)]):
            wanted = weights if number < trained else REPLICATED if number < kept else "S(0)"
            ways = [way for way in divided_operator.signatures if way.outputs[0] == wanted] or list(
                divided_operator.signatures[:1]
            )
            changed[number] = replace(divided_operator, signatures=tuple(ways))
        for number, divided_operator in enumerate(changed):
            if divided_operator.name == "update":
                only = changed[divided_operator.reads[0]].signatures[0].outputs[0]
                changed[number] = replace(
                    divided_operator, signatures=tuple(w for w in divided_operator.signatures if w.inputs[0] == only)
                )
        return replace(self.problem, operators=tuple(changed))

    def plan(self, problem: ShardingProblem, best: ShardingPlan, replicas_ms: float) -> LayoutPlan:
        """A choice of a problem as data."""
        both = list(zip(problem.operators, best.choices, strict=True))
        chosen = [divided_operator.signatures[n] for divided_operator, n in both if divided_operator.name != RELAY]
        relays = {
            problem.tensors[divided_operator.reads[0]].name: divided_operator.signatures[n].inputs[0]
            for divided_operator, n in both
            if divided_operator.name == RELAY
        }
        given = [signature.outputs[0] for signature in chosen[: len(self._given)]]
        trained, kept = len(self._joint.parameters), len(self._joint.parameters) + len(self._joint.buffers)
        called = zip(self._names[len(given) :], chosen[len(given) :], strict=True)
        return LayoutPlan(
            self._group.workers,
            dict(zip(self._joint.parameters, given, strict=False)),
            buffers=dict(zip(self._joint.buffers, given[trained:kept], strict=True)),
            batch=tuple(given[kept:]),
            operators=tuple(OperatorLayouts(name, way.inputs, way.outputs) for name, way in called if name),
            relays=relays,
            ms=best.ms,
            conversion_ms=best.conversion_ms,
            bound_ms=best.bound_ms,
            peak_bytes=best.peak_bytes,
            replicas_ms=replicas_ms,
            single_ms=self._single,
            method=best.method,
            whole=tuple(
                sorted({operator.name for operator in self._operators[len(given) :] if len(operator.signatures) == 1})
            ),
            refuted=tuple(sorted(self._refuted)),
        )
