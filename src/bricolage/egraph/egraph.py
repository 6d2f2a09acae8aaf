"""An e-graph: equivalence classes of terms, closed under congruence.

Union-find over classes, hash-consed nodes, and rebuilding that waits until many merges have been made (egg: Willsey et al.,
POPL 2021, section 3). Every class may carry data from a lattice of the caller's (shapes, constants), kept up to date as
classes merge (section 4 there). Operators are opaque hashable keys: what they mean and cost is the caller's business.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from bricolage.egraph.extraction.extraction_problem import ExtractionNode, ExtractionProblem
from bricolage.errors import BadTerm

Data = TypeVar("Data")


@dataclass(frozen=True, slots=True)
class ENode:
    """An operator on classes."""

    operator: Hashable
    children: tuple[int, ...]


class Analysis(Protocol[Data]):
    """A join semi-lattice over classes. `join` must be commutative, associative and idempotent; data are compared by ==."""

    def make(self, egraph: EGraph[Data], node: ENode, /) -> Data:
        """The data of a node, from those of its children."""

    def join(self, left: Data, right: Data, /) -> Data:
        """The data of a class that was two. May raise where two classes cannot be equal."""


class NoAnalysis:
    """For e-graphs whose classes carry nothing."""

    def make(self, *_: object) -> None:
        """Nothing, whatever the node."""
        return

    def join(self, *_: object) -> None:
        """Nothing, whatever the two classes carry."""
        return


@dataclass
class _Class(Generic[Data]):
    data: Data
    nodes: dict[ENode, int]
    """Each node with its age: the number of nodes that had been added before it."""
    parents: list[tuple[ENode, int]] = field(default_factory=list)


class EGraph(Generic[Data]):
    """Between `merge` and `rebuild`, equal nodes may stand in different classes and `nodes` may name merged classes."""

    def __init__(self, analysis: Analysis[Data]) -> None:
        self._analysis = analysis
        self._leader: list[int] = []
        self._classes: dict[int, _Class[Data]] = {}
        self._known: dict[ENode, int] = {}
        self._merged: list[int] = []
        self._changed: list[int] = []
        self._added = 0
        self._live = 0
        self.merges = 0

    @property
    def node_count(self) -> int:
        """Distinct nodes; exact after `rebuild`, never less than that before."""
        return self._live

    @property
    def class_count(self) -> int:
        """How many classes there are."""
        return len(self._classes)

    @property
    def age_next(self) -> int:
        """The age that the next new node will have."""
        return self._added

    def find(self, number: int) -> int:
        """The representative of class `number`, with which it was merged."""
        leader = self._leader
        while leader[number] != number:
            leader[number] = leader[leader[number]]
            number = leader[number]
        return number

    def classes(self) -> Iterator[int]:
        """All classes, oldest first as far as they were not merged."""
        return iter(tuple(self._classes))

    def nodes(self, number: int) -> list[ENode]:
        """The nodes of a class."""
        return list(self._classes[self.find(number)].nodes)

    def data(self, number: int) -> Data:
        """What the analysis says of a class."""
        return self._classes[self.find(number)].data

    def age(self, number: int, node: ENode) -> int:
        """How many nodes are older than `node` of class `number`."""
        return self._classes[self.find(number)].nodes[node]

    def add(self, operator: Hashable, children: Sequence[int] = ()) -> int:
        """The class of a node, which is new unless the node is known. Raises BadTerm for a child that is no class."""
        for child in children:
            if not 0 <= child < len(self._leader):
                raise BadTerm(operator=operator, child=child)
        node = self._canonical(ENode(operator, tuple(children)))
        existing = self._known.get(node)
        if existing is not None:
            return self.find(existing)
        number = len(self._leader)
        data = self._analysis.make(self, node)
        self._leader.append(number)
        self._classes[number] = _Class(data, {node: self._added})
        self._known[node] = number
        self._added += 1
        self._live += 1
        for child in dict.fromkeys(node.children):
            self._classes[child].parents.append((node, number))
        return number

    def merge(self, first: int, second: int) -> int:
        """Makes two classes one; congruence follows at the next `rebuild`."""
        first, second = self.find(first), self.find(second)
        if first == second:
            return first
        # The class with more parents stays: fewer nodes to write anew.
        if len(self._classes[first].parents) < len(self._classes[second].parents):
            first, second = second, first
        winner, loser = self._classes[first], self._classes[second]
        joined = self._analysis.join(winner.data, loser.data)
        if joined != winner.data or joined != loser.data:
            self._changed.append(first)
        del self._classes[second]
        self._leader[second] = first
        winner.data = joined
        self._live -= len(winner.nodes) + len(loser.nodes)
        _unite(winner, loser.nodes.items())
        self._live += len(winner.nodes)
        winner.parents += loser.parents
        self._merged.append(first)
        self.merges += 1
        return first

    def rebuild(self) -> None:
        """Restores congruence: equal nodes in one class, every node naming representatives."""
        stale: set[int] = set()
        while self._merged or self._changed:
            merged, self._merged = self._merged, []
            for number in dict.fromkeys(self.find(each) for each in merged):
                stale.update(self._repair(number))
            changed, self._changed = self._changed, []
            for number in dict.fromkeys(self.find(each) for each in changed):
                self._update_parents(number)
        for number in dict.fromkeys(self.find(each) for each in sorted(stale)):
            eclass = self._classes[number]
            nodes, eclass.nodes = eclass.nodes, {}
            _unite(eclass, ((self._canonical(node), age) for node, age in nodes.items()))
            self._live += len(eclass.nodes) - len(nodes)

    def _repair(self, number: int) -> list[int]:
        """Writes the parents of a merged class anew and merges those that became equal; the classes they are in."""
        if number not in self._classes:  # merged away by an earlier repair, which put its leader on the list
            return []
        eclass = self._classes[number]
        parents, eclass.parents = eclass.parents, []
        fresh: dict[ENode, int] = {}
        for node, home in parents:
            self._known.pop(node, None)
            node = self._canonical(node)
            if node in fresh:
                self.merge(fresh[node], home)
            fresh[node] = self.find(home)
            self._known[node] = fresh[node]
        self._classes[self.find(number)].parents += [(node, self.find(home)) for node, home in fresh.items()]
        return list(fresh.values())

    def _update_parents(self, number: int) -> None:
        for node, home in list(self._classes[number].parents):
            home = self.find(home)
            eclass = self._classes[home]
            joined = self._analysis.join(eclass.data, self._analysis.make(self, self._canonical(node)))
            if joined != eclass.data:
                eclass.data = joined
                self._changed.append(home)

    def snapshot(
        self, cost: Callable[[int, ENode], float], roots: Iterable[int]
    ) -> tuple[ExtractionProblem, tuple[int, ...]]:
        """The extraction problem of a rebuilt e-graph, and which class here each class there is.

        `cost(class, node)` prices a node; nodes are the keys in the problem.
        """
        numbers = tuple(self.classes())
        place = {number: position for position, number in enumerate(numbers)}
        classes = tuple(
            tuple(
                ExtractionNode(cost(number, node), tuple(place[self.find(child)] for child in node.children), node)
                for node in self.nodes(number)
            )
            for number in numbers
        )
        return ExtractionProblem(classes, tuple(place[self.find(root)] for root in roots)), numbers

    def _canonical(self, node: ENode) -> ENode:
        children = tuple([self.find(child) for child in node.children])
        return node if children == node.children else ENode(node.operator, children)


def _unite(own: _Class[Data], nodes: Iterable[tuple[ENode, int]]) -> None:
    """Adds nodes to a class. Of equal ones the older age counts."""
    for node, age in nodes:
        own.nodes[node] = min(age, own.nodes.get(node, age))
