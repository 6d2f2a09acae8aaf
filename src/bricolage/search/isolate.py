"""Finding the few among many changes that a fault depends on, by trying subsets of them.

Both searches are those of Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input" (IEEE TSE 28/2, 2002). As long
as every subset that is asked for can be tried, isolating is binary search over the first n changes; where some cannot, or the
fault comes and goes, it goes on with finer parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeAlias

Finding: TypeAlias = Literal["right", "wrong", "unresolved"]
"""Whether a subset shows the fault; unresolved: it cannot be tried, or it shows another fault."""
Subset: TypeAlias = frozenset[int]
Test: TypeAlias = Callable[[Subset], Finding]


class Remembered:
    """A test whose findings are kept: a subset is tried once."""

    def __init__(self, test: Test) -> None:
        self._test = test
        self.known: dict[Subset, Finding] = {}

    def __call__(self, subset: Subset) -> Finding:
        """The finding of a subset."""
        if subset not in self.known:
            self.known[subset] = self._test(subset)
        return self.known[subset]


def isolate(right: Subset, wrong: Subset, test: Test) -> tuple[Subset, Subset]:
    """The algorithm `dd`: a subset without the fault inside one with it, as near to each other as can be. `right` is a part of
    `wrong`; numbers that are lower are tried first, so with single changes as the result all below were in force."""
    count = 2
    while len(wrong - right) > 1:
        difference = sorted(wrong - right)
        count = min(count, len(difference))
        for part in _parts(difference, count):
            finding = test(right | part)
            if finding == "wrong":
                wrong, count = right | part, 2
                break
            if finding == "right":
                right, count = right | part, max(count - 1, 2)
                break
            finding = test(wrong - part)
            if finding == "right":
                right, count = wrong - part, 2
                break
            if finding == "wrong":
                wrong, count = wrong - part, max(count - 1, 2)
                break
        else:
            if count == len(difference):
                break
            count = min(2 * count, len(difference))
    return right, wrong


def culprits(changes: Subset, test: Test) -> Subset:
    """The changes without which the fault is gone, each of them needed for that, if these can be told: one after another is
    isolated and left out. With all `changes` the fault is there, with none it is not."""
    out: Subset = frozenset()
    while test(changes - out) == "wrong":
        right, wrong = isolate(frozenset(), changes - out, test)
        out |= wrong - right
    for change in sorted(out):
        if len(out) > 1 and test(changes - (out - {change})) == "right":
            out -= {change}
    return out


def isolate_faults(wrong: Sequence[int], test: Test) -> tuple[int, ...]:
    """The algorithm `ddmin`: a part that still shows the fault, and no longer does without any single one of its members. `wrong`
    shows it."""
    kept, count = list(wrong), 2
    while len(kept) > 1:
        count = min(count, len(kept))
        parts = list(_parts(kept, count))
        failing_part = next((part for part in parts if test(part) == "wrong"), None)
        if failing_part is not None:
            kept, count = sorted(failing_part), 2
            continue
        rest = next((frozenset(kept) - part for part in parts if test(frozenset(kept) - part) == "wrong"), None)
        if rest is not None:
            kept, count = sorted(rest), max(count - 1, 2)
        elif count == len(kept):
            break
        else:
            count = min(2 * count, len(kept))
    return tuple(kept)


def _parts(numbers: Sequence[int], count: int) -> Iterable[Subset]:
    """A number of consecutive parts of nearly equal size."""
    for number in range(count):
        start, end = (len(numbers) * n // count for n in (number, number + 1))
        yield frozenset(numbers[start:end])
