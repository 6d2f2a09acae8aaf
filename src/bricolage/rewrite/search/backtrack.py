"""Backtracking search over rewrites (TASO, SOSP 2019, algorithm 2; relaxed substitutions of MetaFlow, SysML 2019).

The cheapest graph met so far is taken from a queue, and every rule is applied to it wherever it matches, profitable or not. What
costs less than α times the best graph is queued. From each graph taken the driver's fixpoint is one more successor, so that a step
that only pays after others needs no luck.

A successor is priced and fingerprinted without being made: what it would remove and add gives the difference of the costs, and
only what lies behind it is hashed again. It becomes a graph when it is taken from the queue, by repeating the step on a copy.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import onnx_ir as ir

from bricolage.plan.rewrite_steps import RewriteStep
from bricolage.rewrite.rule import Rule
from bricolage.rewrite.search.fingerprint import Fingerprint
from bricolage.rewrite.search.operator_prices import Pricing
from bricolage.rewrite.search.workspace import Workspace

Stop = Literal["exhausted", "graphs", "seconds"]
_GROWTH = 2  # times the operators of the first graph, beyond which a graph is left (as TASO's code does)


@dataclass
class SearchCounts:
    """What a search did.

    `seen` graphs were met, each once; `duplicates` were met again; `pruned` were too dear or too large; `taken` were looked at
    for successors. Of saturation: nodes and classes of the e-graphs.
    """

    seen: int = 0
    duplicates: int = 0
    pruned: int = 0
    taken: int = 0
    nodes: int = 0
    classes: int = 0

    def add(self, other: SearchCounts) -> None:
        """Adds the counts of another search to these, in place."""
        self.seen += other.seen
        self.duplicates += other.duplicates
        self.pruned += other.pruned
        self.taken += other.taken


@dataclass(frozen=True)
class FoundGraph:
    """A graph that the search made: its cost in ms, and the steps that lead to it from the first."""

    cost: float
    steps: tuple[RewriteStep, ...]


@dataclass
class BacktrackResult:
    """The cheapest graphs, cheapest first and among equals the first met; why it stopped."""

    best: list[FoundGraph]
    counts: SearchCounts
    stop: Stop


@dataclass(order=True)
class _QueuedGraph:
    cost: float
    order: int
    home: Workspace = field(compare=False)
    """The graph itself, or the one that `step` leads from."""
    step: RewriteStep | None = field(compare=False)


def backtrack(
    model: ir.Model,
    rules: Sequence[Rule],
    pricing: Pricing,
    *,
    alpha: float = 1.05,
    graphs: int = 100,
    seconds: float = 60.0,
    keep: int = 3,
) -> BacktrackResult:
    """Searches from `model`, which is not changed, until `graphs` were taken from the queue. See `bricolage.rewrite.search`.

    Raises:
        EndlessRewriting: canonicalising rules undo each other.
    """
    return _Backtracker(rules, pricing, alpha, graphs, time.monotonic() + seconds, keep).run(model)


@dataclass
class _Backtracker:
    rules: Sequence[Rule]
    pricing: Pricing
    alpha: float
    graphs: int
    deadline: float
    keep: int
    queue: list[_QueuedGraph] = field(default_factory=list)
    known: set[int] = field(default_factory=set)
    found: list[tuple[float, int, FoundGraph]] = field(default_factory=list)
    counts: SearchCounts = field(default_factory=SearchCounts)
    best: float = float("inf")
    order: int = 0

    def run(self, model: ir.Model) -> BacktrackResult:
        start = Workspace(model.clone(), self.rules, lazy=True)
        self.largest = _GROWTH * len(start.model.graph)
        first = self.pricing.total(start.model.graph)
        self.known.add(Fingerprint(start.model.graph).number)
        self.counts.seen += 1
        self._push(first, start, None)
        stop: Stop = "exhausted"
        while self.queue:
            entry = heapq.heappop(self.queue)
            if entry.cost >= self.alpha * self.best and self.counts.taken:
                break  # so are all that follow
            if self.counts.taken >= self.graphs:
                stop = "graphs"
                break
            if self.counts.taken and time.monotonic() >= self.deadline:
                stop = "seconds"
                break
            self._take(entry)
        return BacktrackResult([candidate for _, _, candidate in sorted(self.found)], self.counts, stop)

    def _push(self, cost: float, home: Workspace, step: RewriteStep | None) -> None:
        self.order += 1
        self.best = min(self.best, cost)
        heapq.heappush(self.queue, _QueuedGraph(cost, self.order, home, step))

    def _take(self, entry: _QueuedGraph) -> None:
        home = entry.home
        if entry.step is not None:
            home = home.copy()
            home.accept(home.find(entry.step))
        self.counts.taken += 1
        cost = self.pricing.total(home.model.graph)  # exactly; the sum of differences has rounding in it
        self._keep(cost, home)
        fingerprint = Fingerprint(home.model.graph)
        size, settled = len(home.model.graph), True
        for proposal in home.proposals():
            step = proposal.step
            price = cost + self.pricing.total(proposal.new) - self.pricing.total(proposal.gone)
            settled = settled and not proposal.is_profitable(home.index.opset)
            if price >= self.alpha * self.best or size + len(proposal.new) - len(proposal.gone) > self.largest:
                self.counts.pruned += 1
            elif self._is_new(fingerprint.after(proposal)):
                self._push(price, home, step)
            proposal.discard()
        if not settled:
            self._canonicalise(home)

    def _canonicalise(self, home: Workspace) -> None:
        settled = home.copy()
        settled.canonicalise()
        cost = self.pricing.total(settled.model.graph)
        if cost < self.alpha * self.best and self._is_new(Fingerprint(settled.model.graph).number):
            self._push(cost, settled, None)

    def _is_new(self, number: int) -> bool:
        if number in self.known:
            self.counts.duplicates += 1
            return False
        self.known.add(number)
        self.counts.seen += 1
        return True

    def _keep(self, cost: float, home: Workspace) -> None:
        self.found.append((cost, self.counts.taken, FoundGraph(cost, tuple(home.steps))))
        self.found.sort(key=lambda entry: entry[:2])
        del self.found[self.keep :]
