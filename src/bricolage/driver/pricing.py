"""What searches get of a profile: candidates with their costs, measured or expected."""

from __future__ import annotations

from collections.abc import Collection

from bricolage.costs.models.roofline import added_ms
from bricolage.driver.profile import Profile
from bricolage.graph.work import bytes_moved, flops
from bricolage.work import bits as bitset
from bricolage.work.cost import CostModel, FirstKnown, Work
from bricolage.work.placement import Candidate


def price_candidates(profile: Profile, backends: Collection[str] | None = None) -> list[Candidate]:
    """All candidates with a cost, or those of some backends. What the forecast made needless to measure has the cost that it
    expects; operators that no region covers get one predicted from the whole graph's time on each implementation, in proportion
    to their work. Those that were not measured have no key."""
    merges = _merges(profile)
    pairs = [
        (group, implementation)
        for group in profile.candidates.groups
        for implementation in group.implementations
        if backends is None or implementation.backend in backends
    ]
    unmeasured = {pair for pair in profile.left_out if pair[1] not in profile.regions.of(pair[0])}
    models: tuple[CostModel, ...] = (profile.regions,)
    if unmeasured:
        models += (profile.forecast.corrected(profile.times).only(unmeasured),)
    works = [Work(implementation=implementation, key=group.key) for group, implementation in pairs]
    candidates: list[Candidate] = []
    covered = 0
    for (group, implementation), cost in zip(
        pairs, FirstKnown(models).estimate(works, profile.session.setting), strict=True
    ):
        if cost is None:
            continue
        key = group.key if cost.source == "measured" else ""
        for region in group.regions:
            covered |= region if region.bit_count() == 1 else 0
            candidates.append(Candidate(region, implementation, cost.ms, key, merges[implementation.backend]))
    return [
        *candidates,
        *(c for c in _in_proportion(profile, covered) if backends is None or c.implementation.backend in backends),
    ]


def wholes(profile: Profile, backends: Collection[str] | None = None) -> list[Candidate]:
    """The whole graph on each implementation that runs it, or on those of some backends, as candidates of a placement."""
    merges, everything = _merges(profile), profile.graph.everything.bits
    return [
        Candidate(everything, implementation, ms, profile.key, merges[implementation.backend])
        for implementation, ms in profile.times.items()
        if backends is None or implementation.backend in backends
    ]


def work_shares(profile: Profile) -> list[float]:
    """What each operator may take of the whole graph's time, by its work."""
    peaks = profile.session.device.peaks
    weights = [added_ms(peaks, flops(o), bytes_moved(o), start_us=1.0) for o in profile.graph.operators]
    total = sum(weights)
    return [weight / total for weight in weights]


def _merges(profile: Profile) -> dict[str, bool]:
    return {backend.name: backend.kind == "engine" for backend in profile.session.backends}


def _in_proportion(profile: Profile, covered: int) -> list[Candidate]:
    """Operators outside `covered`, each with its share of the whole graph's time on the implementations that may run it."""
    shares, claimed, merges = work_shares(profile), profile.candidates.claimed, _merges(profile)
    everything = unclaimed = profile.graph.everything.bits
    for bits in claimed.values():
        unclaimed &= ~bits
    # What no backend claims goes to those that have run all of the graph.
    return [
        Candidate(1 << number, implementation, ms * shares[number], "", merges[implementation.backend])
        for number in bitset.members(everything & ~covered)
        for implementation, ms in profile.times.items()
        if (claimed.get(implementation.backend, 0) | unclaimed) >> number & 1
    ]
