"""One stage of a module whose parts lie in several processes, run by `torch.distributed.pipelining`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from bricolage.errors import BadVariant
from bricolage.train.predict.variant import Variant
from bricolage.train.predict.variant_step import phase_ignored, tensors_that_last
from bricolage.train.step.step import TrainingStep, make_optimiser
from bricolage.work.training_step import Kind, Phase

if TYPE_CHECKING:
    import torch


class StageRunning:
    """The stage of this process; the others run theirs at the same time."""

    def __init__(self, step: TrainingStep, variant: Variant, begins: Sequence[str], rank: int) -> None:
        """`begins`: paths of the modules with which stages begin, but for the first. A process group is there.

        Raises:
            BadVariant: PyTorch cannot divide the module there, or the loss takes several targets.
        """
        import torch
        from torch.distributed.pipelining import Schedule1F1B, pipeline

        if len(step.targets) != 1:
            raise BadVariant(variant=variant.name, reason="stages need a loss with one target")
        parts = variant.micro_batches
        example = tuple(source.chunk(parts)[0] for source in step.inputs)
        try:
            for name in begins:
                _begin_stage(step.module.get_submodule(name))
            divided = pipeline(step.module, example)
            stage = divided.build_stage(rank, torch.device("cpu"))
        except Exception as error:  # whatever tracing says of it
            line = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise BadVariant(variant=variant.name, reason=f"PyTorch cannot divide it: {line}") from error
        self._module = stage.submod
        self._stage = stage

        def part_of_loss(outputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return step.loss(outputs, target) / parts

        # Dividing the loss spares a pass over all gradients.
        self._schedule = Schedule1F1B(stage, parts, loss_fn=part_of_loss, scale_grads=False)
        self._inputs = step.inputs if rank == 0 else ()
        self._target = step.targets[0] if rank == len(begins) else None
        trained = [parameter for parameter in self._module.parameters() if parameter.requires_grad]
        self._optimiser = make_optimiser(replace(step.optimiser, lr=0.0), trained, variant.optimiser)

    def run(self, phase: Callable[[Phase], None] = phase_ignored) -> None:
        """One step: all micro-batches, and the update. Its passes count as one phase, since they take turns."""
        phase("forward")
        self._optimiser.zero_grad(set_to_none=True)
        self._schedule.step(*self._inputs, target=self._target, return_outputs=False)
        phase("update")
        self._optimiser.step()

    def forget(self) -> None:
        """Drops the gradients of the last step."""
        self._optimiser.zero_grad(set_to_none=True)

    def lasting(self) -> Mapping[Kind, list[torch.Tensor]]:
        """Tensors that outlast a step, by what they are."""
        batch = [*self._inputs, *([] if self._target is None else [self._target])]
        return {**tensors_that_last(self._module, self._optimiser, batch), "temporary": self._collect_buffers()}

    def _collect_buffers(self) -> list[torch.Tensor]:
        """What transfers are received in, made once for all micro-batches."""
        import torch

        several = [*self._stage.args_recv_info.values(), *self._stage.grad_recv_info.values()]
        buffers = [getattr(info, "buffer", None) for infos in several for info in infos]
        return [buffer for buffer in buffers if isinstance(buffer, torch.Tensor)]


def _begin_stage(part: torch.nn.Module) -> None:
    """A stage begins where this module runs. What it is given is contiguous, since messages are."""
    import torch
    from torch.distributed.pipelining import pipe_split

    inner = part.forward

    def forward(*args: object, **kwargs: object) -> object:
        given = [argument.contiguous() if isinstance(argument, torch.Tensor) else argument for argument in args]
        pipe_split()
        return inner(*given, **kwargs)

    part.forward = forward
