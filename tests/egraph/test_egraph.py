from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.egraph.egraph import EGraph, ENode, NoAnalysis
from bricolage.errors import BadTerm

ARITY = {"a": 0, "b": 0, "f": 1, "g": 2}


class NaiveClosure:
    """Congruence closure by comparing all pairs of terms until nothing changes."""

    def __init__(self) -> None:
        self.terms: list[tuple[str, tuple[int, ...]]] = []
        self.group: list[int] = []

    def add(self, operator: str, children: tuple[int, ...]) -> int:
        self.terms.append((operator, children))
        self.group.append(len(self.group))
        self.close()
        return len(self.terms) - 1

    def merge(self, first: int, second: int) -> None:
        old, new = self.group[first], self.group[second]
        self.group = [new if each == old else each for each in self.group]
        self.close()

    def close(self) -> None:
        changed = True
        while changed:
            changed = False
            for (i, (left, x)), (j, (right, y)) in itertools.combinations(enumerate(self.terms), 2):
                same = left == right and [self.group[c] for c in x] == [self.group[c] for c in y]
                if same and self.group[i] != self.group[j]:
                    old, new = self.group[i], self.group[j]
                    self.group = [new if each == old else each for each in self.group]
                    changed = True


STEPS = st.lists(
    st.tuples(st.sampled_from([*ARITY, "merge", "merge", "rebuild"]), st.integers(0, 40), st.integers(0, 40)),
    max_size=30,
)


@given(STEPS)
@settings(max_examples=200, deadline=None)
def test_equals_naive_congruence_closure(steps: list[tuple[str, int, int]]) -> None:
    egraph, oracle, classes = EGraph(NoAnalysis()), NaiveClosure(), []
    for what, first, second in steps:
        if what == "rebuild":
            egraph.rebuild()
        elif what in ARITY:
            if ARITY[what] and not classes:
                continue
            picks = tuple(each % len(classes) for each in (first, second)[: ARITY[what]])
            classes.append(egraph.add(what, [classes[pick] for pick in picks]))
            oracle.add(what, picks)
        elif classes:
            picks = (first % len(classes), second % len(classes))
            egraph.merge(classes[picks[0]], classes[picks[1]])
            oracle.merge(*picks)
    egraph.rebuild()
    for i, j in itertools.combinations(range(len(classes)), 2):
        assert (egraph.find(classes[i]) == egraph.find(classes[j])) == (oracle.group[i] == oracle.group[j])
    # Every node stands in one class, in canonical form, and the count is exact.
    nodes = [node for number in egraph.classes() for node in egraph.nodes(number)]
    assert len(nodes) == len(set(nodes)) == egraph.node_count
    assert all(egraph.find(child) == child for node in nodes for child in node.children)
    expected = {(name, tuple(oracle.group[c] for c in below)) for name, below in oracle.terms}
    assert len(nodes) == len(expected)
    assert egraph.class_count == len(set(oracle.group))
    # What is known is found again, and nothing new is made.
    for number in list(egraph.classes()):
        for node in egraph.nodes(number):
            assert egraph.add(node.operator, node.children) == number
    assert egraph.node_count == len(nodes)


class Interval:
    """Known bounds of a number; a join keeps what both say."""

    def make(self, egraph: EGraph[tuple[int, int]], node: ENode) -> tuple[int, int]:
        below = [egraph.data(child) for child in node.children]
        if node.operator == "a":
            return (0, 10)
        if node.operator == "b":
            return (5, 20)
        if node.operator == "f":  # plus one
            return (below[0][0] + 1, below[0][1] + 1)
        return (below[0][0] + below[1][0], below[0][1] + below[1][1])

    def join(self, left: tuple[int, int], right: tuple[int, int]) -> tuple[int, int]:
        return (max(left[0], right[0]), min(left[1], right[1]))


def test_data_of_merged_classes_reaches_their_parents() -> None:
    egraph = EGraph(Interval())
    a, b = egraph.add("a"), egraph.add("b")
    fa = egraph.add("f", [a])
    total = egraph.add("g", [fa, b])
    assert egraph.data(total) == (6, 31)
    egraph.merge(a, b)
    egraph.rebuild()
    assert egraph.data(a) == (5, 10)
    assert egraph.data(fa) == (6, 11)
    assert egraph.data(total) == (11, 21)


@given(STEPS)
@settings(max_examples=200, deadline=None)
def test_data_are_what_the_nodes_say(steps: list[tuple[str, int, int]]) -> None:
    """Every class knows at least the join of what its nodes make of their children."""
    egraph, classes = EGraph(Interval()), []
    for what, first, second in steps:
        if what == "rebuild":
            egraph.rebuild()
        elif what in ARITY:
            if not ARITY[what] or classes:
                children = [classes[each % len(classes)] for each in (first, second)[: ARITY[what]]]
                classes.append(egraph.add(what, children))
        elif classes and len(set(classes)) < 8:
            # Below itself a number would grow without end, so only leaves are merged.
            leaves = [each for each in classes if all(not node.children for node in egraph.nodes(each))]
            if leaves:
                egraph.merge(leaves[first % len(leaves)], leaves[second % len(leaves)])
    egraph.rebuild()
    analysis = Interval()
    for number in egraph.classes():
        for node in egraph.nodes(number):
            made = analysis.make(egraph, node)
            assert analysis.join(egraph.data(number), made) == egraph.data(number)


def test_unknown_children_are_refused() -> None:
    with pytest.raises(BadTerm, match="names 3 as a child"):
        EGraph(NoAnalysis()).add("f", [3])
