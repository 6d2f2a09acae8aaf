"""What work costs: one question for all who decide, and one answer from all who know something of it.

Searches, schedules and predictions take a `CostModel` and fill their tables with one batch before they begin. The models are in
`costs.models` and, where they need a framework, in the package that measures. `FirstKnown` joins several of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal, Protocol, TypeAlias

from bricolage.device.device import Device
from bricolage.work.implementation import Implementation
from bricolage.work.training_step import Phase
from bricolage.work.workload import OperatorWork, Workload

_QUANTILE = NormalDist().inv_cdf(0.95)
"""Standard deviations from the middle to either end of an interval that holds nine in ten."""
Source: TypeAlias = Literal["measured", "composed", "learned", "calibrated", "roofline", "described"]
"""Where an estimate comes from: this work was measured; its parts were; models trained or fitted on other work; the peaks of the
device; a description of the device. Two words decide something: only what is "measured" counts in a proof, and an implementation of
which all is "roofline" counts as unknown, so that nothing is left out by it (`costs.models.forecast`). A table of rates is
"described"."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A time, and the interval that holds nine in ten of such times; both ends equal the time where no interval is known."""

    ms: float
    low_ms: float
    high_ms: float
    source: Source

    @staticmethod
    def of(ms: float, source: Source) -> Estimate:
        """A time of which no interval is known."""
        return Estimate(ms, ms, ms, source)

    @property
    def deviation(self) -> float:
        """Standard deviation of the logarithm; 0 where no interval is known."""
        return math.log(self.high_ms / self.ms) / _QUANTILE if self.ms > 0.0 else 0.0

    def times(self, factor: float, source: Source | None = None) -> Estimate:
        """The same, longer by a factor of at least 0."""
        return Estimate(self.ms * factor, self.low_ms * factor, self.high_ms * factor, source or self.source)


@dataclass(frozen=True)
class Setting:
    """Where work runs: a device, and how many threads of it."""

    device: Device
    threads: int


@dataclass(frozen=True)
class StepPlace:
    """Where in a training step an operator runs."""

    phase: Phase
    layer: str
    """Path of the module; "" for what belongs to none."""


@dataclass(frozen=True)
class Work:
    """Something that runs as one: an operator, a region of a graph, a sub-graph. What is not known of it is left out, and a model
    that needs it has no estimate then. Forecasts (`costs.models.forecast`), rewriting and described devices say what is computed;
    prices of candidates (`driver.pricing`) and of a placement (`work.placement_prediction`) name a measured region by its key
    alone."""

    workload: Workload | None = None
    """What it computes."""
    implementation: Implementation | None = None
    """Who runs it."""
    key: str = ""
    """Under which it was measured: a region's canonical identity, an operator's signature, a sub-graph's number."""
    region: int = 0
    """Operators of the graph that a model was made for, as a bit-set."""
    place: StepPlace | None = None

    @property
    def operators(self) -> tuple[OperatorWork, ...]:
        """Empty where it is not known what is computed."""
        return () if self.workload is None else self.workload.operators


class CostModel(Protocol):
    """Says what work takes."""

    def estimate(self, works: Sequence[Work], on: Setting) -> Sequence[Estimate | None]:
        """For each work its estimate, in their order; None where the model knows nothing of it. In one batch, since models that
        measure or learn answer many questions in the time of few."""
        ...


@dataclass(frozen=True)
class OneByOne:
    """A model from a function that says what one work takes, wherever it runs; None where it does not know."""

    one: Callable[[Work], Estimate | None]

    def estimate(self, works: Sequence[Work], on: Setting) -> Sequence[Estimate | None]:
        """Of each by itself."""
        del on
        return [self.one(work) for work in works]


@dataclass(frozen=True)
class FirstKnown:
    """Asks several models, each only for what those before it do not know."""

    models: tuple[CostModel, ...]

    def estimate(self, works: Sequence[Work], on: Setting) -> Sequence[Estimate | None]:
        """As the first model says that knows of a work."""
        estimates: list[Estimate | None] = [None] * len(works)
        missing = list(range(len(works)))
        for model in self.models:
            if not missing:
                break
            for number, estimate in zip(missing, model.estimate([works[n] for n in missing], on), strict=True):
                estimates[number] = estimate
            missing = [number for number in missing if estimates[number] is None]
        return estimates
