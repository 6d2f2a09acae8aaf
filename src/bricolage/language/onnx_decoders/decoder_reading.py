"""A graph with a cache, read back into a `DecoderDescription`.

The graph is cut at values that everything goes through: the hidden state in front of each residual sum. Between two cuts lies
attention or a feed-forward network. Each operator is part of a stretch whose function was compared, or a product whose weights were
read; a part that is something else is refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import onnx_ir as ir

from bricolage.frontends.decoders.decoder_description import (
    Activation,
    DecoderDescription,
    LayerDescription,
    Matrix,
    RotaryEmbedding,
    TokenizerDescription,
    matrix_shape,
)
from bricolage.graph.quantised_blocks import QuantisedBlocks
from bricolage.language.onnx_decoders.attention_reading import AttentionReader, AttentionReading
from bricolage.language.onnx_decoders.bound_graph import BoundGraph
from bricolage.language.onnx_decoders.cache_branch import decide_branch
from bricolage.language.onnx_decoders.cache_interface import CacheInterface
from bricolage.language.onnx_decoders.distinct_layers import LayerValues, keep_distinct_layers
from bricolage.language.onnx_decoders.feed_forward_reading import FeedForwardReading, read_feed_forward
from bricolage.language.onnx_decoders.fused_operators import take_apart
from bricolage.language.onnx_decoders.reading_failure import NotUnderstood
from bricolage.language.onnx_decoders.rotary_frequencies import fit_frequencies
from bricolage.language.onnx_decoders.rounded_rows import leave_rows_whole
from bricolage.language.onnx_decoders.score_reading import ScoreReading
from bricolage.language.onnx_decoders.smooth_operators import check_smoothness
from bricolage.language.onnx_decoders.stored_weights import is_product, read_embedding, read_product
from bricolage.language.onnx_decoders.stretch_readings import (
    NormReading,
    is_unchanged,
    read_cap,
    read_norm,
    read_scaling,
)

_PAST = 5
_NEW = (37, 41, 43)
"""New tokens of the graphs that are read, of which one is no number of heads: sizes tell axes apart."""
_LONGEST = 16384
"""Tokens up to which masks and angles are looked at, at most: what lies beyond is not known, and not offered."""


@dataclass(frozen=True)
class _Layer:
    attention: AttentionReading
    feed_forward: FeedForwardReading
    values: LayerValues


@dataclass(frozen=True)
class _Reading:
    """All of a graph at one length."""

    embedding: Matrix
    embedding_scale: float
    layers: tuple[_Layer, ...]
    norm: NormReading
    head: Matrix
    logit_cap: float | None


@dataclass(frozen=True)
class StatedSizes:
    """What a graph's other files say."""

    context_length: int
    rope_base: float | None
    tokenizer: TokenizerDescription


def read_decoder_graph(model: ir.Model, interface: CacheInterface, stated: StatedSizes) -> DecoderDescription:
    """The description of a clean model with an interface; changes the model.

    Raises:
        NotUnderstood: a part is something that no description has.
    """
    names = [value.name for value in model.graph.outputs]
    decide_branch(model, interface)
    leave_rows_whole(model.graph)
    take_apart(model)
    for value, name in zip(model.graph.outputs, names, strict=True):
        value.name = name  # of an operator that gave way to others
    new = next(count for count in _NEW if count not in (interface.key_heads, interface.head_size))
    context = min(stated.context_length, _LONGEST)
    if context <= _PAST + new:
        new = next((count for count in (13, 11, 7) if count + _PAST < context and count != interface.key_heads), 3)
    short = BoundGraph(model, interface, _PAST, new)
    check_smoothness(short)
    reading = _read_graph(short, interface)
    distinct = keep_distinct_layers(model, interface, [layer.values for layer in reading.layers])
    long = BoundGraph(distinct.model, distinct.interface, context - new, new)
    scores = _read_long_scores(long, distinct.interface)
    return _describe(reading, [scores[i] for i in distinct.places], (short, long), interface, stated, context)


def _read_graph(graph: BoundGraph, interface: CacheInterface) -> _Reading:
    embedding, sums = _find_sums(graph, interface)
    embedded = embedding.outputs[0]
    scale = read_scaling(graph, embedded, sums[0][0])
    for (_, before), (behind, _) in pairwise(sums):
        if not is_unchanged(graph, before, behind):
            raise NotUnderstood(f"'{behind.name}' is not '{before.name}' as it is")
    layers = [_read_layer(graph, number, *sums[2 * number : 2 * number + 2]) for number in range(len(graph.caches))]
    last = sums[-1][1]
    heads = [node for node in graph.stretch(last, graph.logits) if is_product(node, graph.computed)]
    if len(heads) != 1:
        raise NotUnderstood(f"{len(heads)} products with weights stand behind the last layer")
    head, normed = heads[0], heads[0].inputs[0]
    assert normed is not None
    norm = read_norm(graph, last, normed)
    cap = read_cap(graph, head.outputs[0], graph.logits)
    return _Reading(read_embedding(embedding), scale, tuple(layers), norm, read_product(head), cap)


def _read_layer(
    graph: BoundGraph, number: int, first: tuple[ir.Value, ir.Value], second: tuple[ir.Value, ir.Value]
) -> _Layer:
    reader = AttentionReader(graph, number, first[0], _added(*first))
    attention, feed = reader.read(), read_feed_forward(graph, second[0], _added(*second))
    names = [value.name or "" for value in (first[0], second[1], *attention.heads, attention.mixed)]
    return _Layer(attention, feed, LayerValues(names[0], names[1], tuple(names[2:-1]), names[-1]))


def _read_long_scores(graph: BoundGraph, interface: CacheInterface) -> list[ScoreReading]:
    """Of each layer, behind a cache that is nearly full."""
    _, sums = _find_sums(graph, interface)
    attentions = enumerate(sums[::2])
    return [
        AttentionReader(graph, number, hidden, _added(hidden, total)).read_scores()
        for number, (hidden, total) in attentions
    ]


def _find_sums(graph: BoundGraph, interface: CacheInterface) -> tuple[ir.Node, list[tuple[ir.Value, ir.Value]]]:
    """What makes hidden states of tokens, and the hidden states in front of residual sums and behind them.

    Raises:
        NotUnderstood: there are not two sums a layer.
    """
    readers = [node for node in graph.nodes if graph.tokens in node.inputs]
    if len(readers) != 1:
        raise NotUnderstood(f"{len(readers)} operators read '{interface.tokens}'")
    cuts = graph.cuts(readers[0].outputs[0], graph.logits)
    sums = [pair for pair in pairwise(cuts) if _is_residual(graph, *pair)]
    if len(sums) != 2 * len(graph.caches):
        raise NotUnderstood(f"it has {len(sums)} residual sums for {len(graph.caches)} layers")
    return readers[0], sums


def _is_residual(graph: BoundGraph, hidden: ir.Value, total: ir.Value) -> bool:
    """Whether a value is another one and something that was made of it."""
    node = total.producer()
    return (
        node is not None
        and node.op_type == "Add"
        and hidden in node.inputs
        and _added(hidden, total) in graph.computed
        and _added(hidden, total) is not hidden
    )


def _added(hidden: ir.Value, total: ir.Value) -> ir.Value:
    node = total.producer()
    assert node is not None
    other = node.inputs[1] if node.inputs[0] is hidden else node.inputs[0]
    assert other is not None
    return other


def _describe(
    short: _Reading,
    long: Sequence[ScoreReading],
    graphs: tuple[BoundGraph, BoundGraph],
    interface: CacheInterface,
    stated: StatedSizes,
    context: int,
) -> DecoderDescription:
    """One description of both readings.

    Raises:
        NotUnderstood: layers do not share what a description has once, or the two readings differ.
    """
    norms = [norm for layer in short.layers for norm in _norms_of(layer)] + [short.norm]
    epsilons = {norm.epsilon for norm in norms}
    if len(epsilons) != 1:
        raise NotUnderstood(f"its norms add different numbers: {', '.join(map(str, sorted(epsilons)))}")
    scale = _shared(
        "factor of scores", [scores.scale for scores in (*(layer.attention.scores for layer in short.layers), *long)]
    )
    caps = {scores.softcap for scores in (*(layer.attention.scores for layer in short.layers), *long)}
    if len(caps) != 1:
        raise NotUnderstood(f"its layers cap scores at {', '.join(map(str, caps))}")
    activations: set[Activation] = {layer.feed_forward.activation for layer in short.layers}
    if len(activations) != 1:
        raise NotUnderstood(f"its layers have the activations {', '.join(sorted(activations))}")
    layers = []
    for first, second in zip(short.layers, long, strict=True):
        places = [graph.past + np.arange(graph.new) for graph in graphs]
        angles = [first.attention.scores.angles, second.angles]
        rope = fit_frequencies(places, angles, graphs[0].tolerance, stated.rope_base)
        layers.append(_describe_layer(first, second, rope))
    heads = matrix_shape(short.layers[0].attention.query.matrix)[0] // interface.head_size
    default = interface.head_size**-0.5
    return DecoderDescription(
        architecture=_name_architecture(layers),
        layers=tuple(layers),
        embedding=short.embedding,
        norm=short.norm.weight,
        heads=heads,
        key_heads=interface.key_heads,
        head_size=interface.head_size,
        context_length=context,
        epsilon=epsilons.pop(),
        tokenizer=stated.tokenizer,
        head=None if _is_same(short.head, short.embedding) else short.head,
        activation=activations.pop(),
        embedding_scale=short.embedding_scale,
        attention_scale=None if math.isclose(scale, default, rel_tol=graphs[0].tolerance) else scale,
        attention_softcap=caps.pop(),
        logit_softcap=short.logit_cap,
    )


def _describe_layer(first: _Layer, long: ScoreReading, rope: RotaryEmbedding) -> LayerDescription:
    """Weights of the short reading; the window of the long one, which the short one may not reach."""
    attention, feed = first.attention, first.feed_forward
    window, shown = long.window, attention.scores.window
    if shown is not None and shown != window:
        raise NotUnderstood(f"a layer sees {shown} tokens of a short text, and {window} of a long one")
    if (long.order != attention.scores.order).any():
        raise NotUnderstood("the numbers of a head that turn together are others in a long text")
    query, key, value = attention.query, attention.key, attention.value
    return LayerDescription(
        query=query.matrix,
        key=key.matrix,
        value=value.matrix,
        output=attention.output,
        gate=feed.gate,
        up=feed.up,
        down=feed.down,
        attention_norm=attention.norm.weight,
        feed_forward_norm=feed.norm.weight,
        rope=rope,
        query_bias=query.bias,
        key_bias=key.bias,
        value_bias=value.bias,
        query_norm=None if query.norm is None else query.norm.weight,
        key_norm=None if key.norm is None else key.norm.weight,
        attention_post_norm=None if attention.post_norm is None else attention.post_norm.weight,
        feed_forward_post_norm=None if feed.post_norm is None else feed.post_norm.weight,
        sliding_window=window,
    )


def _norms_of(layer: _Layer) -> list[NormReading]:
    attention, feed = layer.attention, layer.feed_forward
    norms = (attention.norm, attention.query.norm, attention.key.norm, attention.post_norm, feed.norm, feed.post_norm)
    return [norm for norm in norms if norm is not None]


def _shared(name: str, values: Sequence[float]) -> float:
    if not np.allclose(values, values[0], rtol=1e-5, atol=0):
        raise NotUnderstood(f"its layers have different {name}s: {min(values)} to {max(values)}")
    return values[0]


def _name_architecture(layers: Sequence[LayerDescription]) -> str:
    """That of GGUF's names whose layers have these parts."""
    first = layers[0]
    if first.attention_post_norm is not None:
        return "gemma2" if first.query_norm is None else "gemma3"
    if first.query_norm is not None:
        return "qwen3"
    return "llama" if first.query_bias is None else "qwen2"


def _is_same(head: Matrix, embedding: Matrix) -> bool:
    if isinstance(head, QuantisedBlocks) and isinstance(embedding, QuantisedBlocks):
        same = head.packed.shape == embedding.packed.shape and (head.zeros is None) == (embedding.zeros is None)
        pairs = [(head.packed, embedding.packed), (head.scales, embedding.scales)]
        if head.zeros is not None and embedding.zeros is not None:
            pairs.append((head.zeros, embedding.zeros))
        return same and all(np.array_equal(a, b) for a, b in pairs)
    if isinstance(head, QuantisedBlocks) or isinstance(embedding, QuantisedBlocks):
        return False
    return np.array_equal(head, embedding)
