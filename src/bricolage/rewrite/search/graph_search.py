"""`search`: one interface for all ways to look for the cheapest of many equal graphs."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from bricolage.costs.models.roofline import NOMINAL
from bricolage.graph.graph import Graph
from bricolage.graph.prepare import simplify
from bricolage.plan.rewrite_steps import RewriteStep
from bricolage.rewrite.engine.apply import Application
from bricolage.rewrite.engine.index import rule_index
from bricolage.rewrite.rule import MatchFailure, Rule
from bricolage.rewrite.search.backtrack import FoundGraph, SearchCounts, backtrack
from bricolage.rewrite.search.fingerprint import Fingerprint
from bricolage.rewrite.search.genetic_rewrites import LearnedKeyOptions, search_by_random_keys
from bricolage.rewrite.search.operator_prices import Pricing
from bricolage.rewrite.search.partition import IsomorphicRegions, WholeModel, partition
from bricolage.rewrite.search.saturation.part import SaturatedPart, saturate_part
from bricolage.rewrite.search.saturation.splice import splice
from bricolage.rewrite.search.search_options import SearchOptions
from bricolage.rewrite.search.workspace import Workspace
from bricolage.search.key_policy import load_policy
from bricolage.work.cost import CostModel, Setting
from bricolage.work.random_keys import RandomKeyOptions

_ROUNDING = 1e-9
"""Of a sum of costs; less is no improvement."""
_PATIENT = 1.5
"""How much dearer than the best a graph may be on the way to one that is known to exist."""
_LEAST_SECONDS = 0.1
"""For an extraction, when time is up: what was saturated is not thrown away."""


@dataclass(frozen=True)
class GraphCandidate:
    """A graph equal to the one that was searched from, its predicted cost in ms, and how it came about."""

    model: ir.Model = field(repr=False)
    cost: float
    applications: tuple[Application, ...]
    steps: tuple[RewriteStep, ...] = field(default=(), repr=False)
    found_s: float = field(default=0.0, compare=False)
    """Seconds of the search after which it was met."""


@dataclass(frozen=True)
class GraphSearchStatistics:
    """What a search did.

    `counts` are over all parts that were searched; `parts` were cut, `distinct` of them searched, in all passes together;
    `stopped` says how many of these ended for which reason.
    """

    counts: SearchCounts
    parts: int
    distinct: int
    stopped: dict[str, int]
    seconds: float
    lower_bound: float | None = None
    """After saturation: no graph that the e-graphs of the last pass hold costs less, in ms."""


@dataclass(frozen=True)
class SearchResult:
    """`candidates` are distinct and cheapest first; the graph as it was given, which costs `before`, may be one."""

    candidates: tuple[GraphCandidate, ...]
    before: float
    statistics: GraphSearchStatistics

    @property
    def best(self) -> GraphCandidate:
        """The cheapest graph."""
        return self.candidates[0]


def search_graphs(
    model: ir.Model,
    rules: Sequence[Rule],
    costs: CostModel,
    options: SearchOptions | None = None,
    *,
    on: Setting = NOMINAL,
    sizes: Mapping[str, int] | None = None,
) -> SearchResult:
    """The cheapest graphs that rules lead to from `model`, which is simplified (see `bricolage.graph.prepare`) and not changed.

    Args:
        model: where the search begins.
        rules: that may be applied.
        costs: of operators, each by itself.
        options: limits of the search.
        on: where the operators run; by default no machine in particular.
        sizes: of symbolic dimensions.

    Raises:
        EndlessRewriting: canonicalising rules undo each other.
    """
    return _GraphSearch(
        model, rules, Pricing(costs, on, model.graph.opset_imports, sizes or {}), options or SearchOptions()
    ).run()


class _GraphSearch:
    def __init__(self, model: ir.Model, rules: Sequence[Rule], pricing: Pricing, options: SearchOptions) -> None:
        self._model, self._rules, self._pricing, self._options = model, rules, pricing, options
        self._started = time.monotonic()
        self._counts = SearchCounts()
        self._parts = self._distinct = 0
        self._stopped: dict[str, int] = {}
        self._candidates: dict[int, GraphCandidate] = {}
        self._index = rule_index(tuple(rules), model.graph.opset_imports.get("", 0))
        self._bound: float | None = None
        self._policy = None
        if self._options.method == "learned-keys":
            self._policy = self._options.policy or load_policy()

    def run(self) -> SearchResult:
        start = Workspace(self._model.clone(), self._rules, lazy=False)
        before = self._offer(start)
        settled = start.copy()
        settled.canonicalise()
        lowest = self._offer(settled)
        current = start
        for number in range(self._options.passes):
            last = number + 1 == self._options.passes
            workspace, cost = self._pass(current, shifted=bool(number % 2), keep=self._options.keep if last else 1)
            if cost < lowest:
                current, lowest = workspace, cost
            elif current is start and not last:
                current = settled
            if self._seconds_left <= 0.0:
                break
        if self._options.method == "saturate" and self._options.retrace:
            self._retrace()
        best = sorted(self._candidates.values(), key=lambda candidate: candidate.cost)
        return SearchResult(
            tuple(self._finish_candidate(candidate) for candidate in best[: self._options.keep]),
            before,
            GraphSearchStatistics(
                self._counts, self._parts, self._distinct, self._stopped, time.monotonic() - self._started, self._bound
            ),
        )

    def _retrace(self) -> None:
        """Looks for the steps to what saturation found: by backtracking with the rules that it rests on and no others, which see
        far more of the graphs that these lead to. Where that finds the same graph or one as cheap, it takes its place."""
        best = min(self._candidates.values(), key=lambda candidate: candidate.cost)
        if len(best.steps) == len(best.applications):
            return
        names = {application.rule for application in best.applications}
        few = [rule for rule in self._rules if rule.name in names]
        options = replace(
            self._options, method="backtrack", alpha=_PATIENT, passes=1, seconds=max(self._seconds_left, _LEAST_SECONDS)
        )
        other = _GraphSearch(self._model, few, self._pricing, options)
        other.run()
        self._counts.add(other._counts)
        for number, retraced in other._candidates.items():
            previous = self._candidates.get(number)
            if previous is None or len(previous.steps) < len(previous.applications):
                self._candidates[number] = replace(retraced, found_s=other._started - self._started + retraced.found_s)

    @property
    def _seconds_left(self) -> float:
        return self._started + self._options.seconds - time.monotonic()

    def _pass(self, current: Workspace, *, shifted: bool, keep: int) -> tuple[Workspace, float]:
        """Searches each part of the current graph; the cheapest graph that comes of it, and its cost."""
        cut = partition(Graph(current.model.clone()), largest=self._options.part, shifted=shifted)
        self._parts += sum(len(part.regions) for part in cut)
        self._distinct += len(cut)
        if self._options.method == "saturate":
            return self._saturate(current, cut)
        part_graphs: list[list[FoundGraph]] = []
        for number, part in enumerate(cut):
            part_graphs.append(self._searched(part, self._seconds_left / (len(cut) - number)))
        costs = [
            [len(part.regions) * candidate.cost for candidate in candidates]
            for part, candidates in zip(cut, part_graphs, strict=True)
        ]
        best, lowest = current, math.inf
        for choice in combinations(costs, keep):
            whole = WholeModel(self._model, self._rules, current.steps)
            for part, candidates, chosen in zip(cut, part_graphs, choice, strict=True):
                whole.carry(part, candidates[chosen].steps)
            whole.workspace.canonicalise()
            cost = self._offer(whole.workspace)
            if cost < lowest:
                best, lowest = whole.workspace, cost
        return best, lowest

    def _saturate(self, current: Workspace, cut: Sequence[IsomorphicRegions]) -> tuple[Workspace, float]:
        """Saturates each part; the graph with what was extracted, and its cost."""
        whole, bound = current.copy(), self._pricing.total(current.model.graph)
        waiting = list(cut)
        while waiting:
            part = waiting.pop(0)
            done = self._saturated(part, self._seconds_left / (1 + len(waiting)))
            if done.by_values:  # the others have other weights
                alone = [IsomorphicRegions((r,), (n,)) for r, n in zip(part.regions[1:], part.names[1:], strict=True)]
                waiting = [*alone, *waiting]
                self._distinct += len(alone)
            copies = 1 if done.by_values else len(part.regions)
            bound -= copies * (done.before - done.extraction.lower_bound)
            if done.extraction.cost >= done.before * (1.0 - _ROUNDING):
                continue
            outputs = [value.name or "" for value in part.regions[0].outputs]
            for number in range(copies):
                with suppress(MatchFailure):  # a copy whose constants overflow stays as it is
                    splice(whole, done, part.correspondence(number), outputs)
        self._bound = bound
        whole.canonicalise()
        return whole, self._offer(whole)

    def _saturated(self, part: IsomorphicRegions, seconds: float) -> SaturatedPart:
        options = self._options
        limits = replace(options.saturation, seconds=max(min(options.saturation.seconds, seconds), 0.0))
        extraction = replace(options.extraction, seconds=max(min(options.extraction.seconds, seconds), _LEAST_SECONDS))
        done = saturate_part(part.model(), self._index, self._pricing, limits, extraction)
        self._counts.nodes += done.saturation.rounds[-1].nodes if done.saturation.rounds else 0
        self._counts.classes += done.saturation.rounds[-1].classes if done.saturation.rounds else 0
        self._stopped[done.saturation.stop] = self._stopped.get(done.saturation.stop, 0) + 1
        return done

    def _searched(self, part: IsomorphicRegions, seconds: float) -> list[FoundGraph]:
        options, model = self._options, part.model()
        if options.method in ("random-keys", "learned-keys"):
            chance = RandomKeyOptions(seed=options.seed)
            if self._policy is not None:
                chance = LearnedKeyOptions(seed=options.seed, policy=self._policy)
            outcome = search_by_random_keys(
                model,
                self._rules,
                self._pricing,
                graphs=options.graphs,
                seconds=seconds,
                keep=options.keep,
                options=chance,
            )
        else:
            outcome = backtrack(
                model,
                self._rules,
                self._pricing,
                alpha=options.alpha,
                graphs=options.graphs,
                seconds=seconds,
                keep=options.keep,
            )
        self._counts.add(outcome.counts)
        self._stopped[outcome.stop] = self._stopped.get(outcome.stop, 0) + 1
        return outcome.best

    def _offer(self, workspace: Workspace) -> float:
        """Puts a graph among the candidates; its cost."""
        cost = self._pricing.total(workspace.model.graph)
        number = Fingerprint(workspace.model.graph).number
        if number not in self._candidates:
            self._candidates[number] = GraphCandidate(
                workspace.model.clone(),
                cost,
                tuple(workspace.applications),
                tuple(workspace.steps),
                time.monotonic() - self._started,
            )
        return cost

    def _finish_candidate(self, candidate: GraphCandidate) -> GraphCandidate:
        simplify(candidate.model)
        return candidate


def replay(model: ir.Model, rules: Sequence[Rule], steps: Sequence[RewriteStep]) -> ir.Model:
    """The graph after the first steps of a candidate: `model` is the one that was searched from, and is not changed."""
    workspace = Workspace(model.clone(), rules, lazy=False)
    workspace.repeat(steps)
    simplify(workspace.model)
    return workspace.model


def combinations(costs: Sequence[Sequence[float]], count: int) -> Iterator[tuple[int, ...]]:
    """The `count` cheapest ways to choose one position from each list, cheapest first. Each list is sorted and not empty."""
    first = (0,) * len(costs)
    queue = [(math.fsum(cost[0] for cost in costs), first)]
    seen = {first}
    while queue and count > 0:
        total, choice = heapq.heappop(queue)
        yield choice
        count -= 1
        for place, chosen in enumerate(choice):
            if chosen + 1 == len(costs[place]):
                continue
            following = (*choice[:place], chosen + 1, *choice[place + 1 :])
            if following not in seen:
                seen.add(following)
                part_costs = costs[place]
                heapq.heappush(queue, (total - part_costs[chosen] + part_costs[chosen + 1], following))
