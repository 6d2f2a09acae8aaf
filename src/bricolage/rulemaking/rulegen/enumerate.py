"""All terms of a grammar up to a number of operators, modulo equality: Ruler (Nandi et al., OOPSLA 2021) on TASO's operators.

Terms are evaluated in bulk on exact random residues; a hash of the results is the term's fingerprint. Of the terms with one
fingerprint the first found represents the others, which become equations with it. Only representatives become operands, so
that a term is visited only if no operand of it can be replaced by an equal one that was found earlier.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from bricolage.equations.evaluate_term import concrete
from bricolage.equations.number_domains import Array, Residues
from bricolage.equations.term import Equation, Term, variables
from bricolage.equations.term_shapes import Shape, is_row, nesting_depth, substitute, substitute_size
from bricolage.equations.vocabulary import BY_NAME, TermOperator
from bricolage.rulemaking.rulegen.grammars import Grammar

_SAMPLES = 6
_CHUNK = 1 << 21  # numbers in one evaluation
_WIDTH = 4  # operators of a representative, at most


@dataclass
class _Pool:
    """Representatives of one shape: their numbers, and their values [count, samples, *sizes]."""

    numbers: Array
    values: Array


@dataclass
class _Block:
    """Terms of one operator: operands by number, fingerprints, and values if they are wanted."""

    operator: TermOperator
    operands: Array
    fingerprints: Array
    shape: Shape
    values: Array | None


class Enumeration:
    """The representatives of a grammar, and the equations between them and what they represent."""

    def __init__(self, grammar: Grammar, seed: int = 0) -> None:
        self._grammar = grammar
        self._generator = np.random.default_rng([seed, *grammar.name.encode()])
        self._xp = Residues()
        self._pools: dict[Shape, _Pool] = {}
        self._weights: dict[Shape, Array] = {}
        self.terms: list[Term] = []
        self._sizes: list[int] = []
        self._shapes: list[Shape] = []
        self._nodes: list[frozenset[int]] = []
        self._order: list[tuple[str, ...]] = []
        self._node_numbers: dict[tuple[object, ...], int] = {}
        self._known: dict[int, int] = {}
        self.equations: list[Equation] = []
        self.visited = 0
        """Terms that were evaluated."""
        self._parts: list[dict[frozenset[int], list[int]]] = []
        self._interchangeable = [
            [name for name, other in grammar.variables.items() if other == shape]
            for shape in dict.fromkeys(grammar.variables.values())
        ]

    def run(self) -> Enumeration:
        """Enumerates everything."""
        for name, shape in self._grammar.variables.items():
            sizes = concrete(substitute(shape, self._grammar.sizes))
            value = self._xp.draw(self._generator, _SAMPLES, sizes)[None]
            (fingerprint,) = self._fingerprints(value, shape)
            self._represent(name, int(fingerprint), shape, value, 0, frozenset(), (name,))
        for size in range(1, self._grammar.max_operators + 1):
            self._level(size)
        return self

    # --- one level

    def _level(self, size: int) -> None:
        last = size == self._grammar.max_operators
        by_size = self._by_size()
        self._widths = self._node_table()
        self._pairs = self._sharing(size)
        blocks: list[_Block] = []
        for name in self._grammar.operators:
            operator = BY_NAME[name]
            for shapes in product(list(self._pools), repeat=len(operator.inputs)):
                shape = operator.shape(*shapes)
                if shape is None or nesting_depth(shape) > 1 or not _sensible(operator, shapes):
                    continue
                blocks += [
                    self._evaluate_block(operator, shapes, shape, operands, keep=not last)
                    for operands in self._operands(operator, shapes, size, by_size)
                ]
        self._classify(blocks, size, last)

    def _by_size(self) -> dict[tuple[Shape, int], Array]:
        sizes = np.asarray(self._sizes)
        return {
            (shape, size): pool.numbers[sizes[pool.numbers] == size]
            for shape, pool in self._pools.items()
            for size in range(_WIDTH)
        }

    def _node_table(self) -> Array:
        table = np.full((len(self._nodes), _WIDTH), -1)
        for i, node in enumerate(self._nodes):
            table[i, : len(node)] = sorted(node)
        return table

    def _operands(
        self, operator: TermOperator, shapes: tuple[Shape, ...], size: int, by_size: dict[tuple[Shape, int], Array]
    ) -> Iterator[Array]:
        """Blocks [count, operands] of representatives whose operators together are `size - 1`."""
        if len(shapes) == 1:
            representatives = by_size[shapes[0], size - 1]
            if len(representatives):
                yield representatives[:, None]
            return
        elements = _SAMPLES * max(self._elements(shape) for shape in shapes)
        step = max(_CHUNK // elements, 1)
        left, right = shapes
        for i in range(size):
            first, second = by_size[left, i], by_size[right, size - 1 - i]
            for pairs in self._separate(first, second, step) if len(first) and len(second) else ():
                yield self._order_pairs(operator, pairs, size)
        sharing = self._pairs.get((left, right), np.zeros((0, 2), np.int64))
        for start in range(0, len(sharing), step):
            yield self._order_pairs(operator, sharing[start : start + step], size)

    def _elements(self, shape: Shape) -> int:
        return int(np.prod(concrete(substitute(shape, self._grammar.sizes)), dtype=np.int64))

    def _separate(self, left: Array, right: Array, step: int) -> Iterator[Array]:
        rows = max(step // len(right), 1)
        for start in range(0, len(left), rows):
            part = left[start : start + rows]
            for begin in range(0, len(right), step):
                other = right[begin : begin + step]
                yield np.stack([np.repeat(part, len(other)), np.tile(other, len(part))], 1)

    def _order_pairs(self, operator: TermOperator, pairs: Array, size: int) -> Array:
        """The pairs that have `size - 1` operators together, each once where the order does not matter."""
        if operator.commutative:
            pairs = pairs[pairs[:, 0] <= pairs[:, 1]]
        a, b = self._widths[pairs[:, 0]], self._widths[pairs[:, 1]]
        common = ((a[:, :, None] == b[:, None, :]) & (a >= 0)[:, :, None]).sum((1, 2))
        together = (a >= 0).sum(1) + (b >= 0).sum(1) - common
        kept: Array = pairs[together == size - 1]
        return kept

    def _sharing(self, size: int) -> dict[tuple[Shape, Shape], Array]:
        """Pairs of representatives that have operators in common, more than `size - 1` if these were counted twice. Either one
        has all operators of the other, or (for four operators) both have two and share one."""
        shared_pairs: dict[tuple[int, int], None] = {}
        holders: dict[frozenset[int], list[int]] = {}
        for representative, node_set in enumerate(self._nodes):
            if node_set:
                holders.setdefault(node_set, []).append(representative)
        for node_set, members in holders.items():
            if len(node_set) == size - 1:
                inner = [other for part in _subsets(node_set) for other in holders.get(part, ())]
                shared_pairs.update(
                    (pair, None) for member in members for other in inner for pair in ((member, other), (other, member))
                )
        if size == 4:
            containing: dict[int, list[int]] = {}
            for representative, node_set in enumerate(self._nodes):
                if len(node_set) == 2:
                    for node in node_set:
                        containing.setdefault(node, []).append(representative)
            shared_pairs.update(
                ((member, other), None) for members in containing.values() for member in members for other in members
            )
        grouped: dict[tuple[Shape, Shape], list[tuple[int, int]]] = {}
        for pair in shared_pairs:
            grouped.setdefault((self._shapes[pair[0]], self._shapes[pair[1]]), []).append(pair)
        return {shapes: np.asarray(pairs, np.int64) for shapes, pairs in grouped.items()}

    def _evaluate_block(
        self, operator: TermOperator, shapes: tuple[Shape, ...], shape: Shape, operands: Array, *, keep: bool
    ) -> _Block:
        bound = operator.bind(*shapes)
        assert bound is not None
        sizes = {name: substitute_size(size, self._grammar.sizes) for name, size in bound.items() if not is_row(name)}
        step = max(_CHUNK // (_SAMPLES * max(*map(self._elements, shapes), self._elements(shape))), 1)
        fingerprints, values = [], []
        for start in range(0, len(operands), step):
            part = operands[start : start + step]
            arrays = tuple(self._pools[s].values[self._local[part[:, i]]] for i, s in enumerate(shapes))
            result = operator.meaning(self._xp, sizes, arrays)
            fingerprints.append(self._fingerprints(result, shape))
            if keep:
                values.append(result)
        self.visited += len(operands)
        hashes = np.concatenate(fingerprints) if fingerprints else np.zeros(0, np.uint64)
        return _Block(operator, operands, hashes, shape, np.concatenate(values) if values else None)

    def _fingerprints(self, values: Array, shape: Shape) -> Array:
        if shape not in self._weights:
            drawn = self._generator.integers(0, 1 << 63, size=values[0].size + 1, dtype=np.uint64)
            self._weights[shape] = drawn << np.uint64(1) | np.uint64(1)
        weights = self._weights[shape]
        flat = np.ascontiguousarray(values).reshape(len(values), -1).astype(np.uint64)
        mixed: Array = (flat * weights[1:]).sum(1) + weights[0]
        return mixed

    # --- classes

    def _classify(self, blocks: list[_Block], size: int, last: bool) -> None:
        """Makes new representatives, and an equation of every other term whose variables come in their order."""
        blocks = [block for block in blocks if len(block.operands)]
        if not blocks:
            return
        hashes = np.concatenate([block.fingerprints for block in blocks])
        owner = np.repeat(np.arange(len(blocks)), [len(block.operands) for block in blocks])
        place = np.concatenate([np.arange(len(block.operands)) for block in blocks])
        seen_hashes = np.fromiter(self._known, np.uint64, len(self._known))
        _, inverse, counts = np.unique(hashes, return_inverse=True, return_counts=True)
        wanted = np.isin(hashes, seen_hashes) | (counts[inverse] > 1)
        if not last:
            wanted[:] = True
        first: dict[int, Term] = {}
        fresh: dict[int, list[int]] = {}
        for i in np.flatnonzero(wanted):
            block, row = blocks[owner[i]], int(place[i])
            operands = [int(number) for number in block.operands[row]]
            term: Term = (block.operator.name, *(self.terms[number] for number in operands))
            order = tuple(dict.fromkeys(name for number in operands for name in self._order[number]))
            fingerprint = int(hashes[i])
            old = self._known.get(fingerprint)
            representative = self.terms[old] if old is not None else first.get(fingerprint)
            if representative is None:
                first[fingerprint] = term
                if not last:
                    node = (block.operator.node or block.operator.name, *operands)
                    number = self._node_numbers.setdefault(node, len(self._node_numbers))
                    nodes = frozenset([number]).union(*(self._nodes[number] for number in operands))
                    self._enter(term, fingerprint, block.shape, size, nodes, order)
                    fresh.setdefault(int(owner[i]), []).append(row)
            elif self._in_order(order) or self._in_order(variables(representative)):
                self.equations.append(Equation((term,), (representative,)))
        if not last:
            self._grow(blocks, fresh)

    def _in_order(self, order: Sequence[str]) -> bool:
        """Whether interchangeable variables occur in their order: one of the equations that differ in names alone."""
        for names in self._interchangeable:
            seen = [name for name in order if name in names]
            if seen != names[: len(seen)]:
                return False
        return True

    def _enter(
        self, term: Term, fingerprint: int, shape: Shape, size: int, nodes: frozenset[int], order: tuple[str, ...]
    ) -> None:
        self._known[fingerprint] = len(self.terms)
        self.terms.append(term)
        self._sizes.append(size)
        self._shapes.append(shape)
        self._nodes.append(nodes)
        self._order.append(order)

    def _represent(
        self,
        term: Term,
        fingerprint: int,
        shape: Shape,
        value: Array,
        size: int,
        nodes: frozenset[int],
        order: tuple[str, ...],
    ) -> None:
        self._enter(term, fingerprint, shape, size, nodes, order)
        self._extend(shape, np.asarray([len(self.terms) - 1]), value)

    def _grow(self, blocks: list[_Block], fresh: dict[int, list[int]]) -> None:
        start = len(self.terms) - sum(map(len, fresh.values()))
        for index, rows in sorted(fresh.items()):
            values = blocks[index].values
            assert values is not None
            self._extend(blocks[index].shape, np.arange(start, start + len(rows)), values[rows])
            start += len(rows)

    def _extend(self, shape: Shape, numbers: Array, values: Array) -> None:
        old = self._pools.get(shape)
        if old is None:
            self._pools[shape] = _Pool(numbers, values)
        else:
            self._pools[shape] = _Pool(np.concatenate([old.numbers, numbers]), np.concatenate([old.values, values]))
        self._local = np.zeros(len(self.terms), np.int64)
        for pool in self._pools.values():
            self._local[pool.numbers] = np.arange(len(pool.numbers))


def _sensible(operator: TermOperator, shapes: tuple[Shape, ...]) -> bool:
    """Leaves out functions of scalars, whose fingerprints are too short, windows that move over kernels, and reductions of one."""
    if shapes[0] == ():
        return operator.name == "mul"
    if operator.name.startswith(("sum_", "mean_", "max_")) and operator.shape(*shapes) == shapes[0]:
        return False
    bound = operator.bind(*shapes) or {}
    return not any(isinstance(bound.get(axis), int) for axis in "hw")


def _subsets(own: frozenset[int]) -> Iterator[frozenset[int]]:
    ordered = sorted(own)
    for chosen in range(1, 1 << len(ordered)):
        yield frozenset(node for i, node in enumerate(ordered) if chosen >> i & 1)
