"""What searches get of a timed variant: candidates with their costs, measured or expected."""

from __future__ import annotations

from collections.abc import Collection

from bricolage.costs.models.roofline import added_ms
from bricolage.driver.timed_variant import TimedVariant
from bricolage.graph.work import bytes_moved, flops
from bricolage.work import bits as bitset
from bricolage.work.cost import CostModel, FirstKnown, Work
from bricolage.work.placement import Candidate


def price_candidates(variant: TimedVariant, backends: Collection[str] | None = None) -> list[Candidate]:
    """All candidates with a cost, or those of some backends. What the forecast made needless to measure has the cost that it
    expects; operators that no region covers get one predicted from the whole graph's time on each implementation, in proportion
    to their work. Those that were not measured have no key."""
    merges = _merges(variant)
    pairs = [
        (group, implementation)
        for group in variant.candidates.groups
        for implementation in group.implementations
        if backends is None or implementation.backend in backends
    ]
    unmeasured = {pair for pair in variant.left_out if pair[1] not in variant.regions.of(pair[0])}
    models: tuple[CostModel, ...] = (variant.regions,)
    if unmeasured:
        models += (variant.forecast.corrected(variant.times).only(unmeasured),)
    works = [Work(implementation=implementation, key=group.key) for group, implementation in pairs]
    candidates: list[Candidate] = []
    covered = 0
    for (group, implementation), cost in zip(
        pairs, FirstKnown(models).estimate(works, variant.session.setting), strict=True
    ):
        if cost is None:
            continue
        key = group.key if cost.source == "measured" else ""
        for region in group.regions:
            covered |= region if region.bit_count() == 1 else 0
            candidates.append(Candidate(region, implementation, cost.ms, key, merges[implementation.backend]))
    return [
        *candidates,
        *(c for c in _in_proportion(variant, covered) if backends is None or c.implementation.backend in backends),
    ]


def wholes(variant: TimedVariant, backends: Collection[str] | None = None) -> list[Candidate]:
    """The whole graph on each implementation that runs it, or on those of some backends, as candidates of a placement."""
    merges, everything = _merges(variant), variant.graph.everything.bits
    return [
        Candidate(everything, implementation, ms, variant.key, merges[implementation.backend])
        for implementation, ms in variant.times.items()
        if backends is None or implementation.backend in backends
    ]


def work_shares(variant: TimedVariant) -> list[float]:
    """What each operator may take of the whole graph's time, by its work."""
    peaks = variant.session.device.peaks
    weights = [added_ms(peaks, flops(o), bytes_moved(o), start_us=1.0) for o in variant.graph.operators]
    total = sum(weights)
    return [weight / total for weight in weights]


def _merges(variant: TimedVariant) -> dict[str, bool]:
    return {backend.name: backend.kind == "engine" for backend in variant.session.backends}


def _in_proportion(variant: TimedVariant, covered: int) -> list[Candidate]:
    """Operators outside `covered`, each with its share of the whole graph's time on the implementations that may run it."""
    shares, claimed, merges = work_shares(variant), variant.candidates.claimed, _merges(variant)
    everything = unclaimed = variant.graph.everything.bits
    for bits in claimed.values():
        unclaimed &= ~bits
    # What no backend claims goes to those that have run all of the graph.
    return [
        Candidate(1 << number, implementation, ms * shares[number], "", merges[implementation.backend])
        for number in bitset.members(everything & ~covered)
        for implementation, ms in variant.times.items()
        if (claimed.get(implementation.backend, 0) | unclaimed) >> number & 1
    ]
