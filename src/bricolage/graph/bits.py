"""Sets of small integers as Python ints: bit i is set when i is a member."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def of(members: Iterable[int]) -> int:
    """The bit-set holding `members`."""
    bits = 0
    for member in members:
        bits |= 1 << member
    return bits


def members(bits: int) -> Iterator[int]:
    """Members in ascending order."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


def lowest(bits: int) -> int:
    """Smallest member; -1 for the empty set."""
    return (bits & -bits).bit_length() - 1


def highest(bits: int) -> int:
    """Largest member; -1 for the empty set."""
    return bits.bit_length() - 1
