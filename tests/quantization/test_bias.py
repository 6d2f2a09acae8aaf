"""Biases that take up what rounding adds on average."""

from __future__ import annotations

import numpy as np
import pytest

from bricolage.graph.constant_folding import constant_elements
from bricolage.quantization.bias import biases_in_order, corrected_biases
from bricolage.quantization.byte_weights import quantised_weights
from bricolage.quantization.insertion import Scales, with_pairs
from bricolage.quantization.observers import affine
from bricolage.quantization.products import products
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
    weights, bias = (constant_elements(graph.constants[name or ""]) for name in (product.weight, product.bias))
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


CHAIN = (
    "float[1,4,8,8] x",
    "a = Conv(x, u, b) h = HardSwish(a) m = Mul(h, h) c = Conv(m, v, b) r = Relu(c) y = Conv(r, w, b)",
    {"u": (6, 4, 3, 3), "v": (6, 6, 3, 3), "w": (6, 6, 1, 1), "b": (6,)},
)


def test_behind_integers_that_are_corrected_every_mean_is_that_of_the_float_model() -> None:
    """Also where a function in between makes a mean of noise that has none."""
    graph = graph_of(*CHAIN)
    found, _ = products(graph)
    samples = data(1, 4, 8, 8, count=6)
    scales = Scales(
        dict.fromkeys([one.activation for one in found] + [one.end for one in found], affine(-8.0, 60.0)), {}
    )
    weights = {}
    for one in found:
        array, bias = (constant_elements(graph.constants[name or ""]) for name in (one.weight, one.bias))
        assert array is not None
        step = float(scales.activations[one.activation].scale)
        weights[one.output] = quantised_weights(one, array, bias, step, pair_safe=True)
    scales = Scales(scales.activations, weights)
    each = corrected_biases(graph, samples, found, scales)
    begun = Scales(scales.activations, weights, each)
    ordered = biases_in_order(graph, samples, found, begun, lambda own: with_pairs(graph.model, found, own))
    names = [one.output for one in found]
    assert set(ordered) == set(names)

    def means(biases: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        made = with_pairs(graph.model, found, Scales(scales.activations, weights, biases))
        nodes = {node.name: node.outputs[0].name or "" for node in made.graph}
        own = {
            one.output: nodes[next(n.name for n in graph.model.graph if n.outputs[0].name == one.output)]
            for one in found
        }
        total = dict.fromkeys(names, np.zeros(6))
        for sample in samples:
            answer = evaluate(made, sample, dtype=np.float32, keep=[own[name] for name in names if own[name] != "y"])
            right = evaluate(graph.model, sample, dtype=np.float32, keep=[name for name in names if name != "y"])
            for name in names:
                lost = np.asarray(answer[own[name]], np.float64) - np.asarray(right[name])
                total[name] = total[name] + lost.mean(axis=(0, 2, 3)) / len(samples)
        return total

    # As far as a bias of int32 goes; its rounding moves what is rounded behind it.
    unit = max(float(one.scales.max()) for one in weights.values()) * float(affine(-8.0, 60.0).scale)
    behind, by_itself = means(ordered), means(each)
    assert all(np.abs(shift).max() <= 4 * unit for shift in behind.values())
    assert all(np.abs(by_itself[name]).max() > 4 * np.abs(behind[name]).max() for name in names[1:])
