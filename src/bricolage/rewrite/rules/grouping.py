"""Equal work on different data side by side: convolutions as groups of one, products as a batch of one (HFTA: Wang et al., MLSys
2021). Whether that pays depends on the machine: these rules are cost-based, a search decides."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import partial

import onnx_ir as ir

from bricolage.graph.graph import describe
from bricolage.rewrite.analyses.linear import geometry
from bricolage.rewrite.engine.edit import nested_nodes
from bricolage.rewrite.predicates import floating, integer, rank, require, shape, sizes
from bricolage.rewrite.rule import Example, GraphRule, MatchFailure, Operators, Replacement

_Nodes = Sequence[ir.Node]


def _levels(graph: ir.Graph) -> dict[ir.Node, int]:
    """For each operator the length of the longest chain that leads to it. None of a level depends on another of it."""
    levels: dict[ir.Node, int] = {}
    for node in graph:
        reads = [*node.inputs, *(value for inner in nested_nodes(node) for value in inner.inputs)]
        before = [value.producer() for value in reads if value is not None]
        levels[node] = 1 + max((levels.get(other, 0) for other in before if other is not None), default=0)
    return levels


class _Siblings(GraphRule):
    """Base of rules that join equal operators on different data, all that stand equally far from the inputs."""

    family = "grouping"
    cost_based = True
    op_types: tuple[str, ...]

    def find_sites(self, graph: ir.Graph) -> Iterator[tuple[ir.Node, Replacement]]:
        groups: dict[tuple[int, Hashable], list[ir.Node]] = {}
        for node, level in _levels(graph).items():
            if node.op_type in self.op_types and not node.domain:
                try:
                    groups.setdefault((level, self.kind(node)), []).append(node)
                except MatchFailure:
                    continue
        for nodes in groups.values():
            if len(nodes) > 1:
                yield nodes[0], partial(self._join_distinct_nodes, nodes)

    def _join_distinct_nodes(self, nodes: _Nodes, op: Operators) -> Mapping[ir.Value, ir.Value]:
        require(len({node.inputs[0] for node in nodes}) == len(nodes), "two read one input, and can be merged")
        return dict(zip((node.outputs[0] for node in nodes), self.join(op, nodes), strict=True))

    @abstractmethod
    def kind(self, node: ir.Node) -> Hashable:
        """Equal for operators that can be joined.

        Raises:
            MatchFailure: it can be joined with none.
        """

    @abstractmethod
    def join(self, op: Operators, nodes: _Nodes) -> Sequence[ir.Value]:
        """What takes the place of the operators' results."""


def _inputs(nodes: _Nodes, index: int) -> list[ir.Value]:
    return [value for node in nodes if index < len(node.inputs) and (value := node.inputs[index]) is not None]


def _operands(node: ir.Node) -> tuple[object, ...]:
    """Types and shapes of the inputs; None for one that is absent.

    Raises:
        MatchFailure: a dimension has neither size nor name.
    """
    shapes = [None if value is None else shape(value) for value in node.inputs]
    require(
        all(operand_shape is None or "?" not in operand_shape for operand_shape in shapes), "a dimension is not known"
    )
    return tuple(
        None if v is None else (describe(v).dtype, operand_shape)
        for v, operand_shape in zip(node.inputs, shapes, strict=True)
    )


_WEIGHTS = {"v": (4, 3, 3), "w": (4, 3, 3), "p": (4,), "q": (4,)}
_TWO = "float[1,3,5] x, float[1,3,5] z"


class GroupConvolutions(_Siblings):
    """Conv(x₁, w₁, b₁), …, Conv(xₙ, wₙ, bₙ) = Split(Conv(Concat(x…), Concat(w…), Concat(b…), n times the groups))

    for inputs of one shape, weights of one shape, all with or all without a bias, and equal groups, strides, pads and dilations.
    """

    op_types = ("Conv",)
    examples = (
        Example(_TWO, "a = Conv(x, v) b = Conv(z, w) y = Add(a, b)", _WEIGHTS),
        Example(
            "float[1,4,5] x, float[1,4,5] z",
            "a = Conv<group=2, pads=[1,1]>(x, v, p) b = Conv<group=2, pads=[1,1]>(z, w, q)",
            {"v": (6, 2, 3), "w": (6, 2, 3), "p": (6,), "q": (6,)},
            outputs="b, a",
        ),
        Example("float[N,3,M] x, float[N,3,M] z", "a = Conv(x, v) b = Conv(z, w) y = Add(a, b)", _WEIGHTS),
        Example(
            "float[1,1,5] x, float[1,1,5] z, float[1,1,5] u, float[1,1,3] v",
            "a = Conv(x, v) b = Conv(z, v) c = Conv(u, v) y = Concat<axis=1>(a, b, c)",
        ),
    )
    counterexamples = (
        Example("float[1,3,5] x, float[1,3,6] z", "a = Conv(x, v) b = Conv(z, w) y = Concat<axis=2>(a, b)", _WEIGHTS),
        Example("float[1,3,N] x, float[1,3,M] z", "a = Conv(x, v) b = Conv(z, w) y = Concat<axis=2>(a, b)", _WEIGHTS),
        Example(_TWO, "a = Conv(x, v) b = Conv(z, w) y = Concat<axis=1>(a, b)", {"v": (4, 3, 3), "w": (2, 3, 3)}),
        Example(_TWO, "a = Conv(x, v) b = Conv<pads=[1,1]>(z, w) y = Concat<axis=2>(a, b)", _WEIGHTS),
        Example(_TWO, "a = Conv(x, v) b = Conv(z, w, q) y = Add(a, b)", _WEIGHTS),
        Example(
            "float[1,4,5] x", "a = Conv<pads=[1,1]>(x, v) b = Conv<pads=[1,1]>(a, v) y = Add(a, b)", {"v": (4, 4, 3)}
        ),
        Example("float[1,3,5] x", "a = Conv(x, v) b = Conv(x, w) y = Add(a, b)", _WEIGHTS, why="one input"),
    )

    def kind(self, node: ir.Node) -> Hashable:
        return geometry(node), _operands(node)

    def join(self, op: Operators, nodes: _Nodes) -> Sequence[ir.Value]:
        data, weight, bias = (_inputs(nodes, index) for index in range(3))
        joined = op.copy(
            nodes[0],
            op.Concat(*data, axis=1),
            op.Concat(*weight, axis=0),
            op.Concat(*bias, axis=0) if bias else None,
            group=len(nodes) * integer(nodes[0], "group", 1),
        )
        return op.many("Split", len(nodes), joined, op.integers([sizes(weight[0])[0]] * len(nodes)), axis=1)


class BatchProducts(_Siblings):
    """MatMul(x₁, w₁), …, MatMul(xₙ, wₙ) = the parts of MatMul of all xᵢ stacked and all wᵢ stacked

    for xᵢ of one shape and wᵢ of one shape, with equally many axes.
    """

    op_types = ("MatMul",)
    examples = (
        Example(
            "float[2,3] x, float[2,3] z", "a = MatMul(x, v) b = MatMul(z, w) y = Add(a, b)", {"v": (3, 4), "w": (3, 4)}
        ),
        Example(
            "float[5,2,3] x, float[5,2,3] z, float[5,3,4] v, float[5,3,4] w",
            "a = MatMul(x, v) b = MatMul(z, w)",
            outputs="b, a",
        ),
        Example(
            "float[N,2] x, float[N,2] z, float[2,M] v, float[2,M] w", "a = MatMul(x, v) b = MatMul(z, w) y = Mul(a, b)"
        ),
    )
    counterexamples = (
        Example(
            "float[2,3] x, float[5,3] z",
            "a = MatMul(x, v) b = MatMul(z, w) y = Concat<axis=0>(a, b)",
            {"v": (3, 4), "w": (3, 4)},
        ),
        examples[0].but(body="a = MatMul(x, v) b = MatMul(z, w) y = Concat<axis=1>(a, b)", w=(3, 5)),
        examples[0].but(inputs="float[5,2,3] x, float[5,2,3] z"),
        examples[0].but("one input", "a = MatMul(x, v) b = MatMul(x, w) y = Add(a, b)", inputs="float[2,3] x"),
    )

    def kind(self, node: ir.Node) -> Hashable:
        left, right = node.inputs
        assert left is not None and right is not None
        floating(left)
        require(rank(left) == rank(right) > 1, "they have not equally many axes")
        return _operands(node)

    def join(self, op: Operators, nodes: _Nodes) -> Sequence[ir.Value]:
        front = op.integers([0])
        left, right = (
            op.Concat(*(op.Unsqueeze(value, front) for value in _inputs(nodes, index)), axis=0) for index in (0, 1)
        )
        parts = op.many("Split", len(nodes), op.MatMul(left, right), op.integers([1] * len(nodes)), axis=0)
        return [op.Squeeze(part, front) for part in parts]


class JoinRows(_Siblings):
    """MatMul(x₁, w), …, MatMul(xₙ, w) = Split(MatMul(Concat(x…), w)), the rows of all xᵢ times one weight; and Gemm(xᵢ, w, b)

    for xᵢ that differ in their number of rows at most, not transposed, and b one row (or none). (Of the products with the inputs
    of all steps, a recurrent network makes one: Appleyard et al., arXiv 1604.01946, section 3.)
    """

    op_types = ("MatMul", "Gemm")
    examples = (
        Example(
            "float[1,3] x, float[2,3] z", "a = MatMul(x, w) b = MatMul(z, w) y = Concat<axis=0>(b, a)", {"w": (3, 4)}
        ),
        Example("float[2,1,3] x, float[2,5,3] z, float[2,3,4] w", "a = MatMul(x, w) b = MatMul(z, w)", outputs="b, a"),
        Example(
            "float[1,3] x, float[1,3] z, float[2,3] u",
            "a = Gemm<transB=1, alpha=2.0>(x, w, c) b = Gemm<transB=1, alpha=2.0>(z, w, c)"
            " d = Gemm<transB=1, alpha=2.0>(u, w, c)",
            {"w": (4, 3), "c": (4,)},
            outputs="b, a, d",
        ),
    )
    counterexamples = (
        Example(
            "float[1,3] x, float[1,3] z", "a = MatMul(x, v) b = MatMul(z, w) y = Add(a, b)", {"v": (3, 4), "w": (3, 4)}
        ),
        Example("float[2,3] x, float[1,2,3] z", "a = MatMul(x, w) b = MatMul(z, w) y = Add(a, b)", {"w": (3, 4)}),
        Example("float[3] x, float[3] z", "a = MatMul(x, w) b = MatMul(z, w) y = Add(a, b)", {"w": (3, 4)}),
        Example("float[N,3] x, float[2,3] z", "a = MatMul(x, w) b = MatMul(z, w) y = Add(a, b)", {"w": (3, 4)}),
        Example("float[3,3] x", "a = MatMul(x, w) b = MatMul(a, w) y = Add(a, b)", {"w": (3, 3)}),
        Example(
            "float[1,3] x, float[1,3] z",
            "a = Gemm(x, w, b) d = Gemm(z, w, c) y = Add(a, d)",
            {"w": (3, 4), "b": (4,), "c": (4,)},
        ),
        Example(
            "float[2,3] x, float[2,3] z",
            "a = Gemm(x, w, b) c = Gemm(z, w, b) y = Add(a, c)",
            {"w": (3, 4), "b": (2, 4)},
        ),
        Example(
            "float[3,2] x, float[3,2] z",
            "a = Gemm<transA=1>(x, w) b = Gemm<transA=1>(z, w) y = Add(a, b)",
            {"w": (3, 4)},
        ),
    )

    def kind(self, node: ir.Node) -> Hashable:
        rows, weight, *more = node.inputs
        assert rows is not None and weight is not None
        require(rank(rows) > 1, "x is a vector")
        require(not integer(node, "transA", 0), "x is transposed")
        bias = more[0] if more else None
        require(bias is None or rank(bias) < 2 or shape(bias)[0] == 1, "the bias has several rows")
        *outer, count, inner = shape(rows)
        require("?" not in outer and isinstance(count, int), "the number of rows is not known")
        attributes = [(name, str(attribute.value)) for name, attribute in sorted(node.attributes.items())]
        return node.op_type, weight, bias, tuple(attributes), describe(rows).dtype, tuple(outer), inner

    def join(self, op: Operators, nodes: _Nodes) -> Sequence[ir.Value]:
        rows = _inputs(nodes, 0)
        axis = rank(rows[0]) - 2
        product = op.copy(nodes[0], op.Concat(*rows, axis=axis), *nodes[0].inputs[1:])
        return op.many(
            "Split", len(nodes), product, op.integers([int(shape(value)[axis]) for value in rows]), axis=axis
        )
