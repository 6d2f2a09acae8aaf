"""Sets of operators as Python ints: bit i is set when operator i is a member.

Regions of large graphs are thousands of bits long, and peeling off one member at a time costs the whole length each
time. So long sets are unpacked through numpy in one pass.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

_SHORT = 256  # bits; below this, peeling members off is faster than unpacking


def of(members: Iterable[int]) -> int:
    """The set holding `members`."""
    bits = 0
    for member in members:
        bits |= 1 << member
    return bits


def lowest(bits: int) -> int:
    """Smallest member; -1 for the empty set."""
    return (bits & -bits).bit_length() - 1


def members(bits: int) -> list[int]:
    """Members in ascending order, in time linear in the span from the smallest to the largest."""
    if not bits:
        return []
    base = lowest(bits)
    bits >>= base
    if bits.bit_length() <= _SHORT:
        numbers = []
        while bits:
            low = bits & -bits
            numbers.append(base + low.bit_length() - 1)
            bits ^= low
        return numbers
    raw = np.frombuffer(bits.to_bytes((bits.bit_length() + 7) // 8, "little"), dtype=np.uint8)
    unpacked: list[int] = (np.flatnonzero(np.unpackbits(raw, bitorder="little")) + base).tolist()
    return unpacked


def highest(bits: int) -> int:
    """Largest member; -1 for the empty set."""
    return bits.bit_length() - 1
