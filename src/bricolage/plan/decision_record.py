"""How a decision came about: what was measured, predicted and left out, and how long that took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from bricolage.base.codec import Within
from bricolage.plan.agenda_record import AgendaItem
from bricolage.plan.constant_inputs import ConstantGain
from bricolage.plan.field_types import Amount, Count, Duration, ErrorNumber, ProvisionalReason, Ratio
from bricolage.plan.schedules import ScheduleAttempt
from bricolage.work.implementation import Endpoint


@dataclass(frozen=True)
class Transfer:
    """Measured cost of handing a tensor over, in milliseconds."""

    producer: Endpoint
    consumer: Endpoint
    bytes: Amount
    median_ms: Duration


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
class DecisionRecord:
    """What was done to decide, and what was not."""

    predicted_ms: Duration | None
    """What the additive model says of what ships, or of the plan that it proposed; None where it proposed none."""
    transfers: tuple[Transfer, ...] = ()
    proof: Proof | None = None
    """How good the op-level placement is that the search for plans began with; None where nothing was searched."""
    seconds: Mapping[str, Ratio] = field(default_factory=dict)
    """Wall clock per stage."""
    shares: Mapping[str, Ratio] = field(default_factory=dict)
    """Seconds of the budget that were kept free for each stage, whatever came before."""
    interrupted: bool = False
    """Whether the user cut the search short: the plan is the best found until then."""
    model_use: ModelUse | None = None
    """What the learned cost model did; None where none was used."""
    model_error: ErrorNumber | None = None
    """Median relative error of the cost model with which variants were searched, on regions that it had not seen."""
    attempts: tuple[ScheduleAttempt, ...] = ()
    """At running regions side by side."""
    agenda: tuple[AgendaItem, ...] = ()
    """What was measured in addition to the baselines, in this order, and what was left out, with its bound and its chance."""
    provisional: tuple[ProvisionalReason, ...] = ()
    """Why the next decision goes on with this one; empty where it is final."""
    continued: Count = 0
    """How often a provisional decision was gone on with until this one."""
    constant_gains: tuple[ConstantGain, ...] = ()
    """Of folding inputs that decide control flow and nothing else."""
