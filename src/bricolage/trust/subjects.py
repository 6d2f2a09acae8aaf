"""Programs worth looking into: what a plan runs, and what each backend would make of a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from bricolage.backends.claim_matching import Matcher
from bricolage.backends.interface import Backend
from bricolage.backends.reference import REFERENCE
from bricolage.base.options import Options
from bricolage.device.device import Device
from bricolage.driver.promising_variants import made_again
from bricolage.graph.graph import Graph
from bricolage.graph.identity import Identities
from bricolage.plan.plan import Bucket
from bricolage.plan.shipped_program import ORIGINAL
from bricolage.rewrite.catalogue import rules
from bricolage.rewrite.engine.retrace import Configured, Finished, Fixpoint, Recorded, Retrace
from bricolage.rewrite.variants import REWRITTEN, rewritten_variants
from bricolage.runtime.programs import placement_of
from bricolage.trust.changes import Subject
from bricolage.work import bits as bitset
from bricolage.work.implementation import Assignment, Implementation, Placement


def plan_subject(bucket: Bucket, original: Graph, shipped: Graph) -> Subject:
    """What a plan runs for one shape bucket. `original` is the model at its sizes, `shipped` the graph in the artifact."""
    name = f"plan {bucket.race.chosen}"
    if bucket.program.variant == ORIGINAL:
        return Subject(name, original, None, placement_of(bucket))
    again = made_again(bucket, original)
    retrace: Retrace = Finished(original.model, shipped.model, tuple(bucket.program.rules) or ("all of its rewrites",))
    if again is not None:
        steps: Retrace
        if bucket.program.rewrite_config is not None:
            steps = Configured(original.model, rules(), bucket.program.rewrite_config)
        elif bucket.program.steps:
            steps = Recorded(original.model, rules(), bucket.program.steps)
        else:
            steps = Fixpoint(original.model, rules())
        graph = Graph(steps.made().model)
        if Identities(graph).key(graph.everything) == again.key:  # the plan's numbers are those of this graph
            retrace = steps
    return Subject(name, original, retrace, placement_of(bucket))


def of_backends(
    graph: Graph, backends: Sequence[Backend], options: Options, device: Device, *, unclaimed: bool = False
) -> Iterator[Subject]:
    """Each backend, in each configuration for the precision asked for, on the graph as it came and, where rewriting is allowed, as
    canonicalising rules make it. What a backend does not claim the reference runs, unless it is to take the `unclaimed`
    too; where it claims nothing there is no program of it."""
    variants = [(ORIGINAL, graph, None), *_rewritten(graph, options)]
    for backend in backends:
        for title, rewritten, retrace in variants:
            regions = [rewritten.everything.bits] if unclaimed else _claim_regions(rewritten, backend)
            if not regions:
                continue
            for config in backend.suited_configs(options.precision, device, rewritten.everything):
                implementation = Implementation(backend.name, config, device.name)
                name = f"{implementation}{'' if title == ORIGINAL else f' {title}'}"
                yield Subject(name, graph, retrace, _divide_graph(rewritten, regions, implementation))


def _rewritten(graph: Graph, options: Options) -> list[tuple[str, Graph, Retrace | None]]:
    variants = rewritten_variants(graph) if options.rewrite else ()
    return [(REWRITTEN, variant.graph, Fixpoint(graph.model, rules())) for variant in variants]


def _claim_regions(graph: Graph, backend: Backend) -> list[int]:
    """What a backend claims as disjoint regions of consecutive operators, which lie one behind the other in any order of
    regions: an engine's as long as can be, a library's patterns, the largest first."""
    matcher, claims = Matcher(graph), tuple(backend.claims())
    taken = matcher.accepted(claims)
    runs = groupby(range(len(graph)), key=lambda number: bool(taken >> number & 1))
    claimed_regions = [bitset.of(numbers) for inside, numbers in runs if inside]
    for region in sorted(matcher.regions(claims), key=lambda region: (-region.bit_count(), region)):
        consecutive = bitset.highest(region) - bitset.lowest(region) + 1 == region.bit_count()
        if consecutive and not region & taken:
            claimed_regions.append(region)
            taken |= region
    return claimed_regions


def _divide_graph(graph: Graph, regions: Sequence[int], one: Implementation) -> Placement:
    """The regions, and the reference for each run of operators between them."""
    owner = {number: region for region in regions for number in bitset.members(region)}
    return tuple(
        Assignment(region or bitset.of(numbers), one if region else REFERENCE)
        for region, numbers in groupby(range(len(graph)), key=lambda number: owner.get(number, 0))
    )
