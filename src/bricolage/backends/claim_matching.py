"""Claims against a graph: which regions a backend offers to run.

Three kinds of region come out of a claim: what its pattern matches; the nested prefixes that its growth rule adds along
the chain of immediate post-dominators (Collage, section 3.2: pattern generator); and, for engines, the largest regions
of accepted operators.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import onnx_ir as ir

from bricolage.backends.claims import Claim, Growth, Pattern, Shared
from bricolage.backends.interface import Backend
from bricolage.graph.graph import Graph, Operator, Region
from bricolage.graph.properties import COMMUTATIVE
from bricolage.work import bits


def objections(backend: Backend, graph: Graph, operator: Operator) -> list[str]:
    """Why a backend does not claim an operator, a reason once; empty where it does, or where it claims patterns alone."""
    rules = (claim.growth.accepts for claim in backend.claims() if claim.growth is not None and claim.growth.maximal)
    return list(dict.fromkeys(reason for accepts in rules if (reason := accepts(graph, operator)) is not None))


Bound = Mapping[str, "ir.Value | int"]
"""The names of a pattern with what they match: values outside the region, and numbers of operators in it."""


def _depth(pattern: Pattern) -> int:
    """Operators one behind the other."""
    inner = [wanted for wanted in pattern.inputs or () if isinstance(wanted, Pattern)]
    return 1 + max(map(_depth, inner), default=0)


class Matcher:
    """Finds the regions of a graph that claims describe."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def regions(self, claims: Iterable[Claim]) -> set[int]:
        """Bit-sets of all convex regions claimed, except maximal ones."""
        bit_sets: set[int] = set()
        for claim in claims:
            for operator in self._graph.operators:
                for matched in self._matches(claim.roots, operator):
                    region = Region(self._graph, matched)
                    if not region.convex or claim.constraint(self._graph, region.operators) is not None:
                        continue
                    bit_sets.add(matched)
                    if claim.growth is not None:
                        bit_sets.update(self._grow(matched, operator.number, claim.growth))
        return bit_sets

    def accepted(self, claims: Iterable[Claim]) -> int:
        """Operators that may be part of a maximal region, as a bit-set."""
        rules = [claim.growth.accepts for claim in claims if claim.growth is not None and claim.growth.maximal]
        return bits.of(
            operator.number
            for operator in self._graph.operators
            if any(accepts(self._graph, operator) is None for accepts in rules)
        )

    def maximal(self, accepted: int) -> list[int]:
        """The largest connected, convex regions of `accepted` operators, disjoint, by their lowest operator.

        Operators get a stage: how often the paths to them change between accepted and not, at most. Stages never fall
        along a path and rise with each change, so the connected parts of one stage are convex. Neighbours are then
        joined as long as they stay convex.
        """
        graph = self._graph
        stage: list[int] = []
        regions: dict[int, int] = {}  # by one member each
        member: dict[int, int] = {}  # of the operator's region, some steps nearer to the one by which it is known

        def known_by(number: int) -> int:
            while member[number] != number:
                member[number] = member[member[number]]
                number = member[number]
            return number

        for operator in graph.operators:
            number, inside = operator.number, accepted >> operator.number & 1
            before = graph.predecessors[number]
            stage.append(max((stage[p] + ((accepted >> p & 1) != inside) for p in before), default=0))
            if inside:
                member[number], regions[number] = number, 1 << number
                for p in before:
                    if stage[p] == stage[number] and p in member and (other := known_by(p)) != number:
                        member[other] = number
                        regions[number] |= regions.pop(other)
        return sorted(self._join_regions(sorted(regions.values(), key=bits.lowest)), key=bits.lowest)

    def _join_regions(self, regions: list[int]) -> list[int]:
        """Joins regions that an edge connects while their union is convex."""
        owner = {number: index for index, region in enumerate(regions) for number in bits.members(region)}
        merged: dict[int, int] = dict(enumerate(regions))
        changed = True
        while changed:
            changed = False
            edges = {
                (owner[p], owner[n])
                for n in owner
                for p in self._graph.predecessors[n]
                if owner.get(p, owner[n]) != owner[n]
            }
            for first, second in sorted(edges):
                if first in merged and second in merged:
                    union = merged[first] | merged[second]
                    if Region(self._graph, union).convex:
                        merged[first] = union
                        owner.update(dict.fromkeys(bits.members(merged.pop(second)), first))
                        changed = True
        return list(merged.values())

    def _matches(self, roots: Sequence[Pattern], operator: Operator) -> list[int]:
        """Operators that patterns cover together when the first's root is `operator`: of one pattern the first way in which it
        matches, of several all ways, whose roots are distinct."""
        if len(roots) == 1:
            ways = (matched for matched, bound in self._tree(roots[0], operator, {}) if self._outside(bound, matched))
            return list(itertools.islice(ways, 1))
        matches: list[tuple[tuple[int, ...], int, Bound]] = [
            ((operator.number,), *match) for match in self._tree(roots[0], operator, {})
        ]
        for root in roots[1:]:
            matches = [
                ((*used, number), matched | more, bound)
                for used, matched, before in matches
                for number in self._near(before, _depth(root))
                if number not in used
                for more, bound in self._tree(root, self._graph.operators[number], before)
            ]
        return list(dict.fromkeys(matched for _, matched, bound in matches if self._outside(bound, matched)))

    def _near(self, bound: Bound, depth: int) -> list[int]:
        """Operators whose inputs, at most `depth` operators before them, are what names are bound to."""
        reached = {
            number
            for binding in bound.values()
            for number in (
                (binding, *self._graph.successors[binding])
                if isinstance(binding, int)
                else self._graph.readers(binding)
            )
        }
        edge = reached
        for _ in range(depth - 1):
            edge = {later for number in edge for later in self._graph.successors[number]} - reached
            reached |= edge
        return sorted(reached)

    def _outside(self, bound: Bound, matched: int) -> bool:
        """Whether shared values come from outside of the region."""
        producers = [self._graph.producer(binding) for binding in bound.values() if not isinstance(binding, int)]
        return not any(number is not None and matched >> number & 1 for number in producers)

    def _tree(self, pattern: Pattern, operator: Operator, bound: Bound) -> Iterator[tuple[int, Bound]]:
        """Ways in which the pattern matches with its root at `operator`: the operators that it covers, and what its names stand
        for. `bound`: names that are matched already."""
        if pattern.types and (operator.op_type not in pattern.types or operator.domain != pattern.domain):
            return
        if pattern.label:
            if bound.get(pattern.label, operator.number) != operator.number:
                return
            bound = {**bound, pattern.label: operator.number}
        matched = 1 << operator.number
        if pattern.inputs is None:
            yield matched, bound
            return
        values = operator.node.inputs
        if len(values) < len(pattern.inputs):
            return
        orders = [pattern.inputs]
        if operator.op_type in COMMUTATIVE and len(pattern.inputs) == 2:
            orders.append((pattern.inputs[1], pattern.inputs[0]))
        for order in orders:
            for inner, names in self._inputs(list(zip(order, values, strict=False)), bound):
                yield matched | inner, names

    def _inputs(
        self, wanted: Sequence[tuple[Pattern | Shared | None, ir.Value | None]], bound: Bound
    ) -> Iterator[tuple[int, Bound]]:
        """The same for values that are to match, all of them."""
        if not wanted:
            yield 0, bound
            return
        (pattern, value), *others = wanted
        if pattern is None:
            yield from self._inputs(others, bound)
        elif isinstance(pattern, Shared):
            if value is not None and bound.get(pattern.name, value) is value:
                yield from self._inputs(others, {**bound, pattern.name: value})
        else:
            producer = self._graph.producer(value) if value is not None else None
            if producer is not None:
                for matched, names in self._tree(pattern, self._graph.operators[producer], bound):
                    for more, all_names in self._inputs(others, names):
                        yield matched | more, all_names

    def _grow(self, matched: int, root: int, growth: Growth) -> Iterator[int]:
        region, current = matched, root
        while True:
            target = self.post_dominators[current]
            between = self._between(current, target, growth.limit) if target is not None else None
            if target is None or between is None:
                return
            region |= between
            if region.bit_count() > growth.limit:
                return
            if any(growth.accepts(self._graph, self._graph.operators[n]) is not None for n in bits.members(between)):
                return
            if Region(self._graph, region).convex:
                yield region
            current = target

    def _between(self, source: int, target: int, limit: int) -> int | None:
        """Operators on the paths from `source` (exclusive) to `target` (inclusive); None when there are over `limit`."""
        seen: set[int] = set()
        todo = [source]
        while todo:
            for later in self._graph.successors[todo.pop()]:
                if later in seen:
                    continue
                seen.add(later)
                if len(seen) > limit:
                    return None
                if later != target:
                    todo.append(later)
        return bits.of(seen)

    @cached_property
    def post_dominators(self) -> tuple[int | None, ...]:
        """Immediate post-dominator of each operator; None where paths to the outputs never meet again.

        Cooper, Harvey & Kennedy, "A Simple, Fast Dominance Algorithm" (2001), on the reversed graph; one pass suffices
        because operators are numbered topologically.
        """
        graph = self._graph
        count = len(graph)
        parent: list[int] = [count] * count  # `count` is the virtual exit
        for number in range(count - 1, -1, -1):
            leaves = any(graph.is_output(value) for value in graph.operators[number].outputs)
            targets = [count] if leaves else []
            targets.extend(graph.successors[number])
            meeting = targets[0] if targets else count
            for other in targets[1:]:
                while meeting != other:
                    if meeting < other:
                        meeting = parent[meeting]
                    else:
                        other = parent[other]
            parent[number] = meeting
        return tuple(None if p == count else p for p in parent)
