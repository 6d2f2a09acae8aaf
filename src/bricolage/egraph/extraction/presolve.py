"""Makes an extraction problem smaller without changing its optimum, and cuts it into independent parts.

The central notion is the *necessary* classes of a class c: those without which c cannot be derived at all. They are the
greatest solution of N(c) = {c} ∪ ⋂ over nodes of ⋃ over children of N(child), as landmarks are in planning (Keyder,
Richter & Helmert, ECAI 2010); choosing the cheapest acyclic graph is planning without delete effects. Then:

* a node whose children necessarily need the node's own class is on a cycle in every extraction, and goes;
* a node is dominated by one that costs no more and needs only what the first one necessarily needs;
* what the roots necessarily need is forced: it becomes a root, and needing it is free. Unless both lie in one strongly
  connected component, where it could still close a cycle, the edge to it goes;
* a forced class of one node is paid for and taken out; a class of one free node, or used by one node alone or with one
  node by one class alone, is merged into its users.

What remains falls apart into parts that share no class.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bricolage.egraph.extraction.extraction_problem import (
    Choice,
    ExtractionNode,
    ExtractionProblem,
    restrict,
    strong_components,
)
from bricolage.errors import NoExtraction
from bricolage.work.bits import members

_Picks = tuple[tuple[int, int], ...]
_WORTHWHILE = 0.97  # another round only when the last one took away this much
_WIDEST = 40_000  # classes; beyond, the bit-sets of necessary classes would take gigabytes


@dataclass(frozen=True)
class SubProblem:
    """A smaller problem; `picks[c][p]` are the (class, position) choices of the original that node (c, p) represents."""

    problem: ExtractionProblem
    picks: tuple[tuple[_Picks, ...], ...]

    def chosen(self, choice: Choice) -> dict[int, int]:
        """The original's choices that a choice in this part represents."""
        return dict(pick for number, position in choice.items() for pick in self.picks[number][position])


@dataclass(frozen=True)
class Presolved:
    """`fixed` is chosen in any case, at the price `constant`; each part is solved on its own, and prices add up."""

    original: ExtractionProblem
    fixed: Mapping[int, int]
    constant: float
    parts: tuple[SubProblem, ...]

    def restore(self, chosen: Iterable[Mapping[int, int]]) -> dict[int, int]:
        """The choice in the original problem, from what was chosen in each part (see `Part.chosen`)."""
        whole = dict(self.fixed)
        for choice in chosen:
            whole.update(choice)
        original_choice = restrict(self.original, whole)
        assert original_choice is not None, "acyclic choices of the parts give an acyclic whole"
        return original_choice


@dataclass(frozen=True)
class _NodeEntry:
    cost: float
    children: frozenset[int]
    picks: _Picks


def presolve(problem: ExtractionProblem, *, deadline: float = math.inf) -> Presolved:
    """Applies the reductions until none applies or `time.monotonic()` passes `deadline`.

    Raises NoExtraction when a root cannot be derived.
    """
    work = _ShrinkingProblem(problem)
    size = math.inf
    work.keep_useful()
    while work.size() < _WORTHWHILE * size and time.monotonic() < deadline:
        size = work.size()
        work.use_necessary(deadline)
        work.keep_useful()
        work.merge()
        work.keep_useful()
    return Presolved(problem, work.fixed, math.fsum(work.paid), work.parts())


class _ShrinkingProblem:
    """The problem while it shrinks. Classes are renumbered now and then, so that bit-sets stay short."""

    def __init__(self, problem: ExtractionProblem) -> None:
        self.classes = [
            [
                _NodeEntry(node.cost, frozenset(node.children), ((number, position),))
                for position, node in enumerate(nodes)
                if math.isfinite(node.cost) and number not in node.children
            ]
            for number, nodes in enumerate(problem.classes)
        ]
        self.roots = set(problem.roots)
        self.names = list(range(len(self.classes)))  # the original numbers
        self.fixed: dict[int, int] = {}
        self.paid: list[float] = []

    def size(self) -> int:
        return sum([len(entry.children) + 1 for entries in self.classes for entry in entries])

    def keep_useful(self) -> None:
        """Drops what cannot be derived and what the roots cannot reach; renumbers the rest."""
        rank = self._ranks()
        for root in self.roots:
            if rank[root] < 0:
                raise NoExtraction(root=self.names[root])
        for number, entries in enumerate(self.classes):
            self.classes[number] = [entry for entry in entries if all(rank[child] >= 0 for child in entry.children)]
        reached = dict.fromkeys(sorted(self.roots))
        queue = deque(reached)
        while queue:
            for entry in self.classes[queue.popleft()]:
                for child in entry.children:
                    if child not in reached:
                        reached[child] = None
                        queue.append(child)
        kept = sorted(reached)
        new = {old: position for position, old in enumerate(kept)}
        self.names = [self.names[old] for old in kept]
        self.roots = {new[root] for root in self.roots}
        self.classes = [
            [
                _NodeEntry(entry.cost, frozenset([new[child] for child in entry.children]), entry.picks)
                for entry in self.classes[old]
            ]
            for old in kept
        ]

    def _ranks(self) -> list[int]:
        """For each class its place in an order of derivation; -1 where it cannot be derived."""
        users: list[list[tuple[int, int]]] = [[] for _ in self.classes]
        missing: list[list[int]] = []
        rank = [-1] * len(self.classes)
        ready: deque[int] = deque()
        for number, entries in enumerate(self.classes):
            missing.append([len(entry.children) for entry in entries])
            for position, entry in enumerate(entries):
                for child in entry.children:
                    users[child].append((number, position))
                if not entry.children:
                    ready.append(number)
        place = 0
        while ready:
            number = ready.popleft()
            if rank[number] >= 0:
                continue
            rank[number] = place
            place += 1
            for user, position in users[number]:
                missing[user][position] -= 1
                if not missing[user][position]:
                    ready.append(user)
        return rank

    def use_necessary(self, deadline: float) -> None:
        """Drops cyclic and dominated nodes, makes forced classes roots and drops the edges to them that are free."""
        component = strong_components([{m for entry in entries for m in entry.children} for entries in self.classes])
        necessary = self._necessary(component, deadline)
        bits = 0
        for root in self.roots:
            bits |= necessary[root]
        self.roots.update(members(bits))
        forced = self.roots
        for number, entries in enumerate(self.classes):
            kept: list[tuple[_NodeEntry, int]] = []
            for entry in sorted(entries, key=lambda entry: (entry.cost, len(entry.children), entry.picks)):
                closure = mask = 0
                for child in entry.children:
                    closure |= necessary[child]
                    mask |= 1 << child
                closure |= mask
                if closure >> number & 1 or any(smaller & closure == smaller for _, smaller in kept):
                    continue
                kept.append((entry, mask))
            here = component[number]
            self.classes[number] = [
                _NodeEntry(
                    entry.cost,
                    frozenset([m for m in entry.children if m not in forced or component[m] == here]),
                    entry.picks,
                )
                for entry, _ in kept
            ]

    def _necessary(self, component: list[int], deadline: float) -> list[int]:
        """Bit-sets of the necessary classes; empty ones when there is no time to find them, or no room."""
        size = len(self.classes)
        everything = (1 << size) - 1
        necessary = [everything] * size
        if size > _WIDEST:
            return [0] * size
        groups: list[list[int]] = [[] for _ in range(max(component, default=-1) + 1)]
        for number, home in enumerate(component):
            groups[home].append(number)
        inside: list[set[int]] = [set() for _ in range(size)]
        for number, entries in enumerate(self.classes):
            for entry in entries:
                for child in entry.children:
                    if component[child] == component[number]:
                        inside[child].add(number)
        # Components come children first, and in a component classes in the order in which they can be derived: so most
        # evaluations are final.
        rank = self._ranks()
        for group in groups:
            heap = [(rank[number], number) for number in group]
            heapq.heapify(heap)
            queued = set(group)
            while heap:
                number = heapq.heappop(heap)[1]
                queued.discard(number)
                common = everything
                for entry in self.classes[number]:
                    union = 0
                    for child in entry.children:
                        union |= necessary[child]
                    common &= union
                common |= 1 << number
                if common != necessary[number]:
                    necessary[number] = common
                    for user in inside[number] - queued:
                        queued.add(user)
                        heapq.heappush(heap, (rank[user], user))
                    if time.monotonic() > deadline:
                        return [0] * size
        return necessary

    def merge(self) -> None:
        """Pays for forced classes of one node and merges classes into their users where that makes fewer nodes."""
        users: list[dict[int, int]] = [{} for _ in self.classes]
        for number, entries in enumerate(self.classes):
            for entry in entries:
                _count(users, number, entry, 1)
        for number, entries in enumerate(self.classes):
            uses = users[number]
            total = sum(uses.values())
            if not entries or (total and number in uses):
                continue
            single = len(entries) == 1
            children = max(len(entry.children) for entry in entries)
            # A merged node brings its children to every user: not when that makes many more edges.
            slim = total * children <= 2 * (total + children)
            if number in self.roots:
                if not (single and slim):
                    continue
                self.paid.append(entries[0].cost)
                self.fixed.update(entries[0].picks)
                self.roots.discard(number)
                # Forced too, as long as the class is; after it is gone nothing else would say so.
                self.roots.update(entries[0].children)
                inlined = [_NodeEntry(0.0, entries[0].children, ())]
            elif total and (
                (len(uses) == 1 and (total == 1 or (single and slim))) or (single and slim and entries[0].cost == 0.0)
            ):
                inlined = entries
            else:
                continue
            for user in list(uses):
                self._inline(users, user, number, inlined)
            for entry in entries:
                _count(users, number, entry, -1)
            self.classes[number] = []

    def _inline(self, users: list[dict[int, int]], user: int, number: int, inlined: list[_NodeEntry]) -> None:
        result: list[_NodeEntry] = []
        for entry in self.classes[user]:
            if number not in entry.children:
                result.append(entry)
                continue
            _count(users, user, entry, -1)
            for below in inlined:
                children = (entry.children - {number}) | below.children
                # A node that needs its own class is cyclic.
                if user not in children:
                    new = _NodeEntry(entry.cost + below.cost, children, entry.picks + below.picks)
                    _count(users, user, new, 1)
                    result.append(new)
        self.classes[user] = result

    def parts(self) -> tuple[SubProblem, ...]:
        leader = list(range(len(self.classes)))

        def find(number: int) -> int:
            while leader[number] != number:
                leader[number] = leader[leader[number]]
                number = leader[number]
            return number

        for number, entries in enumerate(self.classes):
            for entry in entries:
                for child in entry.children:
                    leader[find(child)] = find(number)
        groups: dict[int, list[int]] = {}
        for number in range(len(self.classes)):
            groups.setdefault(find(number), []).append(number)
        return tuple(self._part(group) for group in groups.values())

    def _part(self, group: list[int]) -> SubProblem:
        new = {old: position for position, old in enumerate(group)}
        classes = tuple(
            tuple(
                ExtractionNode(entry.cost, tuple(sorted(new[m] for m in entry.children))) for entry in self.classes[old]
            )
            for old in group
        )
        roots = tuple(new[old] for old in group if old in self.roots)
        picks = tuple(tuple(entry.picks for entry in self.classes[old]) for old in group)
        return SubProblem(ExtractionProblem(classes, roots), picks)


def _count(users: list[dict[int, int]], number: int, entry: _NodeEntry, change: int) -> None:
    for child in entry.children:
        count = users[child].get(number, 0) + change
        if count:
            users[child][number] = count
        else:
            del users[child][number]
