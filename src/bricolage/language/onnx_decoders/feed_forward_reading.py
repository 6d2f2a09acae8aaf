"""The feed-forward network of a layer, from the part of a graph between two residual sums."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from bricolage.frontends.decoders.decoder_description import Activation, Matrix, matrix_rows, matrix_shape
from bricolage.language.onnx_decoders.bound_graph import BoundGraph
from bricolage.language.onnx_decoders.reading_failure import NotUnderstood
from bricolage.language.onnx_decoders.stored_weights import is_product, read_product
from bricolage.language.onnx_decoders.stretch_readings import (
    NormReading,
    draw_numbers,
    is_unchanged,
    read_gate,
    read_norm,
)


@dataclass(frozen=True)
class FeedForwardReading:
    """Weights and norms."""

    gate: Matrix
    up: Matrix
    down: Matrix
    norm: NormReading
    post_norm: NormReading | None
    activation: Activation


def products_within(graph: BoundGraph, hidden: ir.Value, added: ir.Value) -> tuple[list[ir.Node], ir.Node]:
    """Products of a residual part: those that read its norm, and the one behind them.

    Raises:
        NotUnderstood: there is not one behind all others.
    """
    nodes = [node for node in graph.stretch(hidden, added) if is_product(node, graph.computed)]
    if len(nodes) < 2:
        raise NotUnderstood(f"'{added.name}' has {len(nodes)} products with weights")
    return nodes[:-1], nodes[-1]


def read_input_norm(graph: BoundGraph, hidden: ir.Value, products: list[ir.Node]) -> NormReading:
    """The norm that all of these products read.

    Raises:
        NotUnderstood: they do not read the same one.
    """
    sources = list(dict.fromkeys(node.inputs[0] for node in products))
    norms = [read_norm(graph, hidden, source) for source in sources if source is not None]
    for norm in norms[1:]:
        if norm.epsilon != norms[0].epsilon or not np.array_equal(norm.weight, norms[0].weight):
            raise NotUnderstood(f"products behind '{hidden.name}' read different norms")
    return norms[0]


def read_post_norm(graph: BoundGraph, product: ir.Node, added: ir.Value) -> NormReading | None:
    """The norm between a product and the residual sum; None where there is none."""
    result = product.outputs[0]
    return None if is_unchanged(graph, result, added) else read_norm(graph, result, added)


def read_feed_forward(graph: BoundGraph, hidden: ir.Value, added: ir.Value) -> FeedForwardReading:
    """What is added to the hidden state.

    Raises:
        NotUnderstood: it is not a gated feed-forward network.
    """
    products, down = products_within(graph, hidden, added)
    if len(products) > 2:
        raise NotUnderstood(f"'{added.name}' has {len(products) + 1} products with weights")
    matrices = [read_product(node) for node in products]
    given = {node.outputs[0]: draw_numbers(node.outputs[0], 2.0) for node in products}
    inner = down.inputs[0]
    assert inner is not None
    product = graph.evaluate([inner], given)[0]
    parts = list(given.values())
    if len(products) == 1:
        half = matrix_shape(matrices[0])[0] // 2
        parts = [parts[0][..., :half], parts[0][..., half:]]
        matrices = [matrix_rows(matrices[0], np.arange(part * half, (part + 1) * half)) for part in range(2)]
    gate = read_gate(graph, parts[0], parts[1], product)
    if gate is None:
        raise NotUnderstood(f"'{inner.name}' is neither SiLU nor GELU by tanh of one product, times another")
    activation, first_is_gate = gate
    ordered = matrices if first_is_gate else matrices[::-1]
    norm, post_norm = read_input_norm(graph, hidden, products), read_post_norm(graph, down, added)
    return FeedForwardReading(ordered[0], ordered[1], read_product(down), norm, post_norm, activation)
