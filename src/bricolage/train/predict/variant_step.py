"""A training step that runs as a variant says: one code for tensors with memory and without, so that what is predicted is what
would be run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from bricolage.errors import BadVariant
from bricolage.train.predict.variant import Variant
from bricolage.train.step.spec import StepSpec
from bricolage.train.step.step import LossFunction, TrainingStep, build, make_optimiser
from bricolage.work.training_step import Kind, Phase

if TYPE_CHECKING:
    import torch


def prepare_step(spec: StepSpec, variant: Variant) -> TrainingStep:
    """The training step with the batch that the variant wants.

    Raises:
        MissingLibrary, BadTrainingCode: as `build` does.
    """
    return build(spec if variant.batch_size is None else replace(spec, batch_size=variant.batch_size))


def phase_ignored(_: Phase) -> None:
    """The phase is not recorded."""


class Runs(Protocol):
    """A training step that can be run again and again."""

    def run(self, phase: Callable[[Phase], None] = ...) -> None:
        """One step. `phase` is called where forward, backward and update begin."""

    def forget(self) -> None:
        """Drops the gradients of the last step."""

    def lasting(self) -> Mapping[Kind, list[torch.Tensor]]:
        """Tensors that outlast a step, by what they are."""


class Running:
    """A module and its batch, changed in place as a variant says, with an optimiser."""

    def __init__(
        self,
        module: torch.nn.Module,
        tensors: Sequence[torch.Tensor],
        step: TrainingStep,
        variant: Variant,
        wrap: Callable[[torch.nn.Module], torch.nn.Module] | None = None,
        learning: bool = False,
    ) -> None:
        """`tensors`: inputs, then targets. `wrap` puts what exchanges gradients around the module.

        Unless it is `learning`, the optimiser's lr is zero: a repeated batch would be overfitted, and gradients that underflow make
        a step many times slower than it is in training.

        Raises:
            BadVariant: it names modules that are not there, or the batch has no such parts.
        """
        self._loss: LossFunction = step.loss
        self._amp, self._parts = variant.amp, variant.micro_batches
        self._phase: Callable[[Phase], None] = phase_ignored
        self._backward = False
        self._module = self._changed(module, variant, fake=type(tensors[0]).__name__ == "FakeTensor")
        count = len(step.inputs)
        if variant.channels_last:
            tensors = [*map(_channels_last, tensors[:count]), *tensors[count:]]
        self._inputs, self._targets = _split(tensors[:count], variant), _split(tensors[count:], variant)
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        if not trained:
            raise BadVariant(variant=variant.name, reason="nothing is left to train")
        self._optimiser = make_optimiser(
            step.optimiser if learning else replace(step.optimiser, lr=0.0), trained, variant.optimiser
        )
        self._wrapped = self._module if wrap is None else wrap(self._module)

    def run(self, phase: Callable[[Phase], None] = phase_ignored) -> None:
        """One step. `phase` is called where forward, backward and update begin."""
        import torch

        self._phase = phase
        phase("forward")
        self._optimiser.zero_grad(set_to_none=True)
        for number, (inputs, targets) in enumerate(zip(self._inputs, self._targets, strict=True)):
            if number:
                phase("forward")
            last = number == self._parts - 1
            with contextlib.nullcontext() if last else self._pause_exchange():
                with torch.autocast("cpu", torch.bfloat16, enabled=self._amp):
                    value = self._loss(self._wrapped(*inputs), *targets)
                if self._parts > 1:
                    value = value / self._parts
                phase("backward")
                self._backward = True
                try:
                    value.backward()
                finally:
                    self._backward = False
        phase("update")
        self._optimiser.step()

    def _pause_exchange(self) -> contextlib.AbstractContextManager[None]:
        """Where what is around the module exchanges gradients: it does not meanwhile."""
        import torch

        if isinstance(self._wrapped, torch.nn.parallel.DistributedDataParallel):
            return self._wrapped.no_sync()
        return contextlib.nullcontext()

    def forget(self) -> None:
        """Drops the gradients of the last step."""
        self._optimiser.zero_grad(set_to_none=True)

    def lasting(self) -> Mapping[Kind, list[torch.Tensor]]:
        """Tensors that outlast a step, by what they are."""
        batch = [tensor for parts in (self._inputs, self._targets) for part in parts for tensor in part]
        return tensors_that_last(self._module, self._optimiser, batch)

    def _changed(self, module: torch.nn.Module, variant: Variant, fake: bool) -> torch.nn.Module:
        parts = dict(module.named_modules())
        named = repeating_blocks(module) if variant.recompute == ("all",) else variant.recompute
        for name in (*named, *variant.freeze):
            if name not in parts or not name:
                module_names = ", ".join(list(parts)[1:12])
                raise BadVariant(
                    variant=variant.name, reason=f"it has no module '{name}' (there are {module_names} ...)"
                )
        for name in variant.freeze:
            parts[name].requires_grad_(False)
        for name in named:
            self._recompute(parts[name], fake)
        if variant.channels_last:
            for parameter in [*module.parameters(), *module.buffers()]:
                parameter.data = _channels_last(parameter.data)
        return module

    def _recompute(self, part: torch.nn.Module, fake: bool) -> None:
        from torch.utils.checkpoint import checkpoint

        inner = part.forward

        def again(*args: object, **kwargs: object) -> object:
            if not self._backward:
                return inner(*args, **kwargs)
            self._phase("recompute")
            try:
                return inner(*args, **kwargs)
            finally:
                self._phase("backward")

        def forward(*args: object, **kwargs: Any) -> object:
            # The state of random numbers is set and read outside the operators; tensors without memory have none.
            return checkpoint(again, *args, use_reentrant=False, preserve_rng_state=not fake, **kwargs)

        part.forward = forward


def tensors_that_last(
    module: torch.nn.Module, optimiser: torch.optim.Optimizer, batch: Sequence[torch.Tensor]
) -> dict[Kind, list[torch.Tensor]]:
    """Tensors that outlast a step, by what they are."""
    import torch

    states = [entry for state in optimiser.state.values() for entry in state.values()]
    return {
        "weights": [*module.parameters(), *module.buffers()],
        "optimiser state": [entry for entry in states if isinstance(entry, torch.Tensor)],
        "gradients": [parameter.grad for parameter in module.parameters() if parameter.grad is not None],
        "inputs": list(batch),
    }


def repeating_blocks(module: torch.nn.Module) -> tuple[str, ...]:
    """Paths of the blocks that repeat: the members of the outermost lists of modules, those without weights aside; the children
    where there is no list."""
    import torch

    paths: list[str] = []

    def walk(part: torch.nn.Module, path: str) -> None:
        for name, child in part.named_children():
            inner = f"{path}{name}"
            several = isinstance(part, torch.nn.Sequential | torch.nn.ModuleList)
            if several and any(True for _ in child.children()) and next(child.parameters(), None) is not None:
                paths.append(inner)
            else:
                walk(child, f"{inner}.")

    walk(module, "")
    if not paths:
        paths = [name for name, member in module.named_children() if next(member.parameters(), None) is not None]
    return tuple(paths)


def _channels_last(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return tensor.to(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor


def _split(tensors: Sequence[torch.Tensor], variant: Variant) -> list[tuple[torch.Tensor, ...]]:
    parts = variant.micro_batches
    if parts == 1:
        return [tuple(tensors)]
    if any(tensor.ndim == 0 or tensor.shape[0] % parts for tensor in tensors):
        raise BadVariant(variant=variant.name, reason=f"its batch does not divide into {parts} equal parts")
    return list(zip(*(tensor.chunk(parts) for tensor in tensors), strict=True))
