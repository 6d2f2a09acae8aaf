"""Where transposes should stand, decided for a whole part of a graph at once by a minimum cut.

Take one transpose: its input is in layout A, its output in layout B. Everything that is reached from it through operators
that commute with transposes can be held in either. A conversion between the two costs the bytes of the value; operators that
commute choose freely; all others (convolutions, reshapes, graph outputs) want the layout that they have. Which choice needs
the fewest bytes of conversions is a minimum cut (Hammer 1965: pseudo-Boolean functions of attractive pairs).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from scipy.sparse import coo_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from bricolage.graph.constant_folding import is_known
from bricolage.graph.graph import describe
from bricolage.rewrite.analyses.profitability import bytes_of
from bricolage.rewrite.analyses.transpose_propagation import (
    Permutation,
    TransposedOperator,
    compose,
    inverse,
    is_identity,
    transpose_operator,
)
from bricolage.rewrite.predicates import listed, permutation, rank
from bricolage.rewrite.rule import MatchFailure

_MOST = 2**30 - 1
"""Sum of all capacities: the flow solver counts in 32 bits."""
Layouts = tuple[Permutation, Permutation]
"""The permutations with which a value is stored in layouts A and B."""


@dataclass
class Component:
    """What is reached from one transpose: values with their two layouts, and operators as written for either."""

    home: ir.Graph
    layouts: dict[ir.Value, Layouts]
    choices: dict[ir.Node, tuple[TransposedOperator, TransposedOperator]]
    turns: dict[ir.Node, Permutation]
    """Transposes between values that are the same one in other layouts."""

    def source(self, value: ir.Value) -> tuple[ir.Value, Permutation]:
        """What a value is a transpose of, through all transposes of the component: (x, p) with value = Transpose(x, p)."""
        perm = tuple(range(rank(value)))
        while (node := value.producer()) in self.turns and node is not None:
            before = node.inputs[0]
            assert before is not None
            value, perm = before, compose(self.turns[node], perm)
        return value, perm


def components(graph: ir.Graph) -> Iterator[tuple[ir.Node, Component]]:
    """The components of a graph, each with its first transpose, every transpose in the first that reaches it."""
    seen: set[ir.Node] = set()
    for node in list(graph):
        if node.op_type == "Transpose" and not node.domain and node not in seen and node.graph is graph:
            component = _explore(node, graph)
            if component is not None:
                seen.update(component.turns)
                yield node, component


def _explore(start: ir.Node, home: ir.Graph) -> Component | None:
    source, target = start.inputs[0], start.outputs[0]
    try:
        perm = permutation(start, source) if source is not None else ()
    except MatchFailure:
        return None
    if source is None or is_identity(perm):
        return None
    same = tuple(range(len(perm)))
    usual = (same, perm, inverse(perm))
    component = Component(home, {source: (same, inverse(perm)), target: (perm, same)}, {}, {start: perm})
    failed: set[ir.Node] = set()
    waiting = deque([source, target])

    def assign(value: ir.Value, layouts: Layouts) -> None:
        if value not in component.layouts:
            component.layouts[value] = layouts
            if layouts[0] != layouts[1]:
                waiting.append(value)

    while waiting:
        value = waiting.popleft()
        for node in _around(value, home):
            if node in component.turns or node in component.choices or node in failed:
                continue
            layouts = component.layouts[value]
            if node.op_type == "Transpose":
                perm = listed(node, "perm", range(len(layouts[0]))[::-1])
                before, after = node.inputs[0], node.outputs[0]
                assert before is not None
                step = perm if before is value else inverse(perm)
                other = after if before is value else before
                turned = (compose(layouts[0], step), compose(layouts[1], step))
                if component.layouts.get(other, turned) != turned:
                    failed.add(node)
                    continue
                component.turns[node] = perm
                assign(other, turned)
                continue
            choices = _choices(node, value, layouts, usual)
            if choices is None:
                failed.add(node)
                continue
            laid = [
                (given, (first, second))
                for given, first, second in zip(node.inputs, choices[0].inputs, choices[1].inputs, strict=True)
                if given is not None and first is not None and second is not None
            ]
            if any(describe(given).shape is None for given, _ in laid):
                failed.add(node)
                continue
            component.choices[node] = choices
            for given, pair in laid:
                if rank(given) == len(pair[0]):
                    assign(given, pair)
            for index, other in enumerate(node.outputs):
                assign(other, (choices[0].outputs[index], choices[1].outputs[index]))
    return component


def _around(value: ir.Value, home: ir.Graph) -> list[ir.Node]:
    producer = value.producer()
    # By name: the order in which a value knows its readers is that of rewriting, which a copy of the graph does not have.
    readers = sorted((usage.node for usage in value.uses()), key=lambda node: node.name or "")
    nodes = readers if producer is None else [producer, *readers]
    return [node for node in dict.fromkeys(nodes) if node.graph is home and not node.domain]


def _choices(
    node: ir.Node, value: ir.Value, layouts: Layouts, usual: tuple[Permutation, ...]
) -> tuple[TransposedOperator, TransposedOperator] | None:
    """The two choices in which the operator has `value` in these layouts, one of them its present one."""
    choices = [_choice(node, value, layout, usual) for layout in layouts]
    first, second = choices
    if first is None or second is None or not (_present(first) or _present(second)):
        return None  # an operator that has other layouts than the two now would be a third choice
    return first, second


def _choice(
    node: ir.Node, value: ir.Value, layout: Permutation, usual: tuple[Permutation, ...]
) -> TransposedOperator | None:
    """The operator where it has `value` in this layout. Where new axes could stand at several places, those that
    give the result one of the `usual` permutations are preferred."""
    for perm in (*usual, layout) if node.op_type == "Unsqueeze" else (layout,):
        try:
            operator = transpose_operator(node, perm)
        except MatchFailure:
            continue
        here = [p for v, p in zip(node.inputs, operator.inputs, strict=True) if v is value]
        here += [p for v, p in zip(node.outputs, operator.outputs, strict=True) if v is value]
        if set(here) == {layout}:
            return operator
    return None


def _present(found: TransposedOperator) -> bool:
    return all(p is None or is_identity(p) for p in (*found.inputs, *found.outputs))


def moved_operators(component: Component) -> dict[ir.Node, TransposedOperator]:
    """The operators that should work in the other layout than now, as they are written there. Empty where nothing is gained."""
    cut = _Cut(component)
    sides = cut.solve()
    operators = {}
    for node, choices in component.choices.items():
        chosen = choices[sides[cut.number(node)]]
        if not _present(chosen):
            operators[node] = chosen
    return operators


class _Cut:
    """A network of operators; layout A is the side of its source."""

    _SOURCE, _SINK = 0, 1

    def __init__(self, component: Component) -> None:
        self._component = component
        self._numbers: dict[object, int] = {}
        self._arcs: list[tuple[int, int, float]] = []
        for node, choices in component.choices.items():
            # Where both are as good, an operator stays as it is.
            present = self._SOURCE if _present(choices[0]) else self._SINK
            self._attract(present, self.number(node), 1e-3)
        for source, aliases in self._classes().items():
            self._connect(source, aliases)

    def number(self, thing: object) -> int:
        return self._numbers.setdefault(thing, len(self._numbers) + 2)

    def solve(self) -> list[int]:
        """For each number its side: 0 for layout A, 1 for B."""
        count = len(self._numbers) + 2
        scale = _MOST / max(sum(min(c, 1e30) for *_, c in self._arcs if c != np.inf), 1.0)
        finite = np.array([c for *_, c in self._arcs])
        units = np.where(np.isinf(finite), _MOST, np.ceil(np.minimum(finite, 1e30) * min(scale / 2, 1e3)))
        rows, columns = (np.array([arc[i] for arc in self._arcs], np.int32) for i in (0, 1))
        network = coo_array((units.astype(np.int64), (rows, columns)), shape=(count, count)).tocsr()
        network.data = np.minimum(network.data, _MOST).astype(np.int32)
        flow = maximum_flow(network, self._SOURCE, self._SINK).flow
        left = (network - flow).tocsr()
        left.eliminate_zeros()
        reached = breadth_first_order(left, self._SOURCE, return_predecessors=False)
        sides = np.ones(count, int)
        sides[reached] = 0
        return [int(side) for side in sides]

    def _classes(self) -> dict[ir.Value, list[ir.Value]]:
        classes: dict[ir.Value, list[ir.Value]] = {}
        for value in self._component.layouts:
            classes.setdefault(self._component.source(value)[0], []).append(value)
        return classes

    def _attract(self, a: int, b: int, cost: float) -> None:
        self._arcs += [(a, b, cost), (b, a, cost)]

    def _connect(self, source: ir.Value, aliases: list[ir.Value]) -> None:
        """One conversion, of the bytes of the value, if any reader wants another layout than the producer's."""
        component = self._component
        layouts = component.layouts
        if source not in layouts or layouts[source][0] == layouts[source][1] or is_known(source):
            return
        producer = source.producer()
        producer_side = self.number(producer) if producer in component.choices else self._side(source)
        readers = {side for value in aliases for side in self._readers(value)} - {producer_side, None}
        if producer_side is None or not readers:
            return
        cost = float(bytes_of(source) + 1)
        first, second = self.number(("first", source)), self.number(("second", source))
        self._arcs += [(producer_side, first, cost), (second, producer_side, cost)]
        for reader in readers:
            if reader is not None:
                self._arcs += [(first, reader, np.inf), (reader, second, np.inf)]

    def _readers(self, value: ir.Value) -> Iterable[int | None]:
        """Who reads a value: operators that choose, and the layout that it has for all others."""
        for usage in value.uses():
            if usage.node in self._component.choices:
                given = self._component.choices[usage.node][0].inputs[usage.idx]
                if given is not None:
                    yield self.number(usage.node)
            elif usage.node not in self._component.turns:
                yield self._side(value)
        if value.is_graph_output():
            yield self._side(value)

    def _side(self, value: ir.Value) -> int | None:
        """The layout that a value has in the graph; None where it is a third one."""
        first, second = self._component.layouts[value]
        return self._SOURCE if is_identity(first) else self._SINK if is_identity(second) else None
