"""Equality saturation: applies rules to an e-graph until nothing is new or a limit is reached.

A round matches all rules on one state, then applies what matched, then rebuilds. Rules of several patterns run in the first
rounds only, because each adds classes quadratically (Tensat, arXiv 2101.01332, section 4.1). A rule with too many matches is
banned for some rounds, each time longer (egg's back-off scheduler).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeAlias, TypeVar

from bricolage.egraph.egraph import EGraph
from bricolage.egraph.tree_pattern import Apply, EGraphMatch, OperatorIndex, Term, add_term, bound_names
from bricolage.errors import BadRule

Data = TypeVar("Data")
Stop: TypeAlias = Literal["saturated", "rounds", "nodes", "seconds", "applications"]


@dataclass(frozen=True)
class EGraphRule(Generic[Data]):
    """Patterns that share variables, and the term that each is equal to.

    `left` may be a function instead, which finds the matches itself; `joins` says whether it joins several patterns. `right` may
    be a function: it adds what it likes and returns one class for each root of the match, or None to decline.
    Only matches that `condition` accepts are applied. Raises BadRule when the sides do not fit together.
    """

    name: str
    left: tuple[Apply, ...] | Callable[[EGraph[Data]], Iterable[EGraphMatch]]
    right: tuple[Term, ...] | Callable[[EGraph[Data], EGraphMatch], Sequence[int] | None]
    condition: Callable[[EGraph[Data], EGraphMatch], bool] | None = None
    joins: bool = False

    @property
    def several(self) -> bool:
        """Whether a match joins several patterns."""
        return len(self.left) > 1 if isinstance(self.left, tuple) else self.joins

    def __post_init__(self) -> None:
        if not self.left:
            raise BadRule(name=self.name, reason="it has no pattern")
        if isinstance(self.right, tuple) and isinstance(self.left, tuple):
            if len(self.left) != len(self.right):
                raise BadRule(name=self.name, reason=f"{len(self.left)} patterns, {len(self.right)} terms")
            left_names = set[str]().union(*(bound_names(term) for term in self.left))
            unknown = sorted(set[str]().union(*(bound_names(term) for term in self.right)) - left_names)
            if unknown:
                raise BadRule(name=self.name, reason=f"{', '.join(unknown)} is not bound on the left")


@dataclass(frozen=True)
class SaturationLimits:
    """When to stop, and how rules are held back.

    Rules of several patterns run in the first `multi_rounds` rounds. A rule with more than `matches` matches in a round
    is banned for `ban_rounds`; both double each time.
    """

    rounds: int = 30
    nodes: int = 10_000
    seconds: float = 5.0
    applications: int | None = None
    multi_rounds: int = 1
    matches: int = 1_000
    ban_rounds: int = 5


@dataclass(frozen=True)
class Round:
    """What one round did.

    `applied` counts, by rule, the applications that changed the e-graph; `banned` rules were held back in this round; sizes are
    those afterwards.
    """

    applied: dict[str, int]
    banned: tuple[str, ...]
    nodes: int
    classes: int


@dataclass(frozen=True)
class Saturation:
    """Why it stopped, and all rounds. It is saturated when no rule finds anything new; a rule that finds its matches itself may
    have looked only so far."""

    stop: Stop
    rounds: tuple[Round, ...]
    seconds: float

    @property
    def applied(self) -> dict[str, int]:
        """Applications that changed the e-graph, by rule."""
        total: dict[str, int] = {}
        for each in self.rounds:
            for name, count in each.applied.items():
                total[name] = total.get(name, 0) + count
        return total


def saturate(
    egraph: EGraph[Data], rules: Sequence[EGraphRule[Data]], limits: SaturationLimits | None = None
) -> Saturation:
    """Applies `rules` to `egraph`, which is rebuilt afterwards whatever the reason to stop."""
    runner = _Saturator(egraph, rules, limits or SaturationLimits())
    return runner.run()


@dataclass
class _RuleSchedule:
    """A rule's record with the scheduler."""

    times_banned: int = 0
    banned_until: int = 0


@dataclass
class _Saturator(Generic[Data]):
    egraph: EGraph[Data]
    rules: Sequence[EGraphRule[Data]]
    limits: SaturationLimits
    started: float = field(default_factory=time.monotonic)
    standing: list[_RuleSchedule] = field(default_factory=list)
    applications: int = 0

    def run(self) -> Saturation:
        self.standing = [_RuleSchedule() for _ in self.rules]
        self.egraph.rebuild()
        rounds: list[Round] = []
        stop = self._find_exhausted_limit()
        while stop is None:
            if len(rounds) >= self.limits.rounds:
                stop = "rounds"
                break
            before = self._state()
            done, stop = self._round(len(rounds))
            rounds.append(done)
            if stop is None and before == self._state() and not done.banned:
                stop = "saturated"
        return Saturation(stop, tuple(rounds), time.monotonic() - self.started)

    def _state(self) -> tuple[int, int]:
        return self.egraph.merges, self.egraph.node_count

    def _list_banned_rules(self, number: int) -> tuple[str, ...]:
        pairs = zip(self.rules, self.standing, strict=True)
        return tuple(rule.name for rule, standing in pairs if standing.banned_until > number)

    def _find_exhausted_limit(self) -> Stop | None:
        limits = self.limits
        if limits.applications is not None and self.applications >= limits.applications:
            return "applications"
        if self.egraph.node_count >= limits.nodes:
            return "nodes"
        if time.monotonic() - self.started >= limits.seconds:
            return "seconds"
        return None

    def _round(self, number: int) -> tuple[Round, Stop | None]:
        egraph = self.egraph
        matches = self._matches(number)
        applied: dict[str, int] = {}
        stop = self._find_exhausted_limit()
        for rule, match in matches:
            if stop is not None:
                break
            if self._apply(rule, match):
                applied[rule.name] = applied.get(rule.name, 0) + 1
                self.applications += 1
            stop = self._find_exhausted_limit()
        egraph.rebuild()
        return Round(applied, self._list_banned_rules(number), egraph.node_count, egraph.class_count), stop

    def _matches(self, number: int) -> list[tuple[EGraphRule[Data], EGraphMatch]]:
        index = OperatorIndex(self.egraph)
        round_matches: list[tuple[EGraphRule[Data], EGraphMatch]] = []
        for rule, standing in zip(self.rules, self.standing, strict=True):
            if standing.banned_until > number or (rule.several and number >= self.limits.multi_rounds):
                continue
            if time.monotonic() - self.started >= self.limits.seconds:
                return round_matches
            most = self.limits.matches << standing.times_banned
            matches: list[tuple[EGraphRule[Data], EGraphMatch]] = []
            for match in index.matches(rule.left) if isinstance(rule.left, tuple) else rule.left(self.egraph):
                if time.monotonic() - self.started >= self.limits.seconds:
                    return round_matches
                matches.append((rule, match))
                if len(matches) > most:
                    standing.banned_until = number + 1 + (self.limits.ban_rounds << standing.times_banned)
                    standing.times_banned += 1
                    break
            else:
                round_matches += matches
        return round_matches

    def _apply(self, rule: EGraphRule[Data], match: EGraphMatch) -> bool:
        """Whether the e-graph changed."""
        egraph = self.egraph
        if rule.condition is not None and not rule.condition(egraph, match):
            return False
        before = self._state()
        if isinstance(rule.right, tuple):
            results: Sequence[int] | None = [add_term(egraph, term, match.bindings) for term in rule.right]
        else:
            results = rule.right(egraph, match)
        if results is None:
            return False
        for root, result in zip(match.roots, results, strict=True):
            egraph.merge(root, result)
        return before != self._state()
