"""A training step in planned layouts, run by DTensor: each operator on parts, each conversion as DTensor redistributes.

Each process of the group traces the step again; the plan names its operators. Under `torch.no_grad`, since the gradient is part
of the graph. An operator that DTensor does not know runs on its parts alone, in the layouts that its signature says.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from bricolage.errors import NotShardable
from bricolage.search.sharding.layouts import MEAN, REPLICATED, Layout, is_partial
from bricolage.train.sharded.partitioned_operators import PARTITIONED, run_partitioned
from bricolage.train.sharded.planned_layouts import LayoutPlan, OperatorLayouts
from bricolage.train.sharded.signatures import LOCAL, to_layout, to_placement
from bricolage.train.sharded.step_graph import JointStep, called_with, tensor_arguments
from bricolage.train.step.step import TrainingStep

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor


Value: TypeAlias = "DTensor | list[DTensor]"
"""Of a node; several of an operator that writes several tensors."""


@dataclass
class ShardedRun:
    """What one step gave: the loss, and for each parameter its gradient where the parameter lies."""

    loss: DTensor
    gradients: Mapping[str, DTensor | None]
    strayed: list[str] = field(default_factory=list)
    """Operators whose output DTensor laid out in another way than planned; their readers converted it."""


def distribute(
    joint: JointStep,
    plan: LayoutPlan,
    state: Mapping[str, torch.Tensor],
    batch: Sequence[torch.Tensor],
    mesh: DeviceMesh,
) -> list[DTensor]:
    """Parameters, buffers and batch as planned, from whole ones that are the same in each process.

    Raises:
        NotShardable: the plan is for another number of processes, or for another step.
    """
    from torch.distributed.tensor import distribute_tensor

    if mesh.size() != plan.workers:
        raise NotShardable(reason=f"its plan is for {plan.workers} devices, and there are {mesh.size()}")
    if set(joint.parameters) != set(plan.parameters) or len(batch) != len(plan.batch):
        raise NotShardable(reason="its plan is for a step with other parameters or another batch")
    named = {**plan.parameters, **plan.buffers}
    layouts = [named[name] for name in (*joint.parameters, *joint.buffers)]
    values = [state[name].detach() for name in (*joint.parameters, *joint.buffers)]
    return [
        distribute_tensor(value, mesh, [to_placement(layout)])
        for value, layout in zip([*values, *batch], [*layouts, *plan.batch], strict=True)
    ]


def run_sharded(joint: JointStep, plan: LayoutPlan, given: Sequence[DTensor]) -> ShardedRun:
    """One forward and backward phase on what `distribute` gives.

    Raises:
        NotShardable: the plan is for a step with other operators.
    """
    import torch

    with torch.no_grad():
        results, strayed = evaluate_sharded(joint, plan, given)
        gradients: dict[str, DTensor | None] = {}
        for name, gradient in zip(joint.parameters, results[1:], strict=True):
            where = [to_placement(plan.parameters[name])]
            gradients[name] = None if gradient is None else gradient.redistribute(placements=where)
        loss = _tensor(results[0]).redistribute(placements=[to_placement(REPLICATED)])
    return ShardedRun(loss, gradients, strayed)


def evaluate_sharded(
    joint: JointStep, plan: LayoutPlan, given: Sequence[DTensor]
) -> tuple[list[DTensor | None], list[str]]:
    """The graph's outputs as its operators lay them out, and operators that DTensor laid out in another way than planned.

    Raises:
        NotShardable: the plan is for a step with other operators.
    """
    values: dict[torch.fx.Node, Value] = {}
    readers = {node: len(node.users) for node in joint.graph.graph.nodes}
    waiting = {operator_layouts.name: operator_layouts for operator_layouts in plan.operators}
    strayed: list[str] = []
    results: list[DTensor | None] = []
    mesh = given[0].device_mesh
    for number, node in enumerate(joint.graph.graph.nodes):
        if node.op == "placeholder":
            values[node] = _relay_value(given[number], plan.relays.get(f"{node.name}.0"))
        elif node.op == "output":
            results = [None if output is None else _tensor(values[output]) for output in node.args[0]]
        elif node.target is operator.getitem:
            several = values[node.args[0]]
            values[node] = _tensor(several[node.args[1]])
        elif node.name not in waiting:
            raise NotShardable(reason=f"its plan does not know '{node.name}'")
        else:
            outputs = _call(node, waiting[node.name], values, mesh, strayed)
            values[node] = (
                [_relay_value(output, plan.relays.get(f"{node.name}.{n}")) for n, output in enumerate(outputs)]
                if isinstance(outputs, list)
                else _relay_value(outputs, plan.relays.get(f"{node.name}.0"))
            )
        for source in node.all_input_nodes:  # what is read no more is given back
            readers[source] -= 1
            if not readers[source]:
                del values[source]
    return results, strayed


def _relay_value(value: DTensor, layout: Layout | None) -> DTensor:
    if layout is None or to_layout(value.placements[0]) == layout:
        return value
    return convert(value, layout)


def convert(value: DTensor, layout: Layout) -> DTensor:
    """A tensor in another layout, its parts contiguous. Summands of a whole tensor, which DTensor does not make: the first process
    keeps it and the others have zeros; for a mean each keeps it."""
    from torch.distributed.tensor import DTensor

    if not is_partial(layout):
        return _in_one_piece(value.redistribute(placements=[to_placement(layout)]))
    part = value.to_local()
    if layout != MEAN and value.device_mesh.get_local_rank():
        part = part.new_zeros(part.shape)
    return _in_one_piece(DTensor.from_local(part, value.device_mesh, [to_placement(layout)], run_check=False))


def _tensor(value: object) -> DTensor:
    from torch.distributed.tensor import DTensor

    assert isinstance(value, DTensor)
    return value


def _call(
    node: torch.fx.Node,
    layouts: OperatorLayouts,
    values: Mapping[torch.fx.Node, Value],
    mesh: DeviceMesh,
    strayed: list[str],
) -> Value:
    import torch
    from torch.distributed.tensor import DTensor

    wanted = iter(layouts.inputs)
    name = str(node.target._name).partition(".")[0]  # type: ignore[union-attr]
    substituted = PARTITIONED.get(name) == (layouts.inputs, layouts.outputs)
    alone = not tensor_arguments(node) or name in LOCAL or substituted

    def read(one: torch.fx.Node) -> object:
        value, layout = _tensor(values[one]), next(wanted)
        there = value
        if to_layout(value.placements[0]) != layout:
            there = convert(value, layout)
        elif node.target is torch.ops.aten.view.default:
            there = _in_one_piece(there)
        return there.to_local() if alone else there

    args, kwargs = called_with(node, read)
    function = run_partitioned(name, mesh.get_local_rank(), mesh.size()) if substituted else node.target
    out = function(*args, **kwargs)  # type: ignore[operator]
    several = list(out) if isinstance(out, (list, tuple)) else [out]
    outputs = iter(layouts.outputs)
    for place, output in enumerate(several):
        if not isinstance(output, torch.Tensor):
            continue
        layout: Layout = next(outputs)
        if not isinstance(output, DTensor):
            several[place] = DTensor.from_local(output, mesh, [to_placement(layout)], run_check=False)
        elif to_layout(output.placements[0]) != layout:
            strayed.append(node.name)
    return several if isinstance(out, (list, tuple)) else several[0]  # type: ignore[return-value]


def _in_one_piece(value: DTensor) -> DTensor:
    """With parts that are contiguous: what is cut out of a larger one could not be viewed as the graph views the whole. Nor could
    what a kernel wrote in another order than PyTorch's tracer foresaw, as that of attention does."""
    import torch
    from torch.distributed.tensor import DTensor

    part = value.to_local()
    if part.is_contiguous() and value.is_contiguous():
        return value
    return DTensor.from_local(
        part.contiguous(),
        value.device_mesh,
        value.placements,
        run_check=False,
        shape=value.shape,
        stride=torch.empty(value.shape, device="meta").stride(),
    )


class FullySharded:
    """A step by FSDP2: weights divided along their first axis and gathered for each module that has own ones, samples divided. The
    loss is a mean over samples. Changes the step's module."""

    def __init__(self, step: TrainingStep, mesh: DeviceMesh) -> None:
        """`mesh`: of all processes that share the step.

        Raises:
            NotShardable: the processes do not divide the samples.
        """
        from torch.distributed.fsdp import fully_shard

        size, rank = mesh.size(), mesh.get_local_rank()
        parts = []
        for source in (*step.inputs, *step.targets):
            if source.shape[0] % size:
                raise NotShardable(reason=f"{size} devices do not divide {source.shape[0]} samples")
            parts.append(source.chunk(size)[rank])
        for module in sharded_modules(step.module):
            fully_shard(module, mesh=mesh)
        self._step, self._mesh = step, mesh
        inputs = len(step.inputs)
        self._inputs, self._targets = parts[:inputs], parts[inputs:]

    def backward(self) -> torch.Tensor:
        """The forward and backward phase; the loss of this process's samples. FSDP2 averages gradients."""
        loss = self._step.loss(self._step.module(*self._inputs), *self._targets)
        loss.backward()
        return loss.detach()

    def loss(self, own: torch.Tensor) -> torch.Tensor:
        """Of all samples."""
        import torch

        total = own.clone()
        torch.distributed.all_reduce(total, group=self._mesh.get_group())
        return total / self._mesh.size()

    @property
    def gradients(self) -> Mapping[str, DTensor | None]:
        """By parameter, where it lies."""
        return {name: parameter.grad for name, parameter in self._step.module.named_parameters()}  # type: ignore[misc]


def sharded_modules(module: torch.nn.Module) -> list[torch.nn.Module]:
    """The modules whose weights FSDP2 gathers together; the whole one comes last, with what is left. One that has own weights comes
    with all inside it: it may read their weights without calling them, as attention does with its last product's."""
    units: list[torch.nn.Module] = []
    waiting = list(reversed(list(module.children())))
    while waiting:
        candidate = waiting.pop()
        if next(candidate.parameters(recurse=False), None) is not None:
            units.append(candidate)
        else:
            waiting += reversed(list(candidate.children()))
    return [*units, module]
