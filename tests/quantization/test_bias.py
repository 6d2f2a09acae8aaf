"""Biases that take up what rounding adds on average."""

from __future__ import annotations

import numpy as np
import pytest

from bricolage.graph.folding import known
from bricolage.quantization.bias import corrected_biases
from bricolage.quantization.insertion import Scales
from bricolage.quantization.observers import affine
from bricolage.quantization.products import products
from bricolage.quantization.weights import quantised_weights
from bricolage.verify.reference import evaluate
from tests.quantization.networks import data, graph_of

GEMM = ("float[6,8] x", "a = Relu(x) y = Gemm<transB=1>(a, w, b)", {"w": (4, 8), "b": (4,)})
BORDERS = ("float[1,4,3,5] x", "a = Relu(x) y = Conv<pads=[2,2,2,2], group=2>(a, w, b)", {"w": (4, 2, 5, 5), "b": (4,)})
"""Most taps of most places read padding, which rounding leaves as it is."""


@pytest.mark.parametrize("network", [GEMM, BORDERS])
def test_the_mean_error_of_each_channel_is_taken_up(network: tuple[str, str, dict[str, object]]) -> None:
    graph = graph_of(*network)
    (product,), _ = products(graph)
    samples = data(*((6, 8) if network is GEMM else (1, 4, 3, 5)), count=5)
    weights, bias = (known(graph.constants[name or ""]) for name in (product.weight, product.bias))
    assert weights is not None and bias is not None
    scale = affine(0.0, 400.0)  # far too wide: most numbers lie between the first two steps
    rounded = quantised_weights(product, weights, bias, float(scale.scale), pair_safe=True)
    scales = Scales({product.activation: scale}, {product.output: rounded})
    found = corrected_biases(graph, samples, [product], scales)[product.output]

    made = rounded.floats(product.channel_axis % weights.ndim)
    exact = np.zeros(4)
    for sample in samples:
        x = scale.rounded(np.maximum(sample["x"], 0.0)).astype(np.float32)
        copy = graph_of(network[0], network[1], {"w": made, "b": np.zeros(4, np.float32)})
        lost = evaluate(copy.model, {"x": x})["y"] - evaluate(graph.model, sample)["y"]
        exact += np.moveaxis(np.asarray(lost), product.activation_axis, -1).reshape(-1, 4).mean(axis=0) / len(samples)
    assert np.allclose(found, -exact, atol=1e-4) and not np.allclose(found, bias, atol=1e-2)
