"""Whether the weights that a graph is called with are those with which it was decided.

Dynamo hands parameters and buffers over at each call, since several modules may share one graph. An executable has them in it,
rearranged for its kernels, so each call asks: are these the same tensors, and have they been written since?
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

import numpy as np
import torch

_PROBED = 4
"""Largest weights of which a few elements are looked at: writing through `.data` leaves no other trace."""
_ELEMENTS = 2

Stamp = tuple[tuple[int, int], ...]
"""For each weight its version, which every operator that writes it raises, and its address."""


class Weights:
    """The weights of one decision; they are not kept alive."""

    def __init__(self, tensors: Sequence[torch.Tensor], gone: Callable[[], object]) -> None:
        """`gone` is called when one of them is not there any more."""
        self.stamp = stamp(tensors)
        largest = sorted(tensors, key=lambda tensor: -tensor.numel())[:_PROBED]
        self._ends = [end for tensor in largest for end in _ends(tensor)]
        self._values = [end.tobytes() for end in self._ends]
        self._references = [weakref.ref(tensor, lambda _: gone()) for tensor in tensors]

    def unchanged(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether the same tensors still hold what they held. Of what is written through `.data`, which PyTorch keeps no
        account of, only changes of the first and last elements of the largest weights are seen, as updates of a whole model
        make them."""
        return stamp(tensors) == self.stamp and [end.tobytes() for end in self._ends] == self._values


def stamp(tensors: Sequence[torch.Tensor]) -> Stamp:
    """What changes when weights are written or get other memory."""
    return tuple((-1 if tensor.is_inference() else tensor._version, tensor.data_ptr()) for tensor in tensors)


def _ends(tensor: torch.Tensor) -> list[np.ndarray]:
    """Views of the first and last elements in memory; none of what lies there with gaps."""
    if not tensor.is_contiguous():
        return []
    flat = tensor.detach().view(-1)
    if flat.dtype == torch.bfloat16:
        flat = flat.view(torch.int16)
    array = flat.numpy()
    return [array[:_ELEMENTS], array[-_ELEMENTS:]]
