"""Costs of a training step's operators: as the profiled step took, as they take alone, or by their work.

An operator of the step that was profiled costs what it cost there. One that is new, since its shapes or types are others, is
measured alone on made-up tensors, with warm caches and with cold ones; within a step it lies between the two, as far as its
counterpart in the profiled step did there. Between operators there is the time of Python and of autograd: what the phases took
beyond their operators, for each operator alike.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import TypeAlias

from bricolage.frontends.traced_step import TracedStep
from bricolage.train.predict.operators import AloneTime, OperatorProfile, OperatorTimings
from bricolage.work.cost import CostModel, Estimate, FirstKnown, Setting, Source, StepPlace, Work
from bricolage.work.graph import WorkOperator
from bricolage.work.step import Phase, StepGraph
from bricolage.work.workload import OperatorWork, workload_of

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
        Work(workload_of([one]), key=signature, place=StepPlace(phase, layer))
        for one, signature, phase, layer in columns
    ]


@dataclass(frozen=True)
class StepCost:
    """Milliseconds of each operator, with what lies between it and the next one."""

    operators: tuple[float, ...]
    sources: Mapping[Source, int]
    """How many operators were "measured" in the profiled step, "composed" from what they take alone, or "calibrated" by work."""

    @staticmethod
    def of(graph: StepGraph, costs: CostModel, on: Setting) -> StepCost:
        """Of a step.

        Raises:
            ValueError: the model has no cost of an operator.
        """
        known: list[Estimate] = []
        for operator, one in zip(graph.work.operators, costs.estimate(step_works(graph), on), strict=True):
            if one is None:
                raise ValueError(f"{on.device.name} does not run {operator.op_type}, which the step needs")
            known.append(one)
        return StepCost(tuple(one.ms for one in known), Counter(one.source for one in known))


@dataclass(frozen=True, order=True)
class _Place:
    """An operator in its place in the step beside what it takes alone."""

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
class StepCostModel:
    """What the profiled step tells about others, on the device and at the threads of the profile."""

    graph: TracedStep
    profile: OperatorProfile
    alone: OperatorTimings
    """At the threads of the profile. Operators that it has not measured before they are asked for are scaled by their work."""

    def estimate(self, works: Sequence[Work], on: Setting) -> Sequence[Estimate | None]:
        """Of operators of a step; None for what is none."""
        return [
            self._with_overhead(work, one) for work, one in zip(works, self._model.estimate(works, on), strict=True)
        ]

    @cached_property
    def _model(self) -> CostModel:
        self.alone.measure(self.graph.calls, self.graph.signatures)
        rows = list(_rows(self))
        return FirstKnown((_InPlace.of(rows), _FromAlone.of(rows, self.alone), _ByWork.of(rows)))

    def _with_overhead(self, work: Work, found: Estimate | None) -> Estimate | None:
        if work.place is None or found is None:
            return None
        beside = self._overhead[work.place.phase]
        low, ms, high = (max(0.0, one + beside) for one in (found.low_ms, found.ms, found.high_ms))
        return Estimate(ms, low, high, found.source)

    @cached_property
    def _overhead(self) -> Mapping[Phase, float]:
        """Milliseconds between operators, by phase; below zero where watching made operators longer."""
        found: dict[Phase, float] = {}
        for phase, whole in self.profile.phases.items():
            inside = [ms for ms, one in zip(self.profile.operators, self.graph.phases, strict=True) if one == phase]
            found[phase] = (whole - sum(inside)) / max(1, len(inside))
        found.setdefault("recompute", found.get("forward", 0.0))
        return found


@dataclass(frozen=True)
class _Row:
    """An operator of the profiled step."""

    ms: float
    operator: WorkOperator
    signature: str
    place: StepPlace
    alone: AloneTime | None

    @property
    def keys(self) -> tuple[_Key, ...]:
        return _keys(self.operator.op_type, self.place.layer, self.place.phase)


def _rows(costs: StepCostModel) -> Iterator[_Row]:
    graph = costs.graph
    columns = zip(
        costs.profile.operators, graph.work.operators, graph.signatures, graph.phases, graph.layers, strict=True
    )
    for ms, operator, signature, phase, layer in columns:
        yield _Row(ms, operator, signature, StepPlace(phase, layer), costs.alone.known[signature])


def _keys(kind: str, layer: str, phase: Phase) -> tuple[_Key, ...]:
    return (kind, layer, phase), (kind, "", phase), (kind, "", None)


def _asked(work: Work) -> tuple[OperatorWork, StepPlace] | None:
    """The single operator that a work is, and its place as the profiled step has it: recomputing is as forward."""
    if work.place is None or len(work.operators) != 1:
        return None
    phase: Phase = "forward" if work.place.phase == "recompute" else work.place.phase
    return work.operators[0], StepPlace(phase, work.place.layer)


@dataclass(frozen=True)
class _InPlace:
    """What the same operator took in the profiled step."""

    seen: Mapping[tuple[str, Phase], Sequence[float]]

    @staticmethod
    def of(rows: Sequence[_Row]) -> _InPlace:
        seen: dict[tuple[str, Phase], list[float]] = {}
        for one in rows:
            seen.setdefault((one.signature, one.place.phase), []).append(one.ms)
        return _InPlace(seen)

    def estimate(self, works: Sequence[Work], on: Setting) -> Sequence[Estimate | None]:
        del on
        return [self._one(work) for work in works]

    def _one(self, work: Work) -> Estimate | None:
        asked = _asked(work)
        times = self.seen.get((work.key, asked[1].phase)) if asked is not None else None
        return None if not times else Estimate(median(times), min(times), max(times), "measured")


@dataclass(frozen=True)
class _FromAlone:
    """What an operator takes alone, brought to its place in the step."""

    places: Mapping[_Key, Sequence[_Place]]
    sizes: Sequence[tuple[int, _Place]]
    """Bytes of operators, and their places."""
    alone: OperatorTimings

    @staticmethod
    def of(rows: Sequence[_Row], alone: OperatorTimings) -> _FromAlone:
        places: dict[_Key, list[_Place]] = {}
        sizes: list[tuple[int, _Place]] = []
        for one in rows:
            if one.alone is not None:
                place = _Place.of(one.ms, one.alone)
                sizes.append((one.operator.bytes, place))
                for key in one.keys:
                    places.setdefault(key, []).append(place)
        return _FromAlone(places, sizes, alone)

    def estimate(self, works: Sequence[Work], on: Setting) -> Sequence[Estimate | None]:
        del on
        return [self._one(work) for work in works]

    def _one(self, work: Work) -> Estimate | None:
        asked, known = _asked(work), self.alone.known.get(work.key)
        if asked is None or known is None:
            return None
        operator, at = asked
        keys = _keys(operator.kind, at.layer, at.phase)
        found = next((self.places[key] for key in keys if key in self.places), None) or self._alike(operator.bytes)
        off = median(one.off for one in found)
        ms = known.at(median(one.share for one in found)) * off
        return Estimate(ms, min(ms, known.warm * off), max(ms, known.cold * off), "composed")

    def _alike(self, size: int) -> Sequence[_Place]:
        """Places of operators that move about as many bytes: caches help them alike."""
        ranked = sorted(
            (abs(math.log2(max(size, 1) / max(own, 1))), number, place)
            for number, (own, place) in enumerate(self.sizes)
        )
        return [place for _, _, place in ranked[:_ALIKE]] or [_Place(0.5, 1.0)]


@dataclass(frozen=True)
class _ByWork:
    """What the first operator of the type took, scaled by FLOPs; nothing for a type that the step does not have."""

    known: Mapping[_Key, tuple[float, float]]
    """Milliseconds and FLOPs."""

    @staticmethod
    def of(rows: Sequence[_Row]) -> _ByWork:
        known: dict[_Key, tuple[float, float]] = {}
        for one in rows:
            for key in one.keys:
                known.setdefault(key, (one.ms, one.operator.flops))
        return _ByWork(known)

    def estimate(self, works: Sequence[Work], on: Setting) -> Sequence[Estimate | None]:
        del on
        return [self._one(work) for work in works]

    def _one(self, work: Work) -> Estimate | None:
        asked = _asked(work)
        if asked is None:
            return None
        operator, at = asked
        keys = _keys(operator.kind, at.layer, at.phase)
        base = next((self.known[key] for key in keys if key in self.known), None)
        ms = 0.0 if base is None else base[0] * max(operator.flops, 1.0) / max(base[1], 1.0)
        return Estimate.of(ms, "calibrated")
