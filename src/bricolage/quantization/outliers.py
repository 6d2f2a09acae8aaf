"""A few channels of an activation that are far larger than all others, multiplied apart with a scale of their own:

    x W + b = (x W' + b) + x[I] W[I]

where I are these channels, and W' is W with zeros in their rows. The large product keeps its shape, and the scale of x follows from
the other channels alone; what it cuts off of channels I meets zeros. This is the idea of LLM.int8() (Dettmers et al., NeurIPS
2022), with both parts in bytes and channels that are known before. It helps where a factor cannot be moved into what computes the
activation: behind a GELU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from bricolage.graph.constant_folding import constant_elements
from bricolage.graph.graph import Graph
from bricolage.graph.prepare import simplify
from bricolage.quantization.activation_statistics import ActivationStatistics
from bricolage.quantization.insertion import added_constant
from bricolage.quantization.names import give_names, names_by_result
from bricolage.quantization.products import WeightedProduct
from bricolage.rewrite.builder import Names

CHANNELS = 16
"""That are multiplied apart; one step of four of the narrowest instruction, and a quarter of a row of AMX's tile."""
_LEAST_CHANNELS = 8 * CHANNELS
"""Of an activation, so that the second product is small against the first."""
_GAIN = 4.0
"""How much smaller the range of the others is at least: two bits more for each of them."""


def outlier_channels(
    products: Sequence[WeightedProduct], statistics: Mapping[str, ActivationStatistics]
) -> dict[str, np.ndarray]:
    """The channels to multiply apart, by name of the activation, where the others have a quarter of the range or less."""
    outliers: dict[str, np.ndarray] = {}
    for name in dict.fromkeys(product.activation for product in products):
        largest = statistics[name].largest
        if largest is None or not statistics[name].finite or largest.size < _LEAST_CHANNELS:
            continue
        if any(product.op_type == "Conv" for product in products if product.activation == name):
            continue
        order = np.argsort(-largest, kind="stable")
        if largest[order[CHANNELS]] > 0 and largest[order[0]] >= _GAIN * largest[order[CHANNELS]]:
            outliers[name] = np.sort(order[:CHANNELS])
    return outliers


def apart(graph: Graph, products: Sequence[WeightedProduct], channels: Mapping[str, np.ndarray]) -> Graph:
    """An equal graph in which the products that read such an activation are sums of two, the channels by name of the activation."""
    model, known_names = graph.model.clone(), names_by_result(graph.model)
    names = Names(model)
    values = {value.name or "": value for value in model.graph.inputs}
    values |= {value.name or "": value for node in model.graph for value in node.outputs}
    picked: dict[str, ir.Value] = {}
    for product in products:
        if product.activation not in channels:
            continue
        node, activation, chosen = (
            values[product.output].producer(),
            values[product.activation],
            channels[product.activation],
        )
        array = constant_elements(graph.constants[product.weight])
        assert node is not None and array is not None
        if product.activation not in picked:
            gather = ir.node("Gather", [activation, added_constant(model, names, "outliers", chosen)], {"axis": -1})
            _name_node(gather, names, f"{product.activation}.outliers", activation)
            assert activation.shape is not None
            gather.outputs[0].shape = ir.Shape([*activation.shape[:-1], chosen.size])
            picked[product.activation] = gather.outputs[0]
            producer = activation.producer()
            if producer is not None:
                model.graph.insert_after(producer, [gather])
            else:
                model.graph.insert_before(model.graph[0], [gather])
        rows = array.T if product.transposed else array
        rest = rows.copy()
        rest[chosen] = 0
        node.replace_input_with(1, added_constant(model, names, product.weight, rest.T if product.transposed else rest))
        (result,) = node.outputs
        small = ir.node(
            "MatMul",
            [
                picked[product.activation],
                added_constant(model, names, product.weight, np.ascontiguousarray(rows[chosen])),
            ],
        )
        _name_node(small, names, f"{product.output}.outliers", result)
        added = ir.node("Add", [result, small.outputs[0]])
        _name_node(added, names, f"{product.output}.sum", result)
        small.name = names.fresh(f"{product.name}/outliers")
        model.graph.insert_after(node, [small, added])
        _handed_over(result, added, names)
        values[product.output] = added.outputs[0]
    simplified = simplify(model)
    give_names(model, known_names)
    return simplified


def _name_node(node: ir.Node, names: Names, stem: str, like: ir.Value) -> None:
    (result,) = node.outputs
    result.name, result.shape, result.type = names.fresh(stem), like.shape, like.type
    node.name = names.fresh(stem)


def _handed_over(result: ir.Value, added: ir.Node, names: Names) -> None:
    """All that read the product read the sum, which takes its name."""
    (total,) = added.outputs
    result.replace_all_uses_with(total, replace_graph_outputs=True)
    added.replace_input_with(0, result)
    name = result.name or ""
    result.name = names.fresh(f"{name}.others")
    total.name = name
