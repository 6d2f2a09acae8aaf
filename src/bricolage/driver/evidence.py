"""What was known of a contestant before the race, and who is fastest by all that is known.

It decides where no race was held, and together with the race where other processes disturbed that one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bricolage.costs.entries import Cost
from bricolage.costs.latency import Latency
from bricolage.driver.timed_variant import TimedVariant
from bricolage.measure.race_record import Race
from bricolage.measure.statistics import Ratio, UncertainValue, pool_estimates
from bricolage.work.implementation import Implementation, Placement

_OF_A_PROCESS = 0.02
"""Standard deviation of a time, in logarithms, from one process to another that runs the same program."""
_OF_NEIGHBOURS = 0.1
"""... of a time that was measured under load, however narrow its interval ..."""
_OF_A_SUM = 0.1
"""... and of a whole that is estimated by the sum of its regions."""


@dataclass(frozen=True)
class Evidence:
    """What is known of a contestant without the race; milliseconds."""

    name: str
    quiet: UncertainValue | None
    """From all that was measured undisturbed: as a whole in this run and in an earlier one, and the sum of its regions."""
    disturbed: UncertainValue | None = None
    """From what was measured under load. It counts only where one of two has nothing else."""

    @staticmethod
    def of(name: str, costs: Iterable[Cost], regions_ms: float | None = None) -> Evidence:
        """From times of the whole, failures among them, and from the sum of its regions where that is known."""
        quiet: list[UncertainValue] = []
        disturbed: list[UncertainValue] = []
        for cost in costs:
            if cost.latency is None or not cost.latency.low_ms > 0:
                continue
            estimate = _estimate(cost.latency)
            if cost.disturbed:
                disturbed.append(estimate.widened(_OF_NEIGHBOURS))
            else:
                quiet.append(estimate.widened(_OF_A_PROCESS))
        if regions_ms:
            quiet.append(UncertainValue(regions_ms, regions_ms, regions_ms).widened(_OF_A_SUM))
        return Evidence(
            name, pool_estimates(quiet) if quiet else None, pool_estimates(disturbed) if disturbed else None
        )

    @property
    def ms(self) -> float | None:
        """The best single figure; None where nothing is known."""
        best = self.quiet or self.disturbed
        return best.value if best is not None else None

    def speedup(self, other: Evidence) -> UncertainValue | None:
        """Over the other contestant, from undisturbed times of both, otherwise from whatever was measured last; None where
        nothing is known of one of them."""
        if self.quiet is not None and other.quiet is not None:
            return other.quiet.over(self.quiet)
        ours, theirs = self.disturbed or self.quiet, other.disturbed or other.quiet
        return theirs.over(ours) if ours is not None and theirs is not None else None


def of_baseline(name: str, cost: Cost, variant: TimedVariant, implementation: Implementation) -> Evidence:
    """One implementation of the whole graph."""
    measurer = variant.session.measurer
    earlier = measurer.earlier.get(variant.whole_spec(implementation))
    costs = (cost, earlier) if earlier is not None else (cost,)
    return Evidence.of(name, costs, sum_of_regions(variant, implementation) if cost.latency is not None else None)


def of_plan(name: str, placement: Placement, variant: TimedVariant, cores: Sequence[tuple[int, ...]] = ()) -> Evidence:
    """A placement, as it was measured end to end, with its schedule where it has one."""
    return Evidence.of(name, variant.session.measurer.recorded(variant.placement_spec(placement, cores)))


def sum_of_regions(variant: TimedVariant, implementation: Implementation) -> float | None:
    """What an implementation takes for all segments of a graph, one after another, ms; None where one was not measured,
    or only under load."""
    total = 0.0
    keys = {region: group.key for group in variant.candidates.groups for region in group.regions}
    for segment in variant.candidates.segments:
        cost = variant.regions.of(keys.get(segment, "")).get(implementation)
        if cost is None or cost.ms is None or cost.disturbed:
            return None
        total += cost.ms
    return total or None


def fastest(evidence: Sequence[Evidence]) -> str | None:
    """Who is fastest by what is known without a race; None where nothing is."""
    timed = sorted(
        (entry for entry in evidence if entry.ms is not None), key=lambda entry: (entry.ms or 0.0, entry.name)
    )
    best = timed[0] if timed else None
    for entry in timed[1:]:
        assert best is not None
        gain = entry.speedup(best)
        if gain is not None and gain.value > 1.0:
            best = entry
    return best.name if best is not None else None


def weigh_evidence(name: str, other: str, ran: Race, evidence: Mapping[str, Evidence]) -> Ratio | None:
    """Speed-up of one contestant over another by the race and by what was known before, each as far as it is sure; None
    where nothing compares them."""
    raced = ran.ratio(name, other, through=ran.incumbent)
    prior = evidence[name].speedup(evidence[other]) if name in evidence and other in evidence else None
    sources = [UncertainValue(raced.value, raced.low, raced.high)] if raced is not None else []
    if raced is not None and (ran.noisy(name) or ran.noisy(other)):
        sources = [sources[0].widened(_OF_NEIGHBOURS)]
    sources += [prior] if prior is not None else []
    if not sources:
        return None
    combined = pool_estimates(sources)
    return Ratio(combined.value, combined.low, combined.high, raced.rounds if raced is not None else 0)


def _estimate(latency: Latency) -> UncertainValue:
    return UncertainValue(latency.median_ms, latency.low_ms, latency.high_ms)
