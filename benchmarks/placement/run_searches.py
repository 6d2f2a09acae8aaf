"""Several searches for placements on one problem, one after another, within a time."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from bricolage.errors import BadOption
from bricolage.search.devices.device_problem import DevicePlacementProblem, PlacedOperators, least_load, max_load
from bricolage.search.devices.solve import SEARCHES, PlacementSearch


def place(
    problem: DevicePlacementProblem,
    searches: Sequence[str] = ("pipedream", "order", "dp"),
    *,
    limit_s: float = 600.0,
    more: Mapping[str, PlacementSearch] | None = None,
) -> list[PlacedOperators]:
    """What each search finds, in the order of their names here; those that start from another's placement have the best so far.

    Args:
        problem: the problem.
        searches: names among `SEARCHES` and `more`.
        limit_s: seconds for all; each has what is left.
        more: searches by name that are not the core's, as those that learn (`search.devices.learned_placement.LEARNED`).

    Raises:
        BadOption: there is no such search.
    """
    able = {**SEARCHES, **(more or {})}
    for name in searches:
        if name not in able:
            raise BadOption(option="search", value=name, advice=f"Use {', '.join(able)}")
    deadline = time.monotonic() + limit_s
    placements: list[PlacedOperators] = []
    for name in searches:
        start = min(
            (placement for placement in placements if placement.devices),
            key=lambda placement: placement.max_load,
            default=None,
        )
        placements.append(able[name](problem, start, max(0.0, deadline - time.monotonic())))
    return placements


def judge_placement(problem: DevicePlacementProblem, devices: Sequence[int], method: str) -> PlacedOperators:
    """A given placement, with the bound of all placements.

    Raises:
        ValueError: it does not give each operator one of the devices.
    """
    value = max_load(problem, devices)
    return PlacedOperators(tuple(devices), method, value, min(least_load(problem), value))


def together(found: Sequence[PlacedOperators]) -> PlacedOperators:
    """The best placement, with the seconds of all. Its bound is that of its own search: others look among other placements."""
    best = min(found, key=lambda placement: (placement.max_load, -placement.bound))
    return replace(best, seconds=math.fsum(placement.seconds for placement in found))
