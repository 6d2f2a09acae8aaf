"""A graph with one of several layers whose attention computes alike at any number of tokens: it is looked at once."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from bricolage.language.onnx_decoders.cache_interface import CacheInterface
from bricolage.language.onnx_decoders.part_identity import identify_part
from bricolage.language.onnx_decoders.reading_failure import NotUnderstood


@dataclass(frozen=True)
class LayerValues:
    """Names of values of one layer."""

    before: str
    """The hidden state in front of it ..."""
    after: str
    """... and behind it."""
    heads: tuple[str, ...]
    """Queries, keys and values where they are in order."""
    mixed: str
    """What the output's product reads."""


@dataclass(frozen=True)
class DistinctLayers:
    """The graph that is left."""

    model: ir.Model
    interface: CacheInterface
    places: tuple[int, ...]
    """Of each layer, which of those that are left computes the same."""


def keep_distinct_layers(model: ir.Model, interface: CacheInterface, layers: Sequence[LayerValues]) -> DistinctLayers:
    """A copy of a clean model without the layers whose attention computes what an earlier one does, from the same heads, cache and
    numbers of tokens. What cannot be told stays."""
    identities = _identify_layers(model, interface, layers)
    kept = list(dict.fromkeys(identities))
    places = tuple(kept.index(identity) for identity in identities)
    shorter = model.clone()
    values = _list_values(shorter)
    left = [places.index(place) for place in range(len(kept))]
    for number in range(len(layers)):
        if number not in left:
            layer, cache = layers[number], interface.layers[number]
            values[layer.after].replace_all_uses_with(values[layer.before])
            for name in (cache.present_key, cache.present_value):
                shorter.graph.outputs.remove(values[name])
    RemoveUnusedNodesPass()(shorter)
    return DistinctLayers(shorter, replace(interface, layers=tuple(interface.layers[i] for i in left)), places)


def _identify_layers(model: ir.Model, interface: CacheInterface, layers: Sequence[LayerValues]) -> list[Hashable]:
    """Equal for layers that compute the same; of a layer that cannot be told, like no other."""
    values = _list_values(model)
    sizes = {str(size) for value in model.graph.inputs for size in value.shape or ()}
    identities = list[Hashable]()
    for layer, cache in zip(layers, interface.layers, strict=True):
        names = (*layer.heads, cache.past_key, cache.past_value, cache.present_key, cache.present_value, layer.mixed)
        if not {*names, layer.before, layer.after} <= values.keys():
            return [object() for _ in layers]  # names that preparing made: no layer can be taken out
        borders = [values[name] for name in dict.fromkeys(names[: len(layer.heads) + 2])]
        sinks = [values[name] for name in names[len(layer.heads) + 2 :]]
        try:
            identities.append(identify_part(sinks, borders, lambda value: _name_leaf(value, sizes)).whole())
        except NotUnderstood:
            identities.append(object())
    return identities


def _list_values(model: ir.Model) -> dict[str, ir.Value]:
    graph = model.graph
    results = (value for node in graph for value in node.outputs)
    return {value.name: value for value in (*graph.inputs, *results) if value.name}


def _name_leaf(value: ir.Value, known: Collection[str]) -> Hashable | None:
    """Inputs by their names, and shapes by the names that sizes of inputs have: equal names are equal sizes."""
    if value.is_graph_input():
        return "input", value.name
    node = value.producer()
    if node is None or (node.domain, node.op_type) != ("", "Shape"):
        return None
    measured = node.inputs[0]
    shape = None if measured is None else measured.shape
    if shape is None or not all(isinstance(size, int) or size.value in known for size in shape):
        return None
    bounds = tuple((name, str(attribute.value)) for name, attribute in sorted(node.attributes.items()))
    return "sizes", tuple(str(size) for size in shape), bounds
