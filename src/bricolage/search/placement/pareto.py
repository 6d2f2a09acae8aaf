"""The Pareto front: what nothing else is at least as good as in everything, and better in something."""

from __future__ import annotations

import math
from collections.abc import Mapping


def front(points: Mapping[str, tuple[float, float]]) -> tuple[str, ...]:
    """Names of the points (gain, price) of which no other has at least the gain for at most the price, and one of both better;
    largest gain first. Of equal points the first name in the alphabet represents all. Numbers are not NaN.

    Sorted by falling gain, a point is on the front if it is cheaper than all before it: O(n log n) (Kung, Luccio and Preparata,
    "On Finding the Maxima of a Set of Vectors", J. ACM 22, 1975, the case of two dimensions).
    """
    names: list[str] = []
    cheapest = math.inf
    for name, (_, price) in sorted(points.items(), key=lambda item: (-item[1][0], item[1][1], item[0])):
        if price < cheapest or (not names and price == cheapest):
            names.append(name)
            cheapest = price
    return tuple(names)
