"""What is expected of a graph before it is measured: its time on each implementation, and what a mixture could save."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bricolage.backends.interface import Backend
from bricolage.deadline import Deadline
from bricolage.device.device import Device
from bricolage.driver.candidates import find
from bricolage.driver.heuristic_placement import usable
from bricolage.driver.problem import PlacementProblem
from bricolage.driver.profile import Profile
from bricolage.driver.regions import leave_out_regions
from bricolage.errors import NoCover, NoPlacement
from bricolage.graph.graph import Graph
from bricolage.graph.work import workload
from bricolage.options import Options
from bricolage.perf.forecast import forecast
from bricolage.work.cost import CostModel, Estimate, Setting, Work
from bricolage.work.implementation import Implementation

_GAIN = 0.95
"""A predicted placement counts where its parts come to less than this share of the best whole: predictions of parts are off,
and the search picks those that are off to its liking."""


def expected_ms(profile: Profile) -> dict[Implementation, float]:
    """What implementations of the whole graph are expected to take, in ms: as measured where that is on record, as predicted
    elsewhere. Those that compile slowly or are known to fail are absent; those that the model has not seen come after all others,
    the first configuration of every backend before second ones."""
    session = profile.session
    slow = {backend.name for backend in session.backends if backend.compiles_slowly}
    data, offered = profile.oracle.data(profile.graph.everything), list[str]()
    known: dict[Implementation, float] = {}
    unknown: dict[Implementation, float] = {}
    quick = [one for one in profile.candidates.whole if one.backend not in slow]
    asked = [(profile.whole_spec(one), data) for one in quick]
    for one, cost in zip(quick, session.measurer.cached(asked, profile.oracle.accepted), strict=True):
        if cost is not None and cost.ms is not None:
            known[one] = cost.ms
        elif cost is None and one in profile.forecast.unknown:
            offered.append(one.backend)
            unknown[one] = offered.count(one.backend) * profile.forecast.whole[one].ms
        elif cost is None:
            known[one] = profile.forecast.whole[one].ms
    last = max(known.values(), default=0.0)
    return known | {one: last + ms for one, ms in unknown.items()}


def expected_fastest(
    graph: Graph, backends: Sequence[Backend], options: Options, device: Device, costs: CostModel | None
) -> list[tuple[Implementation, Estimate]]:
    """What implementations of the whole graph are expected to take where nothing was measured, the fastest first: of backends that
    compile quickly, those that the model knows before those that it does not."""
    quick = usable([one for one in backends if not one.compiles_slowly])
    candidates = find(graph, quick, options.precision, device, slow_per_region=False)
    everything = workload(graph.everything)
    whole = [Work(everything, one) for one in candidates.whole]
    told = forecast(whole, [], costs, Setting(device, options.threads))
    return sorted(told.whole.items(), key=lambda item: (item[0] in told.unknown, item[1].ms))


def predicted_saving(profile: Profile) -> float | None:
    """The share of time that the exact placement by predicted costs saves over everything that runs the whole graph, where it is
    worth trying; None where it is not, or nothing is predicted."""
    if profile.session.costs is None or not profile.graph.static or len(profile.graph) < 2:
        return None
    kept = set(profile.left_out)
    leave_out_regions(profile)
    try:
        problem = PlacementProblem(profile, Deadline(0.0))
        optimum = problem.solve(profile.session.options.profile.shares.bound_s)
    except (NoCover, NoPlacement):
        return None
    finally:
        profile.left_out = kept
    best_ms = min(expected_ms(profile).values(), default=math.inf)
    mixed = len(optimum.choices) > 1 and optimum.total_ms < _GAIN * best_ms < math.inf
    return 1.0 - optimum.total_ms / best_ms if mixed else None
