"""What is expected of a graph before it is measured: its time on each implementation, and what a mixture could save."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

from bricolage.backends.interface import Backend
from bricolage.base.deadline import Deadline
from bricolage.base.options import Options
from bricolage.costs.models.forecast import Forecast, forecast
from bricolage.device.device import Device
from bricolage.driver.candidates import find_candidates
from bricolage.driver.heuristic_placement import usable_backends
from bricolage.driver.placement_problem import look_up_transfers
from bricolage.driver.pricing import work_shares
from bricolage.driver.timed_variant import TimedVariant
from bricolage.errors import NoCover, NoPlacement
from bricolage.graph.graph import Graph
from bricolage.graph.to_work import to_work
from bricolage.graph.work import workload
from bricolage.search.placement.exact import solve
from bricolage.work import bits as bitset
from bricolage.work.cost import CostModel, Estimate, Setting, Work
from bricolage.work.gain import LEAST_GAIN
from bricolage.work.implementation import Implementation
from bricolage.work.placement import Candidate, PlacementResult

_LEAST_SPREAD = 0.02
"""Of the logarithm of a placement's time: what is measured of regions does not say the time of the whole better."""


@dataclass(frozen=True)
class PlacementLook:
    """What the best mixture is predicted to save over the fastest whole graph, as a share of that one's time."""

    saving: float
    low: float
    """Of a 95 % interval."""
    high: float
    chance: float
    """That it saves more than what counts as a gain. 0 where no mixture is predicted to be faster than a whole graph."""

    def __str__(self) -> str:
        if self.chance <= 0.0:
            return "by known and predicted costs of regions no mixture is faster than the fastest whole graph"
        interval = f"{100 * self.saving:.0f} % [{100 * self.low:.0f} %, {100 * self.high:.0f} %]"
        return f"by known and predicted costs of regions the best mixture saves {interval}"


def expected_ms(variant: TimedVariant) -> dict[Implementation, float]:
    """What implementations of the whole graph are expected to take, in ms: as measured where that is on record, as predicted
    elsewhere. Those that compile slowly or are known to fail are absent; those that the model has not seen come after all others,
    the first configuration of every backend before second ones."""
    session = variant.session
    slow = {backend.name for backend in session.backends if backend.compiles_slowly}
    data, offered = variant.oracle.data(variant.graph.everything), list[str]()
    known_ms: dict[Implementation, float] = {}
    unknown: dict[Implementation, float] = {}
    quick = [implementation for implementation in variant.candidates.whole if implementation.backend not in slow]
    asked = [(variant.whole_spec(implementation), data) for implementation in quick]
    for implementation, cost in zip(quick, session.measurer.cached(asked, variant.oracle.accepted), strict=True):
        if cost is not None and cost.ms is not None:
            known_ms[implementation] = cost.ms
        elif cost is None and implementation in variant.forecast.unknown:
            offered.append(implementation.backend)
            unknown[implementation] = offered.count(implementation.backend) * variant.forecast.whole[implementation].ms
        elif cost is None:
            known_ms[implementation] = variant.forecast.whole[implementation].ms
    last = max(known_ms.values(), default=0.0)
    return known_ms | {implementation: last + ms for implementation, ms in unknown.items()}


def expected_fastest(
    graph: Graph, backends: Sequence[Backend], options: Options, device: Device, costs: CostModel | None
) -> list[tuple[Implementation, Estimate]]:
    """What implementations of the whole graph are expected to take where nothing was measured, the fastest first: of backends that
    compile quickly, those that the model knows before those that it does not."""
    quick = usable_backends([backend for backend in backends if not backend.compiles_slowly])
    candidates = find_candidates(graph, quick, options.precision, device, slow_per_region=False)
    everything = workload(graph.everything)
    whole = [Work(everything, implementation) for implementation in candidates.whole]
    predictions = forecast(whole, [], costs, Setting(device, options.threads))
    return sorted(predictions.whole.items(), key=lambda item: (item[0] in predictions.unknown, item[1].ms))


def look_at_placements(variant: TimedVariant, deadline: Deadline) -> PlacementLook | None:
    """What the best mixture could save over the fastest whole graph, by the exact placement of known and predicted costs of regions
    with boundaries; nothing is measured for it. Predictions are scaled so that those of whole graphs are what was measured. None
    where nothing is predicted or measured, or no choice of regions covers the graph. Teams of threads are those of the backends."""
    if variant.session.costs is None or not variant.graph.static or len(variant.graph) < 2:
        return None
    estimates = _estimates(variant, variant.forecast.corrected(variant.times, power=1.0))
    fastest = min({implementation for _, implementation in estimates}, key=variant.times.__getitem__, default=None)
    if fastest is None:
        return None
    candidates = [
        Candidate(region, implementation, estimate.ms) for (region, implementation), estimate in estimates.items()
    ]
    fastest_choices = [candidate for candidate in candidates if candidate.implementation == fastest]
    shares = variant.session.budget.shares
    graph, seconds = to_work(variant.graph), min(shares.bound_s, deadline.left)
    transfers = look_up_transfers(variant, candidates)
    try:
        divided = solve(graph, fastest_choices, transfers, seconds / 2)
        mixture = solve(graph, candidates, transfers, seconds / 2)
    except (NoCover, NoPlacement):
        return None
    if len({choice.implementation for choice in mixture.choices}) < 2:
        return PlacementLook(0.0, 0.0, 0.0, 0.0)
    # Where parts are predicted to take less than the whole of them, what that saves is an error of the model.
    before_ms = min(variant.times[fastest], divided.total_ms)
    moved = estimate_errors(mixture, divided, estimates, fastest)
    return estimate_saving(mixture.total_ms, before_ms, moved)


def _estimates(variant: TimedVariant, expected: Forecast) -> dict[tuple[int, Implementation], Estimate]:
    """Times of regions, as bit-sets, on implementations that run the whole graph: as measured, else as predicted; of operators that
    no region covers, their share of the whole graph's time."""
    estimates: dict[tuple[int, Implementation], Estimate] = {}
    covered: dict[Implementation, int] = {}
    for group in variant.candidates.groups:
        measured = variant.regions.of(group.key)
        for implementation in group.implementations:
            if implementation not in variant.times or implementation in variant.forecast.unknown:
                continue
            cost = measured.get(implementation)
            if cost is not None and cost.ms is None:
                continue
            predicted = expected.regions.get((group.key, implementation))
            estimate = predicted if cost is None or cost.ms is None else Estimate.of(cost.ms, "measured")
            for region in group.regions if estimate is not None else ():
                assert estimate is not None
                estimates[region, implementation] = estimate
                covered[implementation] = covered.get(implementation, 0) | (region if region.bit_count() == 1 else 0)
    shares, everything = work_shares(variant), variant.graph.everything.bits
    for implementation, ms in variant.times.items():
        if implementation in covered:
            for number in bitset.members(everything & ~covered[implementation]):
                estimates.setdefault((1 << number, implementation), Estimate.of(ms * shares[number], "composed"))
    return estimates


def estimate_errors(
    mixture: PlacementResult,
    divided: PlacementResult,
    estimates: Mapping[tuple[int, Implementation], Estimate],
    fastest: Implementation,
) -> dict[Implementation, float]:
    """How far off the difference of two placements may be, by implementation, as standard deviations in ms: of the `mixture`, and
    of the graph `divided` on the implementation that runs it fastest. What stays there is in both, and its error in neither."""
    errors: dict[Implementation, float] = {}
    kept = 0
    for choice in mixture.choices:
        if choice.implementation == fastest:
            kept |= choice.region
        else:
            deviation = estimates[choice.region, choice.implementation].deviation
            errors[choice.implementation] = errors.get(choice.implementation, 0.0) + choice.cost_ms * deviation
    errors[fastest] = sum(
        choice.cost_ms * estimates[choice.region, fastest].deviation
        for choice in divided.choices
        if not choice.region & kept
    )
    return errors


def estimate_saving(mixture_ms: float, before_ms: float, errors: Mapping[Implementation, float]) -> PlacementLook:
    """What a mixture saves, by its time and the one that it is compared with. `errors`: of their difference, as standard deviations
    in ms; those of regions on one implementation are taken to be the same, those of two implementations to be independent. The
    logarithm of the ratio is taken to be normal."""
    spread = math.hypot(*errors.values()) / mixture_ms
    normal = NormalDist(math.log(before_ms / mixture_ms), max(spread, _LEAST_SPREAD))
    low, high = (1.0 - math.exp(-normal.inv_cdf(share)) for share in (0.025, 0.975))
    return PlacementLook(1.0 - mixture_ms / before_ms, low, high, 1.0 - normal.cdf(-math.log(1.0 - LEAST_GAIN)))
