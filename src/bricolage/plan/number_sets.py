"""Sets of numbers of operators as a plan writes them: "0-3,7"."""

from __future__ import annotations

from collections.abc import Iterator


def format_numbers(numbers: tuple[int, ...]) -> str:
    """(0, 1, 2, 5) → "0-2,5". Numbers must ascend."""
    parts: list[str] = []
    start = previous = -2
    for number in (*numbers, -9):
        if number == previous + 1:
            previous = number
            continue
        if start >= 0:
            parts.append(f"{start}-{previous}" if previous > start else f"{start}")
        start = previous = number
    return ",".join(parts)


def spans(text: str) -> Iterator[tuple[int, int]]:
    """ "0-2,5" → (0, 2), (5, 5): the first and the last number of each range."""
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        yield int(first), int(last or first)


def parse_numbers(text: str) -> tuple[int, ...]:
    """Inverse of `format_numbers`."""
    return tuple(number for first, last in spans(text) for number in range(first, last + 1))
