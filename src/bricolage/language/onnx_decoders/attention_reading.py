"""Attention of a layer, from the part of a graph between two residual sums.

What is looked for: which rows of which product are queries, keys and values, their biases and norms, angles of positions, the
factor of scores, and how many tokens are seen. Then the whole is computed on random inputs, and compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import onnx_ir as ir

from bricolage.frontends.decoders.decoder_description import Matrix, matrix_rows, matrix_shape
from bricolage.graph.constant_folding import is_known
from bricolage.language.onnx_decoders.bound_graph import BoundGraph, read_sizes
from bricolage.language.onnx_decoders.feed_forward_reading import products_within, read_input_norm, read_post_norm
from bricolage.language.onnx_decoders.reading_failure import NotUnderstood
from bricolage.language.onnx_decoders.score_reading import AttentionEnds, HeadSource, ScoreReader, ScoreReading
from bricolage.language.onnx_decoders.stored_weights import read_product
from bricolage.language.onnx_decoders.stretch_readings import NormReading, draw_numbers, read_norm

_REDUCTIONS = frozenset(
    ["RMSNormalization", "ReduceL2", "ReduceMean", "ReduceSum", "ReduceSumSquare", "SimplifiedLayerNormalization"]
)
_MOVES = frozenset(
    ["Add", "Cast", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"]
)
"""Operators that may stand alone in front of a rotation: they move numbers, or add a bias."""
_SCALES = frozenset(["Cast", "Identity", "Mul"])
"""Operators that may stand behind a norm, and belong to it."""


@dataclass(frozen=True)
class ProjectionReading:
    """Heads of queries or keys."""

    matrix: Matrix
    bias: np.ndarray | None
    """float32 [heads · head_size]."""
    norm: NormReading | None


@dataclass(frozen=True)
class AttentionReading:
    """Weights, norms and what scores are made of."""

    query: ProjectionReading
    key: ProjectionReading
    value: ProjectionReading
    output: Matrix
    norm: NormReading
    post_norm: NormReading | None
    scores: ScoreReading
    heads: tuple[ir.Value, ...]
    """Queries, keys and values where they are in order, in front of the rotation."""
    mixed: ir.Value
    """What the output's product reads."""


@dataclass(frozen=True)
class _Projection:
    """Where one of the three comes from, and where its numbers are in order."""

    node: ir.Node
    border: ir.Value
    """Behind biases and the norm, in front of the rotation."""
    order: np.ndarray
    """int64 [new tokens, heads · head_size]: where the numbers of a token lie in it."""
    reading: ProjectionReading


class AttentionReader:
    """Reads one layer; see the head of this file."""

    def __init__(self, graph: BoundGraph, layer: int, hidden: ir.Value, added: ir.Value) -> None:
        self._graph, self._hidden, self._added = graph, hidden, added
        self._past_key, self._past_value, self._present_key, self._present_value = graph.caches[layer]
        self._products, self._output = products_within(graph, hidden, added)
        mixed = self._output.inputs[0]
        assert mixed is not None
        self._mixed = mixed
        _, self._key_heads, _, self._size = read_sizes(self._past_key)
        self._width = read_sizes(mixed)[-1]
        if self._width % self._size:
            raise NotUnderstood(f"'{mixed.name}' has {self._width} numbers a token, and heads have {self._size}")
        self._heads = self._width // self._size
        self._ends = AttentionEnds(graph, mixed, *graph.caches[layer], self._heads, self._key_heads, self._size)

    def read(self) -> AttentionReading:
        """All of it.

        Raises:
            NotUnderstood: a part is something else.
        """
        query, key, value = self._read_projections()
        scores = self._read_scores(query, key, value)
        return AttentionReading(
            query=_put_in_order(query.reading, scores.order),
            key=_put_in_order(key.reading, scores.order),
            value=value.reading,
            output=read_product(self._output),
            norm=read_input_norm(self._graph, self._hidden, self._products),
            post_norm=read_post_norm(self._graph, self._output, self._added),
            scores=scores,
            heads=(query.border, key.border, value.border),
            mixed=self._mixed,
        )

    def read_scores(self) -> ScoreReading:
        """What depends on how long a text is.

        Raises:
            NotUnderstood: a part is something else.
        """
        return self._read_scores(*self._read_projections())

    def _read_projections(self) -> tuple[_Projection, _Projection, _Projection]:
        inner, groups = self._width, self._key_heads * self._size
        sources = self._find_sources()
        value = self._read_value(sources["value"])
        query_sink, key_sink = self._find_sinks()
        query = self._read_heads(sources["query"], query_sink, self._heads, slice(0, inner))
        key = self._read_heads(sources["key"], key_sink, self._key_heads, slice(inner, inner + groups))
        return query, key, value

    def _read_scores(self, query: _Projection, key: _Projection, value: _Projection) -> ScoreReading:
        sources = (
            HeadSource(query.border, query.order, None),
            HeadSource(key.border, key.order, None),
            HeadSource(
                value.border, value.order, value.reading.bias if value.border is value.node.outputs[0] else None
            ),
        )
        return ScoreReader(self._ends, *sources).read()

    def _find_sinks(self) -> tuple[ir.Value, ir.Value]:
        """Where ways of queries and of keys end: in one operator that does all, or in what is mixed and in the cache."""
        maker = self._present_key.producer()
        if maker is None or self._present_value.producer() is not maker:
            return self._mixed, self._present_key
        query, key = maker.inputs[:2]
        assert query is not None
        return query, query if key is None else key

    @property
    def _borders(self) -> dict[ir.Value, np.ndarray]:
        """Nothing in all products and in the cache."""
        values = [*(node.outputs[0] for node in self._products), self._past_key, self._past_value]
        return {value: np.zeros(read_sizes(value)) for value in values}

    def _find_sources(self) -> dict[str, ir.Node]:
        """Which product each of the three comes from, by what changes with it."""
        sinks = [self._present_key, self._present_value]
        still = self._graph.evaluate(sinks, self._borders)
        changing: dict[str, list[ir.Node]] = {"key": [], "value": []}
        for node in self._products:
            given = self._borders
            given[node.outputs[0]] = draw_numbers(node.outputs[0])
            for role, before, after in zip(changing, still, self._graph.evaluate(sinks, given), strict=True):
                if not np.array_equal(before, after):
                    changing[role].append(node)
        for role, nodes in changing.items():
            if len(nodes) != 1:
                raise NotUnderstood(f"{len(nodes)} products make the {role}s in front of '{self._mixed.name}'")
        key, value = changing["key"][0], changing["value"][0]
        rest = [node for node in self._products if node not in (key, value)]
        if len(rest) > 1 or (not rest and key is not value):
            raise NotUnderstood(f"{len(self._products)} products stand in front of '{self._mixed.name}'")
        return {"query": rest[0] if rest else key, "key": key, "value": value}

    def _read_value(self, node: ir.Node) -> _Projection:
        """Values are what is new in the cache: rows of the product, and a bias."""
        source = node.outputs[0]
        sizes = read_sizes(source)
        bias = self._ends.new_rows(self._graph.evaluate([self._present_value], self._borders)[0])
        border = _follow_bias(source)
        given = self._borders
        given[source] = np.arange(np.prod(sizes), dtype=np.float64).reshape(sizes)
        rows = self._ends.new_rows(self._graph.evaluate([self._present_value], given)[0]) - bias
        order = _as_integers(rows, self._present_value)
        tokens, places = np.divmod(order, sizes[-1])
        if (
            (tokens != np.arange(len(rows))[:, None]).any()
            or (places != places[0]).any()
            or len(set(places[0])) != rows.shape[1]
        ):
            raise NotUnderstood(f"'{self._present_value.name}' does not hold columns of a product with weights")
        return _Projection(node, border, order, _projection(node, places[0], bias[0], None))

    def _read_heads(self, node: ir.Node, sink: ir.Value, heads: int, packed: slice) -> _Projection:
        """Biases and the norm in front of a rotation.

        Args:
            node: the product.
            sink: what the heads go into.
            heads: how many there are.
            packed: where they lie, where all three are still together when they are turned.
        """
        graph, source = self._graph, node.outputs[0]
        before, border = self._find_borders(source, sink)
        sizes = read_sizes(source)
        zero = graph.evaluate([before], {source: np.zeros(sizes)})[0].reshape(-1)
        numbered = graph.evaluate([before], {source: np.arange(np.prod(sizes), dtype=np.float64).reshape(sizes)})[0]
        tokens, places = np.divmod(_as_integers(numbered.reshape(-1) - zero, before), sizes[-1])
        order = np.argsort(tokens, kind="stable").reshape(graph.new, -1)
        if (tokens[order] != np.arange(graph.new)[:, None]).any():
            raise NotUnderstood(f"'{before.name}' does not hold as many numbers of each token")
        count = heads * self._size
        columns = np.arange(order.shape[1])
        if len(columns) != count:
            columns = columns[packed]
        chosen = places[order][:, columns]
        if chosen.shape[1] != count or (chosen != chosen[0]).any() or len(set(chosen[0])) != count:
            raise NotUnderstood(f"'{before.name}' does not hold {heads} heads of a product with weights")
        norm = None if before is border else read_norm(graph, before, border)
        if norm is not None and norm.weight.shape != (self._size,):
            raise NotUnderstood(
                f"'{border.name}' is a norm over {norm.weight.size} numbers, and heads have {self._size}"
            )
        reading = _projection(node, chosen[0], zero[order][0, columns], norm)
        return _Projection(node, border, order[:, columns], reading)

    def _find_borders(self, source: ir.Value, sink: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The values in front of the norm and behind it; the same one where there is no norm."""
        graph = self._graph
        cuts = graph.cuts(source, sink)
        stretches = [graph.stretch(first, second) for first, second in pairwise(cuts)]
        alone = [self._rests_alone(nodes, first) for nodes, first in zip(stretches, cuts, strict=False)]
        end = alone.index(False) if False in alone else len(alone)
        normed = [i for i in range(end) if any(node.op_type in _REDUCTIONS for node in stretches[i])]
        if normed:
            behind = normed[-1] + 1
            while behind < end and len(stretches[behind]) == 1 and stretches[behind][0].op_type in _SCALES:
                if not self._scales_heads(stretches[behind][0]):
                    break
                behind += 1
            return cuts[normed[0]], cuts[behind]
        moved = 0
        while moved < end and len(stretches[moved]) == 1 and stretches[moved][0].op_type in _MOVES:
            moved += 1
        return cuts[moved], cuts[moved]

    def _rests_alone(self, nodes: Sequence[ir.Node], source: ir.Value) -> bool:
        """Whether nodes compute with one value and constants alone."""
        inside = {source, *(value for node in nodes for value in node.outputs)}
        return not any(value in self._graph.computed and value not in inside for node in nodes for value in node.inputs)

    def _scales_heads(self, node: ir.Node) -> bool:
        """Whether a node behind a norm multiplies by its weights: a number for each of a head's, not one for all."""
        if node.op_type != "Mul":
            return True
        factors = [value for value in node.inputs if value is not None and value not in self._graph.computed]
        return len(factors) == 1 and math.prod(read_sizes(factors[0])) == self._size


def _follow_bias(value: ir.Value) -> ir.Value:
    """The value behind the sum with a constant, where nothing else reads it; else itself."""
    readers = list(value.uses())
    node = readers[0].node if len(readers) == 1 and not value.is_graph_output() else None
    if node is None or node.op_type != "Add" or node.domain:
        return value
    (other,) = (each for i, each in enumerate(node.inputs) if i != readers[0].idx)
    result = node.outputs[0]
    if other is None or not is_known(other) or read_sizes(result) != read_sizes(value):
        return value
    return result


def _as_integers(array: np.ndarray, value: ir.Value) -> np.ndarray:
    """int64, where they are that.

    Raises:
        NotUnderstood: they are not.
    """
    integers: np.ndarray = np.rint(array).astype(np.int64)
    if not np.abs(array - integers).max() < 1e-3 or integers.min() < 0:
        raise NotUnderstood(f"'{value.name}' does not hold numbers of a product with weights in another order")
    return integers


def _projection(node: ir.Node, chosen: np.ndarray, bias: np.ndarray, norm: NormReading | None) -> ProjectionReading:
    matrix = read_product(node)
    if len(chosen) != matrix_shape(matrix)[0] or (chosen != np.arange(len(chosen))).any():
        matrix = matrix_rows(matrix, chosen)
    return ProjectionReading(matrix, bias.astype(np.float32) if bias.any() else None, norm)


def _put_in_order(reading: ProjectionReading, order: np.ndarray) -> ProjectionReading:
    """Heads whose numbers lie in another order, those that turn together half a head apart."""
    if (order == np.arange(len(order))).all():
        return reading
    rows = np.arange(matrix_shape(reading.matrix)[0]).reshape(-1, len(order))[:, order].reshape(-1)
    bias, norm = reading.bias, reading.norm
    return ProjectionReading(
        matrix_rows(reading.matrix, rows),
        None if bias is None else bias[rows],
        None if norm is None else replace(norm, weight=norm.weight[order]),
    )
