"""Random keys over applications of rules (`work.random_keys`; REGAL, ICLR 2020, searches placements and schedules in this way).

Keys say how much each rule is wanted, how much each place, how much the price of the next graph counts against both, and how
much an application must be wanted at least. The decoder applies what is wanted most, step by step; the cheapest graph on its
way counts, and so does what the driver's fixpoint makes of the last. A graph is looked at for what may be applied to it once,
however many individuals pass it.
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
from bricolage.work.random_keys import RandomKeyOptions, minimise

_PLACES = 61
"""Keys for places, by a number of the names that a step binds."""
_DEPTH = 16
"""Applications of an individual, at most."""
_DEARER = 2.0
"""Times the cost of the first graph, beyond which a graph is left."""


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

    Raises:
        EndlessRewriting: canonicalising rules undo each other.
    """
    return _KeySearch(rules, pricing, graphs, time.monotonic() + seconds, keep).run(
        model, options or RandomKeyOptions()
    )


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
    settled_ms: float | None = None


@dataclass
class _KeySearch:
    rules: Sequence[Rule]
    pricing: Pricing
    graphs: int
    deadline: float
    keep: int
    known: dict[int, _Reached] = field(default_factory=dict)
    found: list[tuple[float, int, FoundGraph]] = field(default_factory=list)
    counts: SearchCounts = field(default_factory=SearchCounts)

    def run(self, model: ir.Model, options: RandomKeyOptions) -> BacktrackResult:
        self.places = {rule.name: place for place, rule in enumerate(self.rules)}
        self.first = self._register_graph(Workspace(model.clone(), self.rules, lazy=True))
        greedy = np.full(len(self.rules) + _PLACES + 2, 0.5)
        greedy[-2:] = 1.0, 0.0
        patient = np.array([0.4 if rule.cost_based else 0.6 for rule in self.rules] + [0.5] * _PLACES + [0.5, 0.2])
        self._decode_keys(greedy)
        if self.first.moves:
            minimise(self._decode_keys, [greedy, patient], options, stopped=lambda: self._stop is not None)
        return BacktrackResult(
            [candidate for _, _, candidate in sorted(self.found, key=lambda entry: entry[:2])],
            self.counts,
            self._stop or "exhausted",
        )

    @property
    def _stop(self) -> Stop | None:
        if self.counts.taken >= self.graphs:
            return "graphs"
        return "seconds" if time.monotonic() >= self.deadline else None

    def _register_graph(self, home: Workspace) -> _Reached:
        """The graph of a workspace, known or new."""
        fingerprint = Fingerprint(home.model.graph).number
        reached = self.known.get(fingerprint)
        if reached is not None:
            self.counts.duplicates += 1
            return reached
        self.counts.seen += 1
        cost = self.pricing.total(home.model.graph)
        self.found.append((cost, self.counts.seen, FoundGraph(cost, tuple(home.steps))))
        self.found.sort(key=lambda entry: entry[:2])
        del self.found[self.keep :]
        self.known[fingerprint] = _Reached(home, fingerprint, cost)
        return self.known[fingerprint]

    def _decode_keys(self, keys: np.ndarray) -> float:
        """The cost of the cheapest graph on the way that keys lead, in ms."""
        here, passed, lowest = self.first, set[int](), float("inf")
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

    def _compute_settled_cost(self, here: _Reached) -> float:
        if here.settled_ms is None:
            home = here.home.copy()
            home.canonicalise()
            here.settled_ms = self._register_graph(home).cost
        return here.settled_ms

    def _choose_move(self, here: _Reached, keys: np.ndarray) -> _Move | None:
        """The application that keys want most, unless they want none enough."""
        moves = self._moves(here)
        if not moves:
            return None
        lowest, highest = min(move.price for move in moves), max(move.price for move in moves)
        weight, least = float(keys[-2]), float(keys[-1])

        def wish(one: _Move) -> float:
            wanted = 0.5 * float(keys[one.rule] + keys[len(self.rules) + one.place])
            cheap = (highest - one.price) / max(highest - lowest, 1e-300)
            return (1.0 - weight) * wanted + weight * cheap

        best = max(moves, key=wish)
        if weight >= 1.0 and best.price >= here.cost:  # greedy ones stop where nothing gains
            return None
        return best if wish(best) >= least else None

    def _moves(self, here: _Reached) -> list[_Move]:
        if here.moves is None:
            if self._stop is not None and self.counts.taken:
                return []
            self.counts.taken += 1
            here.moves = []
            for proposal in here.home.proposals():
                step = proposal.step
                price = here.cost + self.pricing.total(proposal.new) - self.pricing.total(proposal.gone)
                if price < _DEARER * self.first.cost:
                    place = hash_text(" ".join(step.roots)) % _PLACES
                    here.moves.append(_Move(step, self.places[step.rule], place, price))
                else:
                    self.counts.pruned += 1
                proposal.discard()
        return here.moves
