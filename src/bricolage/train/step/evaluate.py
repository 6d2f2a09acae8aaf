"""How good a module is on held-out data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bricolage.errors import BadTrainingCode
from bricolage.train.step.data import Data
from bricolage.train.step.step import Tensors, find_loss, users_code

if TYPE_CHECKING:
    import torch


def loss_value(value: object, place: str) -> torch.Tensor:
    """A loss as it has to be.

    Raises:
        BadTrainingCode: it is no scalar.
    """
    import torch

    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        raise BadTrainingCode(place=place, reason="its result is no scalar")
    return value.reshape(())


def evaluate_module(
    module: torch.nn.Module, data: Data, state: dict[str, torch.Tensor] | None = None
) -> tuple[float, float | None] | None:
    """Loss (without label smoothing) and accuracy on the held-out data, by a module in evaluation mode with its own state or
    another, which holds tied weights under each of their names; None without such data."""
    import torch

    if data.held_out is None:
        return None
    loss = find_loss(data.step.loss, data.step.folder)
    was = module.training
    module.eval()
    try:
        with torch.no_grad(), users_code(data.step.module):
            inputs, targets = data.held_out.inputs, data.held_out.targets
            if state is None:
                outputs = module(*inputs)
            else:
                outputs = torch.func.functional_call(module, state, inputs, tie_weights=False)
            value = float(loss_value(loss(outputs, *targets), data.step.loss))
    finally:
        module.train(was)
    return value, _accuracy(outputs, targets)


def _accuracy(outputs: object, targets: Tensors) -> float | None:
    import torch

    if not isinstance(outputs, torch.Tensor) or outputs.ndim != 2:
        return None
    if len(targets) != 1 or targets[0].ndim != 1 or targets[0].is_floating_point():
        return None
    return float((outputs.argmax(1) == targets[0]).double().mean())
