"""A model on which rules are applied one by one, so that the same can be done again: on a copy, on an equal part, up to a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace

import onnx_ir as ir

from bricolage.graph.graph import bodies
from bricolage.plan.rewrite_steps import RewriteStep
from bricolage.rewrite.builder import GraphBuilder, Names
from bricolage.rewrite.engine import edit
from bricolage.rewrite.engine.apply import Application, canonicalise
from bricolage.rewrite.engine.edit import Pairs
from bricolage.rewrite.engine.index import RuleIndex, rule_index
from bricolage.rewrite.engine.matching import PatternMatcher
from bricolage.rewrite.engine.proposal import RewriteProposal, propose, propose_replacement
from bricolage.rewrite.rule import GraphRule, MatchFailure, Rule
from bricolage.rewrite.search.lazy import LazyBuilder


class Workspace:
    """A model and the steps made on it. Searches look at the main graph alone; canonicalising rules apply in bodies of control
    flow, too, and so are steps found there again.

    With `lazy`, constants are expressions (see `LazyBuilder`). Equal models and equal steps give equal names.
    """

    def __init__(
        self,
        model: ir.Model,
        rules: Sequence[Rule],
        *,
        lazy: bool,
        names: Names | None = None,
        index: RuleIndex | None = None,
    ) -> None:
        self.model, self.rules, self.lazy = model, rules, lazy
        self.names = names or Names(model)
        self.index = index or rule_index(tuple(rules), model.graph.opset_imports.get("", 0))
        self.steps: list[RewriteStep] = []
        self._replaced: dict[str, str] = {}
        self.applications: list[Application] = []
        self._matcher = PatternMatcher(self.index.opset)
        self._values = {
            value.name: value
            for graph in reversed(list(model.graphs()))  # a name of the main graph is the main graph's
            for value in (
                *graph.inputs,
                *graph.initializers.values(),
                *(value for node in graph for value in node.outputs),
            )
        }

    def copy(self) -> Workspace:
        """A workspace of its own in the same state."""
        other = Workspace(self.model.clone(), self.rules, lazy=self.lazy, names=self.names.copy(), index=self.index)
        other.steps, other.applications = list(self.steps), list(self.applications)
        other._replaced = dict(self._replaced)
        return other

    def proposals(self) -> Iterator[RewriteProposal]:
        """Every application that is possible, profitable or not, in a fixed order; each must be accepted or discarded before
        the next."""
        for rule in self.index.graph_rules:
            for _, replacement in rule.find_sites(self.model.graph):
                try:
                    yield propose_replacement(rule, replacement, self.builder())
                except MatchFailure:
                    continue
        for node in list(self.model.graph):
            for indexed in self.index.at(node):
                for match in list(self._matcher.matches(indexed.roots, node)):
                    try:
                        yield propose(indexed, match, self.builder())
                    except MatchFailure:
                        continue

    def find(self, step: RewriteStep) -> RewriteProposal:
        """The application that a step names.

        Raises:
            MatchFailure: it is not possible here.
        """
        roots = [self._values.get(name) for name in step.roots]
        node = roots[0].producer() if roots and roots[0] is not None else None
        if node is None or any(root is None for root in roots):
            raise MatchFailure(f"{step.rule} finds none of {', '.join(step.roots)}")
        rule = self.index.graph_rule(step.rule)
        if rule is not None:
            return self._find_site_proposal(rule, step)
        indexed = self.index.pattern(step.rule, step.pattern)
        reason = MatchFailure(f"{step.rule} does not match at '{node.name}'")
        for match in self._matcher.matches(indexed.roots, node):
            same = tuple(value.name for value in match.roots) == step.roots and all(
                (None if match.values[name] is None else match[name].name) == bound for name, bound in step.bound
            )
            if same:
                try:
                    return propose(indexed, match, self.builder())
                except MatchFailure as mismatch:
                    reason = mismatch
        raise reason

    def _find_site_proposal(self, rule: GraphRule, step: RewriteStep) -> RewriteProposal:
        for _, replacement in rule.find_sites(self.model.graph):
            try:
                proposal = propose_replacement(rule, replacement, self.builder())
            except MatchFailure:
                continue
            if proposal.step == step:
                return proposal
            proposal.discard()
        raise MatchFailure(f"{step.rule} does not apply at {', '.join(step.roots)}")

    def accept(self, proposal: RewriteProposal) -> None:
        """Makes the application, and records it."""
        self._record(proposal)
        names = _names(proposal.pairs)
        proposal.accept()
        self._know(names, proposal.pairs, proposal.builder, proposal.gone)

    def repeat(self, steps: Sequence[RewriteStep]) -> None:
        """Makes several applications.

        Raises:
            MatchFailure: one is not possible; those before it are made.
        """
        for step in steps:
            self.accept(self.find(step))

    def canonicalise(self) -> int:
        """Applies canonicalising rules until none is profitable; how many applications that took.

        Raises:
            EndlessRewriting: rules undo each other.
        """
        before = len(self.steps)
        pending: list[tuple[list[str], RewriteProposal]] = []

        def know() -> None:
            for names, proposal in pending:
                self._know(names, proposal.pairs, proposal.builder, proposal.gone)
            pending.clear()

        def observe(proposal: RewriteProposal) -> None:
            know()
            self._record(proposal)
            pending.append((_names(proposal.pairs), proposal))

        canonicalise(self.model, self.rules, self.builder, observe)
        know()
        return len(self.steps) - before

    def builder(self) -> GraphBuilder:
        """A builder with this model's names."""
        opsets = self.model.graph.opset_imports
        return LazyBuilder(opsets, self.names) if self.lazy else GraphBuilder(opsets, self.names, fold=True)

    def _record(self, proposal: RewriteProposal) -> None:
        self.steps.append(proposal.step)
        self.applications.append(Application.of(len(self.applications) + 1, proposal))

    def graft(self, pairs: Pairs, builder: GraphBuilder, applications: Sequence[Application]) -> None:
        """Replaces values by others that `builder` made, wherever in the graph they lie. Steps made so cannot be repeated.

        Raises:
            MatchFailure: types would change; nothing has.
        """
        try:
            pairs = edit.own_outputs(pairs, builder, self.model.graph)
            edit.check_replacements(pairs)
        except MatchFailure:
            builder.discard()
            raise
        gone, before = edit.collect_dead_nodes(pairs), pairs[0][0].producer()
        assert before is not None
        names = _names(pairs)
        edit.replace(pairs, gone, builder, before)
        self.model.graph.sort()
        self._know(names, pairs, builder, gone)
        self.applications += [
            replace(application, number=len(self.applications) + 1 + i) for i, application in enumerate(applications)
        ]

    def value(self, name: str) -> ir.Value | None:
        """The value of a name, or what has replaced it."""
        return self._values.get(self.resolve(name))

    def resolve(self, name: str) -> str:
        """The name that a value has now: another where it was replaced by one that has a name of its own."""
        while name in self._replaced:
            name = self._replaced[name]
        return name

    def _know(self, names: Sequence[str], pairs: Pairs, builder: GraphBuilder, gone: Sequence[ir.Node]) -> None:
        """Learns the names of what was made, and forgets those that are gone; `names` are those that replaced values had."""
        for node in builder.nodes:
            self._values.update((value.name, value) for value in node.outputs)
        self._values.update((constant.name, constant) for constant in builder.constants)
        for name, (_, new) in zip(names, pairs, strict=True):
            if new.name != name:  # it did not hand its name on, or not last
                self._replaced[name] = new.name or ""
            self._values[new.name] = new
        for node in gone:
            for value in node.outputs:
                if self._values.get(value.name) is value:
                    del self._values[value.name]


def replay_on(pattern: Workspace, copy: Workspace, steps: Sequence[RewriteStep], names: dict[str, str]) -> None:
    """Makes on `copy` the applications that correspond to `steps` on `pattern`, which are made there too. `names` says which value
    of the copy corresponds to which of the pattern, and learns of the new ones.

    Raises:
        MatchFailure: a condition does not hold for the copy (its weights are others), or the two came apart.
    """

    def there(name: str | None) -> str | None:
        if name is None:
            return None
        if name not in names:
            raise MatchFailure(f"'{name}' has no counterpart")
        return copy.resolve(names[name])

    for step in steps:
        roots = tuple(there(name) or "" for name in step.roots)
        bound = tuple((name, there(value)) for name, value in step.bound)
        first = pattern.find(step)
        try:
            second = copy.find(RewriteStep(step.rule, step.pattern, roots, bound))
        except MatchFailure:
            first.discard()
            raise
        pattern_values, other = _list_rule_values(first), _list_rule_values(second)
        if len(pattern_values) != len(other):
            first.discard()
            second.discard()
            raise MatchFailure(f"{step.rule} builds something else on the copy")
        pattern.accept(first)
        copy.accept(second)
        names.update((a.name or "", b.name or "") for a, b in zip(pattern_values, other, strict=True))


def repeat_without(
    model: ir.Model, rules: Sequence[Rule], steps: Sequence[RewriteStep], left_out: Set[int]
) -> Workspace:
    """A copy of `model` with the applications of `steps`, but not those whose numbers, from 0, are left out, nor what rests on
    them.

    Raises:
        MatchFailure: the steps are not those of the model.
    """
    whole, part = (Workspace(model.clone(), rules, lazy=False) for _ in range(2))
    names: dict[str, str] = {name: name for name in whole._values if name is not None}
    """For a value of the whole: its counterpart in the part."""

    def there(name: str | None) -> str | None:
        if name is None:
            return None
        if name not in names:
            raise MatchFailure(f"'{name}' has no counterpart")
        return part.resolve(names[name])

    for number, step in enumerate(steps):
        first, second = whole.find(step), None
        if number not in left_out:
            try:
                roots = tuple(there(name) or "" for name in step.roots)
                bound = tuple((name, there(value)) for name, value in step.bound)
                second = part.find(RewriteStep(step.rule, step.pattern, roots, bound))
            except MatchFailure:
                second = None  # it rests on what was left out
        before = _names(first.pairs)
        whole.accept(first)
        if second is None:
            names.update(
                {new.name or "": names.get(old, old) for old, (_, new) in zip(before, first.pairs, strict=True)}
            )
            continue
        whole_values, part_values = _list_rule_values(first), _list_rule_values(second)
        part.accept(second)
        names.update({a.name or "": b.name or "" for a, b in zip(whole_values, part_values, strict=False)})
    return part


def _names(pairs: Pairs) -> list[str]:
    return [old.name or "" for old, _ in pairs]


def _list_rule_values(proposal: RewriteProposal) -> list[ir.Value]:
    """The values that the rule itself made; an output of the part may need an Identity that the whole does not."""
    nodes = proposal.new[: proposal.built]
    return [*(value for node in nodes for value in node.outputs), *proposal.builder.constants]


def has_body(node: ir.Node) -> bool:
    """Whether an operator holds sub-graphs, and so may read values that it does not name."""
    return bool(bodies(node))
