"""Random keys over applications of rules (`work.random_keys`; REGAL, ICLR 2020, searches placements and schedules in this way).

Keys say how much each rule is wanted, how much each place, how much the price of the next graph counts against both, and how
much an application must be wanted at least. The decoder applies what is wanted most, step by step; the cheapest graph on its
way counts, and so does what the driver's fixpoint makes of the last. A graph is looked at for what may be applied to it once,
however many individuals pass it. A policy that was trained on other graphs may say from which distributions keys are drawn.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from bricolage.plan.rewrite_steps import RewriteStep
from bricolage.rewrite.rule import Rule
from bricolage.rewrite.search.backtrack import BacktrackResult, FoundGraph, SearchCounts, Stop
from bricolage.rewrite.search.fingerprint import Fingerprint, hash_text
from bricolage.rewrite.search.operator_prices import Pricing
from bricolage.rewrite.search.workspace import Workspace
from bricolage.search.key_policy import KeyFeatures, KeyPolicy
from bricolage.work.random_keys import KeyDistributions, RandomKeyOptions, minimise

PLACES = 61
"""Keys for places, by a number of the names that a step binds."""
_DEPTH = 16
"""Applications of an individual, at most."""
_DEARER = 2.0
"""Times the cost of the first graph, beyond which a graph is left."""


@dataclass(frozen=True, kw_only=True)
class LearnedKeyOptions(RandomKeyOptions):
    """policy: says from which distributions keys are drawn."""

    policy: KeyPolicy


def search_by_random_keys(
    model: ir.Model,
    rules: Sequence[Rule],
    pricing: Pricing,
    *,
    graphs: int = 100,
    seconds: float = 60.0,
    keep: int = 3,
    options: RandomKeyOptions | None = None,
) -> BacktrackResult:
    """Searches from `model`, which is not changed, until `graphs` were looked at for what follows, or all generations are over.
    With `LearnedKeyOptions`, keys are drawn from what their policy makes of the first graph.

    Raises:
        EndlessRewriting: canonicalising rules undo each other.
    """
    decoder = KeyDecoder(model, rules, pricing, graphs=graphs, deadline=time.monotonic() + seconds, keep=keep)
    decoder.decode(decoder.greedy_keys)
    if decoder.has_moves:
        distributions = None
        if isinstance(options, LearnedKeyOptions):
            distributions = options.policy.choose_distributions(decoder.describe_keys())
        decoder.search(options or RandomKeyOptions(), distributions)
    return decoder.result


@dataclass
class _Move:
    """An application with the price of the graph that it leads to, and that graph once it was made."""

    step: RewriteStep
    rule: int
    place: int
    price: float
    to: _Reached | None = None


@dataclass
class _Reached:
    """A graph that was met: its cost, and what may be applied to it once that was asked."""

    home: Workspace
    number: int
    cost: float
    moves: list[_Move] | None = None
    keys: tuple[np.ndarray, np.ndarray, np.ndarray] = field(default_factory=lambda: (np.zeros(0),) * 3)
    """Of the moves, [moves] each: the keys of rules, those of places, and how cheap they are, from 0 to 1."""
    settled_ms: float | None = None


class KeyDecoder:
    """What keys make of a graph. Graphs are kept, so that keys which pass them again cost no time."""

    def __init__(
        self, model: ir.Model, rules: Sequence[Rule], pricing: Pricing, *, graphs: int, deadline: float, keep: int = 1
    ) -> None:
        """From `model`, which is not changed, until `graphs` were looked at for what follows, or `deadline` of the monotonic
        clock; the cheapest `keep` graphs are kept as results.

        Raises:
            EndlessRewriting: canonicalising rules undo each other.
        """
        self._rules, self._pricing, self._graphs, self._deadline, self._keep = rules, pricing, graphs, deadline, keep
        self._known: dict[int, _Reached] = {}
        self._cheapest: list[tuple[float, int, FoundGraph]] = []
        self._counts = SearchCounts()
        self._numbers = {rule.name: number for number, rule in enumerate(rules)}
        self._first = self._register_graph(Workspace(model.clone(), rules, lazy=True))

    @property
    def first_ms(self) -> float:
        """Cost of the graph itself."""
        return self._first.cost

    @property
    def has_moves(self) -> bool:
        """Whether any rule applies."""
        return bool(self._list_moves(self._first))

    @property
    def result(self) -> BacktrackResult:
        """The cheapest graphs so far."""
        best = [candidate for _, _, candidate in sorted(self._cheapest, key=lambda entry: entry[:2])]
        return BacktrackResult(best, self._counts, self._stop or "exhausted")

    @property
    def greedy_keys(self) -> np.ndarray:
        """Keys that apply what gains most, [rules + places + 2]."""
        greedy = np.full(len(self._rules) + PLACES + 2, 0.5)
        greedy[-2:] = 1.0, 0.0
        return greedy

    @property
    def start_keys(self) -> list[np.ndarray]:
        """Keys to begin with: greedy ones, and patient ones, which prefer rules that do not lose."""
        patient = [0.4 if rule.cost_based else 0.6 for rule in self._rules]
        return [self.greedy_keys, np.array([*patient, *[0.5] * PLACES, 0.5, 0.2])]

    def search(self, options: RandomKeyOptions, distributions: KeyDistributions | None = None) -> None:
        """Decodes individuals, generation by generation."""
        minimise(
            self.decode,
            self.start_keys,
            options,
            distributions=distributions,
            stopped=lambda: self._stop is not None,
        )

    def decode(self, keys: np.ndarray) -> float:
        """The cost of the cheapest graph on the way that keys [rules + places + 2] lead, in ms."""
        here, passed, lowest = self._first, set[int](), float("inf")
        for _ in range(_DEPTH):
            lowest = min(lowest, here.cost)
            passed.add(here.number)
            move = self._choose_move(here, keys)
            if move is None:
                break
            if move.to is None:
                home = here.home.copy()
                home.accept(home.find(move.step))
                move.to = self._register_graph(home)
            if move.to.number in passed:
                break
            here = move.to
        return min(lowest, self._compute_settled_cost(here))

    def describe_keys(self) -> KeyFeatures:
        """What is known of each key before anything is applied, from the applications that are possible at first."""
        moves = self._list_moves(self._first)
        gains = np.array([1.0 - move.price / max(self._first.cost, 1e-300) for move in moves])
        count = len(self._rules) + PLACES + 2
        of_moves = [
            np.array([move.rule for move in moves], dtype=int),
            np.array([len(self._rules) + move.place for move in moves], dtype=int),
            np.full(len(moves), count - 2),
            np.full(len(moves), count - 1),
        ]
        return KeyFeatures.of_gains(
            [*(rule.name for rule in self._rules), *[""] * (PLACES + 2)],
            np.array([0] * len(self._rules) + [1] * PLACES + [2, 3]),
            np.array([rule.cost_based for rule in self._rules] + [False] * (PLACES + 2)),
            [(keys, gains) for keys in of_moves],
        )

    @property
    def used_keys(self) -> np.ndarray:
        """Which keys any application that was met so far has, as booleans [rules + places + 2]."""
        used = np.zeros(len(self._rules) + PLACES + 2, bool)
        used[-2:] = True
        for reached in self._known.values():
            for move in reached.moves or ():
                used[move.rule] = used[len(self._rules) + move.place] = True
        return used

    @property
    def _stop(self) -> Stop | None:
        if self._counts.taken >= self._graphs:
            return "graphs"
        return "seconds" if time.monotonic() >= self._deadline else None

    def _register_graph(self, home: Workspace) -> _Reached:
        """The graph of a workspace, known or new."""
        fingerprint = Fingerprint(home.model.graph).number
        reached = self._known.get(fingerprint)
        if reached is not None:
            self._counts.duplicates += 1
            return reached
        self._counts.seen += 1
        cost = self._pricing.total(home.model.graph)
        self._cheapest.append((cost, self._counts.seen, FoundGraph(cost, tuple(home.steps))))
        self._cheapest.sort(key=lambda entry: entry[:2])
        del self._cheapest[self._keep :]
        self._known[fingerprint] = _Reached(home, fingerprint, cost)
        return self._known[fingerprint]

    def _compute_settled_cost(self, here: _Reached) -> float:
        if here.settled_ms is None:
            home = here.home.copy()
            home.canonicalise()
            here.settled_ms = self._register_graph(home).cost
        return here.settled_ms

    def _choose_move(self, here: _Reached, keys: np.ndarray) -> _Move | None:
        """The application that keys want most, unless they want none enough."""
        moves = self._list_moves(here)
        if not moves:
            return None
        weight, least = float(keys[-2]), float(keys[-1])
        of_rule, of_place, cheap = here.keys
        wishes = (1.0 - weight) * 0.5 * (keys[of_rule] + keys[of_place]) + weight * cheap
        chosen = int(np.argmax(wishes))
        if weight >= 1.0 and moves[chosen].price >= here.cost:  # greedy ones stop where nothing gains
            return None
        return moves[chosen] if wishes[chosen] >= least else None

    def _list_moves(self, here: _Reached) -> list[_Move]:
        if here.moves is None:
            if self._stop is not None and self._counts.taken:
                return []
            self._counts.taken += 1
            here.moves = []
            for proposal in here.home.proposals():
                step = proposal.step
                price = here.cost + self._pricing.total(proposal.new) - self._pricing.total(proposal.gone)
                if price < _DEARER * self._first.cost:
                    place = hash_text(" ".join(step.roots)) % PLACES
                    here.moves.append(_Move(step, self._numbers[step.rule], place, price))
                else:
                    self._counts.pruned += 1
                proposal.discard()
            prices = np.array([move.price for move in here.moves])
            span = max(float(np.ptp(prices)), 1e-300) if len(prices) else 1.0
            here.keys = (
                np.array([move.rule for move in here.moves], dtype=int),
                np.array([len(self._rules) + move.place for move in here.moves], dtype=int),
                (prices.max(initial=0.0) - prices) / span,
            )
        return here.moves
