"""Which implementations of the whole graph are timed, in which order, and what a wrong answer leads to."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from bricolage.base.options import FAR, PRECISIONS
from bricolage.costs.entries import Cost, Outcome
from bricolage.driver.session import Session
from bricolage.driver.timed_variant import NEAR, TimedVariant
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
    variant: TimedVariant,
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
    slowly = {backend.name for backend in variant.session.backends if backend.compiles_slowly}
    quick = [implementation for implementation in variant.candidates.whole if implementation.backend not in slowly]
    others = [implementation for implementation in variant.candidates.whole if implementation.backend in slowly]
    first = sorted(quick if every else first or variant.first_configurations, key=partial(_compile_s, variant))
    files = variant.file_implementations
    variant.session.progress.start("whole model on each backend", len(first) + len(files) + every * len(others))
    if files:
        variant.measure_whole(files, lambda: False)
    if first:
        _measure_in_turn(variant, first, always if not every else (), stop if not every else lambda: False)
        if not variant.whole:
            variant.measure_whole(first[:1], lambda: False)
        if missing := [implementation for implementation in first if implementation not in variant.whole]:
            _LOG.warning("the time was up before %s had their turn", ", ".join(map(str, missing)))
    if not variant.times and (
        rest := [implementation for implementation in quick if implementation not in variant.whole]
    ):
        variant.measure_whole(rest, lambda: False)
    step = max(1, variant.session.options.threads) * variant.session.machines
    for start in range(0, len(others), step):
        if (variant.times and not every) or (stop() and variant.whole):
            break
        variant.measure_whole(others[start : start + step], stop if variant.whole else lambda: False)
    _measure_unoptimised(variant)
    if not variant.times:
        _doubt_variations(variant)
    variant.session.progress.finish()
    _measure_unclaimed(variant, stop, always)


def is_shared(session: Session) -> bool:
    """Whether others want the processors, too: the user says so, or it was seen until now."""
    return session.options.shared or session.disturbance.others > _BUSY


def measure_teams(variant: TimedVariant, stop: Stop) -> None:
    """Times those near the fastest with other teams of threads: where the model is small, since threads may cost more than they
    save; and on a machine that is shared those that do not spin, since spinning there takes time from the program itself, too."""
    fastest = variant.fastest
    if fastest is None or not variant.session.profile.teams:
        return
    small = fastest[1] < _SMALL_MS
    shared = is_shared(variant.session)
    usual = [
        implementation
        for implementation, ms in variant.times.items()
        if ms <= _WITHIN_REACH * fastest[1] and not implementation.config.team
    ]
    wanted = [
        replace(implementation, config=replace(implementation.config, team=team))
        for implementation in usual
        for team in variant.session.backend(implementation.backend).teams
        if (small and variant.session.options.threads > 1) or (shared and team == "waiting")
    ]
    if wanted and not stop():
        variant.session.progress.start("whole model with other teams of threads", len(wanted))
        variant.measure_whole(wanted, stop)
        variant.session.progress.finish()


def _measure_in_turn(
    variant: TimedVariant, wanted: Sequence[Implementation], always: Collection[str], stop: Stop
) -> None:
    """Times the whole graph on those on backends that are `always` measured, then on the others until `stop` says so."""
    if turns := [implementation for implementation in wanted if implementation.backend in always]:
        variant.measure_whole(turns, lambda: False)
    if others := [implementation for implementation in wanted if implementation.backend not in always]:
        variant.measure_whole(others, stop)


def _measure_unclaimed(variant: TimedVariant, stop: Stop, always: Collection[str] = ()) -> None:
    """Tries the whole graph on backends that do not claim all of it, each first in one configuration. Those that compile
    slowly are tried only as long as nothing is right; those that are `always` measured, whatever the clock says."""
    slow = {backend.name for backend in variant.session.backends if backend.compiles_slowly}
    firsts = list(
        {implementation.backend: implementation for implementation in reversed(variant.candidates.unclaimed)}.values()
    )[::-1]
    if stop() and variant.times:
        firsts = [first for first in firsts if first.backend in always]
    if not firsts:
        return
    variant.session.progress.start("whole model on backends that do not claim all of it", None)
    if quick := [first for first in firsts if first.backend not in slow]:
        _measure_in_turn(variant, quick, always, stop if variant.times else lambda: False)
    for implementation in firsts:
        if implementation.backend in slow and not variant.times:
            variant.measure_whole([implementation], lambda: False)
    able = {implementation.backend for implementation in variant.times}
    others = [
        implementation
        for implementation in variant.candidates.unclaimed
        if implementation.backend in able and implementation not in variant.whole
    ]
    if others and not stop():
        variant.measure_whole(others, stop)
    _measure_unoptimised(variant)
    variant.session.progress.finish()


def _doubt_variations(variant: TimedVariant) -> None:
    """Where nothing is right, and several backends are right on the inputs and on none of their variations, the variations mean
    nothing for the model: those backends are judged without."""
    bound = variant.oracle.bound
    doubting = [
        implementation
        for implementation, cost in variant.whole.items()
        if cost.outcome == "wrong"
        and cost.deviation is not None
        and cost.deviation.error <= bound < cost.deviation.excess
    ]
    if len({implementation.backend for implementation in doubting}) > 1:
        _LOG.warning("no backend agrees with the reference on variations of the inputs: they are left out")
        variant.oracle.without_variations()
        variant.measure_whole(doubting, lambda: False)


def _measure_unoptimised(variant: TimedVariant) -> None:
    """Where an answer is far off, or a backend whose optimisations may be at fault refuses the graph, times the same backend
    without its graph optimisations. Where that is right, it takes part under its own name, and the plan says why."""
    spared: dict[Implementation, list[Implementation]] = {}
    for implementation in (*_far_off(variant), *_list_refused(variant)):
        config = variant.session.backend(implementation.backend).unoptimised(implementation.config)
        if config is not None:
            spared.setdefault(replace(implementation, config=config), []).append(implementation)
    missing = [implementation for implementation in spared if implementation not in variant.whole]
    if not missing:
        return
    variant.measure_whole(missing, lambda: False)
    for implementation in missing:
        if implementation not in variant.whole or variant.whole[implementation].ms is None:
            continue
        backend = variant.session.backend(implementation.backend)
        failure = "; ".join(f"{lost} {_describe_outcome(variant.whole[lost])}" for lost in spared[implementation])
        variant.replacing[implementation] = f"takes part without graph optimisations, since {failure}"
        _LOG.warning(
            "%s %s: %s %s",
            backend.title or backend.name,
            backend.table_version(),
            implementation,
            variant.replacing[implementation],
        )
        for lost in spared[implementation]:
            cost = variant.whole[lost]
            variant.whole[lost] = replace(
                cost, reason=f"{cost.reason}; right without its graph optimisations ({implementation})"
            )


def _far_off(variant: TimedVariant) -> list[Implementation]:
    """Whose answer is further off than rounding explains."""
    return [
        implementation
        for implementation, cost in variant.whole.items()
        if cost.outcome == "wrong" and cost.deviation is not None and cost.deviation.excess > FAR
    ]


def _list_refused(variant: TimedVariant) -> list[Implementation]:
    """The first configuration of each backend whose optimisations may refuse a graph, where it has no answer in any."""
    lost: dict[str, Implementation] = {}
    for implementation in (*variant.candidates.whole, *variant.candidates.unclaimed):
        cost = variant.whole.get(implementation)
        if cost is not None and cost.outcome in _COMPILING_FAILED:
            lost.setdefault(implementation.backend, implementation)
    able = {
        implementation.backend
        for implementation, cost in variant.whole.items()
        if cost.outcome not in _COMPILING_FAILED
    }
    return [
        implementation
        for name, implementation in lost.items()
        if name not in able and variant.session.backend(name).optimiser_refuses
    ]


def _describe_outcome(cost: Cost) -> str:
    if cost.outcome == "wrong":
        return "is wrong on this model"
    return f"{_COMPILING_FAILED.get(cost.outcome, cost.outcome)}: {cost.reason}"


def loosest(variant: TimedVariant) -> float:
    """The error within which a whole model that is too inaccurate is timed."""
    return max(FAR, _WIDER * variant.oracle.accepted)


def measure_dropped(variant: TimedVariant, stop: Stop) -> None:
    """Times those that were dropped for their accuracy, as far as a lower precision would take them and compiling
    them is quick: so that the user can be told what a wider tolerance buys, and since what is too inaccurate for the whole may
    suit some regions."""
    bound = loosest(variant)
    wrong = [
        implementation
        for implementation, cost in variant.whole.items()
        if cost.outcome == "wrong"
        and implementation not in variant.dropped
        and cost.deviation is not None
        and 0.0 < cost.deviation.excess < bound
        and not variant.session.backend(implementation.backend).compiles_slowly
    ]
    specs = {variant.whole_spec(implementation): implementation for implementation in wrong}
    if specs and not stop():
        costs = variant.session.measurer.measure([replace(variant.task(list(specs)), bound=bound)], should_stop=stop)
        variant.dropped.update({specs[spec]: cost for spec, cost in costs.items()})


def looser_precisions(variant: TimedVariant) -> list[Implementation]:
    """Configurations of the fastest backend that are offered for lower accuracy words only, and change something in this graph. As
    a whole they are too inaccurate, but for luck; some regions may bear them."""
    if variant.fastest is None:
        return []
    session = variant.session
    backend = session.backend(variant.fastest[0].backend)
    words = PRECISIONS[PRECISIONS.index(session.options.precision) + 1 :]
    whole = variant.graph.everything
    configs = dict.fromkeys(config for word in words for config in backend.suited_configs(word, session.device, whole))
    configured = [replace(variant.fastest[0], config=config) for config in configs]
    return [implementation for implementation in configured if implementation not in variant.candidates.whole]


def measure_near(variant: TimedVariant, baselines: Mapping[Implementation, float], stop: Stop) -> None:
    """Times this variant on those that did well on the original (`baselines`: their ms), until `stop` says so."""
    near = near_fastest(variant, baselines)
    variant.session.progress.start(f"{variant.name} model on each backend", len(near))
    if near and not stop():
        variant.measure_whole(near, stop)
    variant.session.progress.finish()


def near_fastest(variant: TimedVariant, baselines: Mapping[Implementation, float]) -> list[Implementation]:
    """Those that did well on the original (`baselines`: their ms) and take this variant, the fastest first. Who did well without
    its graph optimisations alone may do so with them here."""
    fastest = min(baselines.values(), default=0.0)
    slow = {backend.name for backend in variant.session.backends if backend.compiles_slowly}
    offered = [*variant.candidates.whole, *variant.candidates.unclaimed]
    offered += [
        baseline
        for baseline in baselines
        if baseline.config.team and replace(baseline, config=baseline.config.of_all) in offered
    ]
    known_times = {
        implementation: ms
        for implementation in offered
        if (ms := _known_ms(variant, implementation, baselines)) is not None
    }
    reach = {
        implementation: fastest * (NEAR if implementation.backend in slow else _WITHIN_REACH)
        for implementation in known_times
    }
    return sorted(
        (implementation for implementation, ms in known_times.items() if ms <= reach[implementation]),
        key=known_times.__getitem__,
    )


def _known_ms(variant: TimedVariant, one: Implementation, baselines: Mapping[Implementation, float]) -> float | None:
    """Its own time on the original; else that without graph optimisations, which is there where those were at fault."""
    if one in baselines:
        return baselines[one]
    config = variant.session.backend(one.backend).unoptimised(one.config)
    return None if config is None else baselines.get(replace(one, config=config))


def _compile_s(variant: TimedVariant, one: Implementation) -> float:
    """What its backend takes until the graph is ready, as far as that is known."""
    recorded_s = variant.session.record.compile_s(one.backend, len(variant.graph))
    return math.inf if recorded_s is None else recorded_s
