"""Measured costs of one variant of the graph, whole and by regions. What is measured when: `driver.whole_models` for the whole on
every implementation, `driver.region_costs` for its parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from bricolage.costs.entries import Cost
from bricolage.costs.measurements import Measurements
from bricolage.costs.models.forecast import Forecast, Pair, forecast
from bricolage.driver.candidates import Candidates, find_candidates
from bricolage.driver.session import Session
from bricolage.graph.graph import Region
from bricolage.graph.identity import Identities
from bricolage.graph.work import workload
from bricolage.measure.measurer import Event
from bricolage.measure.selfcheck import self_checked
from bricolage.measure.specs import CandidateSpec, RegionTask, Stop
from bricolage.plan.program_step import USER_FILE, Step, file_step, placement_steps
from bricolage.plan.shipped_program import ORIGINAL
from bricolage.rewrite.variants import GraphVariant
from bricolage.verify.oracle import Oracle
from bricolage.verify.quantised import precision_of
from bricolage.work.cost import Work
from bricolage.work.implementation import Assignment, Implementation, Placement

NEAR = 1.25
"""Backends within this factor of the best on the whole model are worth mixing, even if they compile slowly."""


@dataclass
class TimedVariant:
    """A variant of the graph with its measured costs: whole by implementation, regions by (key, implementation)."""

    graph_variant: GraphVariant
    oracle: Oracle
    candidates: Candidates
    session: Session
    whole: dict[Implementation, Cost] = field(default_factory=dict)
    regions: Measurements = field(default_factory=Measurements)
    left_out: set[Pair] = field(default_factory=set)
    """What the forecast makes needless to measure: it is priced as predicted."""
    files: dict[Implementation, Cost] = field(default_factory=dict)
    """Of tools that read files: the user's own, as it comes."""
    dropped: dict[Implementation, Cost] = field(default_factory=dict)
    """Times of those that are too inaccurate as a whole."""
    replacing: dict[Implementation, str] = field(default_factory=dict)
    """Configurations without graph optimisations that take part, each with what happened with them."""

    @staticmethod
    def of(variant: GraphVariant, oracle: Oracle, session: Session) -> TimedVariant:
        """One of which nothing is measured yet."""
        candidates = find_candidates(
            variant.graph,
            session.backends,
            precision_of(variant.graph.model, session.options),
            session.device,
            slow_per_region=session.profile.slow_compilers_per_region,
            known=session.findings.claims,
        )
        return TimedVariant(variant, oracle, candidates, session)

    def __post_init__(self) -> None:
        self.graph = self.graph_variant.graph
        self._everything = self.graph.everything
        self._identities = Identities(self.graph)
        self.key = self._identities.key(self._everything)
        self._outputs = tuple(info.name for info in self.graph.outputs)

    def open_variant(self, variant: GraphVariant) -> TimedVariant:
        """Another variant of this graph, judged by the same reference."""
        backends = self_checked(self.session.backends, [variant.graph], self.session.progress)
        session = replace(self.session, backends=backends)
        return TimedVariant.of(variant, self.oracle.of(variant.name, variant.graph), session)

    @property
    def name(self) -> str:
        """Of the variant."""
        return self.graph_variant.name

    @property
    def alone(self) -> dict[Implementation, Cost]:
        """Of everything that runs the whole by itself, files as they come too."""
        return {**self.whole, **self.files}

    @property
    def file_implementations(self) -> tuple[Implementation, ...]:
        """Tools that read the user's own file; none where there is none, or this is a variant of what it holds."""
        session = self.session
        if not session.file or self.name != ORIGINAL:
            return ()
        precision, device = session.options.precision, session.device
        return tuple(
            Implementation(backend.name, config, device.name)
            for backend in session.backends
            for config in backend.file_configs(precision, device)
        )

    @property
    def times(self) -> dict[Implementation, float]:
        """Times of the whole graph in ms, of those that run it and are right."""
        return {implementation: cost.ms for implementation, cost in self.whole.items() if cost.ms is not None}

    @cached_property
    def forecast(self) -> Forecast:
        """What is expected of the candidates before anything is measured; by the roofline alone where the session has no model."""
        everything = workload(self._everything)
        whole = [Work(everything, implementation) for implementation in self.candidates.whole]
        groups = self.candidates.groups
        regions = [
            Work(group.work, implementation, group.key) for group in groups for implementation in group.implementations
        ]
        return forecast(whole, regions, self.session.costs, self.session.setting)

    @property
    def fastest(self) -> tuple[Implementation, float] | None:
        """Who runs the whole graph fastest, and its time in ms."""
        return min(self.times.items(), key=lambda item: item[1], default=None)

    @property
    def first_configurations(self) -> list[Implementation]:
        """The first configuration of every backend that takes the whole graph and compiles quickly."""
        slow = {backend.name for backend in self.session.backends if backend.compiles_slowly}
        quick = [implementation for implementation in self.candidates.whole if implementation.backend not in slow]
        return list({implementation.backend: implementation for implementation in reversed(quick)}.values())[::-1]

    # --- what is measured -------------------------------------------------------------------------------------------

    def whole_spec(self, implementation: Implementation) -> CandidateSpec:
        """The whole graph on one implementation, alone in its process."""
        options, device, outputs = self.session.options, self.session.device, self._outputs
        if implementation.config.as_it_comes:
            step = file_step(self.graph, implementation, self.session.store.directory / USER_FILE)
            key = f"{self.key} of file {self.session.file}"  # two files may become one graph
            return CandidateSpec(key, (step,), outputs, options.threads, alone=True, device=device, kept=True)
        step = Step(implementation, self.session.store.region(self._everything, self.key))
        return CandidateSpec(self.key, (step,), outputs, options.threads, alone=True, device=device, kept=True)

    def placement_spec(self, placement: Placement, cores: Sequence[tuple[int, ...]] = ()) -> CandidateSpec:
        """A placement end to end, with `cores` of each region where they run side by side. Its identity says how the graph is
        divided, and on what."""
        if len(placement) == 1:
            return self.whole_spec(placement[0].implementation)
        steps = placement_steps(self.graph, placement, self.session.store, self._identities)
        division = ";".join(f"{assignment.region:x}" for assignment in placement)
        if cores:
            division += " on " + ";".join(",".join(map(str, core)) for core in cores)
        alone = len({assignment.implementation.backend for assignment in placement}) == 1
        key, options = f"{self.key}|{division}", self.session.options
        device = self.session.device
        return CandidateSpec(key, steps, self._outputs, options.threads, alone, device, cores=tuple(cores))

    def placement_of(self, implementation: Implementation) -> Placement:
        """One implementation runs all of the graph."""
        return (Assignment(self._everything.bits, implementation),)

    def region_key(self, region: Region) -> str:
        """Canonical identity of a region of this graph."""
        return self._identities.key(region)

    def task(self, specs: Sequence[CandidateSpec]) -> RegionTask:
        """The whole graph as something to be measured."""
        inputs, expected, bound = self.oracle.files(self._everything)
        data = self.oracle.data(self._everything)
        return RegionTask(
            inputs,
            expected,
            bound,
            tuple(specs),
            data,
            variations=self.oracle.variations,
            workload=partial(workload, self._everything, self.session.network),
        )

    # --- measuring --------------------------------------------------------------------------------------------------

    def measure_whole(self, implementations: Sequence[Implementation], stop: Stop) -> None:
        """Times the whole graph on some implementations, interleaved, and the user's file as it comes on others."""
        specs = {self.whole_spec(implementation): implementation for implementation in implementations}
        costs = self.session.measurer.measure([self.task(list(specs))], self.note, stop)
        for spec, cost in costs.items():
            (self.files if specs[spec].config.as_it_comes else self.whole)[specs[spec]] = cost

    def placement_costs(self, placements: Sequence[Placement], stop: Stop) -> list[Cost | None]:
        """What placements cost end to end; None for what was not measured."""
        specs = [self.placement_spec(placement) for placement in placements]
        costs = self.session.measurer.measure([self.task(specs)], self.note, stop) if specs else {}
        return [costs.get(spec) for spec in specs]

    def measure_placements(self, placements: Sequence[Placement], stop: Stop) -> list[float | None]:
        """End-to-end times in ms; None for what failed, is wrong or was not measured."""
        return [None if cost is None else cost.ms for cost in self.placement_costs(placements, stop)]

    def note(self, event: Event) -> None:
        """Tells the user of one finished measurement."""
        text = f"{event.spec.title}: {event.cost}" if event.kind == "failed" else event.spec.title
        self.session.progress.advance(1, text)
