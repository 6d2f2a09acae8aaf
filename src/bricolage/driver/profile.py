"""Profiles: measured costs of one graph, whole on every implementation first, then its regions by weight, as far as
the time reaches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from bricolage.backends.interface import Backend
from bricolage.device.device import Device
from bricolage.driver.candidates import Candidates, Group, find
from bricolage.graph.identity import Identities
from bricolage.graph.region import Region
from bricolage.graph.store import Store
from bricolage.graph.work import flops, moved, workload
from bricolage.measure.entries import Cost
from bricolage.measure.loading import CandidateSpec
from bricolage.measure.measurer import Event, Measurer, RegionTask
from bricolage.measure.selfcheck import self_checked
from bricolage.options import BOUNDS, Options
from bricolage.perf.roofline import Roofline
from bricolage.plan.step import Step, steps_of
from bricolage.progress import Progress
from bricolage.rewrite.variants import GraphVariant
from bricolage.verify.oracle import Oracle
from bricolage.verify.reference import Evaluate, evaluate
from bricolage.work import bits as bitset
from bricolage.work.implementation import Assignment, Implementation, Placement
from bricolage.work.placement import Candidate

Stop = Callable[[], bool]
NEAR = 1.25
"""Backends within this factor of the best on the whole model are worth mixing, even if they compile slowly."""
_WITHIN_REACH = 2.0
"""Backends within this factor may be the best on a rewritten graph, if they compile quickly."""
_BATCH = 12
"""Groups measured together: few enough to stop in time, enough to keep the compiling workers busy."""


@dataclass(frozen=True)
class Session:
    """What every part of one decision shares."""

    options: Options
    backends: tuple[Backend, ...]
    device: Device
    measurer: Measurer
    store: Store
    progress: Progress
    evaluate: Evaluate = evaluate
    """Computes references."""
    network: str = ""
    """Hash of the model."""

    def backend(self, name: str) -> Backend:
        """The backend of that name among those that take part."""
        return next(backend for backend in self.backends if backend.name == name)


@dataclass
class Profile:
    """Measured costs of one graph variant: whole by implementation, regions by (key, implementation)."""

    variant: GraphVariant
    oracle: Oracle
    candidates: Candidates
    session: Session
    whole: dict[Implementation, Cost] = field(default_factory=dict)
    regions: dict[tuple[str, Implementation], Cost] = field(default_factory=dict)
    dropped: dict[Implementation, Cost] = field(default_factory=dict)
    """Times of those that are too inaccurate as a whole."""

    @staticmethod
    def of(variant: GraphVariant, oracle: Oracle, session: Session) -> Profile:
        """A profile in which nothing is measured yet."""
        candidates = find(
            variant.graph,
            session.backends,
            session.options.precision,
            session.device,
            slow_per_region=session.options.profile.slow_compilers_per_region,
        )
        return Profile(variant, oracle, candidates, session)

    def __post_init__(self) -> None:
        self.graph = self.variant.graph
        self._everything = self.graph.everything
        self._identities = Identities(self.graph)
        self.key = self._identities.key(self._everything)
        self._outputs = tuple(info.name for info in self.graph.outputs)

    def profile_variant(self, variant: GraphVariant) -> Profile:
        """The profile of another variant of this graph, judged by the same reference."""
        backends = self_checked(self.session.backends, [variant.graph], self.session.progress)
        session = replace(self.session, backends=backends)
        return Profile.of(variant, self.oracle.of(variant.name, variant.graph), session)

    @property
    def times(self) -> dict[Implementation, float]:
        """Times of the whole graph in ms, of those that run it and are right."""
        return {one: cost.ms for one, cost in self.whole.items() if cost.ms is not None}

    @property
    def fastest(self) -> tuple[Implementation, float] | None:
        """Who runs the whole graph fastest, and its time in ms."""
        return min(self.times.items(), key=lambda item: item[1], default=None)

    # --- what is measured -------------------------------------------------------------------------------------------

    def whole_spec(self, implementation: Implementation) -> CandidateSpec:
        """The whole graph on one implementation, alone in its process."""
        step = Step(implementation, self.session.store.region(self._everything, self.key))
        options = self.session.options
        return CandidateSpec(self.key, (step,), self._outputs, options.threads, alone=True, device=self.session.device)

    def placement_spec(self, placement: Placement, cores: Sequence[tuple[int, ...]] = ()) -> CandidateSpec:
        """A placement end to end, with `cores` of each region where they run side by side. Its identity says how the graph is
        divided, and on what."""
        if len(placement) == 1:
            return self.whole_spec(placement[0].implementation)
        steps = steps_of(self.graph, placement, self.session.store, self._identities)
        division = ";".join(f"{one.region:x}" for one in placement)
        if cores:
            division += " on " + ";".join(",".join(map(str, some)) for some in cores)
        alone = len({one.implementation.backend for one in placement}) == 1
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
            workload=partial(workload, self._everything, self.session.network),
        )

    # --- measuring --------------------------------------------------------------------------------------------------

    def measure_baselines(self, stop: Stop) -> None:
        """Times the whole graph on everything that takes it: first, interleaved, what compiles quickly, whatever the clock says
        (without it there is nothing to ship); then the others, some at a time, until `stop` says so."""
        slow = {backend.name for backend in self.session.backends if backend.compiles_slowly}
        first = [one for one in self.candidates.whole if one.backend not in slow]
        others = [one for one in self.candidates.whole if one.backend in slow]
        self.session.progress.start("whole model on each backend", len(first) + len(others))
        if first:
            self.measure_whole(first, lambda: False)
        step = max(1, self.session.options.threads)
        for start in range(0, len(others), step):
            if stop() and self.whole:
                break
            self.measure_whole(others[start : start + step], stop if self.whole else lambda: False)
        self.session.progress.finish()

    def measure_dropped(self, stop: Stop) -> None:
        """Times those that were dropped for their accuracy, as far as a lower precision would take them and compiling
        them is quick: so that the user can be told what a wider tolerance buys."""
        loosest = max(BOUNDS.values())
        wrong = [
            one
            for one, cost in self.whole.items()
            if cost.outcome == "wrong"
            and cost.deviation is not None
            and 0.0 < cost.deviation.excess < loosest
            and not self.session.backend(one.backend).compiles_slowly
        ]
        specs = {self.whole_spec(one): one for one in wrong}
        if specs and not stop():
            costs = self.session.measurer.measure([replace(self.task(list(specs)), bound=loosest)], should_stop=stop)
            self.dropped.update({specs[spec]: cost for spec, cost in costs.items()})

    def measure_near(self, baselines: Mapping[Implementation, float], stop: Stop) -> None:
        """Times this variant on those that did well on the original (`baselines`: their ms), until `stop` says so."""
        fastest = min(baselines.values(), default=0.0)
        slow = {backend.name for backend in self.session.backends if backend.compiles_slowly}
        reach = {one: fastest * (NEAR if one.backend in slow else _WITHIN_REACH) for one in self.candidates.whole}
        near = [one for one in reach if one in baselines and baselines[one] <= reach[one]]
        near.sort(key=baselines.__getitem__)
        self.session.progress.start(f"{self.variant.name} model on each backend", len(near))
        if near and not stop():
            self.measure_whole(near, stop)
        self.session.progress.finish()

    def measure_whole(self, implementations: Sequence[Implementation], stop: Stop) -> None:
        """Times the whole graph on some implementations, interleaved."""
        specs = {self.whole_spec(one): one for one in implementations}
        costs = self.session.measurer.measure([self.task(list(specs))], self.note, stop)
        self.whole.update({specs[spec]: cost for spec, cost in costs.items()})

    def measure_placements(self, placements: Sequence[Placement], stop: Stop) -> list[float | None]:
        """End-to-end times in ms; None for what failed, is wrong or was not measured."""
        specs = [self.placement_spec(placement) for placement in placements]
        costs = self.session.measurer.measure([self.task(specs)], self.note, stop) if specs else {}
        return [cost.ms if (cost := costs.get(spec)) is not None else None for spec in specs]

    def measure_regions(self, stop: Stop) -> None:
        """Times region groups in their order until `stop` says so."""
        groups = self.candidates.groups
        self.session.progress.start("regions on each backend", sum(len(group.implementations) for group in groups))
        for start in range(0, len(groups), _BATCH):
            if stop():
                break
            self.regions.update(self.group_costs(groups[start : start + _BATCH], stop))
        self.session.progress.finish()

    def _promising(self, implementation: Implementation) -> bool:
        """Whether compiling regions one by one is worth the time: quick compilers always, slow ones (at `quick` effort) if
        they come near the best on the whole model."""
        if not self.session.backend(implementation.backend).compiles_slowly:
            return True
        if self.session.options.profile.slow_compilers_per_region:
            return True
        own = self.times.get(implementation)
        return own is not None and own <= NEAR * min(self.times.values())

    def group_costs(
        self, groups: Sequence[Group], stop: Stop, cores: int | None = None
    ) -> dict[tuple[str, Implementation], Cost]:
        """Costs of regions by key and implementation, on so many of the cores, by default on all; what `stop` cut off is
        absent."""
        device, threads = self.session.device, self.session.options.threads
        if cores is not None and cores < threads:
            device, threads = device.group(device.cores[:cores]), cores
        found: dict[tuple[str, Implementation], Cost] = {}
        tasks: list[RegionTask] = []
        origin: dict[CandidateSpec, tuple[str, Implementation]] = {}
        unknown: list[tuple[Region, list[CandidateSpec]]] = []
        options, measurer = self.session.options, self.session.measurer
        for group in groups:
            region = Region(self.graph, group.regions[0])
            outputs = tuple(value.name or "" for value in region.outputs)
            path, data = self.session.store.region(region, group.key), self.oracle.data(region)
            missing: list[CandidateSpec] = []
            for one in filter(self._promising, group.implementations):
                spec = CandidateSpec(group.key, (Step(one, path),), outputs, threads, alone=False, device=device)
                known = measurer.known(spec, options.bound, data)
                if known is not None and known.outcome != "wrong":
                    found[group.key, one] = known
                    self.session.progress.advance()
                else:
                    origin[spec] = (group.key, one)
                    missing.append(spec)
            if missing:
                unknown.append((region, missing))
        self.oracle.remember(region for region, _ in unknown)
        for region, missing in unknown:
            inputs, expected, bound = self.oracle.files(region)
            data, limits = self.oracle.data(region), partial(self.oracle.limits, region)
            tasks.append(
                RegionTask(
                    inputs,
                    expected,
                    bound,
                    tuple(missing),
                    data,
                    limits,
                    partial(workload, region, self.session.network),
                )
            )
        costs = measurer.measure(tasks, self.note, stop)
        return found | {origin[spec]: cost for spec, cost in costs.items()}

    def note(self, event: Event) -> None:
        """Tells the user of one finished measurement."""
        told = f"{event.spec.title}: {event.cost}" if event.kind == "failed" else event.spec.title
        self.session.progress.advance(1, told)

    # --- what the searches get --------------------------------------------------------------------------------------

    def priced(self) -> list[Candidate]:
        """All candidates with a cost. Operators that no measured region covers get one predicted from the whole
        graph's time on each implementation, in proportion to their work; these have no key."""
        merges = {backend.name: backend.kind == "engine" for backend in self.session.backends}
        found: list[Candidate] = []
        covered = 0
        for group in self.candidates.groups:
            for one in group.implementations:
                cost = self.regions.get((group.key, one))
                if cost is None or cost.ms is None:
                    continue
                for region in group.regions:
                    covered |= region if region.bit_count() == 1 else 0
                    found.append(Candidate(region, one, cost.ms, group.key, merges[one.backend]))
        return [*found, *self._predicted(covered, merges)]

    def shares(self) -> list[float]:
        """What each operator may take of the whole graph's time, by its work."""
        roofline = Roofline(self.session.device.peaks, start_us=1.0)
        weights = [roofline.ms(flops(o), moved(o)) for o in self.graph.operators]
        total = sum(weights)
        return [weight / total for weight in weights]

    def _predicted(self, covered: int, merges: Mapping[str, bool]) -> list[Candidate]:
        shares = self.shares()
        return [
            Candidate(1 << number, one, ms * shares[number], "", merges[one.backend])
            for number in bitset.members(self._everything.bits & ~covered)
            for one, ms in self.times.items()
            if self.candidates.claimed.get(one.backend, 0) >> number & 1
        ]
