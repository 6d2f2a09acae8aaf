"""`Plan`: what was decided, why, and on what it rests. Frozen dataclasses that round-trip through readable JSON.

A plan may come from a stranger. What a field may hold stands in its type and is checked when it is decoded, so that a plan in
memory is a valid one: nothing behind it need ask whether a number is negative or a name is a path.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

from bricolage.base.codec import FLAT, Length, Within
from bricolage.base.options import Options
from bricolage.plan.accuracy_record import Verification
from bricolage.plan.constant_inputs import ConstantInput, check_constants
from bricolage.plan.decision_record import DecisionRecord
from bricolage.plan.field_types import Hash, Size
from bricolage.plan.operating_point import OperatingPoint
from bricolage.plan.race_outcome import RaceOutcome
from bricolage.plan.schedules import PlannedSchedule
from bricolage.plan.shipped_program import PlannedRegion, ShippedProgram
from bricolage.plan.throughput import Throughput

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
class Bucket:
    """The decision for one binding of the symbolic dimensions; one object of JSON."""

    program: ShippedProgram = field(metadata=FLAT)
    race: RaceOutcome = field(metadata=FLAT)
    verification: Verification = field(metadata=FLAT)
    record: DecisionRecord = field(metadata=FLAT)

    KEY_ORDER: ClassVar[tuple[str, ...]] = (
        "sizes", "graph", "operators", "chosen", "regions", "contestants", "best_baseline", "speedup_vs_baseline",
        "speedup_ci", "significant", "predicted_ms", "original_error", "bound", "quality", "transfers", "proof",
        "decided_by", "disturbance", "peak_bytes", "seconds", "shares", "inputs_from", "without_float64",
        "interrupted", "variant", "rules", "steps", "rewrite_config", "model_use", "model_error", "schedule", "attempts",
        "tuned", "overridden", "agenda", "accuracy", "quantised", "best_other", "pattern", "other_pattern", "provisional",
        "continued", "constant_gains",
    )  # fmt: skip
    """Of JSON. Equal plans make equal bytes, whichever version wrote them."""

    @staticmethod
    def unraced(program: ShippedProgram, name: str, bound: float) -> Bucket:
        """A decision without a race or contestants. `name`: of what runs; `bound`: relative error accepted."""
        return Bucket(program, RaceOutcome.unraced(name), Verification(0.0, bound), DecisionRecord(None))

    def with_schedule(self, schedule: PlannedSchedule | None) -> Bucket:
        """The same regions side by side as this says; one after the other for None."""
        return replace(self, program=replace(self.program, schedule=schedule))

    def with_regions(self, regions: Iterable[PlannedRegion], schedule: PlannedSchedule | None = None) -> Bucket:
        """The same graph, divided so, with a schedule of these regions."""
        return replace(self, program=replace(self.program, regions=tuple(regions), schedule=schedule))


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
        overridden = {name for bucket in self.buckets for name in bucket.program.overridden}
        check_constants(self.constants, {spec.name for spec in self.defaults} - overridden, len(self.inputs))
