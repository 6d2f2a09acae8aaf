"""The driver: rules indexed by the operator at their root, applied from a worklist until none is a gain.

Every application is numbered. The order is fixed by the graph and by the order of the rules, so that the first N
applications are the same in every run: a wrong answer can be bisected to one rule.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from bricolage.errors import EndlessRewriting
from bricolage.graph.folding import fold
from bricolage.rewrite import edit
from bricolage.rewrite.builder import Builder, Names
from bricolage.rewrite.gain import compare
from bricolage.rewrite.matching import Match, Matcher
from bricolage.rewrite.pattern import Op
from bricolage.rewrite.rule import Mismatch, Replacement, Rule, Scan

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


@dataclass(frozen=True)
class Refusal:
    """Why a rule was not applied at an operator of the type of its root."""

    operator: str
    reason: str
    near: bool = False
    """The whole pattern is there; a condition does not hold, or it is no gain."""


def rewrite(model: ir.Model, rules: Sequence[Rule], *, limit: int | None = None) -> list[Application]:
    """Applies rules, in place, until none is a gain or `limit` applications are made. `model` has unique names, types
    and shapes (see `bricolage.graph.prepare`); dimensions may be symbolic.

    Raises:
        EndlessRewriting: rules undo each other.
    """
    driver = _Driver(model, [rule for rule in rules if not rule.exploring], limit)
    driver.run()
    return driver.applications


def apply_once(model: ir.Model, rule: Rule, *, fold: bool = True) -> Application | None:
    """Applies one rule at the first place where its conditions hold, in place, gain or not. Without `fold`, operators on
    constants stay as the rule wrote them. None where it applies nowhere."""
    driver = _Driver(model, [rule], 1, fold=fold, always=True)
    driver.run()
    return driver.applications[0] if driver.applications else None


def refusals(model: ir.Model, rule: Rule) -> list[Refusal]:
    """Why `rule` does not apply, for every operator that could be its root: the reason of the attempt that came farthest.
    The model is not changed; a rule that would apply somewhere is not listed there."""
    return _Driver(model, [rule], 0).refusals(rule)


class _Driver:
    def __init__(
        self, model: ir.Model, rules: Iterable[Rule], limit: int | None, *, fold: bool = True, always: bool = False
    ) -> None:
        self._model, self._limit, self._fold, self._always = model, limit, fold, always
        self._opset = model.graph.opset_imports.get("", 0)
        rules = [rule for rule in rules if rule.since <= self._opset]
        self._scans = [rule for rule in rules if isinstance(rule, Scan)]
        self._index: dict[str, list[tuple[Rule, tuple[Op, ...]]]] = {}
        for rule in rules:
            for pattern in rule.patterns():
                roots = pattern if isinstance(pattern, tuple) else (pattern,)
                for op_type in sorted(roots[0].types):
                    self._index.setdefault(op_type, []).append((rule, roots))
        self._matcher = Matcher(self._opset)
        self._names = Names(model)
        self._queue: deque[ir.Node] = deque()
        self._queued: set[ir.Node] = set()
        self.applications: list[Application] = []

    def run(self) -> None:
        if not self._index and not self._scans:
            return
        RemoveUnusedNodesPass()(self._model)
        most = _PER_OPERATOR * (50 + sum(1 for _ in self._model.graph.all_nodes()))
        done = -1
        while done < len(self.applications) and not self._stopped:
            done = len(self.applications)
            self._scan()
            self._push(self._model.graph.all_nodes())
            while self._queue and not self._stopped:
                node = self._queue.popleft()
                self._queued.discard(node)
                self._rewrite(node)
                if len(self.applications) > most:
                    raise EndlessRewriting(count=most, rule=self.applications[-1].rule)
            if self._fold and done < len(self.applications):
                fold(self._model)  # a rule may have put a constant where something was computed

    @property
    def _stopped(self) -> bool:
        return self._limit is not None and len(self.applications) >= self._limit

    def _push(self, nodes: Iterable[ir.Node]) -> None:
        for node in nodes:
            if node.op_type in self._index and node not in self._queued:
                self._queued.add(node)
                self._queue.append(node)

    def _scan(self) -> None:
        for rule in self._scans:
            for graph in self._model.graphs():
                for _, replacement in rule.find(graph):
                    if self._stopped:
                        return
                    self._attempt_scan(rule, replacement)

    def _attempt_scan(self, rule: Scan, replacement: Replacement, *, dry: bool = False) -> str | None:
        """Like `_attempt`, for a place that a scan found."""
        builder = self._builder()
        try:
            pairs = list(replacement(builder).items())
            roots = list(dict.fromkeys(_producer(old) for old, _ in pairs))
            self._replace(rule, pairs, builder, roots, dry=dry)
        except Mismatch as reason:
            builder.discard()
            return str(reason)
        return None

    def _rewrite(self, node: ir.Node) -> None:
        """Applies the first rule that is a gain at `node`."""
        for rule, roots in self._index.get(node.op_type, ()):
            for match in self._matcher.matches(roots, node):
                if self._attempt(rule, match) is None:
                    return

    def _attempt(self, rule: Rule, match: Match, *, dry: bool = False) -> str | None:
        """Applies a rule to a match; the reason where it does not. A `dry` attempt changes nothing."""
        builder = self._builder()
        try:
            rule.check(match)
            result = rule.rewrite(builder, match)
            values = result if isinstance(result, tuple) else (result,)
            old = match.roots
            producers = [_producer(value) for value in old]
            if len(old) == 1 and len(values) > 1:
                old = tuple(producers[0].outputs)
            if len(old) != len(values):
                raise ValueError(f"rule {rule.name} replaces {len(old)} values by {len(values)}")
            for value in (value for node in producers for value in node.outputs if value not in old):
                if value.uses() or value.is_graph_output():
                    raise Mismatch(f"another output of '{_producer(value).name}' is in use")
            self._replace(rule, list(zip(old, values, strict=True)), builder, producers, dry=dry)
        except Mismatch as reason:
            builder.discard()
            return str(reason)
        return None

    def _builder(self) -> Builder:
        return Builder(self._model.graph.opset_imports, self._names, fold=self._fold)

    def _replace(
        self,
        rule: Rule,
        pairs: list[tuple[ir.Value, ir.Value]],
        builder: Builder,
        roots: list[ir.Node],
        *,
        dry: bool = False,
    ) -> None:
        """Replaces values where that is a gain, and records it.

        Raises:
            Mismatch: it is none, or types would change.
        """
        home = edit.graph_of(roots[0])
        pairs = edit.own_outputs(pairs, builder, home)
        edit.check_types(pairs)
        several = len(roots) > 1
        if several and not isinstance(rule, Scan) and _depend(builder, roots, home):
            raise Mismatch("one of the roots depends on another")
        gone = edit.lost(pairs)
        before, after = compare(gone, builder.nodes, self._opset)
        if not (self._always or after < before or (rule.enabling and after <= before)):
            raise Mismatch(f"no gain: {before} would become {after}")
        if dry:
            builder.discard()
            return
        self._record(rule, gone, builder.nodes)
        around = {value for node in gone for value in node.inputs if value is not None}
        placed = bool(builder.places)
        edit.replace(pairs, gone, builder, roots[0])
        if several and not placed:
            home.sort()
        self._push(builder.nodes)
        self._push(usage.node for _, new in pairs for usage in new.uses())
        self._push(node for value in around if (node := value.producer()) is not None and node.graph is not None)

    def _record(self, rule: Rule, gone: Sequence[ir.Node], new: Sequence[ir.Node]) -> None:
        number = len(self.applications) + 1
        for node in new:
            node.metadata_props["bricolage.rule"] = rule.name
        self.applications.append(
            Application(number, rule.name, rule.family, tuple(map(_text, gone)), tuple(map(_text, new)))
        )

    def refusals(self, rule: Rule) -> list[Refusal]:
        if rule.since > self._opset:
            return [Refusal("the model", f"the rule needs opset {rule.since}, the model has {self._opset}")]
        found: list[Refusal] = []
        for scan in self._scans:
            for graph in self._model.graphs():
                tried = [(node, self._attempt_scan(scan, written, dry=True)) for node, written in scan.find(graph)]
                found += [Refusal(_text(node), reason, True) for node, reason in tried if reason is not None]
        for node in self._model.graph.all_nodes():
            reasons: list[tuple[int, str]] = []
            for _, roots in self._index.get(node.op_type, ()):
                matcher = Matcher(self._opset, reasons)
                checked = [self._attempt(rule, match, dry=True) or "" for match in matcher.matches(roots, node)]
                reasons += [(_ALL_MATCHED, reason) for reason in checked]
            if reasons and (_ALL_MATCHED, "") not in reasons:
                depth, reason = max(reasons, key=lambda reason: reason[0])
                found.append(Refusal(_text(node), reason, depth == _ALL_MATCHED))
        return found


def _depend(builder: Builder, roots: Sequence[ir.Node], home: ir.Graph) -> bool:
    return edit.depends(builder.nodes, set(roots)) or any(edit.graph_of(root) is not home for root in roots)


def _producer(value: ir.Value) -> ir.Node:
    node = value.producer()
    assert node is not None
    return node


def _text(node: ir.Node) -> str:
    return f"{node.op_type} {node.name}"
