"""A stage on a group of processes as three programs of each: the forward pass, the backward pass, and what ends a step.

A stage's graph is given gradients of its outputs, too. What depends on none of them is the forward pass; the rest, with what it
reads of the first, is the backward pass. Gradients of weights stay as operators lay them out while micro-batches add to
them, and are converted once, before the update.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bricolage.errors import NotShardable
from bricolage.search.sharding.layouts import split_axis
from bricolage.train.sharded.dtensor_step import evaluate_sharded
from bricolage.train.sharded.partitioned_step import without_collectives
from bricolage.train.sharded.planned_layouts import LayoutPlan, message_layout
from bricolage.train.sharded.signatures import to_placement
from bricolage.train.sharded.step_graph import JointStep, StageExample, stage_state, trace_stage

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.placement_types import Placement

Parts = Sequence["torch.Tensor"]


class StagePrograms:
    """What one process of a stage's group runs. Tensors are its parts; those that are carried lie as messages do."""

    def __init__(self, example: StageExample, plan: LayoutPlan, mesh: DeviceMesh | None) -> None:
        """All processes of the group make it; the graph runs once meanwhile.

        Args:
            example: the stage, and a micro-batch.
            plan: its layouts.
            mesh: of the group; None where it is one process.

        Raises:
            NotShardable: the plan is for another stage, or another number of processes.
        """
        import torch

        joint = trace_stage(example)
        if (1 if mesh is None else mesh.size()) != plan.workers or set(joint.parameters) != set(plan.parameters):
            raise NotShardable(reason="its plan is for a stage with other parameters, or on other devices")
        planned_names = {operator.name for operator in plan.operators}
        unknown = next((call for call in joint.calls if call not in planned_names), None)
        if unknown is not None:
            raise NotShardable(reason=f"its plan does not know '{unknown}'")
        self._joint, self._plan, self._mesh = joint, plan, mesh
        trained, fixed = stage_state(example)
        self._wholes = {name: tensor.detach() for name, tensor in trained.items()}
        given = [*self._wholes.values(), *(tensor.detach() for tensor in fixed.values())]
        layouts = [{**plan.parameters, **plan.buffers}[name] for name in (*joint.parameters, *joint.buffers)]
        parts = [self.part(tensor, layout) for tensor, layout in zip(given, layouts, strict=True)]
        count = len(joint.parameters)
        self.parameters = {
            name: torch.nn.Parameter(part) for name, part in zip(joint.parameters, parts[:count], strict=True)
        }
        self._state = [*self.parameters.values(), *parts[count:]]
        program = joint.graph if mesh is None else self._partition(mesh)
        self._forward, self._backward, self._kept = _in_two(program, joint)
        self._finish: torch.fx.GraphModule | None = None

    def part(self, whole: torch.Tensor, layout: str) -> torch.Tensor:
        """Of a tensor that this process has whole."""
        axis = split_axis(layout)
        if self._mesh is None or axis is None:
            return whole
        return whole.chunk(self._mesh.size(), axis)[self._mesh.get_local_rank()].contiguous()

    def batch(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """This process's parts of a micro-batch's inputs and targets."""
        layouts = self._plan.batch[: self._joint.batch]
        return [self.part(tensor, layout) for tensor, layout in zip(tensors, layouts, strict=True)]

    def forward(self, batch: Parts, carried: Parts) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """What is handed on (or the loss), and what the backward pass needs."""
        import torch

        with torch.no_grad():
            results = self._forward(*self._state, *batch, *carried)
        count = self._joint.outputs
        return list(results[:count]), list(results[count:])

    def backward(self, kept: Parts, cotangents: Parts) -> tuple[list[torch.Tensor | None], list[torch.Tensor]]:
        """Gradients of the parameters, as they come, and of what was carried and has one."""
        import torch

        with torch.no_grad():
            results = self._backward(*kept, *cotangents)
        count = len(self._joint.parameters)
        return list(results[:count]), list(results[count:])

    def finish(self, gradients: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Gradients that were added up over micro-batches, where their parameters lie."""
        from torch.fx.experimental.proxy_tensor import make_fx

        if self._mesh is None:
            return dict(gradients)
        mesh = self._mesh

        def convert(*parts: torch.Tensor) -> list[torch.Tensor]:
            tensors = [
                self._as_whole(name, part, self._laid[name]) for name, part in zip(gradients, parts, strict=True)
            ]
            wanted = [[to_placement(self._plan.parameters[name])] for name in gradients]
            return [
                tensor.redistribute(mesh, placements).to_local()
                for tensor, placements in zip(tensors, wanted, strict=True)
            ]

        if self._finish is None:
            self._finish = make_fx(convert)(*gradients.values())
        return dict(zip(gradients, self._finish(*gradients.values()), strict=True))

    def spare_collectives(self) -> None:
        """From now on it only computes, for its time."""
        self._forward, self._backward = without_collectives(self._forward), without_collectives(self._backward)
        if self._finish is not None:
            self._finish = without_collectives(self._finish)

    def whole(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        """A parameter's gradient from all processes' parts: all have to ask."""
        if self._mesh is None:
            return gradient
        return self._as_whole(name, gradient, [to_placement(self._plan.parameters[name])]).full_tensor()

    def _as_whole(self, name: str, part: torch.Tensor, placements: Sequence[Placement]) -> DTensor:
        from torch.distributed.tensor import DTensor

        weight = self._wholes[name]
        return DTensor.from_local(
            part, self._mesh, placements, run_check=False, shape=weight.shape, stride=weight.stride()
        )

    def _partition(self, mesh: DeviceMesh) -> torch.fx.GraphModule:
        """The graph of this process, with collectives; its inputs and outputs are as the whole graph's."""
        import torch
        from torch.distributed.tensor import DTensor
        from torch.fx.experimental.proxy_tensor import make_fx

        joint, plan = self._joint, self._plan
        holders = [node for node in joint.graph.graph.nodes if node.op == "placeholder"]
        wholes = [node.meta["val"] for node in holders]
        named = {**plan.parameters, **plan.buffers}
        layouts = [*(named[name] for name in (*joint.parameters, *joint.buffers)), *plan.batch]
        placed = [[to_placement(layout)] for layout in layouts]
        self._laid: dict[str, Sequence[Placement]] = {}

        def run(*parts: torch.Tensor) -> list[torch.Tensor | None]:
            tensors = [
                DTensor.from_local(part, mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride())
                for part, placements, whole in zip(parts, placed, wholes, strict=True)
            ]
            results, _ = evaluate_sharded(joint, plan, tensors)
            ends = joint.outputs, joint.outputs + len(joint.parameters)
            gradients = dict(zip(joint.parameters, results[ends[0] : ends[1]], strict=True))
            self._laid = {name: tensor.placements for name, tensor in gradients.items() if tensor is not None}
            messages = [_as_message(tensor, mesh) for tensor in (*results[: ends[0]], *results[ends[1] :])]
            parts_here = [None if tensor is None else tensor.to_local() for tensor in gradients.values()]
            return [*messages[: ends[0]], *parts_here, *messages[ends[0] :]]

        examples = [
            self.part(torch.zeros(tuple(whole.shape), dtype=whole.dtype), layout)
            for whole, layout in zip(wholes, layouts, strict=True)
        ]
        with torch.no_grad():
            return make_fx(run)(*self._state, *examples[len(self._state) :])


def _as_message(tensor: DTensor | None, mesh: DeviceMesh) -> torch.Tensor | None:
    if tensor is None:
        return None
    layout = message_layout(tensor.shape[0] if tensor.dim() else None, mesh.size())
    return tensor.redistribute(mesh, [to_placement(layout)]).to_local()


def _in_two(
    program: torch.fx.GraphModule, joint: JointStep
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule, list[str]]:
    """What rests on no gradient of an output, and the rest; names of what the second reads of the first."""
    import torch

    program.graph.eliminate_dead_code()
    nodes = list(program.graph.nodes)
    holders = [node for node in nodes if node.op == "placeholder"]
    seeds = holders[len(holders) - joint.cotangents :]
    later = set(seeds)
    for node in nodes:
        if node.op == "call_function" and any(source in later for source in node.all_input_nodes):
            later.add(node)
    results = list(next(node for node in nodes if node.op == "output").args[0])
    outputs, gradients = results[: joint.outputs], results[joint.outputs :]
    read = [source for node in nodes if node in later for source in node.all_input_nodes]
    read += [node for node in gradients if node is not None]
    kept = list(dict.fromkeys(node for node in read if node not in later))
    forward = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in nodes:
        if node.op != "output" and node not in later:
            copies[node] = forward.node_copy(node, lambda source: copies[source])
    forward.output([copies[node] for node in (*outputs, *kept)])
    forward.eliminate_dead_code()
    backward = torch.fx.Graph()
    copies = {}
    for node in (*kept, *seeds):
        copies[node] = backward.placeholder(node.name)
    for node in nodes:
        if node in later and node not in seeds:
            copies[node] = backward.node_copy(node, lambda source: copies[source])
    backward.output([None if node is None else copies[node] for node in gradients])
    modules = (torch.fx.GraphModule(program, graph) for graph in (forward, backward))
    return *modules, [node.name for node in kept]  # type: ignore[return-value]
