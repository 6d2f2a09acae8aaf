"""Rows: parts of a graph in which all axes but the last are only a number of rows, as in transformers outside of attention.

Runtimes know more about matrices: a product and its bias become one Gemm. Which form is fast depends on them, so this explores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

import onnx_ir as ir

from bricolage.graph.folding import is_known
from bricolage.graph.graph import Dimension
from bricolage.rewrite.elementwise import BINARY, UNARY
from bricolage.rewrite.facts import integer, require, shape
from bricolage.rewrite.rule import Example, Mismatch, Operators, Replacement, Scan

_Leading = tuple[Dimension, ...]
_NORMALISING = ("LayerNormalization", "RMSNormalization", "Softmax", "LogSoftmax")


@dataclass
class _Part:
    """Operators on rows that are connected, in the graph's order; all their values have the same leading axes."""

    leading: _Leading
    nodes: list[ir.Node] = field(default_factory=list)


class FlattenRows(Scan):
    """R(x₁, …, xₙ) = Reshape(R(Reshape(x₁), …, Reshape(xₙ))), the rows of all leading axes as those of one matrix

    for a part R of a graph, of any size and with any number of results, in which every operator does the same to each row:
    products with a matrix, element-wise operators (with constants of one row, too), normalisations and Softmax along the last
    axis, Split and Concat along it. At least one product is among them. (Where several leading axes are of unknown size, they are
    asked for when the model runs.)
    """

    family = "rows"
    exploring = True
    examples = (
        Example("float[2,3,4] x", "t = MatMul(x, w) u = Add(t, b) y = Relu(u)", {"w": (4, 5), "b": (5,)}),
        Example(
            "float[N,3,4] x, float[N,3,6] z",
            "t = MatMul(x, w) u = Mul(b, t) v = Sub(z, u) a, c = Split<axis=-1>(v, s) y = Concat<axis=2>(c, a)",
            {"w": (4, 6), "b": (1, 1, 6), "s": [2, 4]},
        ),
        Example("float[N,M,4] x", "t = MatMul(x, w) y = Relu(t) u = Exp(t)", {"w": (4, 5)}, outputs="y, u"),
        Example(
            "float[2,1,3,4] x",
            "n = LayerNormalization(x, g, b) t = MatMul(n, w) y = Softmax(t) u = Relu(t)",
            {"g": (4,), "b": (4,), "w": (4, 5)},
            outputs="y, u",
        ),
        Example(
            "float[2,3,4] x",
            "t = MatMul(x, w) r = Transpose<perm=[0,2,1]>(t) s = Transpose<perm=[0,2,1]>(r) y = Add(t, s)",
            {"w": (4, 5)},
        ),
    )
    counterexamples = (
        Example("float[2,3,4] x", "t = Relu(x) y = Exp(t)"),
        Example("float[3,4] x", "t = MatMul(x, w) y = Relu(t)", {"w": (4, 5)}),
        Example("float[2,3,4] x, float[2,4,5] w", "t = MatMul(x, w) y = Relu(t)"),
        Example("float[2,3,4] x", "t = MatMul(x, w) y = Softmax<axis=1>(t)", {"w": (4, 5)}, why="alone"),
        Example("float[2,3,4] x", "t = MatMul(x, w) y = Add(t, b)", {"w": (4, 5), "b": (3, 1)}, why="alone"),
    )

    def find(self, graph: ir.Graph) -> Iterator[tuple[ir.Node, Replacement]]:
        for part in _parts(graph):
            yield part.nodes[0], partial(_flatten, part)


def _parts(graph: ir.Graph) -> list[_Part]:
    """The parts with a product."""
    found: dict[ir.Value, _Part] = {}
    for node in graph:
        leading = _leading(node)
        if leading is None:
            continue
        part = _Part(leading, [node])
        touched = [v for v in (*node.inputs, *node.outputs) if v is not None and _has_rows(v, leading)]
        for other in {id(own): own for value in touched if (own := found.get(value)) is not None}.values():
            part.nodes = [*other.nodes, *part.nodes]
            found.update({value: part for value, own in found.items() if own is other})
        found.update(dict.fromkeys(touched, part))
    order = {node: number for number, node in enumerate(graph)}
    parts = list({id(part): part for part in found.values()}.values())
    for part in parts:
        part.nodes = sorted(set(part.nodes), key=order.__getitem__)
    return [part for part in parts if any(node.op_type == "MatMul" for node in part.nodes)]


def _leading(node: ir.Node) -> _Leading | None:
    """All axes but the last of an operator that does the same to each row; None for any other."""
    if node.domain or not node.inputs or node.inputs[0] is None:
        return None
    try:
        *leading, _ = shape(node.outputs[0])
        if len(leading) < 2 or "?" in leading:
            return None
        return tuple(leading) if _is_row_wise(node, tuple(leading)) else None
    except (Mismatch, ValueError):
        return None


def _is_row_wise(node: ir.Node, leading: _Leading) -> bool:
    given = [value for value in node.inputs if value is not None]
    if not all(
        _has_rows(value, leading) for value in node.outputs if value.name and (value.uses() or value.is_graph_output())
    ):
        return False
    first, more = given[0], given[1:]
    if node.op_type == "MatMul":
        return _has_rows(first, leading) and len(shape(more[0])) == 2
    if node.op_type in UNARY:
        return _has_rows(first, leading)
    if node.op_type in BINARY:
        rows = [_has_rows(value, leading) for value in given]
        return any(rows) and all(own or _is_one_row(value) for own, value in zip(rows, given, strict=True))
    if node.op_type not in (*_NORMALISING, "Split", "Concat"):
        return False
    last = integer(node, "axis", 0 if node.op_type == "Split" else -1) in (-1, len(leading))
    if node.op_type == "Concat":
        return last and all(_has_rows(value, leading) for value in given)
    read = [value for value in node.outputs[1:] if value.uses() or value.is_graph_output()]
    one = not read or node.op_type == "Split"
    scales = all(len(shape(value)) < 2 for value in more)
    return last and one and scales and _has_rows(first, leading)


def _has_rows(value: ir.Value, leading: _Leading) -> bool:
    own = shape(value)
    return own[:-1] == leading and isinstance(own[-1], int) and not is_known(value)


def _is_one_row(value: ir.Value) -> bool:
    """A constant that is the same for every row."""
    return is_known(value) and all(size == 1 for size in shape(value)[:-1])


def _flatten(part: _Part, op: Operators) -> Mapping[ir.Value, ir.Value]:
    require(len(part.nodes) > 1, "a product alone gains nothing")
    require(all(node.graph is part.nodes[0].graph for node in part.nodes), "the part has changed")
    writer = _Writer(op, part)
    for node in part.nodes:
        op.place(node)
        writer.write(node)
    return writer.pairs


class _Writer:
    """Writes a part anew."""

    def __init__(self, op: Operators, part: _Part) -> None:
        self._op, self._leading, self._inside = op, part.leading, set(part.nodes)
        self._flat: dict[ir.Value, ir.Value] = {}
        self._rows: ir.Value | None = None
        self.pairs: dict[ir.Value, ir.Value] = {}
        """What is read outside, with what replaces it."""

    def write(self, node: ir.Node) -> None:
        given = [None if value is None else self._given(value) for value in node.inputs]
        if node.op_type == "Split":
            results = self._op.many("Split", len(node.outputs), *given, axis=1, num_outputs=self._count(node))
        elif node.op_type in ("Concat", *_NORMALISING):
            results = (self._op.copy(node, *given, axis=1),)
        else:
            results = (self._op.copy(node, *given),)
        for value, result in zip(node.outputs, results, strict=False):
            self._flat[value] = result
            if value.is_graph_output() or any(usage.node not in self._inside for usage in value.uses()):
                self.pairs[value] = self._op.Reshape(result, self._sizes(value))

    @staticmethod
    def _count(node: ir.Node) -> int | None:
        return integer(node, "num_outputs", 0) or None

    def _given(self, value: ir.Value) -> ir.Value:
        if value in self._flat:
            return self._flat[value]
        if _has_rows(value, self._leading):
            self._rows = self._rows or value
            self._flat[value] = self._op.Reshape(value, self._op.integers([-1, int(shape(value)[-1])]))
            return self._flat[value]
        if is_known(value) and len(shape(value)) > 2:
            return self._op.Reshape(value, self._op.integers([-1]))
        return value

    def _sizes(self, value: ir.Value) -> ir.Value:
        sizes = shape(value)
        if sum(isinstance(size, str) for size in sizes) > 1:
            assert self._rows is not None
            leading = self._op.Shape(self._rows, start=0, end=-1)
            return self._op.Concat(leading, self._op.integers([int(sizes[-1])]), axis=0)
        return self._op.integers([size if isinstance(size, int) else -1 for size in sizes])
