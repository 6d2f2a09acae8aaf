"""Variants of a graph in a decision: which could win, their files, and their records in plans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bricolage.base.options import Options
from bricolage.costs.models.calibrated import CalibrationSample
from bricolage.driver.describe import placement_name
from bricolage.driver.quantised_variants import QUANTISED_VARIANTS, remade
from bricolage.driver.state import Challenger, DecisionState
from bricolage.driver.timed_variant import TimedVariant
from bricolage.graph.graph import Graph, Region
from bricolage.graph.identity import Identities
from bricolage.graph.store import Store
from bricolage.graph.work import workload
from bricolage.plan.number_sets import parse_numbers
from bricolage.plan.plan import Bucket
from bricolage.plan.shipped_program import ORIGINAL
from bricolage.rewrite.variants import GraphVariant, recreated_variant
from bricolage.verify.held_back import GivenSamples
from bricolage.work import bits
from bricolage.work.implementation import Assignment

_CLEARLY = 1.02
"""A variant is placed before the original only if it is faster by more than that: regions of the original are more
often known."""
_PROMISING = 1.05
"""Variants within this factor of the fastest, each on its best backend, may win as mixtures."""


def write_variant_files(variant: GraphVariant, store: Store) -> str:
    """Writes a variant to the original's folder; the name of its file. Weights that rules folded go into a file of their own.

    Raises:
        NotWritable: the disk is full or the folder is not writable.
    """
    store.share([variant.graph.model], f"weights-{variant.name}-{variant.key[:8]}.data")
    return store.graph(variant.graph)


def made_again(
    bucket: Bucket, graph: Graph, options: Options | None = None, samples: GivenSamples | None = None
) -> GraphVariant | None:
    """The variant of a graph that a decision places, from its record; None where the rules do not make it any more. A quantised one
    needs the `options` and `samples` of the decision."""
    if bucket.program.variant not in QUANTISED_VARIANTS:
        variant = recreated_variant(graph, bucket.program.variant, bucket.program.steps, bucket.program.rewrite_config)
        return variant if variant is not None and _is_of(bucket, variant) else None
    variants = remade(graph, bucket.program.variant, options, samples) if options is not None else ()
    return next((variant for variant in variants if _is_of(bucket, variant)), None)


def _is_of(bucket: Bucket, variant: GraphVariant) -> bool:
    """Whether a decision places this very variant."""
    if len(variant.graph) != bucket.program.operators:
        return False
    identities = Identities(variant.graph)
    regions = [
        (Region(variant.graph, bits.of(parse_numbers(region.operators))), region.key)
        for region in bucket.program.regions
    ]
    return all(identities.key(region) == key for region, key in regions)


def measured_samples(variant: TimedVariant) -> list[CalibrationSample]:
    """Everything that was measured of a graph, each region with the time of its fastest implementation."""
    fastest = variant.fastest
    samples = [] if fastest is None else [CalibrationSample(workload(variant.graph.everything).operators, fastest[1])]
    for group in variant.candidates.groups:
        ms = variant.regions.fastest_ms(group.key, group.implementations)
        if ms is not None:
            samples.append(CalibrationSample(group.work.operators, ms))
    return samples


def promising(variants: Mapping[str, TimedVariant]) -> list[TimedVariant]:
    """The variants that could win, best first; the original before what is hardly faster."""
    times = {name: fastest[1] for name, variant in variants.items() if (fastest := variant.fastest) is not None}
    limit = _PROMISING * min(times.values(), default=0.0)
    shown = {name: ms / _CLEARLY if name == ORIGINAL else ms for name, ms in times.items()}
    return [variants[name] for name in sorted(times, key=lambda name: shown[name]) if times[name] <= limit]


def select_divided_variants(state: DecisionState) -> list[TimedVariant]:
    """The variants that are divided into regions: the most promising, as many as the effort says; also the original
    where a backend offers to run a part of it and of none of those: rules may have replaced the very patterns that it knows."""
    ranked = promising(state.timed_variants)
    chosen = ranked[: state.session.profile.variants]
    if state.original in ranked and state.original not in chosen:
        offering = {name for variant in chosen for name in variant.candidates.backends}
        if not state.original.candidates.backends <= offering:
            chosen.append(state.original)
    return chosen


def whole_challengers(timed_variants: Iterable[TimedVariant]) -> list[Challenger]:
    """The fastest implementation on each rewritten variant. All of them race: one measurement is too coarse to leave one
    out, and who is clearly beaten retires early."""
    challengers: list[Challenger] = []
    for timed_variant in timed_variants:
        variant, fastest = timed_variant.graph_variant, timed_variant.fastest
        if variant.name != ORIGINAL and fastest is not None:
            placement = (Assignment(variant.graph.everything.bits, fastest[0]),)
            name = placement_name(placement, variant.name)
            challengers.append(Challenger(name, placement, variant.predicted_ms, variant.name))
    return challengers
