"""Outliers of activations moved into the weights that read them, where the factor costs nothing: behind a normalisation, whose
weights take it up (SmoothQuant), and between two products with at most a rectifier between them (cross-layer equalisation)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from bricolage.base.quantization_options import QuantizationOptions
from bricolage.graph.constant_folding import constant_elements
from bricolage.graph.graph import Graph, Operator
from bricolage.graph.prepare import simplify
from bricolage.quantization.activation_statistics import collect_statistics
from bricolage.quantization.names import give_names, names_by_result
from bricolage.quantization.products import WeightedProduct, products
from bricolage.rewrite.catalogue import choose_rules
from bricolage.rewrite.engine.apply import apply_everywhere, rewrite
from bricolage.rewrite.predicates import sizes
from bricolage.rewrite.rules.migration import MigrateScaleIntoProduct, ScaleBeforeRectifier
from bricolage.verify.held_back import Sample

_NORMALISATIONS = frozenset({"LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"})
_RECTIFIERS = frozenset({"Relu", "LeakyRelu"})
_PRODUCTS = frozenset({"Conv", "Gemm", "ConvTranspose"})
_MOST = 1e3
"""Times a channel is made smaller or larger, at most."""


def migrate_outliers(
    graph: Graph, able: Sequence[WeightedProduct], seen: Sequence[Sample], options: QuantizationOptions
) -> Graph:
    """An equal graph whose activations have channels of like ranges, where that costs no operator or one for each normalisation;
    the graph itself where there is nothing to move."""
    groups = shared_activations(graph, able, options)
    if not groups:
        return graph
    axes = {source: readers[0].activation_axis for source, readers in groups.items()}
    statistics = collect_statistics(graph.model, seen, axes, options.seed)
    factors: dict[str, np.ndarray] = {}
    for source, readers in groups.items():
        largest = statistics[source].largest
        if largest is None or not statistics[source].finite:
            continue
        channel_factors = _factors(graph, readers, largest, _alpha(graph, readers, options))
        factors |= {reader.output: channel_factors for reader in readers if channel_factors is not None}
    return with_factors(graph, factors)


def with_factors(graph: Graph, factors: Mapping[str, np.ndarray]) -> Graph:
    """An equal graph whose weights are larger by such factors of their input channels, by what products compute, and whose
    activations are smaller; the graph itself where nothing can be moved."""
    model, names = graph.model.clone(), names_by_result(graph.model)
    rule = MigrateScaleIntoProduct(factors)
    if not apply_everywhere(model, rule, lambda node: node.outputs[0].name in factors, lambda _: None):
        return graph
    simplify(model)
    rewrite(model, [*choose_rules(generated=False), ScaleBeforeRectifier()])
    simplified = simplify(model)
    give_names(model, names)
    _keep_product_names(graph, simplified)
    return simplified


def _keep_product_names(before: Graph, after: Graph) -> None:
    """Gives products their former names, in place, where they are the same in the same order: a rule makes a new operator of each
    whose weights take a factor up."""
    old, new = products(before)[0], products(after)[0]
    if [_form(before, product) for product in old] != [_form(after, product) for product in new]:
        return
    wanted = {successor.output: former.name for former, successor in zip(old, new, strict=True)}
    taken = set(wanted.values())
    for operator in after.operators:
        output = operator.outputs[0].name or ""
        if output not in wanted and operator.name in taken:
            operator.node.name = f"{operator.name}/{operator.op_type}.{operator.number}"
    for operator in after.operators:
        operator.node.name = wanted.get(operator.outputs[0].name or "", operator.node.name)


def _form(graph: Graph, product: WeightedProduct) -> tuple[str, tuple[int, ...]]:
    array = constant_elements(graph.constants[product.weight])
    return product.op_type, () if array is None else array.shape


def shared_activations(
    graph: Graph, able: Sequence[WeightedProduct], options: QuantizationOptions
) -> dict[str, list[WeightedProduct]]:
    """Products by the value that they all read, where the factor can go into what computes it."""
    values = {value.name or "": value for operator in graph.operators for value in operator.outputs}
    groups: dict[str, list[WeightedProduct]] = {}
    for product in able:
        value = values.get(product.activation)
        node = None if value is None else value.producer()
        if node is not None and node.op_type == "Reshape" and not node.domain:
            value = node.inputs[0]
            node = None if value is None else value.producer()
        if value is not None and node is not None and _takes_up(graph, value, node, options):
            groups.setdefault(value.name or "", []).append(product)
    return {name: group for name, group in groups.items() if _reaches_producer(graph, values[name], group)}


def _takes_up(graph: Graph, value: ir.Value, node: ir.Node, options: QuantizationOptions) -> bool:
    if node.op_type in _NORMALISATIONS:
        return options.smooth > 0
    if not options.equalise or graph.is_output(value):
        return False
    if _scaled_by_constant(graph, node):
        return True
    if node.op_type in _RECTIFIERS and len(node.inputs[0].uses() if node.inputs[0] is not None else ()) == 1:
        value = node.inputs[0]  # type: ignore[assignment]
        node = value.producer() or node
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    return node.op_type in _PRODUCTS and not node.domain and weight is not None and graph.is_constant(weight)


def _scaled_by_constant(graph: Graph, node: ir.Node) -> bool:
    """Whether a value is x · c or x · c + d for constants, which take a factor up as they are, whatever computes x."""
    if node.domain or node.op_type not in ("Mul", "Add") or len(node.inputs) != 2:
        return False
    computed = [source for source in node.inputs if source is not None and not graph.is_constant(source)]
    if len(computed) != 1 or node.op_type == "Mul":
        return len(computed) == 1
    inner = computed[0].producer()
    alone = len(computed[0].uses()) == 1 and not graph.is_output(computed[0])
    return inner is not None and inner.op_type == "Mul" and alone and _scaled_by_constant(graph, inner)


def _reaches_producer(graph: Graph, value: ir.Value, group: Sequence[WeightedProduct]) -> bool:
    """Whether the factor reaches what computes the value: all readers are in the group, or a normalisation's others read what it
    was."""
    producer = value.producer()
    if producer is not None and producer.op_type in _NORMALISATIONS:
        return True
    outputs = {product.output for product in group}
    readers = [graph.operators[number] for number in graph.readers(value)]
    through = [behind for reader in readers for behind in _behind(graph, reader)]
    return all(operator.outputs and operator.outputs[0].name in outputs for operator in through)


def _behind(graph: Graph, operator: Operator) -> list[Operator]:
    """The operator, or what reads it where it is a Reshape."""
    if operator.op_type != "Reshape":
        return [operator]
    return [graph.operators[number] for number in graph.readers(operator.outputs[0])]


def _alpha(graph: Graph, products: Sequence[WeightedProduct], options: QuantizationOptions) -> float:
    """How far ranges of channels become alike: all the way where each has weights of its own, with a scale of their own."""
    apart = all(product.op_type == "Conv" and sizes(graph.constants[product.weight])[1] == 1 for product in products)
    return 1.0 if apart else options.smooth or 0.5


def _factors(graph: Graph, products: Sequence[WeightedProduct], largest: np.ndarray, alpha: float) -> np.ndarray | None:
    """max|x|^α / max|w|^(1 - α) for each channel, of all products' weights together; None where channels do not fit."""
    weights = np.zeros(largest.shape)
    for product in products:
        array = constant_elements(graph.constants[product.weight])
        assert array is not None
        product_peaks = _by_input_channel(product, array, largest.size)
        if product_peaks is None:
            return None
        weights = np.maximum(weights, product_peaks)
    useful = (largest > 0) & (weights > 0)
    if not useful.any():
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        factors: np.ndarray = np.where(useful, largest.astype(np.float64) ** alpha / weights ** (1 - alpha), np.nan)
    factors = factors / np.exp(np.nanmean(np.log(factors)))  # around one: only ratios of channels matter
    clipped: np.ndarray = np.clip(np.nan_to_num(factors, nan=1.0), 1 / _MOST, _MOST)
    return clipped


def _by_input_channel(product: WeightedProduct, array: np.ndarray, channels: int) -> np.ndarray | None:
    """The largest weight of each input channel."""
    if product.op_type != "Conv":
        peaks: np.ndarray = np.abs(array).max(axis=0 if product.transposed else 1)
    else:
        groups = channels // array.shape[1] if array.shape[1] else 0
        by_group = np.abs(array).reshape(groups, -1, array.shape[1], int(np.prod(array.shape[2:]))) if groups else None
        if by_group is None or groups * array.shape[1] != channels:
            return None
        peaks = by_group.max(axis=(1, 3)).reshape(-1)
    return peaks if peaks.size == channels else None
