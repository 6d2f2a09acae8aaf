"""`Plan`: what was decided, why, and on what it rests. Frozen dataclasses that round-trip through readable JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

ORIGINAL = "original"
"""Name of the graph as it came, among its variants."""
FORMAT = 1
"""Version of the plan and artifact format. Readers refuse a higher one."""


@dataclass(frozen=True)
class TensorSpec:
    """A graph input or output: name, numpy type name, shape (a name where the dimension is symbolic)."""

    name: str
    dtype: str
    shape: tuple[int | str, ...] | None


@dataclass(frozen=True)
class Alternative:
    """What a region costs on one backend and variant, or why it does not run there. Times in milliseconds."""

    backend: str
    variant: str
    outcome: str
    median_ms: float | None = None
    ci_ms: tuple[float, float] | None = None
    error: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class PlannedRegion:
    """A region of the plan: operators by number (ranges such as "0-12,15"), who runs it, and the evidence."""

    backend: str
    variant: str
    operators: str
    count: int
    title: str
    """Operator types in short, for people."""
    key: str
    """Canonical identity: the key of its costs in the database."""
    flops: int
    bytes: int
    cost_ms: float | None
    """Measured, or predicted from the parts when `measured` is false."""
    measured: bool
    boundary_ms: float = 0.0
    """Predicted cost of taking over the tensors that other regions computed."""
    alternatives: tuple[Alternative, ...] = ()
    """All measured ways to run the region, fastest first, the chosen one included."""

    @property
    def runner_up(self) -> Alternative | None:
        """The fastest alternative on another backend or variant."""
        return next(
            (
                a
                for a in self.alternatives
                if a.outcome in ("ok", "predicted") and (a.backend, a.variant) != (self.backend, self.variant)
            ),
            None,
        )


@dataclass(frozen=True)
class Contestant:
    """One entry of the final race: a single backend alone, or a plan. Times in milliseconds."""

    name: str
    """Backend and variant ("openvino f32"), or the plan's name."""
    kind: str
    """"single" or "plan"."""
    median_ms: float | None
    ci_ms: tuple[float, float] | None
    error: float | None
    accepted: bool
    reason: str = ""
    """Why it was dropped or lost; empty for the winner."""
    compile_s: float | None = None
    first_run_ms: float | None = None
    regions: int = 1
    speedup: float | None = None
    """Over the best single backend, from paired rounds; None where the two never met."""
    speedup_ci: tuple[float, float] | None = None


@dataclass(frozen=True)
class Boundary:
    """Measured cost of handing a tensor over, in milliseconds."""

    producer: str
    consumer: str
    bytes: int
    median_ms: float


@dataclass(frozen=True)
class Quality:
    """Collage's own measures (TVM RFC 0062), as signed ratios minus one: 0.05 means five per cent.

    `additive_error` = predicted / measured - 1 of the best plan found: below zero, the additive model promised more than
    it kept; None when no plan was predicted. `apparent_loss` = chosen / best single backend - 1: below zero, the plan
    gains. `optimality_loss` = chosen / best of everything measured end to end - 1: at least zero.
    """

    additive_error: float | None
    apparent_loss: float | None
    optimality_loss: float


@dataclass(frozen=True)
class RewriteStep:
    """One application of a rewrite rule, in names of the graph: which of the rule's patterns, the values that it replaces, and
    what its variables stand for. The same steps on the same graph give the same graph."""

    rule: str
    pattern: int
    roots: tuple[str, ...]
    bound: tuple[tuple[str, str | None], ...]


@dataclass(frozen=True)
class PlannedRecipe:
    """Which rewrite rules make a graph variant: the canonicalising ones that are left out, and the cost-based ones that are applied
    everywhere, in their order, each with the operator signatures at which it is not; and the opset to which the graph is raised
    first. The same on the same graph gives the same graph."""

    without: tuple[str, ...]
    exploring: tuple[tuple[str, tuple[str, ...]], ...]
    opset: int | None = None


@dataclass(frozen=True)
class Bucket:
    """The decision for one binding of the symbolic dimensions."""

    sizes: Mapping[str, int]
    graph: str
    """File name of the prepared graph in the artifact."""
    operators: int
    chosen: str
    """Name of the contestant that ships."""
    regions: tuple[PlannedRegion, ...]
    contestants: tuple[Contestant, ...]
    best_single: str
    speedup_vs_best_single: float
    speedup_ci: tuple[float, float]
    significant: bool
    predicted_ms: float | None
    original_error: float
    bound: float
    quality: Quality
    boundaries: tuple[Boundary, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Wall clock per phase."""
    inputs_from: str = "generated"
    """Where the inputs of the measurements came from: "generated" with a seed, or the user's file."""
    interrupted: bool = False
    """Whether the user cut the search short: the plan is the best found until then."""
    form: str = ORIGINAL
    """The variant of the graph that ships: "original", "rewritten" by all canonicalising rules, one that was "searched", or one
    "tailored" to a backend by racing variants."""
    rules: Mapping[str, int] = field(default_factory=dict)
    """Rewrite rules that made this variant, with the number of their applications."""
    steps: tuple[RewriteStep, ...] = ()
    """For a variant that was searched: how to make it again."""
    recipe: PlannedRecipe | None = None
    """For a variant that was tailored to a backend: how to make it again."""
    model_error: float | None = None
    """Median relative error of the cost model with which variants were searched, on regions that it had not seen."""

    @property
    def winner(self) -> Contestant:
        return next(c for c in self.contestants if c.name == self.chosen)

    @property
    def backends(self) -> tuple[str, ...]:
        """Backends that the regions use, in order of appearance."""
        return tuple(dict.fromkeys(region.backend for region in self.regions))


@dataclass(frozen=True)
class Provenance:
    """Where a plan comes from; what must agree for it to be used as it is."""

    bricolage: str
    versions: Mapping[str, str]
    """Version of each backend that took part."""
    fingerprint: str
    """Short hash of the hardware."""
    hardware: str
    """The hardware in words."""
    threads: int
    effort: str
    seed: int
    created: str
    """UTC, ISO 8601."""


@dataclass(frozen=True)
class Plan:
    """The decisions for all shape buckets of one model."""

    model: str
    digest: str
    """Hash of the model's structure and weights."""
    precision: str
    tolerance: float | None
    inputs: tuple[TensorSpec, ...]
    """What the model takes; symbolic dimensions keep their names."""
    outputs: tuple[TensorSpec, ...]
    buckets: tuple[Bucket, ...]
    provenance: Provenance
    format: int = FORMAT


def ranges(numbers: tuple[int, ...]) -> str:
    """(0, 1, 2, 5) → "0-2,5". Numbers must ascend."""
    parts: list[str] = []
    start = previous = -2
    for number in (*numbers, -9):
        if number == previous + 1:
            previous = number
            continue
        if start >= 0:
            parts.append(f"{start}-{previous}" if previous > start else f"{start}")
        start = previous = number
    return ",".join(parts)


def numbers(text: str) -> tuple[int, ...]:
    """Inverse of `ranges`."""
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    return tuple(found)
