"""Biases that take up the mean error of rounding (Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias
Correction", ICCV 2019). It is measured, so that it counts what rounds in activations too, where many numbers lie at one place
between two steps (behind a HardSwish most do), and what padding leaves out.

Of each product by itself, on what the float model hands it; or in the order of the graph, on what the integers before it hand it,
their biases being corrected: so it also takes up what a rectifier makes of the noise in front of it, whose mean is not zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from bricolage.graph.constant_folding import constant_elements
from bricolage.graph.extract import extract_region
from bricolage.graph.graph import Graph, Region
from bricolage.quantization.insertion import Scales, with_rounded_copies
from bricolage.quantization.products import WeightedProduct
from bricolage.verify.held_back import Sample
from bricolage.verify.reference import Evaluator
from bricolage.work.values import ModelValue

_SAMPLES = 8
"""On which means are taken, of each product by itself, ..."""
_IN_ORDER = 16
"""... and in order, where errors of means add up."""
_MOST_BYTES = 1 << 30
"""Of results of products that are held at a time: with larger ones there are fewer samples."""


def corrected_biases(
    graph: Graph, seen: Sequence[Sample], products: Sequence[WeightedProduct], scales: Scales
) -> dict[str, np.ndarray]:
    """New biases of the products that have one, float32, by what the product computes: each measured by itself."""
    able = [product for product in products if product.bias is not None]
    return _shift_biases(graph, able, {}, _shifts(graph.model, seen[:_SAMPLES], able, scales)) if able else {}


def biases_in_order(
    graph: Graph,
    seen: Sequence[Sample],
    products: Sequence[WeightedProduct],
    scales: Scales,
    make: Callable[[Scales], ir.Model],
) -> dict[str, np.ndarray]:
    """The same, measured one after another behind integers that are corrected.

    Args:
        scales: with biases to begin with.
        make: gives the model with its products in integers.
    """
    able = {candidate.output: candidate for candidate in products if candidate.bias is not None}
    if not able:
        return {}
    outputs = list(able)
    evaluate = Evaluator(graph.model, dtype=np.float32, keep=outputs)
    right: list[dict[str, np.ndarray]] = []
    values: list[dict[str, ModelValue]] = []
    for sample in seen[:_IN_ORDER]:
        results = evaluate(sample)
        right.append({name: _mean(np.asarray(results[name]), candidate) for name, candidate in able.items()})
        values.append(dict(sample))
        if len(values) * sum(np.asarray(results[name]).nbytes for name in outputs) > _MOST_BYTES:
            break
    shifts: dict[str, np.ndarray] = {}
    for piece in _pieces(Graph(make(scales)), graph, able):
        run, product = Evaluator(piece.model, dtype=np.float32), piece.product
        for environment in values:
            environment.update(run({name: environment[name] for name in piece.inputs}))
        arrays = [np.asarray(value[piece.result]) for value in values]
        shift = np.mean([_mean(a, product) - r[product.output] for a, r in zip(arrays, right, strict=True)], axis=0)
        sizes = [-1 if axis == product.activation_axis % arrays[0].ndim else 1 for axis in range(arrays[0].ndim)]
        for environment, array in zip(values, arrays, strict=True):
            environment[piece.result] = (array - shift.reshape(sizes)).astype(array.dtype)
            for name in piece.last:
                del environment[name]
        shifts[product.output] = shift
    return _shift_biases(graph, list(able.values()), scales.biases, shifts)


@dataclass(frozen=True)
class _Piece:
    """Operators of a model up to one of its products."""

    model: ir.Model
    inputs: tuple[str, ...]
    last: tuple[str, ...]
    """Of these, what no later piece reads."""
    product: WeightedProduct
    result: str
    """What the product computes in this model."""


def _pieces(made: Graph, graph: Graph, able: Mapping[str, WeightedProduct]) -> Iterator[_Piece]:
    """A model in pieces that end with its products, as far as the last of them. `graph`: in float, with the same nodes."""
    names = {operator.node.name: operator.outputs[0].name or "" for operator in graph.operators}
    ends = [operator for operator in made.operators if names.get(operator.node.name, "") in able]
    starts = [0, *(operator.number + 1 for operator in ends)]
    regions = [Region(made, (1 << end.number + 1) - (1 << start)) for start, end in zip(starts[:-1], ends, strict=True)]
    inputs = [tuple(value.name or "" for value in region.inputs) for region in regions]
    last_read = {name: at for at, region_inputs in enumerate(inputs) for name in region_inputs}
    for at, (region, end) in enumerate(zip(regions, ends, strict=True)):
        last = tuple(name for name in inputs[at] if last_read[name] == at)
        yield _Piece(extract_region(region), inputs[at], last, able[names[end.node.name]], end.outputs[0].name or "")


def _shift_biases(
    graph: Graph,
    products: Sequence[WeightedProduct],
    begun: Mapping[str, np.ndarray],
    shifts: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
    biases: dict[str, np.ndarray] = {}
    for product in products:
        shift = shifts.get(product.output)
        bias = begun.get(product.output)
        if bias is None and product.bias is not None:
            bias = constant_elements(graph.constants[product.bias])
        if bias is not None and shift is not None and np.isfinite(shift).all():
            biases[product.output] = (np.broadcast_to(bias.reshape(-1), shift.shape) - shift).astype(np.float32)
    return biases


def _mean(array: np.ndarray, product: WeightedProduct) -> np.ndarray:
    """Of each channel of a product's result."""
    rows = np.moveaxis(array.astype(np.float64), product.activation_axis, -1)
    means: np.ndarray = rows.reshape(-1, rows.shape[-1]).mean(axis=0)
    return means


def _shifts(
    model: ir.Model, seen: Sequence[Sample], products: Sequence[WeightedProduct], scales: Scales
) -> Mapping[str, np.ndarray]:
    """The mean of what rounding adds to each channel of a product, by what it computes."""
    rounded_model, copies = with_rounded_copies(model, products, scales)
    evaluate = Evaluator(rounded_model, dtype=np.float32, keep=[*copies, *copies.values()])
    sums: dict[str, np.ndarray] = {}
    counts = dict.fromkeys(copies, 0)
    for sample in seen:
        values = evaluate(sample)
        for product in products:
            lost = np.asarray(values[copies[product.output]], np.float64) - np.asarray(values[product.output])
            rows = np.moveaxis(lost, product.activation_axis, -1).reshape(-1, lost.shape[product.activation_axis])
            sums[product.output] = sums.get(product.output, 0.0) + rows.sum(axis=0)
            counts[product.output] += rows.shape[0]
    return {name: total / max(counts[name], 1) for name, total in sums.items()}
