"""Ways to run a training step with divided operators or weights: layouts by DTensor, and FSDP2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from bricolage.errors import NotShardable
from bricolage.train.pipeline.module_stages import ModuleStage
from bricolage.train.pipeline.schedule_loop import TimedPasses
from bricolage.train.sharded.dtensor_step import FullySharded, distribute
from bricolage.train.sharded.partitioned_step import PartitionedStep, without_collectives
from bricolage.train.sharded.planned_layouts import LayoutPlan
from bricolage.train.sharded.step_graph import trace_joint
from bricolage.train.step.step import TrainingStep, make_optimiser

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class ShardedOperators:
    """The step's traced graph on all processes, each operator in its planned layouts, as a program of each process."""

    def __init__(self, step: TrainingStep, plan: LayoutPlan) -> None:
        """All processes of the default group make it.

        Raises:
            NotShardable: the plan is for another number of processes, or for another step.
        """
        joint = trace_joint(step)
        planned_names = {operator.name for operator in plan.operators}
        unknown = next((call for call in joint.calls if call not in planned_names), None)
        if unknown is not None:
            raise NotShardable(reason=f"its plan does not know '{unknown}'")
        mesh = init_device_mesh(step.inputs[0].device.type, (torch.distributed.get_world_size(),))
        state = {**dict(step.module.named_parameters()), **dict(step.module.named_buffers())}
        given = distribute(joint, plan, state, [*step.inputs, *step.targets], mesh)
        self._program = PartitionedStep(joint, plan, given)
        parts = [tensor.to_local() for tensor in given]
        self._parameters = {name: torch.nn.Parameter(part) for name, part in zip(joint.parameters, parts, strict=False)}
        self._given = [*self._parameters.values(), *parts[len(self._parameters) :]]
        self._optimiser = make_optimiser(replace(step.optimiser, lr=0.0), list(self._parameters.values()))
        self._gradients: Mapping[str, torch.Tensor | None] = {}

    def run(self) -> TimedPasses:
        """See `StepExecutor`."""
        self.compute()
        self.update()
        return TimedPasses()

    def compute(self) -> None:
        """The forward and backward phase."""
        self._gradients = self._program.run(self._given).gradients

    def update(self) -> None:
        """What follows it."""
        for name, parameter in self._parameters.items():
            parameter.grad = self._gradients[name]
        self._optimiser.step()

    def spare_collectives(self) -> None:
        """From now on it only computes, for its time."""
        self._program.program = without_collectives(self._program.program)

    def gradients(self) -> Mapping[str, torch.Tensor]:
        """See `StepExecutor`. Whole, on each process: all have to ask."""
        return {
            name: self._program.whole(name, gradient)
            for name, gradient in self._gradients.items()
            if gradient is not None
        }


class FullyShardedStep:
    """FSDP2: samples divided, weights divided and gathered for each module that reads them."""

    def __init__(self, step: TrainingStep) -> None:
        """All processes of the default group make it.

        Raises:
            NotShardable: the processes do not divide the samples.
        """
        mesh = init_device_mesh(step.inputs[0].device.type, (torch.distributed.get_world_size(),))
        self._runs = FullySharded(step, mesh)
        trained = [parameter for parameter in step.module.parameters() if parameter.requires_grad]
        self._optimiser = make_optimiser(replace(step.optimiser, lr=0.0), trained)

    def run(self) -> TimedPasses:
        """See `StepExecutor`."""
        self._optimiser.zero_grad(set_to_none=True)
        self._runs.backward()
        self._optimiser.step()
        return TimedPasses()

    def gradients(self) -> Mapping[str, torch.Tensor]:
        """See `StepExecutor`. Whole, on each process: all have to ask."""
        return {name: gradient.full_tensor() for name, gradient in self._runs.gradients.items() if gradient is not None}


def divide_weights(stage: ModuleStage, units: Sequence[str], group: ProcessGroup | None) -> None:
    """Divides the weights of a pipeline's stage among the processes that have it, by FSDP2: each pass gathers them, a backward pass
    adds up gradients and leaves each process its part.

    Args:
        stage: which is changed.
        units: paths of modules that are gathered by themselves, as far as the stage has them; the rest is gathered together.
        group: of these processes.
    """
    assert group is not None
    device = next((parameter.device.type for parameter in stage.parameters()), None)
    if device is None:  # it has no weights
        return
    mesh = DeviceMesh.from_group(group, device)
    modules = dict(stage.inner.named_modules())
    for unit in (*(modules[name] for name in units if name in modules), stage.inner):
        fully_shard(unit, mesh=mesh, reshard_after_forward=True)
