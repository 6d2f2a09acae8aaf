"""Profiles: measured costs of one graph, whole on every implementation first, then its regions by weight, as far as
the time reaches."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from bricolage.backends.interface import Backend
from bricolage.costs.entries import Cost
from bricolage.costs.measurements import Measurement, Measurements
from bricolage.device.device import Device
from bricolage.driver.candidates import LARGE, CandidateGroup, Candidates, find
from bricolage.graph.graph import Region
from bricolage.graph.identity import Identities
from bricolage.graph.store import Store
from bricolage.graph.work import workload
from bricolage.measure.measurer import Event, Measurer
from bricolage.measure.selfcheck import self_checked
from bricolage.measure.specs import CandidateSpec, RegionTask
from bricolage.options import BOUNDS, Options
from bricolage.perf.forecast import Forecast, Pair, forecast
from bricolage.perf.track_record import TrackRecord, shipped
from bricolage.plan.step import Step, steps_of
from bricolage.progress import Progress
from bricolage.rewrite.variants import GraphVariant
from bricolage.verify.oracle import Oracle
from bricolage.verify.reference import Evaluate, evaluate
from bricolage.work.cost import CostModel, Setting, Work
from bricolage.work.implementation import Assignment, Implementation, Placement

_LOG = logging.getLogger(__name__)

Stop = Callable[[], bool]
NEAR = 1.25
"""Backends within this factor of the best on the whole model are worth mixing, even if they compile slowly."""
_WIDER = 10.0
"""Times the bound, within which a whole model that is too inaccurate is timed: divided among regions, its error may keep to it."""
_WITHIN_REACH = 2.0
"""Backends within this factor may be the best on a rewritten graph, if they compile quickly."""
_BATCH = 12
"""Groups measured together by one machine: few enough to stop in time, enough to keep the compiling workers busy."""


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
    costs: CostModel | None = None
    """A model of what regions take that were not measured; None where there is none or it is not wanted."""
    costs_title: str = ""
    """What that model was learnt from, for people."""
    record: TrackRecord = field(default_factory=shipped)
    """What implementations and ways to a faster plan have achieved on other networks."""

    @property
    def setting(self) -> Setting:
        """Where everything is measured."""
        return Setting(self.device, self.options.threads)

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
    regions: Measurements = field(default_factory=Measurements)
    left_out: set[Pair] = field(default_factory=set)
    """What the forecast makes needless to measure: it is priced as predicted."""
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

    @cached_property
    def forecast(self) -> Forecast:
        """What is expected of the candidates before anything is measured; by the roofline alone where the session has no model."""
        everything = workload(self._everything)
        whole = [Work(everything, one) for one in self.candidates.whole]
        groups = self.candidates.groups
        regions = [Work(group.work, one, group.key) for group in groups for one in group.implementations]
        return forecast(whole, regions, self.session.costs, self.session.setting)

    @property
    def fastest(self) -> tuple[Implementation, float] | None:
        """Who runs the whole graph fastest, and its time in ms."""
        return min(self.times.items(), key=lambda item: item[1], default=None)

    def _compile_s(self, one: Implementation) -> float:
        """What its backend takes until the graph is ready, as far as that is known."""
        known = self.session.record.compile_s(one.backend, len(self.graph))
        return math.inf if known is None else known

    @property
    def usual(self) -> list[Implementation]:
        """The first configuration of every backend that takes the whole graph and compiles quickly."""
        slow = {backend.name for backend in self.session.backends if backend.compiles_slowly}
        quick = [one for one in self.candidates.whole if one.backend not in slow]
        return list({one.backend: one for one in reversed(quick)}.values())[::-1]

    # --- what is measured -------------------------------------------------------------------------------------------

    def whole_spec(self, implementation: Implementation) -> CandidateSpec:
        """The whole graph on one implementation, alone in its process."""
        step = Step(implementation, self.session.store.region(self._everything, self.key))
        options = self.session.options
        device, outputs = self.session.device, self._outputs
        return CandidateSpec(self.key, (step,), outputs, options.threads, alone=True, device=device, kept=True)

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
            variations=self.oracle.variations,
            workload=partial(workload, self._everything, self.session.network),
        )

    # --- measuring --------------------------------------------------------------------------------------------------

    def measure_baselines(self, stop: Stop, *, every: bool = False, first: Sequence[Implementation] = ()) -> None:
        """Times the whole graph, interleaved, on the `first`, or in the first configuration of every backend that takes it and
        compiles quickly, who compiles fastest first; with `every`, or where nothing is right, in all configurations of these
        backends, whatever the clock says. Otherwise, where `stop` says so, what has been compiled by then is timed; where that is
        nothing, who compiles fastest is measured all the same: else there is nothing to ship. Then, in these cases, some at a time
        until `stop` says so, on backends that compile slowly; then on who does not claim all of it (`_measure_unclaimed`)."""
        slowly = {backend.name for backend in self.session.backends if backend.compiles_slowly}
        quick = [one for one in self.candidates.whole if one.backend not in slowly]
        others = [one for one in self.candidates.whole if one.backend in slowly]
        first = sorted(quick if every else first or self.usual, key=self._compile_s)
        self.session.progress.start("whole model on each backend", len(first) + every * len(others))
        if first:
            self.measure_whole(first, stop if not every else lambda: False)
            if not self.whole:
                self.measure_whole(first[:1], lambda: False)
            if missing := [one for one in first if one not in self.whole]:
                _LOG.warning("the time was up before %s had their turn", ", ".join(map(str, missing)))
        if not self.times and (rest := [one for one in quick if one not in self.whole]):
            self.measure_whole(rest, lambda: False)
        step = max(1, self.session.options.threads) * self._machines
        for start in range(0, len(others), step):
            if (self.times and not every) or (stop() and self.whole):
                break
            self.measure_whole(others[start : start + step], stop if self.whole else lambda: False)
        self._measure_unoptimised()
        if not self.times:
            self._doubt_variations()
        self.session.progress.finish()
        self._measure_unclaimed(stop)

    def _measure_unclaimed(self, stop: Stop) -> None:
        """Tries the whole graph on backends that do not claim all of it, each first in one configuration. Those that compile
        slowly are tried only as long as nothing is right."""
        slow = {backend.name for backend in self.session.backends if backend.compiles_slowly}
        firsts = list({one.backend: one for one in reversed(self.candidates.unclaimed)}.values())[::-1]
        if not firsts or (stop() and self.times):
            return
        self.session.progress.start("whole model on backends that do not claim all of it", None)
        if quick := [one for one in firsts if one.backend not in slow]:
            self.measure_whole(quick, stop if self.times else lambda: False)
        for one in firsts:
            if one.backend in slow and not self.times:
                self.measure_whole([one], lambda: False)
        able = {one.backend for one in self.times}
        others = [one for one in self.candidates.unclaimed if one.backend in able and one not in self.whole]
        if others and not stop():
            self.measure_whole(others, stop)
        self.session.progress.finish()

    def _doubt_variations(self) -> None:
        """Where nothing is right, and several backends are right on the inputs and on none of their variations, the variations mean
        nothing for the model: those backends are judged without."""
        bound = self.oracle.bound
        doubting = [
            one
            for one, cost in self.whole.items()
            if cost.outcome == "wrong"
            and cost.deviation is not None
            and cost.deviation.error <= bound < cost.deviation.excess
        ]
        if len({one.backend for one in doubting}) > 1:
            _LOG.warning("no backend agrees with the reference on variations of the inputs: they are left out")
            self.oracle.without_variations()
            self.measure_whole(doubting, lambda: False)

    def _measure_unoptimised(self) -> None:
        """Where an answer is far off, times the same backend without its graph optimisations: one that is right then disagrees with
        itself. It takes part so, and the plan says why."""
        spared: dict[Implementation, list[Implementation]] = {}
        for one, cost in self.whole.items():
            config = self.session.backend(one.backend).unoptimised(one.config)
            far = cost.deviation is not None and cost.deviation.excess > max(BOUNDS.values())
            if cost.outcome == "wrong" and far and config is not None:
                spared.setdefault(replace(one, config=config), []).append(one)
        missing = [one for one in spared if one not in self.whole]
        if not missing:
            return
        self.measure_whole(missing, lambda: False)
        for one in missing:
            if self.whole[one].ms is None:
                continue
            backend = self.session.backend(one.backend)
            _LOG.warning(
                "%s %s is wrong on this model with its graph optimisations, and right without: it takes part without them",
                backend.title or backend.name,
                backend.table_version(),
            )
            for wrong in spared[one]:
                cost = self.whole[wrong]
                self.whole[wrong] = replace(
                    cost, reason=f"{cost.reason}; right without its graph optimisations ({one})"
                )

    def measure_dropped(self, stop: Stop) -> None:
        """Times those that were dropped for their accuracy, as far as a lower precision would take them and compiling
        them is quick: so that the user can be told what a wider tolerance buys, and since what is too inaccurate for the whole may
        suit some regions."""
        loosest = max(*BOUNDS.values(), _WIDER * self.session.options.bound)
        wrong = [
            one
            for one, cost in self.whole.items()
            if cost.outcome == "wrong"
            and one not in self.dropped
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
        near = self.near(baselines)
        self.session.progress.start(f"{self.variant.name} model on each backend", len(near))
        if near and not stop():
            self.measure_whole(near, stop)
        self.session.progress.finish()

    def near(self, baselines: Mapping[Implementation, float]) -> list[Implementation]:
        """Those that did well on the original (`baselines`: their ms) and take this variant, the fastest first."""
        fastest = min(baselines.values(), default=0.0)
        slow = {backend.name for backend in self.session.backends if backend.compiles_slowly}
        offered = (*self.candidates.whole, *self.candidates.unclaimed)
        reach = {one: fastest * (NEAR if one.backend in slow else _WITHIN_REACH) for one in offered}
        return sorted(
            (one for one in reach if one in baselines and baselines[one] <= reach[one]), key=baselines.__getitem__
        )

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
        """Times region groups until `stop` says so: in their order or, with a model of costs, those first that may gain most, and
        none on implementations that are surely slow there."""
        groups = self._worth_measuring()
        batch = _BATCH * self._machines
        while groups:
            self.session.progress.start("regions on each backend", sum(len(group.implementations) for group in groups))
            for start in range(0, len(groups), batch):
                if stop():
                    break
                self.regions.add(self.measured(groups[start : start + batch], stop))
            self.session.progress.finish()
            if stop() or not self.left_out:
                break
            # Who was predicted to be fast may have failed: then others are worth measuring after all.
            before = set(self.left_out)
            groups = [
                replace(group, implementations=own)
                for group in self._worth_measuring()
                if (own := tuple(one for one in group.implementations if (group.key, one) in before - self.left_out))
            ]

    def measure_segments(self, implementations: Sequence[Implementation], stop: Stop) -> None:
        """Times the segments of the graph on these alone, until `stop` says so."""
        keys = {self.region_key(Region(self.graph, bits)) for bits in self.candidates.segments}
        groups = [
            replace(group, implementations=own)
            for group in self.candidates.groups
            if group.key in keys and (own := tuple(one for one in group.implementations if one in implementations))
        ]
        self.session.progress.start("segments in two precisions", sum(len(group.implementations) for group in groups))
        self.regions.add(self.measured(groups, stop))
        self.session.progress.finish()

    def _worth_measuring(self) -> list[CandidateGroup]:
        """Groups with the implementations that are worth measuring; the others are left out from now on."""
        groups, fastest = list(self.candidates.groups), self.fastest
        if self.session.costs is None or fastest is None:
            return groups
        standing, right = fastest[0], self.times
        expected = self.forecast.corrected(right)
        kept: list[CandidateGroup] = []
        self.left_out.clear()
        for group in groups:
            own = expected.worth_measuring(group.key, group.implementations, standing, right, self.regions)
            self.left_out |= {(group.key, one) for one in group.implementations if one not in own}
            kept.append(replace(group, implementations=own))
        gains = {
            group.key: len(group.regions) * expected.gain_ms(group.key, group.implementations, standing, right)
            for group in groups
        }
        return sorted(kept, key=lambda group: (group.level not in LARGE, -gains[group.key]))

    def leave_out_regions(self) -> None:
        """Measures none: all that the model of costs knows is priced as predicted, on backends that compile quickly."""
        quick = {backend.name for backend in self.session.backends if not backend.compiles_slowly}
        self.left_out |= {
            pair
            for pair in self.forecast.regions
            if pair[1].backend in quick
            and pair[1] not in self.forecast.unknown
            and pair[1] not in self.regions.of(pair[0])
        }

    def _promising(self, implementation: Implementation) -> bool:
        """Whether compiling regions one by one is worth the time: quick compilers always, slow ones (at `quick` effort) if
        they come near the best on the whole model."""
        if not self.session.backend(implementation.backend).compiles_slowly:
            return True
        if self.session.options.profile.slow_compilers_per_region:
            return True
        own = self.times.get(implementation)
        return own is not None and own <= NEAR * min(self.times.values())

    def measured(self, groups: Sequence[CandidateGroup], stop: Stop, cores: int | None = None) -> list[Measurement]:
        """Costs of regions, on `cores` of the cores, by default on all; what `stop` cut off is absent."""
        device, threads = self.session.device, self.session.options.threads
        if cores is not None and cores < threads:
            device, threads = device.group(device.cores[:cores]), cores
        options, measurer = self.session.options, self.session.measurer
        asked: list[tuple[int, CandidateSpec, str]] = []
        regions = [Region(self.graph, group.regions[0]) for group in groups]
        for number, (group, region) in enumerate(zip(groups, regions, strict=True)):
            outputs = tuple(value.name or "" for value in region.outputs)
            path, data = self.session.store.region(region, group.key), self.oracle.data(region)
            for one in filter(self._promising, group.implementations):
                spec = CandidateSpec(group.key, (Step(one, path),), outputs, threads, alone=False, device=device)
                asked.append((number, spec, data))
        known = measurer.cached([(spec, data) for _, spec, data in asked], options.bound)
        found: dict[CandidateSpec, Cost] = {}
        missing: dict[int, list[CandidateSpec]] = {}
        for (number, spec, _), cost in zip(asked, known, strict=True):
            if cost is not None and cost.outcome != "wrong":
                found[spec] = cost
                self.session.progress.advance()
            else:
                missing.setdefault(number, []).append(spec)
        self.oracle.remember(regions[number] for number in missing)
        tasks: list[RegionTask] = []
        for number, specs in missing.items():
            region = regions[number]
            inputs, expected, bound = self.oracle.files(region)
            data, limits = self.oracle.data(region), partial(self.oracle.limits, region)
            described = partial(workload, region, self.session.network)
            tasks.append(RegionTask(inputs, expected, bound, tuple(specs), data, limits, described))
        found |= measurer.measure(tasks, self.note, stop)
        return [Measurement(spec.region_key, spec.steps[0].implementation, cost) for spec, cost in found.items()]

    @property
    def _machines(self) -> int:
        """How many compile, or compile and measure."""
        cluster = self.session.measurer.pool.cluster
        return 1 if cluster is None else max(1, cluster.nodes)

    def note(self, event: Event) -> None:
        """Tells the user of one finished measurement."""
        told = f"{event.spec.title}: {event.cost}" if event.kind == "failed" else event.spec.title
        self.session.progress.advance(1, told)
