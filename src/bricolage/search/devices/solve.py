"""Searches for placements on alike devices by name, each with its bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bricolage.search.devices.device_problem import DevicePlacementProblem, PlacedOperators
from bricolage.search.devices.device_programme import integer_programme
from bricolage.search.devices.downsets import antichains, contiguous, pipedream, place_along_order

PlacementSearch = Callable[[DevicePlacementProblem, PlacedOperators | None, float], PlacedOperators]
"""A problem, the best placement so far if there is one, and seconds."""

SEARCHES: Mapping[str, PlacementSearch] = {
    "pipedream": lambda problem, _known, _limit: pipedream(problem),
    "pipedream-antichains": lambda problem, _known, limit: antichains(problem, limit_s=limit),
    "order": lambda problem, _known, _limit: place_along_order(problem),
    "dp": lambda problem, _known, limit: contiguous(problem, limit_s=limit),
    "ip-convex": lambda problem, known, limit: integer_programme(problem, known, connected=True, limit_s=limit),
    "ip": lambda problem, known, limit: integer_programme(problem, known, limit_s=limit),
}
"""By name; those that look for less are first."""
