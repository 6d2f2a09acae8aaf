"""What a plan ships for one binding of the symbolic dimensions: a graph, how it is divided, and who runs each part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from bricolage.base.codec import Within
from bricolage.plan.field_types import Amount, Count, Duration, ErrorNumber, GraphFile, Interval, OperatorRanges, Size
from bricolage.plan.number_sets import format_numbers, spans
from bricolage.plan.rewrite_steps import RewriteConfig, RewriteStep
from bricolage.plan.schedules import PlannedSchedule
from bricolage.plan.tuned import TunedKernels
from bricolage.work.implementation import Implementation

ORIGINAL = "original"
"""Name of the graph as it came, among its variants."""


@dataclass(frozen=True)
class Alternative:
    """What a region costs on an implementation, or why it does not run there. Times in milliseconds."""

    implementation: Implementation
    outcome: str
    median_ms: Duration | None = None
    ci_ms: Interval | None = None
    error: ErrorNumber | None = None
    reason: str = ""


@dataclass(frozen=True)
class PlannedRegion:
    """A region of the plan: operators by number (ranges such as "0-12,15"), who runs it, and the evidence."""

    implementation: Implementation
    operators: OperatorRanges
    count: Count
    title: str
    """Operator types in short, for people."""
    key: str
    """Canonical identity: the key of its costs in the database."""
    flops: Amount
    bytes: Amount
    cost_ms: Duration | None
    """Measured, or predicted from the parts when `measured` is false."""
    measured: bool
    start_ms: Duration | None = None
    """Predicted start in a run; None where a part of the plan has no cost."""
    transfer_ms: Duration = 0.0
    """Predicted cost of taking over the tensors that other regions computed."""
    alternatives: tuple[Alternative, ...] = ()
    """All measured ways to run the region, fastest first, the chosen one included."""

    def __post_init__(self) -> None:
        previous = -1
        for first, last in spans(self.operators):
            if not previous < first <= last:
                raise ValueError(f"the operators '{self.operators[:60]}' do not ascend")
            previous = last
        if sum(last + 1 - first for first, last in spans(self.operators)) != self.count:
            raise ValueError(f"the operators '{self.operators[:60]}' are not {self.count}")


@dataclass(frozen=True)
class ShippedProgram:
    """What runs, and how it is made again."""

    sizes: Mapping[str, Annotated[int, Within(0, 2**40)]]
    """Of the symbolic dimensions."""
    graph: GraphFile
    """File name of the prepared graph in the artifact."""
    operators: Count
    regions: tuple[PlannedRegion, ...]
    peak_bytes: Mapping[str, Amount] = field(default_factory=dict)
    """By device: the most that tensors between regions and outputs take at a time, by the predicted timeline; empty
    for one region."""
    variant: str = ORIGINAL
    """The variant of the graph that ships: "original", "rewritten" by all canonicalising rules, one that was
    "searched-N", one "tailored" to a backend by racing variants, or one in integers, "quantised" or "weights-int4"."""
    rules: Mapping[str, Count] = field(default_factory=dict)
    """Rewrite rules that made this variant, with the number of their applications."""
    steps: tuple[RewriteStep, ...] = ()
    """For a variant that was searched: how to make it again."""
    rewrite_config: RewriteConfig | None = None
    """For a variant that was tuned for a backend: how to make it again."""
    schedule: PlannedSchedule | None = None
    """Which regions run side by side; None where they run one after the other, each on all cores."""
    tuned: tuple[TunedKernels, ...] = ()
    """What a tuner found for implementations that ship."""
    overridden: Mapping[str, tuple[Size, ...]] = field(default_factory=dict)
    """Inputs with a default that its graph takes, with their shapes; the defaults of all others are weights there."""

    def __post_init__(self) -> None:
        if self.schedule is not None and len(self.schedule.cores) != len(self.regions):
            raise ValueError(
                f"its schedule is of {len(self.schedule.cores)} regions, and there are {len(self.regions)}"
            )
        highest = max((last for region in self.regions for _, last in spans(region.operators)), default=-1)
        if highest >= self.operators:
            raise ValueError(f"a region has operator {highest}, and there are {self.operators} of them")
        if sum(region.count for region in self.regions) > self.operators:
            raise ValueError("an operator belongs to two regions")

    @property
    def backends(self) -> tuple[str, ...]:
        """Backends that the regions use, in order of appearance."""
        return tuple(dict.fromkeys(region.implementation.backend for region in self.regions))


def whole_region(chosen: Implementation, operators: int) -> PlannedRegion:
    """All operators on one implementation, whose cost as a region is not known."""
    everything = format_numbers(tuple(range(operators)))
    return PlannedRegion(chosen, everything, operators, "whole model", "", 0, 0, cost_ms=None, measured=False)
