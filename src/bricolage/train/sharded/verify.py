"""Whether an operator divided as its signature says gives what it gives whole: run on made-up numbers, part by part, in one
process.

DTensor's rules are written by hand. Of some the answer is another one when they divide: the gradient of a mean over all elements,
computed on a part of them, is that of the part's mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from bricolage.frontends.torch_operators import call_of, is_view, operator_name, tensors_of
from bricolage.search.sharding.layouts import MEAN, Layout, is_partial, split_axis
from bricolage.train.predict.operator_costs import UNSUITABLE, make_arguments
from bricolage.train.sharded.partitioned_operators import PARTITIONED, run_partitioned

if TYPE_CHECKING:
    import torch

MOST_BYTES = 16 << 20
"""Of what an operator reads; those that read more are taken at their word."""
_TOLERANCE = 1e-3
_SHAPED = ("List[int]", "List[SymInt]")
"""Types of arguments that name a shape, which DTensor changes for its parts."""
_NAMED = ("aten::native_layer_norm", "aten::native_layer_norm_backward")
"""Operators whose shapes name axes that they are never divided along."""


class VerifiedOperator:
    """Of one operator with the tensors that it reads."""

    def __init__(self, function: torch._ops.OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """`args`, `kwargs`: as it is called, on tensors that may have no memory."""
        import torch
        from torch.utils._pytree import tree_flatten, tree_unflatten

        name, read = operator_name(function), tensors_of((args, kwargs))
        shaped = name not in _NAMED and any(str(argument.type) in _SHAPED for argument in function._schema.arguments)
        self._name = name
        self._run: Callable[..., list[torch.Tensor]] | None = None
        if is_view(function) or shaped or sum(tensor.numel() * tensor.element_size() for tensor in read) > MOST_BYTES:
            return
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)
            leaves, shape = tree_flatten(make_arguments(name.partition(".")[0], call_of(function, args, kwargs)))
            places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
            self._read = [leaves[place] for place in places]

            def run(
                given: Sequence[torch.Tensor], other: Callable[..., torch.Tensor] | None = None
            ) -> list[torch.Tensor]:
                now = list(leaves)
                for place, tensor in zip(places, given, strict=True):
                    now[place] = tensor
                ordered, named = tree_unflatten(now, shape)
                return tensors_of((other or function)(*ordered, **named))

            try:
                self._whole = run(self._read)
                self._run = run
            except UNSUITABLE:
                self._run = None

    def holds(self, inputs: Sequence[Layout], outputs: Sequence[Layout], workers: int) -> bool:
        """Whether the parts give what the whole gives; True where it cannot be tried."""
        import torch

        if self._run is None:
            return True
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(1)
            given = [_parts(tensor, layout, workers) for tensor, layout in zip(self._read, inputs, strict=True)]
            substituted = PARTITIONED.get(self._name) == (tuple(inputs), tuple(outputs))
            try:
                worker_outputs = [
                    self._run(
                        [parts[worker] for parts in given],
                        run_partitioned(self._name, worker, workers) if substituted else None,
                    )
                    for worker in range(workers)
                ]
            except UNSUITABLE:
                return False
        return all(
            _same(whole, _join_parts([tensors[place] for tensors in worker_outputs], layout))
            for place, (whole, layout) in enumerate(zip(self._whole, outputs, strict=True))
        )


def _parts(one: torch.Tensor, layout: Layout, workers: int) -> list[torch.Tensor]:
    import torch

    axis = split_axis(layout)
    if axis is not None:
        return [part.contiguous() for part in one.chunk(workers, axis)]
    if not is_partial(layout) or not one.is_floating_point():
        return [one] * workers
    summands = [torch.randn_like(one) for _ in range(workers - 1)]
    return [*summands, one * (workers if layout == MEAN else 1) - torch.stack(summands).sum(0)]


def _join_parts(parts: Sequence[torch.Tensor], layout: Layout) -> torch.Tensor | None:
    """The whole tensor; None where parts that should be alike are not."""
    import torch

    axis = split_axis(layout)
    if axis is not None:
        return torch.cat(list(parts), axis)
    if is_partial(layout):
        total = torch.stack(list(parts)).sum(0)
        return total / len(parts) if layout == MEAN else total
    return parts[0] if all(_same(parts[0], part) for part in parts[1:]) else None


def _same(one: torch.Tensor, other: torch.Tensor | None) -> bool:
    import torch

    if other is None or one.shape != other.shape:
        return False
    if not one.is_floating_point():
        return torch.equal(one, other)
    scale = float(one.abs().max()) if one.numel() else 0.0
    return torch.allclose(one, other, rtol=_TOLERANCE, atol=_TOLERANCE * max(scale, 1e-30), equal_nan=True)
