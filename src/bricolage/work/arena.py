"""One arena for the tensors between regions, shared by tensors that never live together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from bricolage.device.buffers import ALIGNMENT
from bricolage.work.liveness import Lifetime


@dataclass(frozen=True)
class Residence:
    """A tensor of `bytes` bytes among steps of which some run at the same time."""

    bytes: int
    writer: int
    """Number of the step that writes it."""
    after: int
    """Bit-set of the steps that begin only when all that write or read it are done."""

    def overlaps(self, other: Residence) -> bool:
        """Whether both may be needed at the same time."""
        return not (self.after >> other.writer & 1 or other.after >> self.writer & 1)


Occupant = TypeVar("Occupant", Lifetime, Residence)


def assign_offsets(lifetimes: Mapping[str, Occupant]) -> tuple[dict[str, int], int]:
    """Offsets in one arena such that tensors that live at the same time never overlap, and the arena's size in bytes.

    Greedy by size (Pisarchyk & Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020, section 5.2): the
    largest tensor first, each at the lowest gap that fits.
    """
    placed: list[tuple[int, int, Occupant]] = []  # offset, end, lifetime
    offsets: dict[str, int] = {}
    for name, lifetime in sorted(lifetimes.items(), key=lambda item: (-item[1].bytes, item[0])):
        size = -(-max(lifetime.bytes, 1) // ALIGNMENT) * ALIGNMENT
        offset = 0
        for start, end, _ in sorted((p for p in placed if p[2].overlaps(lifetime)), key=lambda p: p[:2]):
            if start - offset >= size:
                break
            offset = max(offset, end)
        offsets[name] = offset
        placed.append((offset, offset + size, lifetime))
    return offsets, max((end for _, end, _ in placed), default=0)
