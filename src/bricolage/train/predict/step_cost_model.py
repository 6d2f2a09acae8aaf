"""Costs of a training step's operators: as the profiled step took, as they take alone, or by their work.

An operator of the step that was profiled costs what it cost there. One that is new, since its shapes or types are others, is
measured alone on made-up tensors, with warm caches and with cold ones; within a step it lies between the two, as far as its
counterpart in the profiled step did there. Between operators there is the time of Python and of autograd: what the phases took
beyond their operators, for each operator alike.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import TypeAlias

from bricolage.frontends.traced_step import TracedStep
from bricolage.train.predict.operator_costs import AloneTime, OperatorProfile, OperatorTimings
from bricolage.work.cost import CostModel, Estimate, FirstKnown, OneByOne, Setting, Source, StepPlace, Work
from bricolage.work.training_step import Phase, StepGraph
from bricolage.work.work_graph import WorkOperator
from bricolage.work.workload import workload_of

_OFF = (0.6, 1.8)
"""Times what caches explain beyond which an operator's time is a disturbance."""
_LEAST_MS = 0.002
"""Between warm and cold, below which an operator says nothing of caches."""
_ALIKE = 9

_Key: TypeAlias = tuple[str, str, Phase | None]
"""Operator type, layer and phase, or less of them."""


def step_works(graph: StepGraph) -> list[Work]:
    """The operators of a step, each by itself."""
    columns = zip(graph.work.operators, graph.signatures, graph.phases, graph.layers, strict=True)
    return [
        Work(workload_of([operator]), key=signature, place=StepPlace(phase, layer))
        for operator, signature, phase, layer in columns
    ]


@dataclass(frozen=True)
class StepCost:
    """Milliseconds of each operator, with what lies between it and the next one."""

    operators: tuple[float, ...]
    sources: Mapping[Source, int]
    """How many operators were "measured" in the profiled step, "composed" from what they take alone, or "calibrated" by work."""
    low_ms: float = 0.0
    """Sum of the lower ends of their intervals."""
    high_ms: float = 0.0

    @staticmethod
    def of(graph: StepGraph, costs: CostModel, on: Setting) -> StepCost:
        """Of a step.

        Raises:
            ValueError: the model has no cost of an operator.
        """
        estimates: list[Estimate] = []
        for operator, estimate in zip(graph.work.operators, costs.estimate(step_works(graph), on), strict=True):
            if estimate is None:
                raise ValueError(f"{on.device.name} does not run {operator.op_type}, which the step needs")
            estimates.append(estimate)
        low, high = sum(estimate.low_ms for estimate in estimates), sum(estimate.high_ms for estimate in estimates)
        return StepCost(
            tuple(estimate.ms for estimate in estimates), Counter(estimate.source for estimate in estimates), low, high
        )


@dataclass(frozen=True, order=True)
class _Place:
    """What an operator took in its place in the step, compared with what it takes alone."""

    share: float
    """Of what caches hold for it when it is alone, as much is lost: from 0 to 1."""
    off: float
    """What it takes by what that explains."""

    @staticmethod
    def of(ms: float, alone: AloneTime) -> _Place:
        span = alone.cold - alone.warm
        share = min(max((ms - alone.warm) / span, 0.0), 1.0) if span > _LEAST_MS else 0.5
        low, high = _OFF
        return _Place(share, min(max(ms / max(alone.at(share), 1e-6), low), high))


@dataclass(frozen=True)
class _Row:
    """An operator of the profiled step."""

    ms: float
    operator: WorkOperator
    signature: str
    place: StepPlace
    alone: AloneTime | None


@dataclass(frozen=True)
class StepCostModel:
    """What the profiled step tells about others, on the device and at the threads of the profile."""

    graph: TracedStep
    profile: OperatorProfile
    alone: OperatorTimings
    """At the threads of the profile. Operators that it has not measured before they are asked for are scaled by their work."""

    def estimate(self, works: Sequence[Work], on: Setting) -> Sequence[Estimate | None]:
        """Of operators of a step, with the time until the next one; None for what is none."""
        model = FirstKnown((OneByOne(self._in_place), OneByOne(self._as_alone), OneByOne(self._by_work)))
        return [
            None if work.place is None or estimate is None else self._with_overhead(work.place, estimate)
            for work, estimate in zip(works, model.estimate(works, on), strict=True)
        ]

    def _with_overhead(self, place: StepPlace, found: Estimate) -> Estimate:
        low, ms, high = (
            max(0.0, bound + self._overhead[place.phase]) for bound in (found.low_ms, found.ms, found.high_ms)
        )
        return Estimate(ms, low, high, found.source)

    def _in_place(self, work: Work) -> Estimate | None:
        """What the same operator took in the profiled step."""
        times = self._times_in_step.get((work.key, _like(work.place))) if work.place is not None else None
        return None if not times else Estimate(median(times), min(times), max(times), "measured")

    def _as_alone(self, work: Work) -> Estimate | None:
        """What an operator takes alone, brought to its place in the step."""
        alone_time = self.alone.known.get(work.key)
        if alone_time is None or work.place is None or len(work.operators) != 1:
            return None
        keys = _keys(work.operators[0].kind, work.place)
        places = next((self._places[key] for key in keys if key in self._places), None)
        places = places or self._alike(work.operators[0].bytes)
        off = median(place.off for place in places)
        ms = alone_time.at(median(place.share for place in places)) * off
        return Estimate(ms, min(ms, alone_time.warm * off), max(ms, alone_time.cold * off), "composed")

    def _by_work(self, work: Work) -> Estimate | None:
        """What the first operator of the type took, scaled by FLOPs; nothing for a type that the step does not have."""
        if work.place is None or len(work.operators) != 1:
            return None
        (operator,) = work.operators
        base = next((self._first[key] for key in _keys(operator.kind, work.place) if key in self._first), None)
        ms = 0.0 if base is None else base.ms * max(operator.flops, 1.0) / max(base.operator.flops, 1.0)
        return Estimate.of(ms, "calibrated")

    def _alike(self, size: int) -> Sequence[_Place]:
        """Places of operators that move about as many bytes: caches help them alike."""
        ranked = sorted(
            (abs(math.log2(max(size, 1) / max(row.operator.bytes, 1))), number, _Place.of(row.ms, row.alone))
            for number, row in enumerate(self._rows)
            if row.alone is not None
        )
        return [place for _, _, place in ranked[:_ALIKE]] or [_Place(0.5, 1.0)]

    @cached_property
    def _rows(self) -> list[_Row]:
        graph = self.graph
        self.alone.measure(graph.calls, graph.signatures)
        columns = zip(
            self.profile.operators, graph.work.operators, graph.signatures, graph.phases, graph.layers, strict=True
        )
        return [
            _Row(ms, operator, signature, StepPlace(phase, layer), self.alone.known[signature])
            for ms, operator, signature, phase, layer in columns
        ]

    @cached_property
    def _times_in_step(self) -> Mapping[tuple[str, Phase], Sequence[float]]:
        step_times: dict[tuple[str, Phase], list[float]] = {}
        for row in self._rows:
            step_times.setdefault((row.signature, row.place.phase), []).append(row.ms)
        return step_times

    @cached_property
    def _places(self) -> Mapping[_Key, Sequence[_Place]]:
        places: dict[_Key, list[_Place]] = {}
        for row in self._rows:
            if row.alone is not None:
                for key in _keys(row.operator.op_type, row.place):
                    places.setdefault(key, []).append(_Place.of(row.ms, row.alone))
        return places

    @cached_property
    def _first(self) -> Mapping[_Key, _Row]:
        first_rows: dict[_Key, _Row] = {}
        for row in self._rows:
            for key in _keys(row.operator.op_type, row.place):
                first_rows.setdefault(key, row)
        return first_rows

    @cached_property
    def _overhead(self) -> Mapping[Phase, float]:
        """Milliseconds between operators, by phase; below zero where watching made operators longer."""
        overheads: dict[Phase, float] = {}
        for phase, whole in self.profile.phases.items():
            inside = [
                ms
                for ms, operator_phase in zip(self.profile.operators, self.graph.phases, strict=True)
                if operator_phase == phase
            ]
            overheads[phase] = (whole - sum(inside)) / max(1, len(inside))
        overheads.setdefault("recompute", overheads.get("forward", 0.0))
        return overheads


def _like(place: StepPlace) -> Phase:
    """The phase whose operators of the profiled step say what this one's take: recomputing is as forward."""
    return "forward" if place.phase == "recompute" else place.phase


def _keys(kind: str, place: StepPlace) -> tuple[_Key, ...]:
    phase = _like(place)
    return (kind, place.layer, phase), (kind, "", phase), (kind, "", None)
