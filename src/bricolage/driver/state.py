"""The state of one decision: what the stages read and add to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from bricolage.base.budget import DecisionBudget
from bricolage.costs.models.track_record import DecisionSubject
from bricolage.driver.describe import placement_name
from bricolage.driver.expected import PlacementLook
from bricolage.driver.session import Session
from bricolage.driver.timed_variant import TimedVariant
from bricolage.measure.race_record import Race
from bricolage.plan.accuracy_record import QuantisedGraph
from bricolage.plan.agenda_record import AgendaItem
from bricolage.plan.decision_record import Proof, Transfer
from bricolage.plan.schedules import PlannedSchedule, ScheduleAttempt
from bricolage.plan.shipped_program import ORIGINAL
from bricolage.plan.tuned import TunedKernels
from bricolage.rewrite.variants import GraphVariant
from bricolage.verify.oracle import Oracle
from bricolage.work.implementation import Implementation, Placement
from bricolage.work.placement_prediction import Predictor


@dataclass(frozen=True)
class Challenger:
    """A plan that enters the race."""

    name: str
    placement: Placement
    predicted_ms: float | None
    variant: str = ORIGINAL
    """The variant of the graph that it runs."""
    schedule: PlannedSchedule | None = None
    """Which of its regions run side by side; they are in the order of their starts."""
    starts_ms: tuple[float, ...] = ()
    """Of the schedule, predicted."""

    @property
    def cores(self) -> tuple[tuple[int, ...], ...]:
        """Of each region, where it has a schedule."""
        return () if self.schedule is None else self.schedule.cores


@dataclass(frozen=True)
class PlacementSearch:
    """What the search for placements of one variant rests on, and what it measured."""

    predictor: Predictor
    transfers: tuple[Transfer, ...]
    proof: Proof
    measured_ms: tuple[float, ...] = ()
    """End-to-end times of everything tried."""


@dataclass
class DecisionState:
    """Of the decision for one shape bucket."""

    session: Session
    variants: list[GraphVariant]
    """Of the graph, the original first."""
    inputs: Mapping[str, np.ndarray]
    digest: str
    """Of the model with its weights."""
    timed_variants: dict[str, TimedVariant] = field(default_factory=dict)
    """By variant; the original's is the first."""
    challengers: list[Challenger] = field(default_factory=list)
    searches: dict[str, PlacementSearch] = field(default_factory=dict)
    """By variant."""
    calibration_error: float | None = None
    """Of the model of operators' costs by which rewrites were searched: median, relative."""
    attempts: list[ScheduleAttempt] = field(default_factory=list)
    """At running regions side by side."""
    tuned: dict[Implementation, TunedKernels] = field(default_factory=dict)
    """What a tuner found, by the implementation with it."""
    agenda: list[AgendaItem] = field(default_factory=list)
    """What was measured, and what was left out."""
    divided: set[str] = field(default_factory=set)
    """Variants whose regions have been measured."""
    mixtures: dict[str, float] = field(default_factory=dict)
    """Times in ms of everything that was measured end to end, whole graphs aside, by name (`describe.placement_name`)."""
    looks: dict[str, PlacementLook | None] = field(default_factory=dict)
    """What mixtures are predicted to save, by variant; None where nothing is predicted."""
    quantised: list[QuantisedGraph] = field(default_factory=list)
    """Quantised graphs that were tried, and what became of them."""
    sample_s: float = 0.1
    """Seconds that a reference of one sample takes."""
    race: Race | None = None
    """The final one; None where none was held."""
    whole_s: float = 3.0
    """Seconds that the whole graph took on an implementation of a backend that compiles quickly: compiling, checking, timing."""

    @property
    def budget(self) -> DecisionBudget:
        """The seconds that it has, and their parts."""
        return self.session.budget

    @property
    def original(self) -> TimedVariant:
        """The graph as it came."""
        return self.timed_variants[ORIGINAL]

    @property
    def oracle(self) -> Oracle:
        """The reference by which every variant is judged."""
        return self.original.oracle

    @property
    def standings(self) -> dict[str, float]:
        """Times in ms of all plans that are right, as first measured, by the names under which they race."""
        if not self.timed_variants:
            return dict(self.mixtures)
        files = {
            str(implementation): cost.ms for implementation, cost in self.original.files.items() if cost.ms is not None
        }
        wholes = {
            placement_name(variant.placement_of(implementation), name): ms
            for name, variant in self.timed_variants.items()
            for implementation, ms in variant.times.items()
        }
        return {**files, **wholes, **self.mixtures}

    @property
    def incumbent_ms(self) -> float | None:
        """The fastest that was measured so far, of what is right; None where nothing is."""
        return min(self.standings.values(), default=None)

    @property
    def incumbent(self) -> Implementation | None:
        """Who runs a whole graph fastest, of what was measured so far; None where none does."""
        candidates = [fastest for variant in self.timed_variants.values() if (fastest := variant.fastest) is not None]
        return min(candidates, key=lambda pair: pair[1])[0] if candidates else None

    @cached_property
    def subject(self) -> DecisionSubject:
        """On what is decided, and where, as the track record asks."""
        return DecisionSubject.of(self.variants[0].graph, self.session.device)

    @property
    def mixing(self) -> bool:
        """Whether there is anything to place: a graph that can be divided, and several implementations that run parts of it. They
        may be of one backend, in two precisions, say."""
        if not any(variant.graph.static and len(variant.graph) > 1 for variant in self.variants):
            return False
        groups = [group for timed_variant in self.timed_variants.values() for group in timed_variant.candidates.groups]
        return len({implementation for group in groups for implementation in group.implementations}) > 1

    def challenge(self, *challengers: Challenger) -> None:
        """Enters plans for the race, each name once."""
        entered = {challenger.name for challenger in self.challengers}
        self.challengers += [challenger for challenger in challengers if challenger.name not in entered]
