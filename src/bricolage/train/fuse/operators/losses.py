"""Losses: one number for each lane. Each lane differentiates its own, so that no factor for the number of lanes is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bricolage.train.fuse.operators.call import TABLE, Call, Joined, only, stack

if TYPE_CHECKING:
    import torch

_ELEMENTS = {
    "aten::mse_loss": 2,
    "aten::l1_loss": 2,
    "aten::smooth_l1_loss": 2,
    "aten::huber_loss": 2,
    "aten::binary_cross_entropy_with_logits": 4,
}
"""Losses that reduce over all elements, and where the reduction stands among their arguments (0: none, 1: mean, 2: sum)."""


@TABLE.rule("aten::cross_entropy_loss")
def cross_entropy(call: Call) -> Joined | None:
    """Classes as int64 [batch], outputs [batch, classes]: losses of all samples at once, then each lane's mean over the samples
    that are not ignored. Label smoothing (Szegedy et al., 2016) may differ by lane."""
    import torch

    outputs, targets, weight, reduction, ignored, _ = call.args
    if weight is not None or reduction not in (1, 2) or outputs.rank != 2 or targets.rank != 1 or not outputs.stacked:
        return None
    lanes, (batch, classes) = call.lanes, outputs.shape
    smoothing = [number[0] for number in call.numbers]
    same = len(set(smoothing)) == 1
    rates = torch.tensor(smoothing, dtype=torch.float64).view(-1, 1)

    def compute(scores: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        flat, numbers = scores.reshape(-1, classes), stack(wanted, targets, lanes).reshape(-1)
        good = (numbers != ignored).view(lanes, batch)
        kwargs = {"ignore_index": ignored, "reduction": "none"}
        if same:
            losses = torch.nn.functional.cross_entropy(flat, numbers, label_smoothing=smoothing[0], **kwargs).view(
                lanes, batch
            )
        else:
            logs = torch.log_softmax(flat, 1)
            likely = torch.nn.functional.nll_loss(logs, numbers, **kwargs).view(lanes, batch)
            even = torch.where(good, -logs.mean(1).view(lanes, batch), 0.0)
            lane_rates = rates.to(logs)
            losses = (1.0 - lane_rates) * likely + lane_rates * even
        total = losses.sum(1)
        return total / good.sum(1) if reduction == 1 else total

    return only("losses of all samples", compute)


@TABLE.rule(*_ELEMENTS)
def of_elements(call: Call) -> Joined | None:
    """Each lane's mean or sum over its own elements."""
    place = _ELEMENTS[call.name]
    operands = call.operands
    reduction, target = call.args[place], call.target
    ranks = {operand.rank for operand in operands}
    if (
        reduction not in (1, 2)
        or len(ranks) != 1
        or 0 in ranks
        or not all(o.shape == operands[0].shape for o in operands)
    ):
        return None
    dims = list(range(1, operands[0].rank + 1))

    def compute(*tensors: torch.Tensor) -> torch.Tensor:
        args, keywords = call.filled(
            [stack(tensor, o, call.lanes) for tensor, o in zip(tensors, operands, strict=True)]
        )
        args[place] = 0
        losses: torch.Tensor = target(*args, **keywords)
        return losses.mean(dims) if reduction == 1 else losses.sum(dims)

    return only("elements of all lanes", compute)
