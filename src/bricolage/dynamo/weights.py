"""Whether the weights that a graph is called with are those with which it was decided.

Dynamo hands parameters and buffers over at each call, since several modules may share one graph. An executable has them in it,
rearranged for its kernels, so each call asks: are these the same tensors, and have they been written since?

Operators that write a tensor raise its version. Much else writes without: `.data`, a NumPy view, another process in shared
memory, and anything where a tensor was made in inference mode, which has no version. So their bytes are compared with a copy as
well: all of them at each call where that costs a small part of what a call gains, else a part of them, in turn.
"""

from __future__ import annotations

import ctypes
import math
import time
import weakref
from collections.abc import Callable, Sequence

import torch

from bricolage.errors import LeftToPyTorch

MOST_BYTES = 1 << 28
"""Of weights of which a copy is kept."""
WHOLE_SHARE, PART_SHARE = 0.25, 0.1
"""Of what a call gains: comparing all may cost the first, else a part that costs the second is compared."""
_PIECE = 1 << 18
"""Bytes that are compared at once."""
_END = 16
"""Bytes at both ends of the largest weights that are looked at in any case: an update of the whole model changes them."""
_PROBED = 4

Stamp = tuple[tuple[int, int], ...]
"""For each weight its version, which every operator that writes it raises, and its address."""
_Span = tuple[int, int, int]
"""Addresses of a weight's bytes and of their copy, and how many."""
_compare = ctypes.CDLL(None).memcmp
_compare.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


class Weights:
    """The weights of one decision; they are not kept alive, copies of their values are."""

    def __init__(self, tensors: Sequence[torch.Tensor], gone: Callable[[], object]) -> None:
        """`gone` is called when one of them is not there any more."""
        self.stamp = stamp(tensors)
        self._references = [weakref.ref(tensor, lambda _: gone()) for tensor in tensors]
        self.untold = next((reason for tensor in tensors if (reason := _untold(tensor))), "")
        """Why a change of one of them would leave no trace but its values; empty where it may leave one."""
        self._copies: list[torch.Tensor] = []
        self._gaps: list[tuple[int, torch.Tensor]] = []
        self._spans: list[_Span] = []
        self._at = 0
        self._copied = sum(tensor.numel() * tensor.element_size() for tensor in tensors) <= MOST_BYTES
        if self._copied:
            self._copy(tensors)
        else:
            self._copy_ends(tensors)
        self._each = len(self._spans)

    def _copy(self, tensors: Sequence[torch.Tensor]) -> None:
        for number, tensor in enumerate(tensors):
            copy = tensor.detach().clone(memory_format=torch.preserve_format)
            self._copies.append(copy)
            if not _dense(tensor):
                self._gaps.append((number, copy.contiguous()))
                continue
            size = tensor.numel() * tensor.element_size()
            for begin in range(0, size, _PIECE):
                count = min(_PIECE, size - begin)
                self._spans.append((tensor.data_ptr() + begin, copy.data_ptr() + begin, count))

    def _copy_ends(self, tensors: Sequence[torch.Tensor]) -> None:
        for tensor in sorted(filter(_dense, tensors), key=lambda candidate: -candidate.numel())[:_PROBED]:
            size = tensor.numel() * tensor.element_size()
            for begin in (0, max(size - _END, 0)):
                count = min(_END, size)
                copy = torch.frombuffer(
                    bytearray(ctypes.string_at(tensor.data_ptr() + begin, count)), dtype=torch.uint8
                )
                self._copies.append(copy)
                self._spans.append((tensor.data_ptr() + begin, copy.data_ptr(), count))

    def watch(self, tensors: Sequence[torch.Tensor], gain_s: float) -> None:
        """Settles how many bytes are compared at each call.

        Args:
            tensors: the weights, as they are known.
            gain_s: by how much a call is faster than eager.

        Raises:
            LeftToPyTorch: a change would leave no trace but in the values, and comparing all of them would take longer than is
                gained.
        """
        takes_s = min(self._timed(tensors) for _ in range(3)) if self._copied else math.inf
        if takes_s <= gain_s * (1.0 if self.untold else WHOLE_SHARE):
            return
        if self.untold:
            raise LeftToPyTorch(reason=f"{self.untold}, and comparing all of them takes longer than is gained")
        if self._copied:
            self._each = max(1, int(len(self._spans) * PART_SHARE * gain_s / takes_s))

    def _timed(self, tensors: Sequence[torch.Tensor]) -> float:
        begin = time.perf_counter()
        self.unchanged(tensors)
        return time.perf_counter() - begin

    @property
    def calls(self) -> int:
        """Within how many calls a change is seen that leaves no trace but in the values; 1: at once. Of weights of which no copy is
        kept it may never be."""
        return math.ceil(len(self._spans) / self._each) if self._each else 1

    def unchanged(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether the same tensors still hold what they held, as far as this call compares."""
        if stamp(tensors) != self.stamp:
            return False
        if self._each == len(self._spans):
            spans = self._spans
        else:
            spans = (self._spans + self._spans[: self._each])[self._at : self._at + self._each]
            self._at = (self._at + self._each) % len(self._spans)
        for ours, copy, count in spans:
            if _compare(ours, copy, count):
                return False
        return all(_same(tensors[number], copy) for number, copy in self._gaps)


def stamp(tensors: Sequence[torch.Tensor]) -> Stamp:
    """What changes when weights are written by operators or get other memory."""
    return tuple((-1 if tensor.is_inference() else tensor._version, tensor.data_ptr()) for tensor in tensors)


def _untold(tensor: torch.Tensor) -> str:
    if tensor.is_inference():
        return "its weights were made in inference mode, which keeps no account of changes"
    return "its weights lie in memory that other processes share" if tensor.is_shared() else ""


def _dense(tensor: torch.Tensor) -> bool:
    """Whether its elements lie side by side in memory, in whatever order of dimensions."""
    strides = tensor.stride()
    order = sorted(range(tensor.ndim), key=lambda dimension: -strides[dimension])
    return tensor.permute(order).is_contiguous()


def _same(tensor: torch.Tensor, copy: torch.Tensor) -> bool:
    whole = tensor.detach().contiguous()
    return not _compare(whole.data_ptr(), copy.data_ptr(), copy.numel() * copy.element_size())
