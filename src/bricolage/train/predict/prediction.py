"""What a prediction of a training step says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bricolage.costs.latency import Latency
from bricolage.device.collective import Ring
from bricolage.train.predict.exchange import GradientTransfer
from bricolage.train.predict.recompute import Recomputation
from bricolage.work.training_step import Kind, Phase, StepGraph


@dataclass(frozen=True)
class OperatorTime:
    """All operators of one type in one phase."""

    type: str
    phase: Phase
    count: int
    ms: float
    flops: float
    bytes: int


@dataclass(frozen=True)
class LayerTime:
    """A module: milliseconds by phase, and bytes that it keeps for the backward phase."""

    layer: str
    ms: Mapping[str, float]
    kept_bytes: int


@dataclass(frozen=True)
class Span:
    """Operators of one phase and layer, one after another."""

    phase: str
    layer: str
    start_ms: float
    end_ms: float
    stage: int = 0


@dataclass(frozen=True)
class StepTimeline:
    """What happens when in a step: spans (of all stages), buckets on their way, and bytes taken from a moment on (on the stage that
    takes most)."""

    spans: tuple[Span, ...]
    sent: tuple[GradientTransfer, ...]
    memory: tuple[tuple[float, int], ...]


@dataclass(frozen=True)
class Predicted:
    """A step as a variant runs it. Where `reason` is not empty it cannot, and nothing else holds."""

    variant: str
    batch_size: int = 0
    """Of all workers, or models, together."""
    ms: float = 0.0
    phases: Mapping[str, float] = field(default_factory=dict)
    """Milliseconds; "exchange": what workers wait for gradients, beyond what is computed meanwhile; "idle": what the stage that
    ends last waits for others."""
    peak_bytes: int = 0
    """Of tensors, on one worker, or the stage that takes most."""
    memory: Mapping[Kind, int] = field(default_factory=dict)
    """Bytes at the peak, by what they are."""
    sent_bytes: int = 0
    """By one worker in a step."""
    operators: int = 0
    known: int = 0
    """Operators whose time was measured in the step as it is."""
    alone: int = 0
    """Operators that were measured alone, on made-up tensors."""
    begins: tuple[str, ...] = ()
    """Blocks with which stages begin, but for the first."""
    base_ms: float = 0.0
    """What the step as it is takes, as predicted."""
    low_ms: float = 0.0
    """Of `ms`, if each operator took the least that its estimate admits; 0 where that is not known (stages)."""
    high_ms: float = 0.0
    """If each took the most."""
    measured: Latency | None = None
    """A step that was really run so."""
    measured_base: Latency | None = None
    """The step as it is, run in turns with that."""
    measured_ratio: float | None = None
    """Of both by their quicker quarters: what others do meanwhile only adds to times."""
    measured_peak_bytes: int | None = None
    not_run: str = ""
    """Why it could not be run, where that was asked for."""
    course: StepTimeline | None = None
    reason: str = ""

    @property
    def samples_s(self) -> float:
        """Samples a second of all workers."""
        return self.batch_size / self.ms * 1e3 if self.ms else 0.0

    @property
    def error(self) -> float | None:
        """Predicted by measured time, minus one; both by those of the step as it is, which ran in turns with it, so that a machine
        that is slower now than when the step was profiled does not count."""
        return self.ms / self.base_ms / self.measured_ratio - 1.0 if self.measured_ratio and self.base_ms else None

    @property
    def time_error(self) -> float | None:
        """The same of time alone."""
        return None if self.measured is None else self.ms / self.measured.median_ms - 1.0


@dataclass(frozen=True)
class Prediction:
    """A training step and its variants. The first is the step as it is, which is measured."""

    module: str
    device: str
    threads: int
    torch: str
    predicted: tuple[Predicted, ...]
    operators: tuple[OperatorTime, ...]
    """Of the step as it is, those that take most first."""
    layers: tuple[LayerTime, ...]
    link: Ring | None = None
    """Between workers here, where a variant has several."""
    recomputation: Recomputation | None = None
    """What was chosen for a limit of memory; its variant is the last one."""


def by_type(graph: StepGraph, ms: Sequence[float]) -> tuple[OperatorTime, ...]:
    """The operators of a step by type and phase, those that take most first; `ms` of each operator."""
    groups: dict[tuple[str, Phase], list[tuple[float, float, int]]] = {}
    for operator_ms, operator, phase in zip(ms, graph.work.operators, graph.phases, strict=True):
        groups.setdefault((operator.op_type, phase), []).append((operator_ms, operator.flops, operator.bytes))
    rows = [
        OperatorTime(
            kind,
            phase,
            len(members),
            sum(a for a, _, _ in members),
            sum(b for _, b, _ in members),
            sum(c for _, _, c in members),
        )
        for (kind, phase), members in groups.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.ms))


def by_layer(graph: StepGraph, ms: Sequence[float]) -> tuple[LayerTime, ...]:
    """The modules of a step in their order; `ms` of each operator."""
    times: dict[str, dict[str, float]] = {}
    for operator_ms, phase, layer in zip(ms, graph.phases, graph.layers, strict=True):
        of = times.setdefault(layer, {})
        of[phase] = of.get(phase, 0.0) + operator_ms
    kept: dict[str, int] = {}
    for storage in graph.storages:
        if storage.kind == "activations":
            kept[storage.layer] = kept.get(storage.layer, 0) + storage.bytes
    return tuple(LayerTime(layer, phases, kept.get(layer, 0)) for layer, phases in times.items())
