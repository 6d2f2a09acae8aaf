"""Biases that take up the mean error of rounding (Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias
Correction", ICCV 2019). It is measured, for each product by itself on what the float model hands it: so it counts what rounds in
activations too, where many numbers lie at one place between two steps (behind a HardSwish most do), and what padding leaves out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from bricolage.graph.folding import known
from bricolage.graph.graph import Graph
from bricolage.quantization.insertion import Scales, with_rounded_copies
from bricolage.quantization.products import WeightedProduct
from bricolage.verify.held_back import Sample
from bricolage.verify.reference import Evaluator

_SAMPLES = 8
"""On which means are taken."""


def corrected_biases(
    graph: Graph, seen: Sequence[Sample], products: Sequence[WeightedProduct], scales: Scales
) -> dict[str, np.ndarray]:
    """New biases of the products that have one, float32, by what the product computes."""
    shifted = {one.output: known(graph.constants[one.bias]) for one in products if one.bias is not None}
    able = [one for one in products if one.output in shifted]
    if not able:
        return {}
    shifts = _shifts(graph.model, seen[:_SAMPLES], able, scales)
    found: dict[str, np.ndarray] = {}
    for name, bias in shifted.items():
        if bias is not None and np.isfinite(shifts[name]).all():
            found[name] = (np.broadcast_to(bias.reshape(-1), shifts[name].shape) - shifts[name]).astype(np.float32)
    return found


def _shifts(
    model: ir.Model, seen: Sequence[Sample], products: Sequence[WeightedProduct], scales: Scales
) -> Mapping[str, np.ndarray]:
    """The mean of what rounding adds to each channel of a product, by what it computes."""
    made, copies = with_rounded_copies(model, products, scales)
    evaluate = Evaluator(made, dtype=np.float32, keep=[*copies, *copies.values()])
    sums: dict[str, np.ndarray] = {}
    counts = dict.fromkeys(copies, 0)
    for sample in seen:
        values = evaluate(sample)
        for one in products:
            lost = np.asarray(values[copies[one.output]], np.float64) - np.asarray(values[one.output])
            rows = np.moveaxis(lost, one.activation_axis, -1).reshape(-1, lost.shape[one.activation_axis])
            sums[one.output] = sums.get(one.output, 0.0) + rows.sum(axis=0)
            counts[one.output] += rows.shape[0]
    return {name: total / max(counts[name], 1) for name, total in sums.items()}
