"""The survey: costs of every candidate, as far as the budget reaches. Whole backends first, then regions by weight."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bricolage.backends.interface import Backend, Kind
from bricolage.graph.extract import region_file, region_path
from bricolage.graph.identity import Identities
from bricolage.graph.region import Region
from bricolage.graph.work import flops, moved
from bricolage.measure.database import Cost
from bricolage.measure.loading import CandidateSpec
from bricolage.measure.measurer import Event, Measurer, RegionTask
from bricolage.optimize.candidates import Candidates, Group, Way, find
from bricolage.options import Options
from bricolage.plan.step import Step
from bricolage.progress import Progress
from bricolage.rewrite.variants import GraphVariant
from bricolage.verify.oracle import Oracle
from bricolage.work import bits as bitset
from bricolage.work.graph import Candidate

Stop = Callable[[], bool]
NEAR = 1.25
"""Backends within this factor of the best on the whole model are worth mixing, even if they compile slowly."""
_WITHIN_REACH = 2.0
"""Backends within this factor may be the best on a rewritten graph, if they compile quickly."""
_WORTH_TUNING = 1.1
"""Ways within this factor of the best on the whole model are worth a search for better kernels."""
_BATCH = 12
"""Groups measured together: few enough to stop in time, enough to keep the compiling workers busy."""


@dataclass
class Survey:
    """Measured costs of one graph: of whole backends by way, of region groups by (key, way)."""

    form: GraphVariant
    oracle: Oracle
    candidates: Candidates
    backends: Sequence[Backend]
    options: Options
    measurer: Measurer
    progress: Progress
    singles: dict[Way, Cost] = field(default_factory=dict)
    regions: dict[tuple[str, Way], Cost] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._whole = self.oracle.graph.everything
        self._identities = Identities(self.oracle.graph)
        self.whole_key = self._identities.key(self._whole)
        self._outputs = tuple(info.name for info in self.oracle.graph.outputs)

    def beside(self, form: GraphVariant) -> Survey:
        """The survey of another form of the graph."""
        return survey_of(
            form, self.oracle.of(form.name, form.graph), self.backends, self.options, self.measurer, self.progress
        )

    def whole_spec(self, way: Way) -> CandidateSpec:
        """The whole graph on one backend, alone in its process."""
        step = Step(way.backend, way.variant, region_path(self._whole, self.whole_key, self.oracle.directory))
        return CandidateSpec(self.whole_key, (step,), self._outputs, self.options.threads, alone=True)

    def plan_spec(self, regions: Sequence[tuple[int, Way]]) -> CandidateSpec:
        """A placement end to end. Its identity says how the graph is divided."""
        graph = self.oracle.graph
        steps: list[Step] = []
        for bits, way in regions:
            region = Region(graph, bits)
            path = region_file(region, self._identities.key(region), self.oracle.directory)
            steps.append(Step(way.backend, way.variant, path))
        division = ";".join(f"{bits:x}" for bits, _ in regions)
        alone = len({way.backend for _, way in regions}) == 1
        return CandidateSpec(f"{self.whole_key}|{division}", tuple(steps), self._outputs, self.options.threads, alone)

    def region_key(self, region: Region) -> str:
        """Canonical identity of a region of this graph."""
        return self._identities.key(region)

    def whole_task(self, specs: Sequence[CandidateSpec]) -> RegionTask:
        inputs, expected, bound = self.oracle.files(self._whole)
        return RegionTask(inputs, expected, bound, tuple(specs))

    def measure_singles(self, stop: Stop) -> None:
        """Times the whole graph on every backend that takes it: first, interleaved, those that compile quickly, whatever
        the clock says (without them there is nothing to ship); then the others, some at a time, until `stop` says so."""
        region_file(self._whole, self.whole_key, self.oracle.directory)
        slow = {backend.name for backend in self.backends if backend.compiles_slowly}
        first = [way for way in self.candidates.whole if way.backend not in slow]
        others = [way for way in self.candidates.whole if way.backend in slow]
        self.progress.start("whole model on each backend", len(first) + len(others))
        if first:
            self._time_whole(first, lambda: False)
        step = max(1, self.options.threads)
        for start in range(0, len(others), step):
            if stop() and self.singles:
                break
            self._time_whole(others[start : start + step], stop if self.singles else lambda: False)
        self.progress.finish()

    def measure_beside(self, original: Survey, stop: Stop) -> None:
        """Times this form of the graph on the backends that did well on the original, until `stop` says so."""
        times = {way: cost.ms for way, cost in original.singles.items() if cost.ms is not None}
        fastest = min(times.values(), default=0.0)
        slow = {backend.name for backend in self.backends if backend.compiles_slowly}
        reach = {way: fastest * (NEAR if way.backend in slow else _WITHIN_REACH) for way in self.candidates.whole}
        near = sorted((way for way in reach if way in times and times[way] <= reach[way]), key=times.__getitem__)
        region_file(self._whole, self.whole_key, self.oracle.directory)
        self.progress.start(f"{self.form.name} model on each backend", len(near))
        if near and not stop():
            self._time_whole(near, stop)
        self.progress.finish()

    @property
    def fastest(self) -> tuple[Way, float] | None:
        """The way that runs the whole graph fastest, and its time in ms."""
        times = {way: cost.ms for way, cost in self.singles.items() if cost.ms is not None}
        return min(times.items(), key=lambda item: item[1]) if times else None

    def tuned(self, way: Way) -> Way | None:
        """The way that does the same after a search on this machine, if its backend has one."""
        backend = next(backend for backend in self.backends if backend.name == way.backend)
        variant = backend.tuned(way.variant)
        return None if variant is None else Way(way.backend, variant)

    def measure_tuned(self, stop: Stop) -> None:
        """Times tuned versions of the best ways to run the whole graph until `stop` says so."""
        times = {way: cost.ms for way, cost in self.singles.items() if cost.ms is not None}
        limit = _WORTH_TUNING * min(times.values(), default=0.0)
        near = sorted((way for way, ms in times.items() if ms <= limit), key=lambda way: times[way])
        better = [way for way in map(self.tuned, near) if way is not None]
        self.progress.start("tuned kernels", len(better))
        for way in better:  # one at a time: while kernels are compared, nothing else may compile
            if stop():
                break
            self._time_whole([way], stop)
        self.progress.finish()

    def _time_whole(self, ways: Sequence[Way], stop: Stop) -> None:
        specs = {self.whole_spec(way): way for way in ways}
        costs = self.measurer.measure([self.whole_task(list(specs))], self.note, stop)
        self.singles.update({specs[spec]: cost for spec, cost in costs.items()})

    def measure_regions(self, stop: Stop) -> None:
        """Times region groups in their order until `stop` says so."""
        groups = self.candidates.groups
        self.progress.start("regions on each backend", sum(len(group.ways) for group in groups))
        for start in range(0, len(groups), _BATCH):
            if stop():
                break
            self._measure_groups(groups[start : start + _BATCH], stop)
        self.progress.finish()

    def _promising(self, way: Way) -> bool:
        """Whether compiling regions one by one is worth the time: quick compilers always, slow ones (at `quick` effort) if
        they come near the best on the whole model."""
        slow = {backend.name for backend in self.backends if backend.compiles_slowly}
        if way.backend not in slow or self.options.profile.slow_compilers_per_region:
            return True
        times = [cost.ms for cost in self.singles.values() if cost.ms is not None]
        own = self.singles.get(way)
        return own is not None and own.ms is not None and own.ms <= NEAR * min(times)

    def _measure_groups(self, groups: Sequence[Group], stop: Stop) -> None:
        graph = self.oracle.graph
        tasks: list[RegionTask] = []
        origin: dict[CandidateSpec, tuple[str, Way]] = {}
        unknown: list[tuple[Group, list[CandidateSpec]]] = []
        for group in groups:
            region = Region(graph, group.regions[0])
            outputs = tuple(value.name or "" for value in region.outputs)
            missing: list[CandidateSpec] = []
            for way in filter(self._promising, group.ways):
                step = Step(way.backend, way.variant, region_path(region, group.key, self.oracle.directory))
                spec = CandidateSpec(group.key, (step,), outputs, self.options.threads, alone=False)
                known = self.measurer.known(spec, self.options.bound)
                if known is not None and known.outcome != "wrong":
                    self.regions[group.key, way] = known
                    self.progress.advance()
                else:
                    origin[spec] = (group.key, way)
                    missing.append(spec)
            if missing:
                unknown.append((group, missing))
        self.oracle.remember(Region(graph, group.regions[0]) for group, _ in unknown)
        for group, missing in unknown:
            region = Region(graph, group.regions[0])
            region_file(region, group.key, self.oracle.directory)
            inputs, expected, bound = self.oracle.files(region)
            tasks.append(RegionTask(inputs, expected, bound, tuple(missing)))
        costs = self.measurer.measure(tasks, self.note, stop)
        self.regions.update({origin[spec]: cost for spec, cost in costs.items()})

    def note(self, event: Event) -> None:
        self.progress.advance(1, f"{event.spec.title}: {event.cost}" if event.kind == "failed" else event.spec.title)

    # --- what the searches get --------------------------------------------------------------------------------------

    def priced(self) -> list[Candidate]:
        """All candidates with a cost. Operators that no measured region covers get one predicted from the whole model's
        time on each backend, in proportion to their work."""
        kinds = {backend.name: backend.kind for backend in self.backends}
        found: list[Candidate] = []
        covered = 0
        for group in self.candidates.groups:
            for way in group.ways:
                cost = self.regions.get((group.key, way))
                if cost is None or cost.ms is None:
                    continue
                for region in group.regions:
                    covered |= region if region.bit_count() == 1 else 0
                    found.append(Candidate(region, way.backend, way.variant, cost.ms, group.key, kinds[way.backend]))
        found.extend(self._predicted(covered, kinds))
        return found

    def _predicted(self, covered: int, kinds: Mapping[str, Kind]) -> list[Candidate]:
        graph = self.oracle.graph
        weights = [flops(o) / 1e11 + moved(o) / 1e10 + 1e-6 for o in graph.operators]
        total = sum(weights)
        found: list[Candidate] = []
        for number in bitset.members(graph.everything.bits & ~covered):
            for way, cost in self.singles.items():
                if cost.ms is not None and self.candidates.claimed.get(way.backend, 0) >> number & 1:
                    share = cost.ms * weights[number] / total
                    found.append(Candidate(1 << number, way.backend, way.variant, share, "", kinds[way.backend]))
        return found


def survey_of(
    form: GraphVariant,
    oracle: Oracle,
    backends: Sequence[Backend],
    options: Options,
    measurer: Measurer,
    progress: Progress,
) -> Survey:
    """A survey in which nothing is measured yet."""
    slow_per_region = options.profile.slow_compilers_per_region
    candidates = find(oracle.graph, backends, options.precision, slow_per_region=slow_per_region)
    return Survey(form, oracle, candidates, backends, options, measurer, progress)
