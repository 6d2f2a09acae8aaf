"""A step that is traced and run here on numbers of threads: its graph, and what its operators cost in their places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bricolage.frontends.torch_training import Lasting, trace_step
from bricolage.frontends.traced_step import TracedStep
from bricolage.train.predict.operator_costs import OperatorTimings, profile
from bricolage.train.predict.step_cost_model import StepCostModel
from bricolage.train.predict.variant import Variant
from bricolage.train.predict.variant_step import Running, prepare_step
from bricolage.train.step.spec import StepSpec

if TYPE_CHECKING:
    import torch


def profile_step(
    spec: StepSpec, variant: Variant, counts: Sequence[int], seconds: float, least: int
) -> tuple[TracedStep, Mapping[int, StepCostModel]]:
    """A step's graph, and by number of threads a model of its costs.

    Args:
        spec: the step.
        variant: how it is run.
        counts: numbers of threads, each once.
        seconds: for each.
        least: rounds at least, unless they take thrice as long.

    Raises:
        BadTrainingCode, NotTraceable: as `predict_step` has it.
    """
    step = prepare_step(spec, variant)

    def start(module: torch.nn.Module, tensors: Sequence[torch.Tensor]) -> tuple[Running, Lasting]:
        running = Running(module, tensors, step, variant)
        return running, running.lasting

    tensors = [*step.inputs, *step.targets]
    graph = trace_step(step.module, tensors, start)
    running = Running(step.module, tensors, step, variant)
    models = {}
    for threads in counts:
        seen = profile(running, graph, threads, seconds, least)
        # All operators were seen in their places: none has to be timed alone.
        models[threads] = StepCostModel(graph, seen, OperatorTimings(threads, dict.fromkeys(graph.signatures)))
    return graph, models
