"""Stages that make variants of the graph: by the rules, by tuning them for a backend, by search."""

from __future__ import annotations

import logging
from collections import Counter
from typing import ClassVar

from bricolage.base.deadline import Deadline
from bricolage.costs.models.calibrated import calibrate
from bricolage.driver.pricing import work_shares
from bricolage.driver.promising_variants import measured_samples, whole_challengers, write_variant_files
from bricolage.driver.stage import Stage
from bricolage.driver.state import DecisionState
from bricolage.driver.timed_variant import TimedVariant
from bricolage.driver.whole_models import measure_near
from bricolage.errors import EndlessRewriting
from bricolage.graph.identity import operator_key
from bricolage.graph.work import operator_work
from bricolage.plan.rewrite_steps import RewriteConfig
from bricolage.rewrite.catalogue import choose_rules
from bricolage.rewrite.search.search_options import SearchOptions
from bricolage.rewrite.variants import (
    REWRITTEN,
    GraphVariant,
    rewritten_variants,
    searched_variants,
    tailored_variant,
)
from bricolage.tune.rewrites import RewriteTuner

_LOG = logging.getLogger(__name__)


def _add(state: DecisionState, variant: GraphVariant, deadline: Deadline) -> TimedVariant:
    """Writes a new variant and times it as a whole."""
    timed_variant = write_variant(state, variant)
    measure_near(timed_variant, state.original.times, deadline)
    return timed_variant


def write_variant(state: DecisionState, variant: GraphVariant) -> TimedVariant:
    """Writes a variant's files and enters it into the state; nothing of it is measured."""
    write_variant_files(variant, state.session.store)
    timed_variant = state.original.open_variant(variant)
    state.variants.append(variant)
    state.timed_variants[variant.name] = timed_variant
    return timed_variant


def make_rewritten(state: DecisionState) -> None:
    """Makes the graph that all canonicalising rules make of the original, where they change anything and it is not there."""
    if all(variant.name != REWRITTEN for variant in state.variants) and state.session.options.rewrite:
        for variant in rewritten_variants(state.oracle.graph):
            write_variant(state, variant)


def compute_changed_share(state: DecisionState) -> float:
    """Share of the original's work, as `pricing.work_shares` weighs it, in operators that other whole variants do not have: the
    largest of any; 0 where there is no other."""
    shares, largest = work_shares(state.original), 0.0
    for variant in state.timed_variants.values():
        if variant is state.original or variant.graph_variant.quantised:
            continue
        kept = Counter(operator_key(operator) for operator in variant.graph.operators)
        changed = 0.0
        for operator, share in zip(state.original.graph.operators, shares, strict=True):
            key = operator_key(operator)
            changed += share if kept[key] == 0 else 0.0
            kept[key] -= kept[key] > 0
        largest = max(largest, changed)
    return largest


class RewrittenVariants(Stage[DecisionState]):
    """The graph with all canonicalising rules applied, timed where the original did well."""

    name: ClassVar[str] = "rewritten variants"
    reads: ClassVar[frozenset[str]] = frozenset({"timed_variants"})
    adds: ClassVar[frozenset[str]] = frozenset({"timed_variants", "challengers"})

    def run(self, state: DecisionState, deadline: Deadline) -> None:
        """Makes it where none is there, measures it, and enters the fastest for the race."""
        if not deadline():
            make_rewritten(state)
        for variant in state.timed_variants.values():
            if variant is not state.original and not variant.graph_variant.quantised:
                measure_near(variant, state.original.times, deadline)
                state.challenge(*whole_challengers([variant]))


class RewriteTuning(Stage[DecisionState]):
    """The variant that the fastest backend so far runs fastest, by racing variants; none where none is better than
    the known ones."""

    name: ClassVar[str] = "rewrite tuning"
    reads: ClassVar[frozenset[str]] = frozenset({"timed_variants"})
    adds: ClassVar[frozenset[str]] = frozenset({"timed_variants", "challengers"})

    def run(self, state: DecisionState, deadline: Deadline) -> None:
        """Searches, and adds what it finds."""
        fastest = [pair for variant in state.timed_variants.values() if (pair := variant.fastest) is not None]
        if deadline() or not fastest:
            return
        implementation, _ = min(fastest, key=lambda pair: pair[1])
        session, oracle = state.session, state.oracle
        tuner = RewriteTuner(
            oracle.graph.model,
            {},
            rules=choose_rules(stable=True, generated=False),
            oracle=oracle,
            backend=session.backend(implementation.backend),
            options=session.options,
            budget=session.budget,
            measurer=session.measurer,
            progress=session.progress,
            device=session.device,
            config=implementation.config,
            prefix="tuning",
        )
        try:
            recipe = tuner.search(deadline)
        except EndlessRewriting as error:
            _LOG.warning("no variant is tuned: %s", error)
            return
        finally:
            tuner.clear()
        if recipe != RewriteConfig():
            state.challenge(*whole_challengers([_add(state, tailored_variant(oracle.graph, recipe), deadline)]))


class RewriteSearch(Stage[DecisionState]):
    """Graphs that are cheaper by what was measured of the operators, timed as wholes; the promising ones are placed
    like the others."""

    name: ClassVar[str] = "rewrite search"
    reads: ClassVar[frozenset[str]] = frozenset({"timed_variants"})
    adds: ClassVar[frozenset[str]] = frozenset({"timed_variants", "challengers", "calibration_error"})

    def run(self, state: DecisionState, deadline: Deadline) -> None:
        """Learns costs, searches, and adds what it finds."""
        if not self._applies(state) or deadline():
            return
        calibrated = calibrate(
            [sample for timed_variant in state.timed_variants.values() for sample in measured_samples(timed_variant)],
            state.session.device.peaks,
        )
        operators = [operator_work(operator) for operator in state.oracle.graph.operators]
        state.calibration_error = calibrated.error
        costs = calibrated.with_operators(measured_operators(state), operators)
        session = state.session
        seconds = min(state.budget.part_s("rewrite_search"), deadline.left)
        if seconds <= 0.0:  # calibrating took what was left
            return
        profile = session.profile
        session.progress.start("search for rewrites", len(profile.search_methods))
        left = profile.searched
        for method in profile.search_methods:
            equal = [variant for variant in state.variants if not variant.quantised]
            part = seconds / len(profile.search_methods)
            limits = SearchOptions(method=method, seconds=part, keep=max(left, 1), retrace=True)
            variants = searched_variants(
                state.oracle.graph,
                costs,
                session.setting,
                limits,
                equal,
                generated=profile.generated_rules,
            )[:left]
            left -= len(variants)
            session.progress.advance()
            state.challenge(*whole_challengers([_add(state, variant, deadline) for variant in variants]))
            if left <= 0 or deadline():
                break
        session.progress.finish()

    @staticmethod
    def _applies(state: DecisionState) -> bool:
        return state.session.options.rewrite and state.mixing


def measured_operators(state: DecisionState) -> dict[str, float]:
    """Measured times of single operators in ms, by key: of the fastest implementation, over all variants."""
    times: dict[str, float] = {}
    for variant in state.timed_variants.values():
        for group in variant.candidates.groups:
            if group.regions[0].bit_count() != 1:
                continue
            ms = variant.regions.fastest_ms(group.key, group.implementations)
            if ms is not None:
                key = operator_key(variant.graph.operators[group.regions[0].bit_length() - 1])
                times[key] = min(ms, times.get(key, ms))
    return times
