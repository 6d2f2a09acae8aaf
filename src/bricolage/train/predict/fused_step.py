"""Several models of a training step trained as one (`train/fuse`), as a step that can be followed without data and run.

The models differ in their learning rates, as those of a sweep do, and see the same batch. Rates are so small that no weight
changes, for the reason that `Running` gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from bricolage.errors import BadVariant, NotFusible, NotTraceable
from bricolage.frontends.torch_training import Lasting, trace_step
from bricolage.frontends.traced_step import TracedStep
from bricolage.train.fuse.lane_check import compare_lanes
from bricolage.train.fuse.lane_groups import group
from bricolage.train.fuse.lanes import Fused
from bricolage.train.fuse.sweep import HyperParameters, make_lanes
from bricolage.train.predict.variant import Variant
from bricolage.train.predict.variant_step import phase_ignored
from bricolage.train.step.data import Data
from bricolage.train.step.spec import StepSpec
from bricolage.train.step.step import TrainingStep
from bricolage.work.training_step import Kind, Phase

if TYPE_CHECKING:
    import torch

_LR = 1e-30


class FusedRunning:
    """A step of lanes as one, on one batch."""

    def __init__(self, lanes: Fused, tensors: Sequence[torch.Tensor]) -> None:
        """`tensors`: inputs, then targets."""
        self.lanes, self.tensors = lanes, list(tensors)

    def run(self, phase: Callable[[Phase], None] = phase_ignored) -> None:
        """One step. `phase` is called where forward, backward and update begin."""
        self.lanes.step(self.tensors, phase)

    def forget(self) -> None:
        """Gradients end with the step that made them."""

    def lasting(self) -> Mapping[Kind, list[torch.Tensor]]:
        """Tensors that outlast a step, by what they are."""
        return {**self.lanes.lasting(), "inputs": self.tensors}


def fused_running(spec: StepSpec, step: TrainingStep, variant: Variant) -> FusedRunning:
    """The models of a variant, made ready; how each of their operators is computed is chosen in the first step.

    Raises:
        BadVariant: they cannot be trained as one.
        BadTrainingCode: the training step's functions fail.
    """
    data = Data(spec, None, None)
    settings = [HyperParameters(lr=_LR * (number + 1)) for number in range(variant.models)]
    (lane_group,) = group(data, make_lanes(spec, settings, steps=1))
    try:
        if lane_group.reason:
            raise NotFusible(reason=lane_group.reason)
        compare_lanes(data, lane_group)
        running = FusedRunning(Fused(data, lane_group.lanes, lane_group.traced), [*step.inputs, *step.targets])
        running.run()
    except NotFusible as error:
        raise BadVariant(variant=variant.name, reason=str(error.facts["reason"])) from error
    return running


def fused_graph(running: FusedRunning, variant: Variant) -> TracedStep:
    """The step as a graph, with operators computed as they were chosen.

    Raises:
        BadVariant: an operator of it cannot run without memory.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    lanes = running.lanes

    def start(_: object, batch: Sequence[torch.Tensor]) -> tuple[FusedRunning, Lasting]:
        first = batch[0]
        assert isinstance(first, FakeTensor)
        mode = first.fake_mode
        twin = FusedRunning(lanes.without_memory(mode.from_tensor), batch)
        return twin, twin.lasting

    try:
        return trace_step(torch.nn.Identity(), running.tensors, start)
    except NotTraceable as error:
        raise BadVariant(variant=variant.name, reason=str(error.facts["reason"])) from error
