"""Finding a pattern in a graph, by backtracking over the orders of commutative operators and over alternatives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from bricolage.graph.constant_folding import constant_elements, is_known
from bricolage.graph.properties import COMMUTATIVE
from bricolage.rewrite.pattern import AnyValue, Either, Number, Op, ValuePattern, Weight

_HALF_ROUNDINGS = 4  # a constant of a model may be this many roundings of its own type away from the pattern's


@dataclass(frozen=True)
class Match:
    """What the names of a pattern match in a graph.

    `roots` are the values that the pattern's roots compute, in its order; `opset` is the default domain's version.
    """

    opset: int
    home: ir.Graph = field(repr=False)
    values: Mapping[str, ir.Value | None] = field(default_factory=dict)
    nodes: Mapping[str, ir.Node] = field(default_factory=dict)
    roots: tuple[ir.Value, ...] = ()
    depth: int = 0
    """Operators matched so far, over all branches of the pattern."""

    def __getitem__(self, name: str) -> ir.Value:
        """The value of a variable that is not optional."""
        value = self.values[name]
        assert value is not None, f"'{name}' is absent"
        return value

    def get(self, name: str) -> ir.Value | None:
        """The value of an optional variable; None where the input is absent."""
        return self.values.get(name)

    def node(self, name: str) -> ir.Node:
        """The operator that a pattern names."""
        return self.nodes[name]

    @property
    def root(self) -> ir.Value:
        """What the (first) root computes."""
        return self.roots[0]

    def _bind(self, name: str, value: ir.Value | None) -> Match | None:
        if name in self.values:
            return self if self.values[name] is value else None
        return replace(self, values={**self.values, name: value})


class PatternMatcher:
    """Matches of patterns in one model. `misses` collects, where it is a list, why a pattern did not match, as
    (number of operators matched before, reason)."""

    def __init__(self, opset: int, misses: list[tuple[int, str]] | None = None) -> None:
        self._opset = opset
        self._misses = misses

    def matches(self, roots: Sequence[Op], node: ir.Node) -> Iterator[Match]:
        """Every way in which the pattern's first root is `node`. Further roots are looked for among the readers of what
        is bound already; roots are different operators."""
        if node.graph is None or not isinstance(node.graph, ir.Graph) or roots[0].output >= len(node.outputs):
            return
        empty = Match(self._opset, node.graph)
        root = node.outputs[roots[0].output]
        for match in self._operator(roots[0], root, empty):
            yield from self._more(roots[1:], replace(match, roots=(root,)))

    def _more(self, roots: Sequence[Op], match: Match) -> Iterator[Match]:
        if not roots:
            yield match
            return
        taken = {value.producer() for value in match.roots}
        for value in self._candidates(roots[0], match):
            if value.producer() in taken:
                continue
            for extended_match in self._operator(roots[0], value, match):
                yield from self._more(roots[1:], replace(extended_match, roots=(*match.roots, value)))

    def _candidates(self, root: Op, match: Match) -> list[ir.Value]:
        """Values that `root` could compute: from a bound variable through its readers."""
        chain = way_up(root, {name for name, value in match.values.items() if value is not None})
        if chain is None:
            raise ValueError(f"the root {root} shares no variable with the roots before it")
        name, operators = chain
        reached = [match[name]]
        for operator in operators:
            readers = dict.fromkeys(
                usage.node
                for value in reached
                for usage in value.uses()
                if usage.node.op_type in operator.types and usage.node.graph is match.home
            )
            reached = [node.outputs[operator.output] for node in readers if operator.output < len(node.outputs)]
        return reached

    def _value(self, pattern: ValuePattern, value: ir.Value | None, match: Match) -> Iterator[Match]:
        if isinstance(pattern, Op):
            yield from self._operator(pattern, value, match)
        elif isinstance(pattern, Either):
            for choice in pattern.choices:
                yield from self._value(choice, value, match)
        elif isinstance(pattern, Number):
            if value is not None and matches_number(value, pattern.value):
                yield match
            else:
                self._miss(match, f"{_text(value)} is not the constant {pattern.value:g}")
        elif isinstance(pattern, AnyValue | Weight):
            if value is None and not pattern.optional:
                self._miss(match, f"the input '{pattern.name}' is absent")
            elif isinstance(pattern, Weight) and value is not None and not is_known(value):
                self._miss(match, f"{_text(value)} is not a constant")
            else:
                bound = match._bind(pattern.name, value)
                if bound is not None:
                    yield bound
                else:
                    self._miss(match, f"{_text(value)} is another value than '{pattern.name}'")

    def _operator(self, pattern: Op, value: ir.Value | None, match: Match) -> Iterator[Match]:
        node = value.producer() if value is not None else None
        if node is None or value is None or node.op_type not in pattern.types or node.domain:
            self._miss(match, f"{_text(value)} is not computed by {pattern}")
            return
        if node.graph is not match.home or value.index() != pattern.output:
            self._miss(match, f"{_text(value)} is computed in another graph, or is another output of {pattern}")
            return
        nodes = match.nodes
        if pattern.name:
            if nodes.get(pattern.name, node) is not node:
                self._miss(match, f"'{node.name}' is another operator than '{pattern.name}'")
                return
            nodes = {**nodes, pattern.name: node}
        match = replace(match, nodes=nodes, depth=match.depth + 1)
        if pattern.inputs is None:
            yield match
            return
        given = list(node.inputs)
        count = max(len(given), len(pattern.inputs))
        given += [None] * (count - len(given))
        if any(value is not None for value in given[len(pattern.inputs) :]):
            self._miss(match, f"'{node.name}' has more than {len(pattern.inputs)} inputs")
            return
        yield from self._inputs(pattern.inputs, given, match)
        if len(pattern.inputs) == 2 and node.op_type in COMMUTATIVE and given[0] is not given[1]:
            yield from self._inputs(pattern.inputs, given[::-1], match)

    def _inputs(
        self, patterns: Sequence[ValuePattern], given: Sequence[ir.Value | None], match: Match
    ) -> Iterator[Match]:
        if not patterns:
            yield match
            return
        for extended_match in self._value(patterns[0], given[0], match):
            yield from self._inputs(patterns[1:], given[1:], extended_match)

    def _miss(self, match: Match, reason: str) -> None:
        if self._misses is not None:
            self._misses.append((match.depth + len(match.values), reason))


def way_up(root: Op, bound: Set[str]) -> tuple[str, list[Op]] | None:
    """A bound variable under `root`, and the operators on the way from it up to `root`."""
    for pattern in root.inputs or ():
        if isinstance(pattern, AnyValue | Weight) and pattern.name in bound:
            return pattern.name, [root]
        if isinstance(pattern, Op):
            below = way_up(pattern, bound)
            if below is not None:
                return below[0], [*below[1], root]
    return None


def matches_number(value: ir.Value, wanted: float) -> bool:
    """Whether a value is a constant of one element that a `Number` matches."""
    if value.const_value is None or value.const_value.size != 1:
        return False
    array = constant_elements(value)
    if array is None or array.dtype.kind not in "fiuV":
        return False
    number = float(array.reshape(()).astype(np.float64))
    if array.dtype.kind in "iu":
        return number == wanted
    rounding = {2: 2.0**-9, 4: 2.0**-24}.get(array.dtype.itemsize, 2.0**-24)
    return abs(number - wanted) <= _HALF_ROUNDINGS * rounding * abs(wanted)


def _text(value: ir.Value | None) -> str:
    return "an absent input" if value is None else f"'{value.name}'"
