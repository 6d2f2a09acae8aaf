"""Plans that learnt costs choose alone, with nothing measured: for what has to be decided in less time than measuring takes.

Neither the time nor the accuracy of such a plan is known: the caller compares both with its own.
"""

from __future__ import annotations

import weakref
from dataclasses import replace

from bricolage.backends import registry
from bricolage.base import scratch
from bricolage.base.options import Options
from bricolage.costs.models.learned.installed import model_in_use
from bricolage.device.host import select_device
from bricolage.driver.bucket_decision import make_plan
from bricolage.driver.describe import title
from bricolage.driver.expected import expected_fastest
from bricolage.driver.heuristic_placement import place_by_preference, usable_backends
from bricolage.driver.sources import GivenModel, PreparedBucket, open_source, working_folder
from bricolage.graph.graph import Region
from bricolage.graph.identity import Identities
from bricolage.graph.work import workload
from bricolage.plan.accuracy_record import Verification
from bricolage.plan.decision_record import DecisionRecord
from bricolage.plan.number_sets import format_numbers
from bricolage.plan.plan import Bucket
from bricolage.plan.race_outcome import Contestant, RaceOutcome
from bricolage.plan.shipped_program import PlannedRegion, ShippedProgram
from bricolage.runtime.executable import Executable
from bricolage.work.cost import Estimate
from bricolage.work.implementation import Assignment, Placement


class UnmeasuredPlans:
    """A model's plans, the one first that is expected to be fastest. Its folder of graphs and weights stays as long as it does,
    which has to be as long as any of its executables."""

    def __init__(
        self, source: object, options: Options, *, example_inputs: object = None, dynamic: object = None
    ) -> None:
        """Reads the model; arguments and errors as of `optimize`.

        Raises:
            UsageError: bad model, input or option.
            Unclaimed, NoBackend: nothing installed can run it.
        """
        options.check_here()
        self._options, self._device = options, select_device(options.isa, options.cores)
        self._backends = registry.available(options.backends)
        directory = working_folder()
        weakref.finalize(self, scratch.remove, directory)
        with scratch.using(directory, keep=True):
            self._source = open_source(GivenModel(source, example_inputs, dynamic), options, directory)
        bucket = self._source.buckets[0]
        graph = bucket.graph
        costs = model_in_use() if options.predict else None
        expected = expected_fastest(graph, self._backends, options, self._device, costs)
        everything = graph.everything.bits
        self._placements: list[tuple[Placement, Estimate | None]] = [
            ((Assignment(everything, implementation),), estimate) for implementation, estimate in expected
        ]
        if not expected:
            self._placements = [(place_by_preference(graph, usable_backends(self._backends), self._device, {}), None)]
        self._bucket = bucket

    @property
    def least_ms(self) -> tuple[float | None, ...]:
        """What a call is expected to take at least, by plan: in one of twenty cases it takes less. None where nothing is known."""
        return tuple(None if estimate is None else estimate.low_ms for _, estimate in self._placements)

    def executable(self, number: int) -> Executable:
        """One of the plans made ready. It is compiled at its first call."""
        placement, estimate = self._placements[number]
        ms = None if estimate is None else estimate.ms
        decided = unmeasured_bucket(
            self._source.store.graph(self._bucket.graph), self._bucket, placement, ms, self._options
        )
        plan = make_plan(self._source, [decided], self._options, self._backends, self._device)
        return Executable(plan, self._source.store.directory)


def unmeasured_bucket(
    file: str, bucket: PreparedBucket, placement: Placement, ms: float | None, options: Options
) -> Bucket:
    """The decision for a shape bucket, of which nothing is measured."""
    graph, identities = bucket.graph, Identities(bucket.graph)
    regions = []
    for assignment in placement:
        region, alone = Region(graph, assignment.region), len(placement) == 1
        amount = workload(region)
        regions.append(
            PlannedRegion(
                implementation=assignment.implementation,
                operators=format_numbers(region.numbers),
                count=len(region),
                title=title(region),
                key=identities.key(region),
                flops=amount.flops,
                bytes=amount.bytes,
                cost_ms=ms if alone else None,
                measured=False,
            )
        )
    first = placement[0].implementation
    name = str(first) if len(placement) == 1 else f"{len(placement)} regions by preference"
    whole = first if len(placement) == 1 else None
    contestant = Contestant(
        name,
        "plan" if whole is None else "baseline",
        None,
        None,
        None,
        True,
        regions=len(regions),
        implementation=whole,
    )
    sizes, overridden = dict(bucket.sizes), dict(bucket.overridden)
    return Bucket(
        ShippedProgram(sizes, file, len(graph), tuple(regions), overridden=overridden),
        replace(RaceOutcome.unraced(name, (contestant,)), decided_by="learnt costs"),
        Verification(0.0, options.bound, inputs_from="none were needed"),
        DecisionRecord(ms),
    )
