"""What every part of one decision shares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

from bricolage.backends.interface import Backend
from bricolage.base.budget import DecisionBudget
from bricolage.base.efforts import EffortProfile
from bricolage.base.options import Options
from bricolage.base.progress import Progress
from bricolage.costs.models import track_record
from bricolage.costs.models.track_record import TrackRecord
from bricolage.device.device import Device, Peaks
from bricolage.driver.candidates import KnownClaims
from bricolage.graph.region_model import Resources
from bricolage.graph.store import Store
from bricolage.measure.measurer import Measurer
from bricolage.measure.reference_worker import ReferenceAnswers
from bricolage.plan.disturbance_record import Disturbance
from bricolage.plan.plan import Bucket, Plan
from bricolage.verify.held_back import GivenSamples
from bricolage.verify.oracle import KnownReferences
from bricolage.verify.reference import Evaluate, evaluate
from bricolage.work.cost import CostModel, Setting


@dataclass
class ModelFindings:
    """What decisions for one model on several devices have in common, and so find once."""

    answers: ReferenceAnswers = field(default_factory=ReferenceAnswers)
    references: KnownReferences = field(default_factory=KnownReferences)
    claims: KnownClaims = field(default_factory=KnownClaims)


@dataclass(frozen=True)
class Session:
    """What every part of one decision shares."""

    options: Options
    backends: tuple[Backend, ...]
    device: Device
    measurer: Measurer
    store: Store
    progress: Progress
    budget: DecisionBudget
    evaluate: Evaluate = evaluate
    """Computes references."""
    network: str = ""
    """Hash of the model."""
    costs: CostModel | None = None
    """A model of what regions take that were not measured; None where there is none or it is not wanted."""
    costs_title: str = ""
    """What that model was learnt from, for people."""
    record: TrackRecord = field(default_factory=lambda: track_record.shipped_record())
    """What implementations and ways to a faster plan have achieved on other networks."""
    findings: ModelFindings = field(default_factory=ModelFindings)
    """What decisions for the same model on other devices have found."""
    then: tuple[Setting, ...] = ()
    """Where the model is decided on next: what is measured there first is compiled meanwhile."""

    plan_of: Callable[[Bucket], Plan] | None = None
    """The plan of the model with one decision, as an artifact would have it: what a user calls. None where nothing will ship."""
    file: str = ""
    """Hash of the user's own file, where the store's folder holds it (`plan.program_step.USER_FILE`); else empty."""
    samples: GivenSamples | None = None
    """Data of the user's, to calibrate with and to judge by."""

    @property
    def profile(self) -> EffortProfile:
        """What the effort means."""
        return self.options.profile

    @property
    def disturbance(self) -> Disturbance:
        """What other processes have done while it measured."""
        log = self.measurer.log
        return log.tally.found

    @property
    def setting(self) -> Setting:
        """Where everything is measured."""
        return Setting(self.device, self.options.threads)

    @cached_property
    def attainable(self) -> Setting:
        """The same with peaks that a bound may rest on: the higher of those by the clock that the system names now, which is no
        limit, and those that a backend reaches here."""
        resources, nominal = Resources(self.options.threads, self.device), self.device.peaks
        reached = [peaks for backend in self.backends if (peaks := backend.measure_peaks(resources)) is not None]
        share = min(1.0, self.options.threads / max(1, self.device.threads))
        best = Peaks(
            max([nominal.gflops, *(peaks.gflops / share for peaks in reached)]),
            max([nominal.gbytes, *(peaks.gbytes for peaks in reached)]),
        )
        return Setting(replace(self.device, peaks=best), self.options.threads)

    def backend(self, name: str) -> Backend:
        """The backend of that name among those that take part."""
        return next(backend for backend in self.backends if backend.name == name)

    @property
    def machines(self) -> int:
        """How many compile, or compile and measure."""
        cluster = self.measurer.pool.cluster
        return 1 if cluster is None else max(1, cluster.nodes)
