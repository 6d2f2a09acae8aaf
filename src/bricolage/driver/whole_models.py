"""Which implementations of the whole graph are timed, in which order, and what a wrong answer leads to."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from bricolage.base.options import FAR, PRECISIONS
from bricolage.costs.entries import Cost, Outcome
from bricolage.driver.profile import NEAR, Profile
from bricolage.driver.session import Session
from bricolage.measure.specs import Stop
from bricolage.work.implementation import Implementation

_LOG = logging.getLogger(__name__)

_SMALL_MS = 3.0
_BUSY = 0.15
"""Share of the processors that others take."""
_WIDER = 10.0
"""Times the bound, within which a whole model that is too inaccurate is timed: divided among regions, its error may keep to it."""
_WITHIN_REACH = 2.0
"""Backends within this factor may be the best on a rewritten graph, if they compile quickly."""
_COMPILING_FAILED: Mapping[Outcome, str] = {"refused": "was refused", "failed": "failed", "crashed": "crashed"}
"""Outcomes of who did not come to an answer and may do so without optimisations, and how they are told."""


def measure_baselines(
    profile: Profile,
    stop: Stop,
    *,
    every: bool = False,
    first: Sequence[Implementation] = (),
    always: Collection[str] = (),
) -> None:
    """Times the whole graph, interleaved, on the `first`, or in the first configuration of every backend that takes it and
    compiles quickly, who compiles fastest first; with `every`, or where nothing is right, in all configurations of these
    backends, whatever the clock says. Otherwise backends named in `always` have their turn first, whatever the clock says: what
    is being compiled when `stop` says so is given up. Of the others, where `stop` says so, what has been compiled by then is timed;
    where that is nothing at all, who compiles fastest is measured all the same: else there is nothing to ship. Then, in these
    cases, some at a time until `stop` says so, on backends that compile slowly; then on who does not claim all of it
    (`_measure_unclaimed`)."""
    slowly = {backend.name for backend in profile.session.backends if backend.compiles_slowly}
    quick = [implementation for implementation in profile.candidates.whole if implementation.backend not in slowly]
    others = [implementation for implementation in profile.candidates.whole if implementation.backend in slowly]
    first = sorted(quick if every else first or profile.first_configurations, key=partial(_compile_s, profile))
    files = profile.file_implementations
    profile.session.progress.start("whole model on each backend", len(first) + len(files) + every * len(others))
    if files:
        profile.measure_whole(files, lambda: False)
    if first:
        _measure_in_turn(profile, first, always if not every else (), stop if not every else lambda: False)
        if not profile.whole:
            profile.measure_whole(first[:1], lambda: False)
        if missing := [implementation for implementation in first if implementation not in profile.whole]:
            _LOG.warning("the time was up before %s had their turn", ", ".join(map(str, missing)))
    if not profile.times and (
        rest := [implementation for implementation in quick if implementation not in profile.whole]
    ):
        profile.measure_whole(rest, lambda: False)
    step = max(1, profile.session.options.threads) * profile.session.machines
    for start in range(0, len(others), step):
        if (profile.times and not every) or (stop() and profile.whole):
            break
        profile.measure_whole(others[start : start + step], stop if profile.whole else lambda: False)
    _measure_unoptimised(profile)
    if not profile.times:
        _doubt_variations(profile)
    profile.session.progress.finish()
    _measure_unclaimed(profile, stop, always)


def is_shared(session: Session) -> bool:
    """Whether others want the processors, too: the user says so, or it was seen until now."""
    return session.options.shared or session.measurer.log.tally.found.others > _BUSY


def measure_teams(profile: Profile, stop: Stop) -> None:
    """Times those near the fastest with other teams of threads: where the model is small, since threads may cost more than they
    save; and on a machine that is shared those that do not spin, since spinning there takes time from the program itself, too."""
    fastest = profile.fastest
    if fastest is None or not profile.session.options.profile.teams:
        return
    small = fastest[1] < _SMALL_MS
    shared = is_shared(profile.session)
    usual = [
        implementation
        for implementation, ms in profile.times.items()
        if ms <= _WITHIN_REACH * fastest[1] and not implementation.config.team
    ]
    wanted = [
        replace(implementation, config=replace(implementation.config, team=team))
        for implementation in usual
        for team in profile.session.backend(implementation.backend).teams
        if (small and profile.session.options.threads > 1) or (shared and team == "waiting")
    ]
    if wanted and not stop():
        profile.session.progress.start("whole model with other teams of threads", len(wanted))
        profile.measure_whole(wanted, stop)
        profile.session.progress.finish()


def _measure_in_turn(profile: Profile, wanted: Sequence[Implementation], always: Collection[str], stop: Stop) -> None:
    """Times the whole graph on those on backends that are `always` measured, then on the others until `stop` says so."""
    if turns := [implementation for implementation in wanted if implementation.backend in always]:
        profile.measure_whole(turns, lambda: False)
    if others := [implementation for implementation in wanted if implementation.backend not in always]:
        profile.measure_whole(others, stop)


def _measure_unclaimed(profile: Profile, stop: Stop, always: Collection[str] = ()) -> None:
    """Tries the whole graph on backends that do not claim all of it, each first in one configuration. Those that compile
    slowly are tried only as long as nothing is right; those that are `always` measured, whatever the clock says."""
    slow = {backend.name for backend in profile.session.backends if backend.compiles_slowly}
    firsts = list(
        {implementation.backend: implementation for implementation in reversed(profile.candidates.unclaimed)}.values()
    )[::-1]
    if stop() and profile.times:
        firsts = [first for first in firsts if first.backend in always]
    if not firsts:
        return
    profile.session.progress.start("whole model on backends that do not claim all of it", None)
    if quick := [first for first in firsts if first.backend not in slow]:
        _measure_in_turn(profile, quick, always, stop if profile.times else lambda: False)
    for implementation in firsts:
        if implementation.backend in slow and not profile.times:
            profile.measure_whole([implementation], lambda: False)
    able = {implementation.backend for implementation in profile.times}
    others = [
        implementation
        for implementation in profile.candidates.unclaimed
        if implementation.backend in able and implementation not in profile.whole
    ]
    if others and not stop():
        profile.measure_whole(others, stop)
    _measure_unoptimised(profile)
    profile.session.progress.finish()


def _doubt_variations(profile: Profile) -> None:
    """Where nothing is right, and several backends are right on the inputs and on none of their variations, the variations mean
    nothing for the model: those backends are judged without."""
    bound = profile.oracle.bound
    doubting = [
        implementation
        for implementation, cost in profile.whole.items()
        if cost.outcome == "wrong"
        and cost.deviation is not None
        and cost.deviation.error <= bound < cost.deviation.excess
    ]
    if len({implementation.backend for implementation in doubting}) > 1:
        _LOG.warning("no backend agrees with the reference on variations of the inputs: they are left out")
        profile.oracle.without_variations()
        profile.measure_whole(doubting, lambda: False)


def _measure_unoptimised(profile: Profile) -> None:
    """Where an answer is far off, or a backend whose optimisations may be at fault refuses the graph, times the same backend
    without its graph optimisations. Where that is right, it takes part under its own name, and the plan says why."""
    spared: dict[Implementation, list[Implementation]] = {}
    for implementation in (*_far_off(profile), *_list_refused(profile)):
        config = profile.session.backend(implementation.backend).unoptimised(implementation.config)
        if config is not None:
            spared.setdefault(replace(implementation, config=config), []).append(implementation)
    missing = [implementation for implementation in spared if implementation not in profile.whole]
    if not missing:
        return
    profile.measure_whole(missing, lambda: False)
    for implementation in missing:
        if implementation not in profile.whole or profile.whole[implementation].ms is None:
            continue
        backend = profile.session.backend(implementation.backend)
        failure = "; ".join(f"{lost} {_describe_outcome(profile.whole[lost])}" for lost in spared[implementation])
        profile.replacing[implementation] = f"takes part without graph optimisations, since {failure}"
        _LOG.warning(
            "%s %s: %s %s",
            backend.title or backend.name,
            backend.table_version(),
            implementation,
            profile.replacing[implementation],
        )
        for lost in spared[implementation]:
            cost = profile.whole[lost]
            profile.whole[lost] = replace(
                cost, reason=f"{cost.reason}; right without its graph optimisations ({implementation})"
            )


def _far_off(profile: Profile) -> list[Implementation]:
    """Whose answer is further off than rounding explains."""
    return [
        implementation
        for implementation, cost in profile.whole.items()
        if cost.outcome == "wrong" and cost.deviation is not None and cost.deviation.excess > FAR
    ]


def _list_refused(profile: Profile) -> list[Implementation]:
    """The first configuration of each backend whose optimisations may refuse a graph, where it has no answer in any."""
    lost: dict[str, Implementation] = {}
    for implementation in (*profile.candidates.whole, *profile.candidates.unclaimed):
        cost = profile.whole.get(implementation)
        if cost is not None and cost.outcome in _COMPILING_FAILED:
            lost.setdefault(implementation.backend, implementation)
    able = {
        implementation.backend
        for implementation, cost in profile.whole.items()
        if cost.outcome not in _COMPILING_FAILED
    }
    return [
        implementation
        for name, implementation in lost.items()
        if name not in able and profile.session.backend(name).optimiser_refuses
    ]


def _describe_outcome(cost: Cost) -> str:
    if cost.outcome == "wrong":
        return "is wrong on this model"
    return f"{_COMPILING_FAILED.get(cost.outcome, cost.outcome)}: {cost.reason}"


def loosest(profile: Profile) -> float:
    """The error within which a whole model that is too inaccurate is timed."""
    return max(FAR, _WIDER * profile.oracle.accepted)


def measure_dropped(profile: Profile, stop: Stop) -> None:
    """Times those that were dropped for their accuracy, as far as a lower precision would take them and compiling
    them is quick: so that the user can be told what a wider tolerance buys, and since what is too inaccurate for the whole may
    suit some regions."""
    bound = loosest(profile)
    wrong = [
        implementation
        for implementation, cost in profile.whole.items()
        if cost.outcome == "wrong"
        and implementation not in profile.dropped
        and cost.deviation is not None
        and 0.0 < cost.deviation.excess < bound
        and not profile.session.backend(implementation.backend).compiles_slowly
    ]
    specs = {profile.whole_spec(implementation): implementation for implementation in wrong}
    if specs and not stop():
        costs = profile.session.measurer.measure([replace(profile.task(list(specs)), bound=bound)], should_stop=stop)
        profile.dropped.update({specs[spec]: cost for spec, cost in costs.items()})


def looser_precisions(profile: Profile) -> list[Implementation]:
    """Configurations of the fastest backend that are offered for lower accuracy words only, and change something in this graph. As
    a whole they are too inaccurate, but for luck; some regions may bear them."""
    if profile.fastest is None:
        return []
    session = profile.session
    backend = session.backend(profile.fastest[0].backend)
    words = PRECISIONS[PRECISIONS.index(session.options.precision) + 1 :]
    whole = profile.graph.everything
    configs = dict.fromkeys(config for word in words for config in backend.suited_configs(word, session.device, whole))
    configured = [replace(profile.fastest[0], config=config) for config in configs]
    return [implementation for implementation in configured if implementation not in profile.candidates.whole]


def measure_near(profile: Profile, baselines: Mapping[Implementation, float], stop: Stop) -> None:
    """Times this variant on those that did well on the original (`baselines`: their ms), until `stop` says so."""
    near = near_fastest(profile, baselines)
    profile.session.progress.start(f"{profile.variant.name} model on each backend", len(near))
    if near and not stop():
        profile.measure_whole(near, stop)
    profile.session.progress.finish()


def near_fastest(profile: Profile, baselines: Mapping[Implementation, float]) -> list[Implementation]:
    """Those that did well on the original (`baselines`: their ms) and take this variant, the fastest first. Who did well without
    its graph optimisations alone may do so with them here."""
    fastest = min(baselines.values(), default=0.0)
    slow = {backend.name for backend in profile.session.backends if backend.compiles_slowly}
    offered = [*profile.candidates.whole, *profile.candidates.unclaimed]
    offered += [
        baseline
        for baseline in baselines
        if baseline.config.team and replace(baseline, config=baseline.config.of_all) in offered
    ]
    known_times = {
        implementation: ms
        for implementation in offered
        if (ms := _known_ms(profile, implementation, baselines)) is not None
    }
    reach = {
        implementation: fastest * (NEAR if implementation.backend in slow else _WITHIN_REACH)
        for implementation in known_times
    }
    return sorted(
        (implementation for implementation, ms in known_times.items() if ms <= reach[implementation]),
        key=known_times.__getitem__,
    )


def _known_ms(profile: Profile, one: Implementation, baselines: Mapping[Implementation, float]) -> float | None:
    """Its own time on the original; else that without graph optimisations, which is there where those were at fault."""
    if one in baselines:
        return baselines[one]
    config = profile.session.backend(one.backend).unoptimised(one.config)
    return None if config is None else baselines.get(replace(one, config=config))


def _compile_s(profile: Profile, one: Implementation) -> float:
    """What its backend takes until the graph is ready, as far as that is known."""
    recorded_s = profile.session.record.compile_s(one.backend, len(profile.graph))
    return math.inf if recorded_s is None else recorded_s
