"""A step in planned layouts as the program of one process: operators on its parts, with functional collectives between them.

`dtensor_step.run_sharded` is traced once by `make_fx`, below DTensor: what is left are the operators that ran on local parts and
the collectives of `torch.distributed._functional_collectives`. The program runs without DTensor, whose propagation in Python takes
longer at each operator than many operators themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bricolage.train.sharded.dtensor_step import run_sharded
from bricolage.train.sharded.planned_layouts import LayoutPlan
from bricolage.train.sharded.signatures import to_placement
from bricolage.train.sharded.step_graph import JointStep

if TYPE_CHECKING:
    import torch
    from torch.distributed.tensor import DTensor


@dataclass
class PartitionedRun:
    """What one step gave on this process: the loss of all samples, and for each parameter its part of the gradient."""

    loss: torch.Tensor
    gradients: Mapping[str, torch.Tensor | None]


class PartitionedStep:
    """The program of one process."""

    def __init__(self, joint: JointStep, plan: LayoutPlan, given: Sequence[DTensor]) -> None:
        """All processes of the group make it; the step runs once meanwhile.

        Args:
            joint: the step.
            plan: its layouts.
            given: what `dtensor_step.distribute` gives.

        Raises:
            NotShardable: the plan is for a step with other operators.
        """
        from torch.distributed.tensor import DTensor
        from torch.fx.experimental.proxy_tensor import make_fx

        self._parameters, self._plan, self._mesh = joint.parameters, plan, given[0].device_mesh
        self._wholes = [(tensor.placements, tensor.shape, tensor.stride()) for tensor in given]
        self.strayed: tuple[str, ...] = ()

        def run(*parts: torch.Tensor) -> list[torch.Tensor | None]:
            tensors = [
                DTensor.from_local(part, self._mesh, placements, run_check=False, shape=shape, stride=stride)
                for part, (placements, shape, stride) in zip(parts, self._wholes, strict=True)
            ]
            ran = run_sharded(joint, plan, tensors)
            self.strayed = tuple(dict.fromkeys(ran.strayed))
            gradients = [None if gradient is None else gradient.to_local() for gradient in ran.gradients.values()]
            return [ran.loss.to_local(), *gradients]

        self.program: torch.fx.GraphModule = make_fx(run)(*(tensor.to_local() for tensor in given))
        self.program.graph.eliminate_dead_code()
        self.program.recompile()

    def run(self, parts: Sequence[torch.Tensor]) -> PartitionedRun:
        """One forward and backward phase, on this process's parts of what is given."""
        import torch

        with torch.no_grad():
            loss, *gradients = self.program(*parts)
        return PartitionedRun(loss, dict(zip(self._parameters, gradients, strict=True)))

    def whole(self, name: str, gradient: torch.Tensor) -> torch.Tensor:
        """A parameter's gradient from all processes' parts: all have to ask."""
        from torch.distributed.tensor import DTensor

        _, shape, stride = self._wholes[self._parameters.index(name)]
        placements = [to_placement(self._plan.parameters[name])]
        return DTensor.from_local(
            gradient, self._mesh, placements, run_check=False, shape=shape, stride=stride
        ).full_tensor()


def without_collectives(program: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The same operators on the same shapes, with this process's own parts in the place of what others would send."""
    import torch

    def gather(part: torch.Tensor, count: int, _group: str) -> torch.Tensor:
        return torch.cat([part] * count)

    def scatter(whole: torch.Tensor, _reduce: str, count: int, _group: str) -> torch.Tensor:
        return whole[: whole.shape[0] // count].clone()

    collectives = torch.ops._c10d_functional
    alone: dict[object, Callable[..., torch.Tensor]] = {
        collectives.all_reduce.default: lambda part, _reduce, _group: part.clone(),
        collectives.all_gather_into_tensor.default: gather,
        collectives.reduce_scatter_tensor.default: scatter,
        collectives.wait_tensor.default: lambda part: part,
    }
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(program.graph, {}))
    for node in graph.nodes:
        if node.target in alone:
            node.target = alone[node.target]
    return torch.fx.GraphModule(program, graph)
