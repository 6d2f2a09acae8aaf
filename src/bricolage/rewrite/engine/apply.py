"""The driver: rules indexed by the operator at their root, applied from a worklist until none is profitable.

Every application is numbered. The order is fixed by the graph and by the order of the rules, so that the first N
applications are the same in every run: a wrong answer can be bisected to one rule.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from bricolage.errors import EndlessRewriting
from bricolage.graph.constant_folding import fold
from bricolage.graph.prepare import simplify
from bricolage.rewrite.analyses.profitability import compare_costs
from bricolage.rewrite.builder import GraphBuilder, Names
from bricolage.rewrite.engine.fuel import Fuel, Site, site_of
from bricolage.rewrite.engine.index import Indexed, rule_index
from bricolage.rewrite.engine.matching import Match, PatternMatcher
from bricolage.rewrite.engine.proposal import RewriteProposal, propose, propose_replacement
from bricolage.rewrite.rule import GraphRule, MatchFailure, Replacement, Rule

_PER_OPERATOR = 20  # applications for each operator of the model, beyond which rules must be undoing each other
_ALL_MATCHED = 1_000  # depth of a miss for which the whole pattern was found


@dataclass(frozen=True)
class Application:
    """One rewrite. Operators are written as `Type name`."""

    number: int
    rule: str
    family: str
    removed: tuple[str, ...]
    added: tuple[str, ...]
    site: Site | None = None
    """Where it is made; None for what was found in an e-graph, which has no order."""

    @staticmethod
    def of(number: int, proposal: RewriteProposal) -> Application:
        """The record of a proposal that is about to be accepted."""
        gone, new = tuple(map(_text, proposal.gone)), tuple(map(_text, proposal.new))
        return Application(number, proposal.rule.name, proposal.rule.family, gone, new, site_of(proposal.step))


@dataclass(frozen=True)
class FailedMatch:
    """Why a rule was not applied at an operator of the type of its root."""

    operator: str
    reason: str
    near: bool = False
    """The whole pattern is there; a condition does not hold, or it is not profitable."""


@dataclass(frozen=True)
class RuleUse:
    """What a rule does to a model: where it applies, and where it finds its whole pattern in the result and is refused."""

    rule: str
    family: str
    applied: tuple[Application, ...]
    refused: tuple[FailedMatch, ...]


Build = Callable[[], GraphBuilder]


def rewrite(model: ir.Model, rules: Sequence[Rule], *, fuel: Fuel | None = None) -> list[Application]:
    """Applies canonicalising rules, in place, until none is profitable or the `fuel` is used up; gives the applications in
    order. `model` has unique names, types and shapes (see `bricolage.graph.prepare`); dimensions may be symbolic.

    Raises:
        EndlessRewriting: rules undo each other.
    """
    driver = _Driver(model, [rule for rule in rules if not rule.cost_based], fuel)
    driver.run()
    return driver.applications


def counts(applications: Iterable[Application]) -> dict[str, int]:
    """How often each rule was applied, by name, most often first."""
    rule_counts: dict[str, int] = {}
    for application in applications:
        rule_counts[application.rule] = rule_counts.get(application.rule, 0) + 1
    return dict(sorted(rule_counts.items(), key=lambda item: (-item[1], item[0])))


def canonicalise(
    model: ir.Model, rules: Sequence[Rule], build: Build, observe: Callable[[RewriteProposal], None]
) -> None:
    """The same for a search, which makes the builders and hears of each application just before it is made. Operators that
    have become constant stay.

    Raises:
        EndlessRewriting: rules undo each other.
    """
    _Driver(
        model, [rule for rule in rules if not rule.cost_based], None, fold=False, build=build, observe=observe
    ).run()


def apply_once(model: ir.Model, rule: Rule, *, fold: bool = True) -> Application | None:
    """Applies one rule at the first place where its conditions hold, in place, profitable or not. Without `fold`, operators on
    constants stay as the rule wrote them. None where it applies nowhere."""
    driver = _Driver(model, [rule], Fuel(1), fold=fold, always=True)
    driver.run()
    return driver.applications[0] if driver.applications else None


def apply_everywhere(
    model: ir.Model,
    rule: Rule,
    allowed: Callable[[ir.Node], bool],
    taken: Callable[[ir.Node], None],
    fuel: Fuel | None = None,
) -> list[Application]:
    """Applies one rule, profitable or not, in place, at every operator of the graph that is `allowed`, but not at what it adds
    itself; the applications. `taken` hears of each just before."""
    driver = _Driver(model, [rule], fuel, always=True)
    driver.visit(allowed, taken)
    return driver.applications


def failed_matches(model: ir.Model, rule: Rule) -> list[FailedMatch]:
    """Why `rule` does not apply, for every operator that could be its root: the reason of the attempt that came farthest.
    The model is not changed; a rule that would apply somewhere is not listed there."""
    return _Driver(model, [rule], None).failed_matches(rule)


def find_rule_uses(model: ir.Model, rules: Sequence[Rule]) -> list[RuleUse]:
    """The rules that apply to a model or nearly do, in their order; the model is simplified, and rewritten by them, in place."""
    simplify(model)
    applications = rewrite(model, rules)
    simplify(model)
    rule_uses = []
    for rule in rules:
        applied = tuple(application for application in applications if application.rule == rule.name)
        refused = tuple(refusal for refusal in failed_matches(model, rule) if refusal.near)
        if applied or refused:
            rule_uses.append(RuleUse(rule.name, rule.family, applied, refused))
    return rule_uses


class _Driver:
    def __init__(
        self,
        model: ir.Model,
        rules: Iterable[Rule],
        fuel: Fuel | None,
        *,
        fold: bool = True,
        always: bool = False,
        build: Build | None = None,
        observe: Callable[[RewriteProposal], None] = lambda _: None,
    ) -> None:
        self._model, self._fuel, self._fold, self._always = model, fuel or Fuel(), fold, always
        self._opset = model.graph.opset_imports.get("", 0)
        self._index = rule_index(tuple(rules), self._opset)
        self._matcher = PatternMatcher(self._opset)
        names = Names(model)
        self._build = build or (lambda: GraphBuilder(model.graph.opset_imports, names, fold=fold))
        self._observe = observe
        self._queue: deque[ir.Node] = deque()
        self._queued: set[ir.Node] = set()
        self.applications: list[Application] = []

    def run(self) -> None:
        if not self._index:
            return
        RemoveUnusedNodesPass()(self._model)
        most = _PER_OPERATOR * (50 + sum(1 for _ in self._model.graph.all_nodes()))
        done = -1
        while done < len(self.applications) and not self._stopped:
            done = len(self.applications)
            self._apply_graph_rules(runs_last=False)
            self._push(self._model.graph.all_nodes())
            while self._queue and not self._stopped:
                node = self._queue.popleft()
                self._queued.discard(node)
                self._rewrite(node)
                if len(self.applications) > most:
                    raise EndlessRewriting(count=most, rule=self.applications[-1].rule)
            if done == len(self.applications):
                self._apply_graph_rules(runs_last=True)
            if self._fold and done < len(self.applications):
                fold(self._model)  # a rule may have put a constant where something was computed

    def visit(self, allowed: Callable[[ir.Node], bool], taken: Callable[[ir.Node], None]) -> None:
        """Tries each operator of the graph once, as long as it stands, and each site that whole-graph rules find."""
        for rule in self._index.graph_rules:
            for graph in self._model.graphs():
                for node, replacement in rule.find_sites(graph):
                    if self._stopped:
                        return
                    if allowed(node):
                        self._observe = partial(_tell, taken, node)
                        self._attempt_graph_rule(rule, replacement)
        for node in [node for node in self._model.graph.all_nodes() if node.op_type in self._index and allowed(node)]:
            if node.graph is not None and not self._stopped:
                self._observe = partial(_tell, taken, node)
                self._rewrite(node)

    @property
    def _stopped(self) -> bool:
        return self._fuel.empty

    def _push(self, nodes: Iterable[ir.Node]) -> None:
        for node in nodes:
            if node.op_type in self._index and node not in self._queued:
                self._queued.add(node)
                self._queue.append(node)

    def _apply_graph_rules(self, *, runs_last: bool) -> None:
        for rule in (rule for rule in self._index.graph_rules if rule.runs_last == runs_last):
            for graph in self._model.graphs():
                for _, replacement in rule.find_sites(graph):
                    if self._stopped:
                        return
                    self._attempt_graph_rule(rule, replacement)

    def _attempt_graph_rule(self, rule: GraphRule, replacement: Replacement, *, dry: bool = False) -> str | None:
        """Like `_attempt`, for a site that a whole-graph rule found."""
        try:
            self._use(propose_replacement(rule, replacement, self._build()), dry=dry)
        except MatchFailure as reason:
            return str(reason)
        return None

    def _rewrite(self, node: ir.Node) -> None:
        """Applies the first rule that is profitable at `node`."""
        for indexed in self._index.at(node):
            for match in self._matcher.matches(indexed.roots, node):
                if self._attempt(indexed, match) is None:
                    return

    def _attempt(self, indexed: Indexed, match: Match, *, dry: bool = False) -> str | None:
        """Applies a rule to a match; the reason where it does not. A `dry` attempt changes nothing."""
        try:
            self._use(propose(indexed, match, self._build()), dry=dry)
        except MatchFailure as reason:
            return str(reason)
        return None

    def _use(self, proposal: RewriteProposal, *, dry: bool = False) -> None:
        """Accepts a proposal that is profitable, and records it.

        Raises:
            MatchFailure: it is none.
        """
        rule, gone, new = proposal.rule, proposal.gone, proposal.new
        if not self._always and not proposal.is_profitable(self._opset):
            before, after = compare_costs(gone, new, self._opset)
            proposal.discard()
            raise MatchFailure(f"not profitable: {before} would become {after}")
        if dry:
            proposal.discard()
            return
        if not self._fuel.take(proposal.step):
            proposal.discard()
            raise MatchFailure("it is left out")
        for node in new:
            node.metadata_props["bricolage.rule"] = rule.name
        self.applications.append(Application.of(len(self.applications) + 1, proposal))
        self._observe(proposal)
        around = {value for node in gone for value in node.inputs if value is not None}
        proposal.accept()
        self._push(new)
        self._push(usage.node for _, value in proposal.pairs for usage in value.uses())
        self._push(below for value in around if (below := value.producer()) is not None and below.graph is not None)

    def failed_matches(self, rule: Rule) -> list[FailedMatch]:
        if rule.since > self._opset:
            return [FailedMatch("the model", f"the rule needs opset {rule.since}, the model has {self._opset}")]
        failures: list[FailedMatch] = []
        for graph_rule in self._index.graph_rules:
            for graph in self._model.graphs():
                tried = [
                    (node, self._attempt_graph_rule(graph_rule, site, dry=True))
                    for node, site in graph_rule.find_sites(graph)
                ]
                failures += [FailedMatch(_text(node), reason, True) for node, reason in tried if reason is not None]
        for node in self._model.graph.all_nodes():
            reasons: list[tuple[int, str]] = []
            for indexed in self._index.rooted(node.op_type):
                matcher = PatternMatcher(self._opset, reasons)
                checked = [
                    self._attempt(indexed, match, dry=True) or "" for match in matcher.matches(indexed.roots, node)
                ]
                reasons += [(_ALL_MATCHED, reason) for reason in checked]
            if reasons and (_ALL_MATCHED, "") not in reasons:
                depth, reason = max(reasons, key=lambda reason: reason[0])
                failures.append(FailedMatch(_text(node), reason, depth == _ALL_MATCHED))
        return failures


def _tell(taken: Callable[[ir.Node], None], node: ir.Node, _proposal: RewriteProposal) -> None:
    taken(node)


def _text(node: ir.Node) -> str:
    return f"{node.op_type} {node.name}"
