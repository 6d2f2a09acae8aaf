"""What a decision can measure after its baselines, the whole model on each backend that compiles quickly: the items of its agenda,
each with the grounds for its chance and its bound.

| item | its chance | its bound |
|---|---|---|
| the whole model on another implementation | its times on networks of the kind | the roofline; its time where that is known |
| rewritten, tailored and searched graphs, tuned kernels | how often such a thing gained on other networks | |
| quantised graph | | how many times as fast as float32 bytes multiply here |
| lower precisions in parts | | what the lower one takes for all of it |
| look at placements | none of its own: it makes no plan | |
| regions | the placement that the model of costs predicts; how often mixtures gained | |
| placements | another look, where not all regions were measured | measured costs of regions, transfers being free |
| kernels at the same time | how often it gained, where arithmetic says that it saves enough | threads that never idle |
| schedules | how often they gained | the exact bound on what running side by side could save |
"""

from __future__ import annotations

import statistics
from dataclasses import replace

from bricolage.backends.interface import RegionModel, Resources
from bricolage.base.deadline import Deadline
from bricolage.costs.models.roofline import floor_ms
from bricolage.driver.agenda import Item, Promise, promise_known
from bricolage.driver.describe import whole_model
from bricolage.driver.mixture_items import LookAtPlacements, Placements, PrecisionsItem, RegionsItem
from bricolage.driver.quantised_graphs import QuantisedGraphItem
from bricolage.driver.quantised_variants import CALIBRATED, variant_name
from bricolage.driver.stages.graph_variants import (
    RewriteSearch,
    RewriteTuning,
    RewrittenVariants,
    compute_changed_share,
    make_rewritten,
)
from bricolage.driver.stages.kernel_tuning import KernelTuning
from bricolage.driver.stages.scheduling import Scheduling
from bricolage.driver.state import DecisionState
from bricolage.driver.tries import UNKNOWN_GAIN, by_tries
from bricolage.driver.whole_models import loosest, measure_dropped, near_fastest
from bricolage.graph.work import workload
from bricolage.rewrite.variants import SEARCHED, TAILORED
from bricolage.work.gain import LEAST_GAIN
from bricolage.work.implementation import Implementation
from bricolage.work.kernel_orders import OverlapEstimate

_COMPILE_S = 20.0
"""Of a slow compiler of which nothing is known."""
_LEAST_QUANTILE = 0.005
"""Below it, quantiles of what is expected say nothing."""
_OPENING = 3
"""As many times as long as a whole graph takes it to compile its kernels one by one, and to time them as they are."""


def items(state: DecisionState) -> list[Item]:
    """The agenda as it begins, baselines being known."""
    wholes = [WholeModelItem(implementation) for implementation in state.original.candidates.whole]
    rewriting = state.session.options.rewrite
    variants = [RewrittenGraph()] if rewriting or len(state.variants) > 1 else []
    searches = [TailoredRewrites(), SearchedRewrites()] if rewriting else []
    mixtures: list[Item] = [PrecisionsItem(), LookAtPlacements(), RegionsItem(), Placements()]
    quantised: list[Item] = []
    if state.session.options.precision == "low" and state.session.samples and state.session.samples.calibration:
        quantised.append(QuantisedGraphItem(CALIBRATED))
    if state.session.options.weights is not None:
        quantised.append(QuantisedGraphItem(variant_name(state.session.options)))
    return [
        *wholes,
        *quantised,
        *variants,
        *searches,
        *mixtures,
        OverlappedKernels(),
        KnownKernels(),
        KernelsItem(),
        Schedules(),
    ]


class WholeModelItem(Item):
    """The whole original on one more implementation: another configuration of a backend, or one that compiles slowly."""

    def __init__(self, implementation: Implementation) -> None:
        """Which one."""
        self.implementation = implementation
        self.name = whole_model(implementation)
        self._roofline_ms: float | None = None

    def promise(self, state: DecisionState) -> Promise | None:
        """By its track record on networks of the kind; by the roofline where it has none."""
        variant, implementation, session = state.original, self.implementation, state.session
        if implementation in variant.whole:
            return None
        seconds = (
            state.whole_s
            if not session.backend(implementation.backend).compiles_slowly
            else _compile_s(state, implementation.backend)
        )
        data = variant.oracle.data(variant.graph.everything)
        (cost,) = session.measurer.cached([(variant.whole_spec(implementation), data)], variant.oracle.accepted)
        incumbent = state.incumbent_ms
        if cost is not None and cost.outcome == "wrong" and incumbent is not None and state.mixing:
            (timed,) = session.measurer.cached([(variant.whole_spec(implementation), data)], loosest(variant))
            ms = timed.ms if timed is not None and timed.ms is not None else self._floor_ms(state)
            because = "it is known to be too inaccurate for the whole, and parts of the model may do with it"
            return Promise(1.0 - ms / incumbent, seconds, because, bound=1.0 - ms / incumbent)
        if cost is not None and incumbent is not None:  # it is taken over without compiling
            saved = 1.0 - cost.ms / incumbent if cost.ms is not None else 0.0
            return promise_known(saved, 0.1, "its time is known")
        if incumbent is None:
            return Promise(1.0, seconds, "nothing else is right")
        name, bound = f"{implementation.backend} {implementation.config.name}", 1.0 - self._floor_ms(state) / incumbent
        measured = {f"{other.backend} {other.config.name}": ms for other, ms in variant.times.items()}
        expected = session.record.expect(name, state.subject, measured)
        if expected is None:
            because = f"by the roofline, since {name} has no record on {state.subject.kind} networks"
            return Promise(min(bound, UNKNOWN_GAIN), seconds, because, bound=bound)
        because = f"by its times on {session.record.seen(name, state.subject)} other {state.subject.kind} networks"
        chance = expected.chance((1.0 - LEAST_GAIN) * incumbent)
        # Where it gains, it saves this much or more in half of the cases.
        gain = 1.0 - expected.least_ms(max(chance / 2, _LEAST_QUANTILE)) / incumbent
        return Promise(max(gain, LEAST_GAIN), seconds, because, chance, bound)

    def _floor_ms(self, state: DecisionState) -> float:
        """By the roofline."""
        if self._roofline_ms is None:
            everything = workload(state.original.graph.everything)
            self._roofline_ms = floor_ms(everything, state.session.attainable, self.implementation.config)
        return self._roofline_ms

    def run(self, state: DecisionState, deadline: Deadline) -> None:
        """Compiles, checks and times it."""
        state.session.progress.start(self.name, 1)
        state.original.measure_whole([self.implementation], deadline)
        # A lower precision, too inaccurate for the whole, may suit some regions.
        measure_dropped(state.original, deadline)
        state.session.progress.finish()


def _compile_s(state: DecisionState, backend: str) -> float:
    """Seconds until the whole is ready on a backend that compiles slowly: as long as it took in another configuration, else by the
    record, as many times as long as the baselines took over theirs: the machine may be slow, or busy."""
    variant, record = state.original, state.session.record
    compile_times = [
        cost.compile_s
        for implementation, cost in variant.whole.items()
        if implementation.backend == backend and cost.compile_s > 0
    ]
    if compile_times:
        return max(compile_times)
    recorded_s = record.compile_s(backend, len(variant.graph))
    if recorded_s is None:
        return _COMPILE_S
    quick = {
        implementation.backend: cost.compile_s for implementation, cost in variant.whole.items() if cost.compile_s > 0
    }
    ratios = [
        taken / expected for name, taken in quick.items() if (expected := record.compile_s(name, len(variant.graph)))
    ]
    return recorded_s * max(1.0, statistics.median(ratios)) if ratios else recorded_s


class RewrittenGraph(Item):
    """The graph that canonicalising rules make of the original, as a whole, where the original did well. It is made when its turn
    may come: at most efforts most networks leave it out."""

    name = "rewritten graph"
    way = "rewritten graphs"

    def __init__(self) -> None:
        """No rule is applied yet."""
        self._changed: float | None = None

    def promise(self, state: DecisionState) -> Promise | None:
        """By how often it gained, within what the operators take that rules change; None where rules change nothing."""
        if state.incumbent_ms is None:
            return None
        near = near_fastest(state.original, state.original.times)
        track_record = by_tries(self.way, state, state.whole_s * len(near))
        if track_record.reason_to_leave_out(state.budget.accepted_risk(track_record.seconds)) is not None:
            return track_record
        if self._changed is None:
            make_rewritten(state)
            self._changed = compute_changed_share(state)
        if self._changed <= 0.0:
            return None
        because = f"{track_record.because}; rules change operators with {self._changed:.1%} of the work"
        return replace(track_record, bound=self._changed, because=because, gain=min(track_record.gain, self._changed))

    def run(self, state: DecisionState, deadline: Deadline) -> None:
        """Times it, and enters the fastest for the race."""
        RewrittenVariants().run(state, deadline)


class TailoredRewrites(Item):
    """Which rules the fastest backend gains by, by racing variants."""

    name = "rules tailored to the fastest backend"
    way = "tailored graphs"
    searches = True
    makes = TAILORED

    def promise(self, state: DecisionState) -> Promise | None:
        """By how often it gained."""
        limit = state.budget.part_s("rewrite_tuning")
        return by_tries(self.way, state, limit) if state.incumbent_ms is not None else None

    def run(self, state: DecisionState, deadline: Deadline) -> None:
        """Searches, for its share of the time at most."""
        RewriteTuning().run(state, deadline.at_most(state.budget.part_s("rewrite_tuning")))


class SearchedRewrites(Item):
    """Graphs that are cheaper by what was measured of the operators."""

    name = "search for rewrites"
    way = "searched graphs"
    searches = True
    makes = SEARCHED

    def promise(self, state: DecisionState) -> Promise | None:
        """By how often it gained; once regions were measured."""
        if not any(variant.regions for variant in state.timed_variants.values()):
            return None
        return by_tries(self.way, state, state.budget.part_s("rewrite_search"))

    def run(self, state: DecisionState, deadline: Deadline) -> None:
        """Learns costs, searches, and times what it finds."""
        RewriteSearch().run(state, deadline)


class KnownKernels(Item):
    """Kernels that an earlier search found for the whole graph, or for the same work in another one."""

    name = "tuned kernels that are known"

    def promise(self, state: DecisionState) -> Promise | None:
        """By how often tuning gained, where anything was tuned here."""
        if not KernelTuning.known(state):
            return None
        return by_tries("tuned kernels", state, 2 * state.whole_s)

    def run(self, state: DecisionState, deadline: Deadline) -> None:
        """Times them."""
        KernelTuning(searching=False).run(state, deadline)


class KernelsItem(Item):
    """A search for better kernels, a slice of the time at a time: trials are kept, and the next slice goes on from them."""

    name = "kernel tuning"
    way = "tuned kernels"
    searches = True

    def __init__(self) -> None:
        """Nothing is searched."""
        self._gained: float | None = None
        """By the last slice, as a share of the time."""

    def promise(self, state: DecisionState) -> Promise | None:
        """By how often tuning gained in as much time, where a backend can be tuned; then by what the last slice gained."""
        if not any(
            backend.tunable and backend.name in {i.backend for i in state.original.times}
            for backend in state.session.backends
        ):
            return None
        seconds = self._seconds(state)
        if self._gained is not None:
            return Promise(self._gained, seconds, f"the slice before gained {self._gained:.1%}")
        return by_tries(self.way, state, seconds, timed=True)

    def run(self, state: DecisionState, deadline: Deadline) -> None:
        """Searches, for its share of the time at most."""
        before = state.incumbent_ms
        KernelTuning(searching=True).run(state, deadline.at_most(self._seconds(state)))
        after = state.incumbent_ms
        self._gained = max(0.0, 1.0 - after / before) if before and after else 0.0

    @property
    def again(self) -> bool:
        """Another slice may gain again."""
        return bool(self._gained)

    @staticmethod
    def _seconds(state: DecisionState) -> float:
        """The least in which anything can be found, or the share of the budget where that is more."""
        return state.budget.kernel_tuning_s(_OPENING * state.whole_s)


class OverlappedKernels(Item):
    """The whole original with kernels at the same time that do not depend on each other, where a backend offers that. A look says
    what it would bring: each kernel has a share of the measured time by its roofline, and its pieces are placed on the threads.
    """

    name = "kernels at the same time"
    way = "overlapped kernels"

    def __init__(self) -> None:
        """Nothing was looked at."""
        self._looks: dict[Implementation, OverlapEstimate | None] = {}

    def promise(self, state: DecisionState) -> Promise | None:
        """By the look, and by how often it gained; None where no two kernels could run at the same time."""
        incumbent, implementation = state.incumbent_ms, self._fastest(state)
        if incumbent is None or implementation is None:
            return None
        track_record = by_tries(self.way, state, state.whole_s)
        if track_record.reason_to_leave_out(state.budget.accepted_risk(track_record.seconds)) is not None:
            return track_record  # the look takes a second on a large network
        look = self._look(state, implementation)
        if look is None:
            return None
        ms = state.original.times[implementation]
        gain = 1.0 - ms * look.overlapped_ms / look.usual_ms / incumbent
        bound = 1.0 - ms * look.lower_ms / look.usual_ms / incumbent
        because = f"{look.together} kernels could run with others, which by arithmetic saves {max(gain, 0.0):.1%}"
        because += f", and {max(bound, 0.0):.1%} if no thread ever idled; {track_record.because}"
        chance = track_record.chance if gain > LEAST_GAIN else 0.0
        return replace(track_record, gain=max(gain, 0.0), chance=chance, bound=bound, because=because)

    def run(self, state: DecisionState, deadline: Deadline) -> None:
        """Compiles, checks and times it."""
        implementation = self._fastest(state)
        look = None if implementation is None else self._look(state, implementation)
        if implementation is None or look is None:
            return
        state.session.progress.start(self.name, 1)
        state.original.measure_whole([replace(implementation, config=look.config)], deadline)
        state.session.progress.finish()

    @staticmethod
    def _fastest(state: DecisionState) -> Implementation | None:
        """The fastest of those that a backend may run so, as it comes."""
        times = state.original.times
        able = [
            implementation
            for implementation in times
            if state.session.backend(implementation.backend).overlaps and not implementation.config.parameters
        ]
        return min(able, key=times.__getitem__, default=None)

    def _look(self, state: DecisionState, implementation: Implementation) -> OverlapEstimate | None:
        if implementation not in self._looks:
            session, original = state.session, state.original
            (step,) = original.whole_spec(implementation).steps
            self._looks[implementation] = session.backend(implementation.backend).estimate_overlap(
                RegionModel(step.path),
                implementation.config,
                Resources(session.options.threads, session.device),
                original.times[implementation],
            )
        return self._looks[implementation]


class Schedules(Item):
    """Branches and regions side by side."""

    name = "schedules"
    way = "schedules"

    def __init__(self) -> None:
        """Nothing was looked at."""
        self._stage = Scheduling()

    def promise(self, state: DecisionState) -> Promise | None:
        """The most that side by side could save, even if more cores sped no branch up."""
        saved = self._stage.promise(state)
        if saved is None:
            return None
        track_record = by_tries(self.way, state, 4 * state.whole_s)
        because = f"side by side could save {max(saved, 0.0):.1%} at most; {track_record.because}"
        return replace(track_record, gain=min(track_record.gain, saved), because=because, bound=saved)

    def run(self, state: DecisionState, deadline: Deadline) -> None:
        """Tries."""
        self._stage.run(state, deadline)
