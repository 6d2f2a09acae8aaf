"""What kernels between two meetings touch: who touches the same must wait."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from bricolage.native.fuse.kernel_plan import Buffer, FusionPlan, kernel_reads


class HazardTracker:
    """What the kernels since threads last met touch: a thread may run ahead of the others into a kernel that touches nothing
    of it. Parts of one concatenation do not overlap. Parts of one tensor are told apart in waves, whose order rests on that."""

    def __init__(self, plan: FusionPlan) -> None:
        self._plan = plan
        self._written: set[_Touched] = set()
        self._read: set[_Touched] = set()
        self._scratch: list[range] = []
        self._begun: set[int] = set()

    def conflicts(self, number: int, scratch: range) -> bool:
        """Of a kernel by number; it conflicts with an earlier phase of its own."""
        if number in self._begun or any(_overlap(scratch, other) for other in self._scratch):
            return True
        targets, reads = self._list_touched(number)
        if any(self._overlap(a, b) for a in reads for b in self._written):
            return True
        return any(self._overlap(a, b) for a in targets for b in self._read) or any(
            a[0] != b[0] and self._overlap(a, b) for a in targets for b in self._written
        )

    def add(self, number: int, scratch: range) -> None:
        """A kernel that runs before threads meet again; `scratch` is what it uses of the memory that they share."""
        targets, reads = self._list_touched(number)
        self._written |= targets
        self._read |= reads
        self._begun.add(number)
        self._scratch.append(scratch)

    def forget(self) -> None:
        """Threads have met."""
        self._written.clear()
        self._read.clear()
        self._begun.clear()
        self._scratch.clear()

    def _list_touched(self, number: int) -> tuple[set[_Touched], set[_Touched]]:
        kernel, apart = self._plan.kernels[number], self._plan.waves is not None

        def locate_buffers(buffers: Iterable[Buffer]) -> set[_Touched]:
            return {(buffer.storage, range(*buffer.extent) if apart else None) for buffer in buffers}

        return locate_buffers(kernel.targets), locate_buffers(kernel_reads(kernel, self._plan))

    def _overlap(self, one: _Touched, other: _Touched) -> bool:
        (a, first), (b, second) = one, other
        if a == b:
            return first is None or second is None or _overlap(first, second)
        if a[0] != "arena" or b[0] != "arena":
            return False
        return _overlap(range(*self._plan.arena_span(a[1])), range(*self._plan.arena_span(b[1])))


_Touched: TypeAlias = tuple[tuple[str, int], range | None]
"""A storage, and which of its elements; all where that is None."""


def _overlap(one: range, other: range) -> bool:
    return max(one.start, other.start) < min(one.stop, other.stop)
