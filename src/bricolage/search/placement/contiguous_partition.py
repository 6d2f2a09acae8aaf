"""The partition of a row: into contiguous parts of which the heaviest is as light as it can be."""

from __future__ import annotations

import math
from collections.abc import Sequence


def partition_row(weights: Sequence[float], parts: int) -> list[int]:
    """Where a row is cut so that its heaviest part is lightest: the begin of each part but the first; no part is empty.

    The classic dynamic programme over prefixes, O(parts × n²) for n weights. `parts` is at least 1 and at most n.
    """
    return partitions(weights, parts)[-1]


def partitions(weights: Sequence[float], parts: int) -> list[list[int]]:
    """The same for 1, 2, ... up to `parts` parts, at the cost of the last."""
    sums = [0.0]
    for weight in weights:
        sums.append(sums[-1] + weight)
    count = len(weights)
    best = [sums[end] for end in range(count + 1)]
    """Of the first `end`, in as many parts as so far."""
    chosen: list[list[int]] = []
    for part in range(1, parts):
        now, cut = [math.inf] * (count + 1), [0] * (count + 1)
        for end in range(part + 1, count + 1):
            for begin in range(part, end):
                heaviest = max(best[begin], sums[end] - sums[begin])
                if heaviest < now[end]:
                    now[end], cut[end] = heaviest, begin
        best = now
        chosen.append(cut)
    return [_cuts(chosen[:part], count) for part in range(parts)]


def _cuts(chosen: Sequence[Sequence[int]], end: int) -> list[int]:
    cuts = []
    for cut in reversed(chosen):
        end = cut[end]
        cuts.append(end)
    return cuts[::-1]
