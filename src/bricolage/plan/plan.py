"""`Plan`: what was decided, why, and on what it rests. Frozen dataclasses that round-trip through readable JSON.

A plan may come from a stranger. What a field may hold stands in its type and is checked when it is decoded, so that a plan in
memory is a valid one: nothing behind it need ask whether a number is negative or a name is a path.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from bricolage.base.codec import Length, Within
from bricolage.base.options import Options, Pattern
from bricolage.plan.accuracy_record import JudgedAccuracy, QuantisedGraph
from bricolage.plan.agenda_record import AgendaItem
from bricolage.plan.constant_inputs import ConstantGain, ConstantInput, check_constants
from bricolage.plan.disturbance_record import Disturbance
from bricolage.plan.field_types import (
    Amount,
    Count,
    DecidedBy,
    Duration,
    ErrorNumber,
    GraphFile,
    Hash,
    Interval,
    OperatorRanges,
    ProvisionalReason,
    Ratio,
    Size,
)
from bricolage.plan.number_sets import format_numbers, spans
from bricolage.plan.operating_point import OperatingPoint
from bricolage.plan.other_pattern import PatternLoss
from bricolage.plan.rewrite_steps import RewriteConfig, RewriteStep
from bricolage.plan.schedules import PlannedSchedule, ScheduleAttempt
from bricolage.plan.throughput import Throughput
from bricolage.plan.tuned import TunedKernels
from bricolage.work.implementation import OWN_ENGINE, Endpoint, Implementation

ORIGINAL = "original"
"""Name of the graph as it came, among its variants."""
FORMAT = 3
"""Version of the plan and artifact format. Readers refuse a higher one."""


@dataclass(frozen=True)
class TensorSpec:
    """A graph input or output: name, numpy type name, shape (a name where the dimension is symbolic)."""

    name: str
    dtype: str
    shape: tuple[Size | str, ...] | None
    keys: tuple[int | str, ...] = ()
    """Of an output whose rows are returned as maps, or an input that may be given as one: the keys, one for each column."""


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


def other_tool(one: Implementation) -> bool:
    """Whether this, on the whole original, is what a user has without bricolage: a backend that is not our own engine, as it sets
    itself up. Neither our engine is an other tool, nor a plan of ours, whatever backends that uses, nor kernels that we tuned."""
    return one.backend != OWN_ENGINE and not one.tuned


@dataclass(frozen=True)
class Contestant:
    """One entry of the final race: a baseline (one implementation, as its backend sets it up, runs the whole original), or a plan
    (everything else: several regions, a graph that was rewritten, kernels that were tuned). Times in milliseconds."""

    name: str
    """For people: "openvino f32", or the plan's name."""
    kind: Literal["baseline", "plan"]
    median_ms: Duration | None
    ci_ms: Interval | None
    error: ErrorNumber | None
    accepted: bool
    reason: str = ""
    """Why it was dropped or lost; empty for the winner."""
    dropped_ms: Duration | None = None
    """Time of a baseline that was dropped for its accuracy alone."""
    compile_s: Duration | None = None
    first_run_ms: Duration | None = None
    regions: Count = 1
    implementation: Implementation | None = None
    """Of a baseline, and of tuned kernels for the whole original."""
    speedup: Ratio | None = None
    """Over the best single configuration, from the evidence that decided: paired rounds of the race, where others disturbed it
    together with what was known before. None where the two never met."""
    speedup_ci: tuple[Ratio, Ratio] | None = None
    over_other: Ratio | None = None
    """Over the best other tool (`Bucket.best_other`), likewise; from what was known before where no race was held. None where
    there is no other tool, or nothing compares the two."""
    over_other_ci: tuple[Ratio, Ratio] | None = None

    other_pattern_ms: Duration | None = None
    """Median in the pattern of calls that did not decide (`Bucket.pattern`); None where it was not timed so ..."""
    other_pattern_ci_ms: Interval | None = None
    """... with its interval."""
    reached: Ratio | None = None
    """What it reached of the accuracy asked for (`Bucket.accuracy`), on samples that are held back; None where it did not answer
    them ..."""
    held_back_error: ErrorNumber | None = None
    """... and the largest relative error that it had on any of them. `error` is that of the inputs on which it was measured, and of
    a quantised graph against exact integers."""

    @property
    def as_it_comes(self) -> bool:
        """Whether it is the user's own file, untouched, in a tool with the tool's own defaults."""
        return self.implementation is not None and self.implementation.config.as_it_comes

    @property
    def other_tool(self) -> bool:
        """Whether it is what a user has without bricolage (`other_tool`)."""
        return self.kind == "baseline" and self.implementation is not None and other_tool(self.implementation)


@dataclass(frozen=True)
class Transfer:
    """Measured cost of handing a tensor over, in milliseconds."""

    producer: Endpoint
    consumer: Endpoint
    bytes: Amount
    median_ms: Duration


@dataclass(frozen=True)
class Quality:
    """Collage's own measures (TVM RFC 0062), as signed ratios minus one: 0.05 means five per cent.

    `additive_error` = predicted / measured - 1 of the best plan found: below zero, the additive model promised more than
    it kept; None when no plan was predicted. `apparent_loss` = chosen / best single backend - 1: below zero, the plan
    gains. `optimality_loss` = chosen / best of everything measured end to end - 1: at least zero.
    """

    additive_error: Ratio | None
    apparent_loss: Ratio | None
    optimality_loss: Ratio


@dataclass(frozen=True)
class Proof:
    """What is known of an op-level placement in the additive model: whether any other could be cheaper there. Times
    in milliseconds."""

    method: str
    optimal: bool
    total_ms: Duration
    lower_bound_ms: Ratio
    """No placement of these candidates costs less."""
    measured: Count
    """Candidates of the search whose costs were measured ..."""
    predicted: Count
    """... and those whose costs were predicted, because nothing that covers their operators was."""
    seconds: Duration
    """That the search took."""
    measured_share: Annotated[float, Within(0.0, 1.0)] | None = None
    """Milliseconds of the costs that were measured, of those of all; None in plans that were made before it was kept."""

    @property
    def of_measured(self) -> bool:
        """Whether all costs were measured: of predicted ones nothing is proved."""
        return not self.predicted

    @property
    def gap(self) -> float:
        """How much cheaper another placement could be at most, as a ratio minus one; 0 where it is optimal."""
        return 0.0 if self.optimal or not self.lower_bound_ms else self.total_ms / self.lower_bound_ms - 1.0


@dataclass(frozen=True)
class ModelUse:
    """What the learned cost model did in a decision."""

    model: str
    """What it was trained on; empty where there was none, and the roofline was used instead."""
    left_out: Count
    """Measurements of regions that it made needless ..."""
    offered: Count
    """... of this number."""
    unknown: tuple[str, ...] = ()
    """Implementations that offered to run a part of the graph and that it has not seen."""


@dataclass(frozen=True)
class Bucket:
    """The decision for one binding of the symbolic dimensions."""

    sizes: Mapping[str, Annotated[int, Within(0, 2**40)]]
    graph: GraphFile
    """File name of the prepared graph in the artifact."""
    operators: Count
    chosen: str
    """Name of the contestant that ships."""
    regions: tuple[PlannedRegion, ...]
    contestants: tuple[Contestant, ...]
    best_baseline: str
    speedup_vs_baseline: Ratio
    speedup_ci: tuple[Ratio, Ratio]
    significant: bool
    predicted_ms: Duration | None
    original_error: ErrorNumber
    bound: ErrorNumber
    quality: Quality
    transfers: tuple[Transfer, ...] = ()
    proof: Proof | None = None
    """How good the op-level placement is that the search for plans began with; None where nothing was searched."""
    decided_by: DecidedBy = "race"
    """The race alone, where it was quiet enough; under load, the race together with what was known of the
    contestants before; that alone where no race was held."""
    disturbance: Disturbance = Disturbance()
    """What other processes did meanwhile."""
    peak_bytes: Mapping[str, Amount] = field(default_factory=dict)
    """By device: the most that tensors between regions and outputs take at a time, by the predicted timeline; empty
    for one region."""
    seconds: Mapping[str, Ratio] = field(default_factory=dict)
    """Wall clock per stage."""
    shares: Mapping[str, Ratio] = field(default_factory=dict)
    """Seconds of the budget that were kept free for each stage, whatever came before."""
    inputs_from: str = "generated"
    """Where the inputs of the measurements came from: "generated" with a seed, or the user's file."""
    without_float64: tuple[str, ...] = ()
    """Types of operators that have no float64 semantics here: ONNX Runtime without its optimisations was the reference for them."""
    interrupted: bool = False
    """Whether the user cut the search short: the plan is the best found until then."""
    variant: str = ORIGINAL
    """The variant of the graph that ships: "original", "rewritten" by all canonicalising rules, one that was
    "searched-N", one "tailored" to a backend by racing variants, or one in integers, "quantised" or "weights-int4"."""
    rules: Mapping[str, Count] = field(default_factory=dict)
    """Rewrite rules that made this variant, with the number of their applications."""
    steps: tuple[RewriteStep, ...] = ()
    """For a variant that was searched: how to make it again."""
    rewrite_config: RewriteConfig | None = None
    """For a variant that was tuned for a backend: how to make it again."""
    model_use: ModelUse | None = None
    """What the learned cost model did; None where none was used."""
    model_error: ErrorNumber | None = None
    """Median relative error of the cost model with which variants were searched, on regions that it had not seen."""
    schedule: PlannedSchedule | None = None
    """Which regions run side by side; None where they run one after the other, each on all cores."""
    attempts: tuple[ScheduleAttempt, ...] = ()
    """At running regions side by side."""
    tuned: tuple[TunedKernels, ...] = ()
    """What a tuner found for implementations that ship."""
    overridden: Mapping[str, tuple[Size, ...]] = field(default_factory=dict)
    """Inputs with a default that its graph takes, with their shapes; the defaults of all others are weights there."""
    agenda: tuple[AgendaItem, ...] = ()
    """What was measured in addition to the baselines, in this order, and what was left out, with its bound and its chance."""
    accuracy: JudgedAccuracy | None = None
    """What was asked for on samples that are held back, and what was reached; None where there are none."""
    quantised: tuple[QuantisedGraph, ...] = ()
    """Quantised graphs that were tried, and what became of each."""
    best_other: str = ""
    """Name of the contestant that is the best other tool (`Contestant.other_tool`); empty where none was timed, and in plans
    of before this was asked."""

    pattern: Pattern | None = None
    """The pattern of calls that decided; the times of contestants are of it. None where both were not timed."""
    other_pattern: PatternLoss | None = None
    """How what ships stands in the other pattern against the best other tool there; None where that was not timed."""
    provisional: tuple[ProvisionalReason, ...] = ()
    """Why the next decision goes on with this one; empty where it is final."""
    continued: Count = 0
    """How often a provisional decision was gone on with until this one."""
    constant_gains: tuple[ConstantGain, ...] = ()
    """Of folding inputs that decide control flow and nothing else."""

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
        names = {contestant.name for contestant in self.contestants}
        for name in (self.chosen, self.best_baseline, *filter(None, [self.best_other])):
            if names and name not in names:
                raise ValueError(f"'{name[:60]}' is none of its contestants")

    @property
    def under_load(self) -> bool:
        """Whether other processes had a say in it: they were seen, or left the race inconclusive."""
        return self.disturbance.busy or self.decided_by == "race and prior evidence"

    @property
    def winner(self) -> Contestant:
        """The contestant that ships."""
        return next(c for c in self.contestants if c.name == self.chosen)

    @property
    def other(self) -> Contestant | None:
        """The best other tool; None where no other was timed and right."""
        others = [c for c in self.contestants if c.other_tool and c.accepted and c.median_ms is not None]
        named = next((c for c in others if c.name == self.best_other), None)
        return named or min(others, key=lambda c: (c.median_ms or 0.0, c.name), default=None)

    @property
    def backends(self) -> tuple[str, ...]:
        """Backends that the regions use, in order of appearance."""
        return tuple(dict.fromkeys(region.implementation.backend for region in self.regions))


@dataclass(frozen=True)
class Provenance:
    """Where a plan comes from; what must agree for it to be used as it is."""

    bricolage: str
    versions: Mapping[str, str]
    """Version of each backend that took part."""
    fingerprint: Hash
    """Short hash of the device."""
    hardware: str
    """The device in words."""
    options: Options
    """All that the user could set."""
    created: str
    """UTC, ISO 8601."""


@dataclass(frozen=True)
class Plan:
    """The decisions for all shape buckets of one model."""

    model: str
    digest: Hash
    """Hash of the model's structure and weights."""
    inputs: tuple[TensorSpec, ...]
    """What the model takes; symbolic dimensions keep their names."""
    outputs: tuple[TensorSpec, ...]
    """What it returns, in order; two may have one name."""
    buckets: Annotated[tuple[Bucket, ...], Length(1, 10_000)]
    provenance: Provenance
    defaults: tuple[TensorSpec, ...] = ()
    """Inputs that a caller may leave out, since the model has values for them."""
    constants: tuple[ConstantInput, ...] = ()
    """Those of them that never change: a call may give no other value."""
    operating_point: OperatingPoint | None = None
    """How requests are served by default; None: one after another, on all cores."""
    throughput: Throughput | None = None
    """On what the operating point rests, where requests a second were asked for."""
    format: Annotated[int, Within(FORMAT, FORMAT)] = FORMAT

    def __post_init__(self) -> None:
        overridden = {name for bucket in self.buckets for name in bucket.overridden}
        check_constants(self.constants, {spec.name for spec in self.defaults} - overridden, len(self.inputs))


def whole_region(chosen: Implementation, operators: int) -> PlannedRegion:
    """All operators on one implementation, whose cost as a region is not known."""
    everything = format_numbers(tuple(range(operators)))
    return PlannedRegion(chosen, everything, operators, "whole model", "", 0, 0, cost_ms=None, measured=False)
