"""Which way to compute an operator for several lanes is fastest here: forward and backward are timed on the model's tensors."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bricolage.train.fuse.operators.call import Compute, Joined, Result

if TYPE_CHECKING:
    import torch

_ROUNDS = 5
_ENOUGH_S = 0.05
"""Of one way, in all rounds."""
_TOLERANCE = 1e-3
"""Relative to the largest element: what is further from the first way is wrong, whatever its arithmetic."""


def choose_way(joined: Joined, tensors: Sequence[torch.Tensor]) -> tuple[str, dict[str, float]]:
    """The fastest way, and the milliseconds of each that works.

    Raises:
        RuntimeError: none works; or two give different results.
    """
    timed: dict[str, float] = {}
    first: list[torch.Tensor] | None = None
    problem: Exception | None = None
    above: list[torch.Tensor] = []
    for name, compute in joined.ways.items():
        try:
            values = _forward_and_backward(compute, tensors, above)[1]
        except Exception as error:  # an operator may refuse a way with whatever error it has
            problem = error
            continue
        if first is None:
            first = values
        elif not all(_close(reference, other) for reference, other in zip(first, values, strict=True)):
            raise RuntimeError(f"'{name}' gives other results or gradients than '{next(iter(timed))}'")
        timed[name] = float("inf")
    if not timed:
        raise RuntimeError(f"no way works: {problem}") from problem
    if len(timed) > 1:
        spent = dict.fromkeys(timed, 0.0)
        for _ in range(_ROUNDS):
            for name in timed:
                if spent[name] < _ENOUGH_S:
                    taken, _ = _forward_and_backward(joined.ways[name], tensors, above)
                    spent[name] += taken
                    timed[name] = min(timed[name], taken * 1e3)
    return min(timed, key=lambda name: timed[name]), timed


def _forward_and_backward(
    compute: Compute, tensors: Sequence[torch.Tensor], above: list[torch.Tensor]
) -> tuple[float, list[torch.Tensor]]:
    """Its seconds; and its results, with the gradients of what wants some. `above` are the gradients of the results: random ones
    are made where there are none yet, since with equal ones those of a normalisation are zero."""
    import torch

    fresh = _fresh(tensors)
    began = time.perf_counter()
    outputs = _results(compute(*fresh))
    spent = time.perf_counter() - began
    ends = [output for output in outputs if output.requires_grad]
    starts = [tensor for tensor in fresh if isinstance(tensor, torch.Tensor) and tensor.requires_grad]
    if not ends:
        return spent, [*outputs, *(torch.zeros(()) for _ in starts)]
    if not above:
        random = torch.Generator().manual_seed(0)
        above += [torch.randn(end.shape, generator=random, dtype=end.dtype) for end in ends]
    laid_out = [torch.empty_like(output).copy_(given) for output, given in zip(ends, above, strict=True)]
    began = time.perf_counter()
    gradients = torch.autograd.grad(ends, starts, laid_out, allow_unused=True)
    spent += time.perf_counter() - began
    below = [
        torch.zeros_like(to) if gradient is None else gradient for gradient, to in zip(gradients, starts, strict=True)
    ]
    return spent, [*outputs, *below]


def _fresh(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The same values as leaves: gradients are wanted where they were. Others are copied, since an operator may write to them."""
    return [tensor.detach().requires_grad_() if tensor.requires_grad else tensor.clone() for tensor in tensors]


def _results(made: Result) -> list[torch.Tensor]:
    import torch

    return [
        output for output in (made if isinstance(made, list | tuple) else (made,)) if isinstance(output, torch.Tensor)
    ]


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    import torch

    if one.shape != other.shape:
        return False
    tolerance = max(_TOLERANCE, 8 * torch.finfo(one.dtype).eps) if one.is_floating_point() else _TOLERANCE
    kind = torch.complex128 if one.is_complex() else torch.float64
    a, b = one.detach().to(kind), other.detach().to(kind)
    size = torch.nan_to_num(a).abs().max().item() if a.numel() else 0.0
    return bool(torch.allclose(a, b, rtol=tolerance, atol=tolerance * size + 1e-12, equal_nan=True))
