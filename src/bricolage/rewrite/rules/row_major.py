"""Rows: parts of a graph in which all axes but the last are only a number of rows, as in transformers outside of attention.

Of matrices, a product and its bias are one Gemm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import onnx_ir as ir

from bricolage.device.tensor_form import Dimension
from bricolage.graph.constant_folding import is_known
from bricolage.graph.graph import describe
from bricolage.rewrite.analyses.elementwise import BINARY, UNARY
from bricolage.rewrite.analyses.linear import find_bias_sum, is_one_row, terms
from bricolage.rewrite.engine.subgraph import Subgraph, connected_subgraphs, write_subgraph
from bricolage.rewrite.predicates import integer, require, shape
from bricolage.rewrite.rule import Example, GraphRule, MatchFailure, Operators, Replacement

_Leading = tuple[Dimension, ...]
_VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
_NORMALISING = ("LayerNormalization", "RMSNormalization", "Softmax", "LogSoftmax")


class FlattenRows(GraphRule):
    """R(x₁, …, xₙ) = Reshape(R(Reshape(x₁), …, Reshape(xₙ))), the rows of all leading axes as those of one matrix

    for a part R of a graph, of any size and with any number of results, in which every operator does the same to each row:
    products with a matrix, element-wise operators (with constants of one row, too), normalisations and Softmax along the last
    axis, Split and Concat along it. At least one product is among them, and products with a bias become Gemms. Views before and
    behind are taken in. A product that widens rows to a result of the graph stays as it is: a view of a result is a copy, and
    what the product reads is smaller. (Where several leading axes are of unknown size, they are asked for when the model runs.)
    """

    family = "row_major"
    runs_last = True  # attention, normalisations and the like are recognised in their usual shapes
    examples = (
        Example(
            "float[2,3,4] x",
            "r = Reshape(x, i) t = MatMul(r, w) u = Add(t, b) v = Relu(u) y = Reshape(v, o)",
            {"w": (4, 5), "b": (5,), "i": [3, 2, 4], "o": [30]},
        ),
        Example(
            "float[N,3,4] x, float[N,3,6] z",
            "t = MatMul(x, w) u = Add(b, t) q = MatMul(u, v) p = Add(q, c) h = Sub(z, p)"
            " a, d = Split<axis=-1>(h, s) e = Concat<axis=2>(d, a) n = MatMul(e, v) m = Add(n, c) k = MatMul(m, v)"
            " y = Add(k, c)",
            {"w": (4, 6), "v": (6, 6), "b": (1, 1, 6), "c": (6,), "s": [2, 4]},
        ),
        Example(
            "float[N,M,4] x",
            "t = MatMul(x, w) a = Add(t, b) q = MatMul(a, v) e = Add(q, b) i = MatMul(e, v) j = Add(i, b)"
            " k = MatMul(j, v) l = Add(k, b) f = MatMul(l, v) o = Add(f, b) y = Relu(o)",
            {"w": (4, 5), "v": (5, 5), "b": (5,)},
        ),
        Example(
            "float[2,1,3,4] x",
            "n = LayerNormalization(x, g, b) t = MatMul(n, w) a = Add(t, b) s = MatMul(a, w) c = Add(s, b)"
            " r = MatMul(c, w) e = Add(r, b) q = MatMul(e, w) f = Add(q, b) y = Softmax(f) u = Relu(f)",
            {"g": (4,), "b": (4,), "w": (4, 4)},
            outputs="y, u",
        ),
        Example(
            "float[2,3,4] x",
            "t = MatMul(x, w) a = Add(t, b) q = MatMul(a, v) c = Add(q, b) h = MatMul(c, v) d = Add(h, b)"
            " i = MatMul(d, v) j = Add(i, b) k = MatMul(j, v) l = Add(k, b)"
            " r = Transpose<perm=[0,2,1]>(l) s = Relu(r) e = Transpose<perm=[0,2,1]>(s) y = Add(l, e)",
            {"w": (4, 5), "v": (5, 5), "b": (5,)},
        ),
    )
    counterexamples = (
        Example("float[2,3,4] x", "t = Relu(x) y = Exp(t)"),
        Example("float[3,4] x", "t = MatMul(x, w) y = Relu(t)", {"w": (4, 5)}),
        Example("float[2,3,4] x", "t = Relu(x) y = MatMul(t, w)", {"w": (4, 5)}),
        Example("float[2,3,4] x, float[2,4,5] w", "t = MatMul(x, w) y = Relu(t)"),
        Example("float[2,3,4] x", "t = MatMul(x, w) y = Softmax<axis=1>(t)", {"w": (4, 5)}, why="alone"),
        Example("float[2,3,4] x", "t = MatMul(x, w) y = Add(t, b)", {"w": (4, 5), "b": (3, 1)}, why="alone"),
        Example("float[2,3,4] x", "t = MatMul(x, w) y = Relu(t)", {"w": (4, 5)}, why="not profitable"),
    )

    def find_sites(self, graph: ir.Graph) -> Iterator[tuple[ir.Node, Replacement]]:
        for part in _parts(graph):
            yield part.nodes[0], partial(_flatten, part)


def _parts(graph: ir.Graph) -> list[Subgraph]:
    """The parts with a product. All values of one have the same leading axes."""
    return [
        part
        for part in connected_subgraphs(graph, _find_row_values)
        if any(node.op_type == "MatMul" for node in part.nodes)
    ]


def _find_row_values(node: ir.Node) -> list[ir.Value]:
    """The values with rows of an operator that does the same to each; none of any other."""
    leading = _leading(node)
    if leading is None:
        return []
    return [value for value in (*node.inputs, *node.outputs) if value is not None and _has_rows(value, leading)]


def _leading(node: ir.Node) -> _Leading | None:
    """All axes but the last of an operator that does the same to each row; None for any other."""
    if node.domain or not node.inputs or node.inputs[0] is None:
        return None
    try:
        *leading, _ = shape(node.outputs[0])
        if len(leading) < 2 or "?" in leading:
            return None
        return tuple(leading) if _is_row_wise(node, tuple(leading)) else None
    except (MatchFailure, ValueError):
        return None


def _is_row_wise(node: ir.Node, leading: _Leading) -> bool:
    given = [value for value in node.inputs if value is not None]
    if not all(
        _has_rows(value, leading) for value in node.outputs if value.name and (value.uses() or value.is_graph_output())
    ):
        return False
    first, more = given[0], given[1:]
    if node.op_type == "MatMul":
        product = node.outputs[0]
        return (
            _has_rows(first, leading)
            and len(shape(more[0])) == 2
            and not (product.is_graph_output() and _wider(product, first))
        )
    if node.op_type in UNARY:
        return _has_rows(first, leading)
    if node.op_type in BINARY:
        rows = [_has_rows(value, leading) for value in given]
        return any(rows) and all(row_flag or is_one_row(value) for row_flag, value in zip(rows, given, strict=True))
    if node.op_type not in (*_NORMALISING, "Split", "Concat"):
        return False
    last = integer(node, "axis", 0 if node.op_type == "Split" else -1) in (-1, len(leading))
    if node.op_type == "Concat":
        return last and all(_has_rows(value, leading) for value in given)
    read = [value for value in node.outputs[1:] if value.uses() or value.is_graph_output()]
    single_output = not read or node.op_type == "Split"
    scales = all(len(shape(value)) < 2 for value in more)
    return last and single_output and scales and _has_rows(first, leading)


def _has_rows(value: ir.Value, leading: _Leading) -> bool:
    value_shape = shape(value)
    return value_shape[:-1] == leading and isinstance(value_shape[-1], int) and not is_known(value)


def _wider(value: ir.Value, other: ir.Value) -> bool:
    after, before = shape(value)[-1], shape(other)[-1]
    return isinstance(after, int) and isinstance(before, int) and after > before


def _flatten(part: Subgraph, op: Operators) -> Mapping[ir.Value, ir.Value]:
    require(len(part.nodes) > 1, "a product alone saves nothing")
    return write_subgraph(part.nodes, op, _RowMajorWriter(op, part))


class _RowMajorWriter:
    """Writes a part anew."""

    def __init__(self, op: Operators, part: Subgraph) -> None:
        self._op, self._inside = op, set(part.nodes)
        self._leading = shape(part.nodes[0].outputs[0])[:-1]
        self._flat: dict[ir.Value, ir.Value] = {}
        self._rows: ir.Value | None = None
        self._asked: dict[int, ir.Value] = {}
        self.pairs: dict[ir.Value, ir.Value] = {}
        """What is read outside, with what replaces it."""

    def write(self, node: ir.Node) -> None:
        """Writes one operator; a product waits for the sum with its bias."""
        if find_bias_sum(node) in self._inside:
            return
        for value, result in zip(node.outputs, self._results(node), strict=False):
            self._flat[value] = result
            self._leave(value, result)

    def _results(self, node: ir.Node) -> tuple[ir.Value, ...]:
        for product, bias in terms(node):
            if product in self._inside and find_bias_sum(product) is node:
                return (self._op.Gemm(*self._flatten_inputs(product), self._row(bias)),)
        given = self._flatten_inputs(node)
        if node.op_type == "Split":
            count = integer(node, "num_outputs", 0) or None
            return self._op.many("Split", len(node.outputs), *given, axis=1, num_outputs=count)
        if node.op_type in ("Concat", *_NORMALISING):
            return (self._op.copy(node, *given, axis=1),)
        return (self._op.copy(node, *given),)

    def _flatten_inputs(self, node: ir.Node) -> list[ir.Value | None]:
        """The inputs of an operator, with rows as matrices."""
        operands: list[ir.Value | None] = []
        for value in node.inputs:
            if value is None or not _has_rows(value, self._leading):
                operands.append(self._row(value) if value is not None and node.op_type in BINARY else value)
                continue
            if value not in self._flat:
                self._rows = self._rows or value
                view = value.producer()
                source = view.inputs[0] if view is not None and _is_view(view) else value
                assert source is not None
                self._flat[value] = self._op.Reshape(source, self._op.integers([-1, int(shape(value)[-1])]))
            operands.append(self._flat[value])
        return operands

    def _row(self, value: ir.Value) -> ir.Value:
        """A constant of one row."""
        return self._op.Reshape(value, self._op.integers([-1])) if len(shape(value)) > 1 else value

    def _leave(self, value: ir.Value, result: ir.Value) -> None:
        """What reads a value outside gets it in its old shape, and views of it are views of the matrix."""
        readers = [usage.node for usage in value.uses() if usage.node not in self._inside]
        views = [node for node in readers if _is_view(node) and node.inputs[0] is value and _writable(node.outputs[0])]
        for view in views:
            self.pairs[view.outputs[0]] = self._op.Reshape(result, self._sizes(view.outputs[0]))
        if value.is_graph_output() or len(views) < len(readers):
            self.pairs[value] = self._op.Reshape(result, self._sizes(value))

    def _sizes(self, value: ir.Value) -> ir.Value:
        sizes = shape(value)
        if _writable(value):
            return self._op.integers([size if isinstance(size, int) else -1 for size in sizes])
        last = int(sizes[-1])
        if last not in self._asked:
            assert self._rows is not None
            leading = self._op.Shape(self._rows, start=0, end=-1)
            self._asked[last] = self._op.Concat(leading, self._op.integers([last]), axis=0)
        return self._asked[last]


def _is_view(node: ir.Node) -> bool:
    return node.op_type in _VIEWS and not node.domain and node.inputs[0] is not None


def _writable(value: ir.Value) -> bool:
    """Whether a shape can be written in numbers, one of them left open."""
    sizes = describe(value).shape
    return (
        sizes is not None and "?" not in sizes and sum(isinstance(size, str) for size in sizes) < 2 and 0 not in sizes
    )
