"""The rules of the catalogue as rules of e-graphs.

A match among classes is made concrete: a small graph of the matched operators, with what computes their inputs two steps down, in
types and shapes. There the rule's own condition and right side run, as they do in a model, and what they build becomes nodes of
the e-graph. Conditions see true facts, since all nodes of a class are equal; which of several nodes they see is not theirs to
choose.

Rules that move something towards what follows want to see it. For them the graph goes on along one reader after another, on
several paths; in an e-graph the order of moves does not matter, so that any path will do.

Rules that go over a graph themselves (`GraphRule`) go over the part as it was given, once: what they make of it is added like the
rest, and their partners are bounded by it. What they could make of what other rules built they never see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import onnx_ir as ir

from bricolage.device.tensor_form import Dimension
from bricolage.egraph import saturate
from bricolage.egraph.egraph import ENode
from bricolage.egraph.tree_pattern import EGraphMatch
from bricolage.graph.graph import TensorInfo
from bricolage.rewrite.builder import Names
from bricolage.rewrite.engine import edit, matching
from bricolage.rewrite.engine.index import Indexed, RuleIndex
from bricolage.rewrite.rule import GraphRule, MatchFailure, Rule
from bricolage.rewrite.search.fingerprint import constant_key
from bricolage.rewrite.search.lazy import LazyBuilder, Watch
from bricolage.rewrite.search.saturation.ematching import ClassIndex, EMatch, MatchedNode
from bricolage.rewrite.search.saturation.terms import Data, Encoder, Operation, OutputProjection, Terms, fits

_BELOW = 2
"""Operators under an input that conditions may look at."""
_PATHS = 8
_ABOVE = 4
"""Paths of readers that are tried, and their length."""


@dataclass(frozen=True)
class AppliedRule:
    """A rule that changed the e-graph: what it matched, what it built, the class it made equal to others, the age of each node
    that it added and of each that it matched, and whether it looked at the numbers of a weight."""

    rule: Rule
    matched: tuple[str, ...]
    built: tuple[str, ...]
    number: int
    ages: frozenset[int]
    needed: frozenset[int]
    by_values: bool


class Bridge:
    """One e-graph with its rules, and the record of what they did."""

    def __init__(
        self, encoder: Encoder, index: RuleIndex, watch: Watch, part: ir.Graph, classes: Mapping[ir.Value, int]
    ) -> None:
        self._encoder, self._egraph, self._watch = encoder, encoder.egraph, watch
        self._part, self._originals = part, classes
        self._names = Names(ir.Model(ir.Graph([], [], nodes=[], opset_imports=encoder.opsets), ir_version=10))
        self._classes: tuple[tuple[int, int], ClassIndex] | None = None
        self._tried: dict[Indexed, set[EMatch]] = {}
        self._sited: set[GraphRule] = set()
        self.applied: list[AppliedRule] = []
        self.rules: list[saturate.EGraphRule[Data]] = [
            *(saturate.EGraphRule(rule.name, partial(self._places, rule), self._seed) for rule in index.graph_rules),
            *(
                saturate.EGraphRule(
                    f"{indexed.rule.name} {indexed.pattern}",
                    partial(self._matches, indexed),
                    partial(self._apply, indexed),
                    joins=len(indexed.roots) > 1,
                )
                for indexed in index.patterns
            ),
        ]

    def _places(self, rule: GraphRule, _egraph: Terms) -> Iterator[EGraphMatch]:
        """Where a whole-graph rule may apply to the part as it was given, once."""
        if rule not in self._sited:
            self._sited.add(rule)
            for _, replacement in rule.find_sites(self._part):
                yield EGraphMatch((), {"rule": rule, "replacement": replacement})

    def _matches(self, indexed: Indexed, egraph: Terms) -> Iterator[EGraphMatch]:
        state = (egraph.merges, egraph.node_count)
        if self._classes is None or self._classes[0] != state:
            self._classes = (state, ClassIndex(self._encoder))
        tried = self._tried.setdefault(indexed, set())
        for match in self._classes[1].matches(indexed.roots):
            # What a reader makes possible may come later; everything else stays as it was.
            if match not in tried or indexed.rule.enabling:
                tried.add(match)
                yield EGraphMatch(match.classes, {"found": match})

    def _apply(self, indexed: Indexed, _egraph: Terms, match: EGraphMatch) -> Sequence[int] | None:
        ematch = match.bindings["found"]
        assert isinstance(ematch, EMatch) and self._classes is not None
        for path in self._paths(ematch, self._classes[1]) if indexed.rule.enabling else ((),):
            small = _MatchGraph(self._encoder, self._classes[1], ematch, path)
            builder = LazyBuilder(self._encoder.opsets, self._names)
            try:
                return self._equal(indexed.rule, ematch, small, builder)
            except MatchFailure:
                continue
            finally:
                builder.discard()
        return None

    def _equal(self, rule: Rule, found: EMatch, small: _MatchGraph, builder: LazyBuilder) -> list[int]:
        """The classes that are equal to the roots' outputs; those of further outputs are merged.

        Raises:
            MatchFailure: the rule's conditions do not hold, or types would change.
        """
        self._watch.looked = False
        match = small.match(found)
        rule.check(match)
        result = rule.rewrite(builder, match)
        values = result if isinstance(result, tuple) else (result,)
        old = match.roots
        if len(old) == 1 and len(values) > 1:
            producer = old[0].producer()
            assert producer is not None
            old = tuple(producer.outputs)
        pairs = [(value, other) for value, other in zip(old, values, strict=True) if other is not None]
        matched = tuple(chosen.operation.op_type for chosen in found.roots)
        self._merge(rule, pairs, builder, dict(small.classes), matched, lambda: self._collect_match_ages(found))
        return list(found.classes)

    def _seed(self, _egraph: Terms, match: EGraphMatch) -> Sequence[int] | None:
        """Adds what a whole-graph rule makes of one site of the part."""
        rule, replacement = match.bindings["rule"], match.bindings["replacement"]
        assert isinstance(rule, GraphRule) and callable(replacement)
        builder = LazyBuilder(self._encoder.opsets, self._names)
        self._watch.looked = False
        try:
            pairs = list(replacement(builder).items())
            matched = tuple(dict.fromkeys(producer for old, _ in pairs if (producer := old.producer()) is not None))
            types = tuple(node.op_type for node in matched)
            # All that it matched is there from the start: it rests on no rule.
            self._merge(rule, pairs, builder, dict(self._originals), types, frozenset)
        except MatchFailure:
            return None
        finally:
            builder.discard()
        return ()

    def _merge(
        self,
        rule: Rule,
        pairs: edit.Pairs,
        builder: LazyBuilder,
        classes: dict[ir.Value, int],
        matched: tuple[str, ...],
        needed: Callable[[], frozenset[int]],
    ) -> None:
        """Adds what was built and makes it equal to what it may replace; what has no class has no reader.

        Raises:
            MatchFailure: types or shapes would change.
        """
        edit.check_replacements(pairs)
        egraph = self._egraph
        before, merges = egraph.age_next, egraph.merges
        self._encoder.nodes(builder.nodes, classes)
        class_pairs = [
            (classes[old], classes[new] if new in classes else self._encoder.leaf(new))
            for old, new in pairs
            if old in classes
        ]
        for here, there in class_pairs:
            if not fits(egraph.data(here), egraph.data(there)):
                raise MatchFailure("types or shapes of the two sides differ")
        for here, there in class_pairs:
            egraph.merge(here, there)
        if egraph.merges != merges:
            built = tuple(node.op_type for node in builder.nodes)
            ages = frozenset(range(before, egraph.age_next))
            self.applied.append(
                AppliedRule(rule, matched, built, class_pairs[0][1], ages, needed(), self._watch.looked)
            )

    def _collect_match_ages(self, found: EMatch) -> frozenset[int]:
        """The ages of the nodes of a match."""
        return frozenset(
            age for root, home in zip(found.roots, found.classes, strict=True) for age in self._ages(root, home)
        )

    def _ages(self, chosen: MatchedNode, number: int) -> Iterator[int]:
        """Of the nodes of a match; nothing was rebuilt since it was found, so that they are still written the same."""
        egraph = self._egraph
        for node in egraph.nodes(number):
            if node == chosen.node or (
                isinstance(node.operator, OutputProjection) and chosen.node in egraph.nodes(node.children[0])
            ):
                yield egraph.age(number, node)
                if node != chosen.node:
                    yield egraph.age(node.children[0], chosen.node)
        for given, child in zip(
            (each for each in chosen.inputs if each is not None), chosen.node.children, strict=True
        ):
            if isinstance(given, MatchedNode):
                yield from self._ages(given, child)

    def _paths(self, found: EMatch, classes: ClassIndex) -> list[tuple[tuple[ENode, int], ...]]:
        """Chains of readers of the first root, each a node with the class that it computes."""
        paths: list[tuple[tuple[ENode, int], ...]] = []
        waiting: list[tuple[tuple[ENode, int], ...]] = [
            (reader,) for reader in classes.readers.get(found.classes[0], ())
        ]
        while waiting and len(paths) < _PATHS:
            path = waiting.pop(0)
            paths.append(path)
            if len(path) < _ABOVE:
                waiting += [(*path, reader) for reader in classes.readers.get(path[-1][1], ()) if reader not in path]
        return paths


class _MatchGraph:
    """A few operators of an e-graph as a graph of `onnx_ir`."""

    def __init__(self, encoder: Encoder, classes: ClassIndex, found: EMatch, path: Sequence[tuple[ENode, int]]) -> None:
        self._encoder, self._known = encoder, classes
        self.classes: dict[ir.Value, int] = {}
        self._values: dict[int, ir.Value] = {}
        self._graph = ir.Graph([], [], nodes=[], opset_imports=encoder.opsets, name="match")
        self._named: dict[str, ir.Node] = {}
        self._built: dict[tuple[ENode, tuple[MatchedNode | int | None, ...]], Sequence[ir.Value]] = {}
        for _, number in found.bound:
            if number is not None:
                self._class(number, _BELOW)
        self.roots = tuple(
            self._build_matched(root, number) for root, number in zip(found.roots, found.classes, strict=True)
        )
        last = self.roots[0]
        for node, number in path:
            if not isinstance(node.operator, Operation) or len(node.operator.outputs) != 1:
                break
            below = self.classes[last]
            inputs = [last if child == below else self._class(child, 0) for child in node.children]
            last = self._node(node, inputs)[0]
            self._assign_type(last, number)

    def match(self, found: EMatch) -> matching.Match:
        """The match as rules know it."""
        opset = self._encoder.opsets.get("", 0)
        values = {name: None if number is None else self._values[number] for name, number in found.bound}
        return matching.Match(opset, self._graph, values, self._named, self.roots)

    def _class(self, number: int, depth: int) -> ir.Value:
        """A value of a class, computed by its first node as far down as `depth` allows."""
        if number in self._values:
            return self._values[number]
        constant = self._known.constant(number)
        if constant is not None:
            value = _copy_constant(self._encoder.constants[constant], self._encoder.egraph.data(number))
        else:
            value = self._compute_class(number, depth) or self._assign_type(ir.Value(name=f"class{number}"), number)
        self._values[number] = value
        self.classes[value] = number
        return value

    def _compute_class(self, number: int, depth: int) -> ir.Value | None:
        node, index = next(iter(self._known.nodes(number)), None), 0
        if node is not None and isinstance(node.operator, OutputProjection):
            index = node.operator.index
            node = next(iter(self._known.nodes(node.children[0])), None)
        if not depth or node is None or not isinstance(node.operator, Operation):
            return None
        self._values[number] = placeholder = self._assign_type(ir.Value(name=f"class{number}"), number)  # for cycles
        self.classes[placeholder] = number
        inputs = [self._class(child, depth - 1) for child in node.children]
        return self._assign_type(self._node(node, inputs)[index], number)

    def _build_matched(self, chosen: MatchedNode, number: int) -> ir.Value:
        """The output of a matched operator."""
        inputs: list[ir.Value] = []
        children = iter(chosen.node.children)
        for given in chosen.inputs:
            if given is None:
                continue
            child = next(children)
            inputs.append(
                self._build_matched(given, child) if isinstance(given, MatchedNode) else self._class(child, _BELOW)
            )
        # Two outputs of one operator are outputs of one operator here too.
        key = (chosen.node, chosen.inputs)
        outputs = self._built.get(key) or self._built.setdefault(key, self._node(chosen.node, inputs))
        value = self._assign_type(outputs[chosen.output], number)
        if len(outputs) > 1:
            whole = self._whole(chosen, number)
            for reader, home in self._known.readers.get(whole, ()):
                if isinstance(reader.operator, OutputProjection):
                    self._assign_type(outputs[reader.operator.index], home)
        if chosen.name:
            node = value.producer()
            assert node is not None
            self._named[chosen.name] = node
        return value

    def _whole(self, chosen: MatchedNode, number: int) -> int:
        """The class of a matched operator of several outputs."""
        projections = [n for n in self._known.nodes(number) if n.operator == OutputProjection(chosen.output)]
        return next(n.children[0] for n in projections if chosen.node in self._known.nodes(n.children[0]))

    def _node(self, node: ENode, inputs: Sequence[ir.Value]) -> Sequence[ir.Value]:
        operation = node.operator
        assert isinstance(operation, Operation)
        built = instance(operation, inputs)
        for index, value in enumerate(built.outputs):
            value.name = f"{operation.op_type}{len(self.classes)}.{index}" if operation.outputs[index] else ""
        self._graph.append(built)
        return built.outputs

    def _assign_type(self, value: ir.Value, number: int) -> ir.Value:
        give_type(value, self._encoder.egraph.data(number))
        self.classes[value] = number
        return value


def instance(operation: Operation, inputs: Sequence[ir.Value]) -> ir.Node:
    """A new operator of a kind on the inputs that are present; names and types of its outputs are open."""
    given = iter(inputs)
    node = operation.node
    return ir.Node(
        node.domain,
        node.op_type,
        [next(given) if present else None for present in operation.inputs],
        list(node.attributes.values()),
        num_outputs=len(operation.outputs),
        overload=node.overload,
        name=node.name,
    )


def give_type(value: ir.Value, data: TensorInfo | None) -> None:
    """Writes what a class knows to a value."""
    if data is None:
        return
    value.type = None if data.dtype is None else ir.TensorType(data.dtype)
    value.shape = None if data.shape is None else _shape(data.shape)


@lru_cache(maxsize=4096)
def _shape(dimensions: tuple[Dimension, ...]) -> ir.Shape:
    """One that all values share which have it."""
    return ir.Shape([None if dimension == "?" else dimension for dimension in dimensions], frozen=True)


def _copy_constant(constant: ir.Value, data: TensorInfo | None) -> ir.Value:
    # A name of its own: those that builders give are used again after each match.
    value = ir.Value(name=f"weight {constant_key(constant):x}", const_value=constant.const_value)
    give_type(value, data)
    value.meta.update(constant.meta)
    return value
