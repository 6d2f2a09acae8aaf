"""The cheapest combinations of one choice each."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence


def combinations(costs: Sequence[Sequence[float]], count: int) -> Iterator[tuple[int, ...]]:
    """The `count` cheapest ways to choose one position from each list, cheapest first. Each list is sorted and not empty."""
    first = (0,) * len(costs)
    queue = [(math.fsum(own[0] for own in costs), first)]
    seen = {first}
    while queue and count > 0:
        total, choice = heapq.heappop(queue)
        yield choice
        count -= 1
        for place, chosen in enumerate(choice):
            if chosen + 1 == len(costs[place]):
                continue
            following = (*choice[:place], chosen + 1, *choice[place + 1 :])
            if following not in seen:
                seen.add(following)
                own = costs[place]
                heapq.heappush(queue, (total - own[chosen] + own[chosen + 1], following))
