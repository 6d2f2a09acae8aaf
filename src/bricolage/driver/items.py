"""What a decision can measure beside its baselines, the whole model on each backend that compiles quickly: the items of its agenda,
each with the grounds for the most that it could gain.

| item | bound of its gain |
|---|---|
| the whole model on another implementation | its track record on networks of the kind, else the roofline |
| rewritten, tailored and searched graphs, tuned kernels | how often such a thing gained in decisions before |
| two precisions | what the lower one takes for all of it |
| regions | what precision costs; the placement that the model of costs predicts; how often mixtures gained |
| placements | measured costs of regions, transfers being free |
| schedules | the exact bound on what running side by side could save |
"""

from __future__ import annotations

from bricolage.deadline import Deadline
from bricolage.driver.agenda import Item, Promise
from bricolage.driver.describe import whole_model
from bricolage.driver.expected import foreseen
from bricolage.driver.pricing import priced, wholes
from bricolage.driver.profile import Profile
from bricolage.driver.stages.placing import Placing, TwoPrecisions
from bricolage.driver.stages.rewriting import RewriteSearch, RewriteTuning, RewrittenVariants
from bricolage.driver.stages.scheduling import Scheduling
from bricolage.driver.stages.tuning import KernelTuning
from bricolage.driver.state import State
from bricolage.driver.variants import placed
from bricolage.errors import NoCover, NoPlacement
from bricolage.graph.to_work import to_work
from bricolage.graph.work import workload
from bricolage.perf.roofline import least_ms
from bricolage.search.exact import solve
from bricolage.work.implementation import Implementation
from bricolage.work.transfer import NoTransferCosts

_UNKNOWN_GAIN = 0.1
"""Of a way that has never gained, and has not been tried often enough to be left out for that."""
_COMPILE_S = 20.0
"""Of a slow compiler of which nothing is known."""
_REWRITTEN = 2
"""As many times as long as a whole graph takes it to time the rewritten one where the original did well."""
_TWO_PRECISIONS = 4
"""As many times as long as a whole graph takes it to measure the segments in two precisions, and the first mixtures of them."""
_OPENING = 3
"""As many times as long as a whole graph takes it to compile its kernels one by one, and to time them as they are."""


def items(state: State) -> list[Item]:
    """The agenda as it begins, baselines being known."""
    wholes = [WholeModelItem(one) for one in state.original.candidates.whole]
    rewriting = state.session.options.rewrite
    variants = [RewrittenGraph()] if rewriting or len(state.variants) > 1 else []
    searches = [TailoredRewrites(), SearchedRewrites()] if rewriting else []
    mixtures = [TwoPrecisionsItem(), RegionsItem(), Placements()]
    return [*wholes, *variants, *searches, *mixtures, KnownKernels(), KernelsItem(), Schedules()]


def by_tries(way: str, state: State, seconds: float, *, timed: bool = False) -> Promise:
    """What a way to a faster plan promises by how often it gained before: nothing where that was more seldom than the risk. What is
    `timed` finds the more the longer it takes."""
    incumbent, risk = state.incumbent, state.session.options.profile.risk
    backend = incumbent.backend if incumbent is not None else ""
    found = state.session.record.tries(way, state.kind, backend, seconds if timed else None)
    told = f"{way} gained over {incumbent} in {len(found.gains)} of {found.decisions} decisions like this"
    told += f" that say what {seconds:.0f} s find" if timed else ""
    told = told if found.decisions else f"{way} have no record here"
    if found.chance <= risk:
        return Promise(0.0, seconds, told)
    return Promise(max(found.gains, default=_UNKNOWN_GAIN), seconds, told)


class WholeModelItem(Item):
    """The whole original on one more implementation: another configuration of a backend, or one that compiles slowly."""

    def __init__(self, implementation: Implementation) -> None:
        """Which one."""
        self.implementation = implementation
        self.name = whole_model(implementation)

    def promise(self, state: State) -> Promise | None:
        """By its track record on networks of the kind; by the roofline where it has none."""
        profile, one, session = state.original, self.implementation, state.session
        if one in profile.whole:
            return None
        seconds = state.whole_s
        if session.backend(one.backend).compiles_slowly:
            known_s = session.record.compile_s(one.backend, len(profile.graph))
            seconds = known_s if known_s is not None else _COMPILE_S
        data = profile.oracle.data(profile.graph.everything)
        (known,) = session.measurer.cached([(profile.whole_spec(one), data)], session.options.bound)
        incumbent = state.incumbent_ms
        if known is not None and incumbent is not None:  # it is taken over without compiling
            return Promise(1.0 - known.ms / incumbent if known.ms is not None else 0.0, 0.1, "its time is known")
        if incumbent is None:
            return Promise(1.0, seconds, "nothing else is right")
        name, risk = f"{one.backend} {one.config.name}", session.options.profile.risk
        measured = {f"{other.backend} {other.config.name}": ms for other, ms in profile.times.items()}
        least = session.record.least_ms(name, state.kind, measured, risk)
        if least is not None:
            seen = session.record.seen(name, state.kind)
            because = f"by its times on {seen} {state.kind} networks"
        else:
            least = least_ms(workload(profile.graph.everything), session.setting, bfloat16=one.config.bfloat16)
            because = f"by the roofline, since {name} has no record on {state.kind} networks"
        return Promise(1.0 - least / incumbent, seconds, because)

    def run(self, state: State, deadline: Deadline) -> None:
        """Compiles, checks and times it."""
        state.session.progress.start(self.name, 1)
        state.original.measure_whole([self.implementation], deadline)
        state.original.measure_dropped(
            deadline
        )  # a lower precision, too inaccurate for the whole, may suit some regions
        state.session.progress.finish()


class RewrittenGraph(Item):
    """The graph that canonicalising rules make of the original, as a whole, where the original did well. It is made when its turn
    comes: at most efforts most networks leave it out."""

    name = "rewritten graph"

    def promise(self, state: State) -> Promise | None:
        """By how often it gained."""
        if state.incumbent_ms is None:
            return None
        return by_tries("rewritten graphs", state, _REWRITTEN * state.whole_s)

    def run(self, state: State, deadline: Deadline) -> None:
        """Makes and times it, and enters the fastest for the race."""
        RewrittenVariants().run(state, deadline)


class TailoredRewrites(Item):
    """Which rules the fastest backend gains by, by racing variants."""

    name = "rules tailored to the fastest backend"

    def promise(self, state: State) -> Promise | None:
        """By how often it gained."""
        limit = state.session.options.profile.shares.rewrite_tuning * state.budget_s
        return by_tries("tailored graphs", state, limit) if state.incumbent_ms is not None else None

    def run(self, state: State, deadline: Deadline) -> None:
        """Searches, for its share of the time at most."""
        limit = state.session.options.profile.shares.rewrite_tuning * state.budget_s
        RewriteTuning().run(state, deadline.at_most(limit))


class SearchedRewrites(Item):
    """Graphs that are cheaper by what was measured of the operators."""

    name = "search for rewrites"

    def promise(self, state: State) -> Promise | None:
        """By how often it gained; once regions were measured."""
        if not any(profile.regions for profile in state.profiles.values()):
            return None
        return by_tries("searched graphs", state, state.session.options.profile.shares.rewrite_search * state.budget_s)

    def run(self, state: State, deadline: Deadline) -> None:
        """Learns costs, searches, and times what it finds."""
        RewriteSearch().run(state, deadline)


def _mixable(state: State) -> list[Profile]:
    """Variants that can be divided among several implementations."""
    if not state.mixing:
        return []
    return [one for one in placed(state) if one.graph.static and len(one.graph) > 1]


class RegionsItem(Item):
    """Costs of regions, the most promising first: what placements and searches rest on."""

    name = "regions"

    def __init__(self) -> None:
        """Nothing is measured, and no placement is foreseen."""
        self._measured: set[str] = set()
        self._foreseen: dict[str, float | None] = {}

    def promise(self, state: State) -> Promise | None:
        """The most that a mixture could gain by what is known without regions."""
        waiting = [one for one in _mixable(state) if one.variant.name not in self._measured]
        incumbent = state.incumbent_ms
        if not waiting or incumbent is None:
            return None
        seconds = state.session.options.profile.shares.regions * state.budget_s
        tries = by_tries("mixtures", state, seconds)
        found = [tries]
        lower = [cost.ms for cost in state.original.dropped.values() if cost.ms is not None]
        if lower and min(lower) < incumbent:
            because = "in a lower precision, which is too inaccurate for the whole, all of it takes that long"
            found.append(Promise(1.0 - min(lower) / incumbent, seconds, because))
        for profile in waiting:
            if tries.gain <= 0.0:  # where predicted mixtures never gained, one more prediction says nothing
                break
            variant = profile.variant.name
            if variant not in self._foreseen:  # it takes an exact search
                self._foreseen[variant] = foreseen(profile)
            share = self._foreseen[variant]
            if share is not None:
                because = "the model of costs predicts a mixture that is faster by that"
                found.append(Promise(share, seconds, because))
        return max(found, key=lambda one: one.gain)

    def run(self, state: State, deadline: Deadline) -> None:
        """Measures as many as its share of the time allows; what is known already costs nothing."""
        part = deadline.at_most(state.session.options.profile.shares.regions * state.budget_s)
        for profile in _mixable(state):
            if profile.variant.name not in self._measured and not part():
                self._measured.add(profile.variant.name)
                profile.measure_regions(part)

    def again(self, state: State) -> bool:
        """Variants may be found later."""
        del state
        return True


class TwoPrecisionsItem(Item):
    """A lower precision, which is too inaccurate for the whole, in as many segments of the graph as its error allows."""

    name = "two precisions"

    def __init__(self) -> None:
        """Nothing is tried."""
        self._tried: set[Implementation] = set()

    def promise(self, state: State) -> Promise | None:
        """By the time that the lower precision takes for all of it."""
        found, incumbent = self._next(state), state.incumbent_ms
        if found is None or incumbent is None:
            return None
        low, ms = found
        because = f"all of it takes that much less on {low}, which is too inaccurate for the whole"
        return Promise(1.0 - ms / incumbent, _TWO_PRECISIONS * state.whole_s, because)

    def run(self, state: State, deadline: Deadline) -> None:
        """Tries the most promising."""
        found = self._next(state)
        assert found is not None
        low, _ = found
        self._tried.add(low)
        TwoPrecisions(state.original, low).run(state, deadline)

    def again(self, state: State) -> bool:
        """Another implementation may be found to be too inaccurate."""
        del state
        return True

    def _next(self, state: State) -> tuple[Implementation, float] | None:
        """The fastest that is too inaccurate for the original, with its ms."""
        if not state.mixing or not state.original.graph.static:
            return None
        dropped = {one: cost.ms for one, cost in state.original.dropped.items() if cost.ms is not None}
        waiting = [(one, ms) for one, ms in dropped.items() if one not in self._tried]
        return min(waiting, key=lambda one: one[1], default=None)


class Placements(Item):
    """Mixtures of implementations, two precisions first: the exact optimum of what was measured of regions, refined end to end."""

    name = "placements"

    def __init__(self) -> None:
        """No variant is placed yet."""
        self._placed: set[str] = set()
        self._bounds: dict[tuple[str, int], float | None] = {}

    def promise(self, state: State) -> Promise | None:
        """By measured costs, transfers being free."""
        incumbent, found = state.incumbent_ms, list[Promise]()
        seconds = state.session.options.profile.shares.placement * state.budget_s
        for profile in self._waiting(state):
            key = profile.variant.name, len(profile.regions)
            if key not in self._bounds:
                self._bounds[key] = _cheapest_ms(profile)
            bound = self._bounds[key]
            if bound is not None and incumbent is not None:
                because = "regions where each was fastest, handed over for nothing, take that much less"
                found.append(Promise(1.0 - bound / incumbent, seconds, because))
        return max(found, key=lambda one: one.gain, default=None)

    def run(self, state: State, deadline: Deadline) -> None:
        """Searches one variant after the other."""
        waiting = self._waiting(state)
        self._placed |= {profile.variant.name for profile in waiting}
        Placing(waiting).run(state, deadline)

    def again(self, state: State) -> bool:
        """Variants may be found later."""
        del state
        return True

    def _waiting(self, state: State) -> list[Profile]:
        return [one for one in _mixable(state) if one.regions and one.variant.name not in self._placed]


def _cheapest_ms(profile: Profile) -> float | None:
    """What no placement of measured costs is faster than, in ms; None where they do not cover the graph. Operators of which nothing
    was measured cost what they are predicted to."""
    try:
        seconds = profile.session.options.profile.shares.bound_s
        found = solve(to_work(profile.graph), [*priced(profile), *wholes(profile)], NoTransferCosts(), seconds)
    except (NoCover, NoPlacement):
        return None
    return found.lower_bound_ms


class KnownKernels(Item):
    """Kernels that an earlier search found for the whole graph, or for the same work in another one."""

    name = "tuned kernels that are known"

    def promise(self, state: State) -> Promise | None:
        """By how often tuning gained, where anything was tuned here."""
        if not KernelTuning.known(state):
            return None
        return by_tries("tuned kernels", state, 2 * state.whole_s)

    def run(self, state: State, deadline: Deadline) -> None:
        """Times them."""
        KernelTuning(searching=False).run(state, deadline)


class KernelsItem(Item):
    """A search for better kernels, a slice of the time at a time: trials are kept, and the next slice goes on from them."""

    name = "kernel tuning"

    def __init__(self) -> None:
        """Nothing is searched."""
        self._gained: float | None = None
        """By the last slice, as a share of the time."""

    def promise(self, state: State) -> Promise | None:
        """By how often tuning gained in as much time, where a backend can be tuned; then by what the last slice gained."""
        if not any(
            one.tunable and one.name in {i.backend for i in state.original.times} for one in state.session.backends
        ):
            return None
        seconds = self._seconds(state)
        if self._gained is not None:
            return Promise(self._gained, seconds, "so much was gained by the seconds before")
        return by_tries("tuned kernels", state, seconds, timed=True)

    def run(self, state: State, deadline: Deadline) -> None:
        """Searches, for its share of the time at most."""
        before = state.incumbent_ms
        KernelTuning(searching=True).run(state, deadline.at_most(self._seconds(state)))
        after = state.incumbent_ms
        self._gained = max(0.0, 1.0 - after / before) if before and after else 0.0

    def again(self, state: State) -> bool:
        """As much again may be gained in as much time."""
        del state
        return bool(self._gained)

    @staticmethod
    def _seconds(state: State) -> float:
        """The least in which anything can be found, or the share of the budget where that is more."""
        shares = state.session.options.profile.shares
        least = shares.tuning.turn_s + _OPENING * state.whole_s
        return max(least, shares.kernel_tuning * state.budget_s)


class Schedules(Item):
    """Branches and regions side by side."""

    name = "schedules"

    def __init__(self) -> None:
        """Nothing was looked at."""
        self._stage = Scheduling()

    def promise(self, state: State) -> Promise | None:
        """The most that side by side could save, even if more cores sped no branch up."""
        saved = self._stage.promise(state)
        if saved is None:
            return None
        return Promise(saved, 4 * state.whole_s, "side by side could save that much at most")

    def run(self, state: State, deadline: Deadline) -> None:
        """Tries."""
        self._stage.run(state, deadline)
