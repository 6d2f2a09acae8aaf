"""Which element-wise results are stored, and which are computed again where they are read: the cheapest plan.

A plan is the set of tensors that are stored, for each is computed by one kernel from what else is stored. Most of the set is given
by what kernels can do (see `fusion`); the rest are choices. Two choices belong together when one kernel may compute both. Each
such group is solved for itself by depth-first branch and bound (Land and Doig, Econometrica 1960): results before what they
are made of, with all that is undecided free of charge as the bound. The plan of the rules is what it starts from, so that
the plan found is never dearer. Optimus (Cai et al., TECS 2022) searches groups of layers with the same kind of cost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property

from bricolage.native.fuse.memory_cost import KernelCosts, MemoryTraffic, traffic
from bricolage.native.ir.tensors import STORED_BYTES, Constant, Input, Node, Normalise, Pointwise, Reduce, Softmax, View

_STEPS, _STEPS_OF_GROUP = 400_000, 60_000
"""What a search may take, and that for one group of choices; some 0.7 µs each. The best plan by then is taken."""
_LARGEST = 64
"""Choices of a group beyond which those that the rules store stay stored, so that it falls apart."""
_CLEARLY = 0.99
"""Part of what the rules' choices take that others may take to be preferred: the model knows no better."""


@dataclass(frozen=True)
class SearchSpace:
    """All plans that can be run."""

    fixed: Set[Node]
    """What is stored in every plan."""
    optional: Set[Node]
    """What may be stored or not."""
    kernels: Mapping[Node, frozenset[Node]]
    """Of every plan: their results, each with the roots that are computed inside."""
    number: Mapping[Node, int]
    """Order of all nodes, sources first."""
    size: Callable[[Node], int]
    """Bytes of an element of a tensor where it is stored."""
    at_boundary: Callable[[Node], bool]
    """Whether a tensor, where it is stored, has the layout of the region's ends and not that of what is in between."""
    model: KernelCosts
    """What a kernel costs."""


@dataclass(frozen=True)
class FusionSearchResult:
    """The plan found for one space."""

    stored: frozenset[Node]
    """Of what is free."""
    nanoseconds: float
    """Of all kernels that a choice can change."""
    exact: bool
    """Whether no plan is clearly cheaper, for certain."""


def search_plan(space: SearchSpace, first: Set[Node], users: Mapping[Node, Sequence[Node]]) -> FusionSearchResult:
    """The cheapest plan, starting from the one that stores `first` of what is free."""
    return _search(space, first, users, _Budget(_STEPS), {})


def _search(
    space: SearchSpace,
    first: Set[Node],
    users: Mapping[Node, Sequence[Node]],
    budget: _Budget,
    known: dict[Hashable, tuple[tuple[bool, ...], float, bool]],
) -> FusionSearchResult:
    """`known` are groups that were solved before: networks repeat their blocks, and equal blocks shall share their functions."""
    widest = _widest(space)
    hidden = {node for node in space.optional if node not in first and _better_inside(node, space, users, widest)}
    stored, total, exact = set[Node](), 0.0, True
    for group in _groups(space, hidden):
        if len(group.optional) > _LARGEST:
            kept = {node for node in group.optional if node in first}
            if kept:
                rest = replace(
                    space,
                    fixed=space.fixed | kept,
                    optional=frozenset(group.optional) - kept,
                    kernels={**group.kernels, **dict.fromkeys(kept, frozenset[Node]())},
                )
                solution = _search(rest, first, users, budget, known)
                stored |= solution.stored | kept
                total += solution.nanoseconds
            exact = False
            continue
        likeness = group.likeness(first)
        if likeness not in known:
            known[likeness] = group.solve(first, budget)
        chosen, nanoseconds, certain = known[likeness]
        stored |= {node for node, choice in zip(group.optional, chosen, strict=True) if choice}
        total += nanoseconds
        exact &= certain
    return FusionSearchResult(frozenset(stored), total, exact)


def plan_cost(space: SearchSpace, stored: Collection[Node]) -> float:
    """Nanoseconds of all kernels of one plan."""
    chosen = set(stored)
    results = {**space.kernels, **dict.fromkeys(chosen, frozenset[Node]())}
    return sum(_of_kernel(node, inside, space, chosen.__contains__)[0] for node, inside in results.items())


def _of_kernel(
    result: Node,
    inside: frozenset[Node],
    space: SearchSpace,
    chosen: Callable[[Node], bool],
    undecided: Callable[[Node], bool] = lambda _: False,
) -> tuple[float, int]:
    """What one kernel takes, or a bound of that where it reaches something undecided; and the elements in its text. Nothing to
    start, and nothing to read of the result of the kernel that is the last to be there, if it can store it too
    (see `fusion`)."""

    def is_stored(node: Node) -> bool:
        return node is not result and (node in space.fixed or chosen(node))

    kernel_traffic = traffic((result,), inside, is_stored, undecided)
    model = space.model
    total = model.kernel(kernel_traffic, (result,), space.size)
    host = _host(result, kernel_traffic, space)
    if host is not None:
        total -= model.start(kernel_traffic) + model.move(host, host.elements, space.size(host))
    elif kernel_traffic.reaches_undecided and kernel_traffic.elementwise:
        total -= model.start(kernel_traffic) + max(
            (model.move(n, n.elements, space.size(n)) for n in kernel_traffic.pointwise_reads), default=0.0
        )
    return total, kernel_traffic.body


def _host(result: Node, found: MemoryTraffic, space: SearchSpace) -> Node | None:
    """The tensor whose kernel can store this result as a secondary output."""
    if not found.elementwise or found.reaches_undecided or not isinstance(result, Pointwise):
        return None
    computed = [node for node in found.reads if not isinstance(node, Constant)]
    last = max(computed, key=lambda node: space.number[node], default=None)
    hosts = last is not None and last in found.pointwise_reads and (last in space.kernels or last in space.optional)
    return last if last is not None and hosts and space.at_boundary(last) == space.at_boundary(result) else None


def _better_inside(
    node: Node, space: SearchSpace, users: Mapping[Node, Sequence[Node]], widest: Mapping[Node, int]
) -> bool:
    """Whether it is certain that storing a tensor does not pay: one reader asks for each element once, and reads no more bytes
    in its stead."""
    only, *others = users[node]
    if others or space.size(node) < widest[node]:
        return False
    if isinstance(only, (Softmax, Reduce)) or (isinstance(only, Normalise) and only.in_rows):
        return True
    alike = isinstance(only, Pointwise) and only.shape == node.shape
    return alike and all(source is node or isinstance(source, Constant) for source in only.sources)


def _widest(space: SearchSpace) -> dict[Node, int]:
    """Bytes of the largest type in what a node is computed from, down to what every plan stores."""
    widths: dict[Node, int] = {}
    for node in space.number:
        sources = [STORED_BYTES[s.dtype] if s in space.fixed else widths[s] for s in node.sources]
        widths[node] = max(sources, default=STORED_BYTES[node.dtype])
    return widths


def _groups(space: SearchSpace, hidden: Set[Node]) -> list[_Group]:
    """Choices that belong together, each with the kernels that they change."""
    leaf_types = (Input, Constant)
    nodes = [
        node
        for node in space.number
        if node in space.kernels or not (node in space.fixed or isinstance(node, leaf_types))
    ]
    group = {node: node for node in nodes}
    """Of every node: another one of its group; the last one leads to itself. Nodes are together with what they are made of, but
    for what every plan stores."""

    def leader(node: Node) -> Node:
        while group[node] is not node:
            group[node] = group[group[node]]
            node = group[node]
        return node

    for node in nodes:
        for source in node.sources:
            if source in group and source not in space.fixed:
                group[leader(source)] = leader(node)
    members: dict[Node, list[Node]] = {}
    for node in nodes:
        members.setdefault(leader(node), []).append(node)
    groups = []
    for together in members.values():
        optional = [node for node in together if node in space.optional and node not in hidden]
        if optional:
            groups.append(_Group(space, together, optional))
    return groups


@dataclass
class _Budget:
    """What may still be looked at: kernels, and those that are new by the elements in their text."""

    steps: int


class _Group:
    def __init__(self, space: SearchSpace, nodes: Sequence[Node], optional: Sequence[Node]) -> None:
        """`nodes` are all that the choices `optional` have to do with, sources first."""
        self.optional = optional[::-1]
        """Results before what they are made of."""
        self.kernels = {node: space.kernels[node] for node in nodes if node in space.kernels}
        self._space = space
        self._nodes = nodes
        self._bit = {node: 1 << i for i, node in enumerate(optional)}
        self._known: dict[tuple[Node, int, int], float] = {}

    @cached_property
    def _reach(self) -> dict[Node, int]:
        """Choices among the nodes that a node may be computed from, itself included, as bits."""
        reach: dict[Node, int] = {}
        for node in self._nodes:
            reach[node] = self._bit.get(node, 0)
            for source in node.sources:
                if source not in self._space.fixed:
                    reach[node] |= reach.get(source, 0)
        return reach

    def likeness(self, first: Set[Node]) -> Hashable:
        """Equal for groups that have the same plans at the same prices."""
        space = self._space
        results = set(self.kernels)
        inside = dict.fromkeys([*self._nodes, *(source for node in self._nodes for source in node.sources)])
        order = sorted(inside, key=lambda node: space.number[node])
        local = {node: i for i, node in enumerate(order)}
        return tuple(
            (
                type(node),
                node.shape,
                space.size(node),
                node in space.fixed,
                node in first,
                node in self._bit,
                node in space.kernels or node in space.optional,
                space.at_boundary(node),
                getattr(node, "function", None),
                isinstance(node, View) and (node.strided, node.inverse is None),
                isinstance(node, Normalise) and node.in_rows,
                tuple(local[source] for source in node.sources if source in local),
                tuple(sorted(local[root] for root in self.kernels[node])) if node in results else None,
            )
            for node in order
        )

    def solve(self, first: Set[Node], budget: _Budget) -> tuple[tuple[bool, ...], float, bool]:
        """What to store of `optional` in the cheapest plan, or in the cheapest that was seen when the budget was used up; what all
        its kernels take; and whether that is certain to be the least."""
        group_budget = _Budget(min(_STEPS_OF_GROUP, budget.steps))
        budget.steps -= group_budget.steps
        usual = near = sum(self._bit[node] for node in self.optional if node in first)
        least = at_first = self._total(usual, 0, group_budget)
        improved = True
        while improved and group_budget.steps > 0:  # a better start cuts more off
            improved = False
            for node in self.optional:
                other = near ^ self._bit[node]
                total = self._total(other, 0, group_budget) if group_budget.steps > 0 else least
                if total < least:
                    near, least, improved = other, total, True
        best, exact = near, True

        def descend(depth: int, stored: int, undecided: int) -> None:
            nonlocal best, least, exact
            if group_budget.steps <= 0:
                exact = False
                return
            bound = self._total(stored, undecided, group_budget)
            if bound >= least:
                return
            if depth == len(self.optional):
                best, least = stored, bound
                return
            bit = self._bit[self.optional[depth]]
            for choice in (near & bit, bit & ~near):
                descend(depth + 1, stored | choice, undecided & ~bit)

        descend(0, 0, sum(self._bit.values()))
        budget.steps += max(0, group_budget.steps)
        if least > _CLEARLY * at_first:
            best, least = usual, at_first
        return tuple(bool(self._bit[node] & best) for node in self.optional), least, exact

    def _total(self, stored: int, undecided: int, budget: _Budget) -> float:
        """Nanoseconds of the plan that stores these choices, or a bound of that where some are not made yet."""
        budget.steps -= len(self.kernels) + stored.bit_count()
        total = sum(self._kernel(node, stored, undecided, budget) for node in self.kernels)
        chosen = (node for node in self.optional if self._bit[node] & stored)
        return total + sum(self._kernel(node, stored, undecided, budget) for node in chosen)

    def _kernel(self, node: Node, stored: int, undecided: int, budget: _Budget) -> float:
        bits = self._reach[node]
        key = node, stored & bits, undecided & bits
        if key not in self._known:
            bit, inside = self._bit, self.kernels.get(node, frozenset())
            self._known[key], body = _of_kernel(
                node,
                inside,
                self._space,
                lambda n: bool(bit.get(n, 0) & stored),
                lambda n: bool(bit.get(n, 0) & undecided),
            )
            budget.steps -= 5 * body
        return self._known[key]
