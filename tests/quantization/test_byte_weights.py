"""Bytes of weights: pair-safe in every order that kernels pair in, and near to the float weights."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.quantization.awq import activation_aware, salient_factors
from bricolage.quantization.block_quantization import half_quadratic, quantize_gptq, round_to_nearest
from bricolage.quantization.byte_weights import quantised_weights
from bricolage.quantization.products import WeightedProduct
from bricolage.quantization.weights_only import pack_integers

KINDS = st.sampled_from(["Conv", "MatMul", "Gemm"])


def product(kind: str) -> WeightedProduct:
    return WeightedProduct("n", "y", kind, "x", "w", "b", "y", transposed=kind == "Gemm")


def pairs(columns: np.ndarray) -> int:
    """The largest sum of neighbours of one sign down the rows."""
    largest = 0
    for column in columns.T.astype(int):
        for first, second in zip(column[0::2], [*column[1::2], 0], strict=False):
            largest = max(largest, max(first, 0) + max(second, 0), max(-first, 0) + max(-second, 0))
    return largest


@given(KINDS, st.integers(1, 5), st.integers(1, 4), st.booleans(), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_pair_safe_in_both_orders(kind: str, k: int, n: int, tied: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = (n, k, 2, 2) if kind == "Conv" else (n, k) if kind == "Gemm" else (k, n)
    weights = (np.full(shape, 0.7) if tied else rng.standard_normal(shape)).astype(np.float32)
    found = quantised_weights(product(kind), weights, None, 0.1, pair_safe=True)
    assert found.integers.shape == shape and found.integers.min() >= -127
    if kind == "Conv":
        taps_of_channels = np.moveaxis(found.integers, 1, -1)  # [n, 2, 2, k]
        assert pairs(taps_of_channels.reshape(n, -1).T) <= 128
        for tap in taps_of_channels.reshape(n, -1, k).swapaxes(0, 1):
            assert pairs(tap.T) <= 128
    else:
        assert pairs(found.integers.T if kind == "Gemm" else found.integers) <= 128
    off = np.abs(found.floats(product(kind).channel_axis % len(shape)) - weights).max(initial=0.0)
    assert off <= np.abs(weights).max(initial=0.0) * 0.21 and found.error < 0.05


def test_a_channel_of_hardly_any_weights_does_not_clip_its_bias() -> None:
    weights = np.array([[1e-20, 1.0], [1e-20, -1.0]], np.float32)
    found = quantised_weights(product("MatMul"), weights, np.array([5.0, 5.0], np.float32), 1e-3, pair_safe=True)
    assert (5.0 / (found.scales * 1e-3) < 2**31).all()


@pytest.mark.parametrize("bits", [4, 8])
def test_blocks_are_near_and_better_ways_are_nearer(bits: int) -> None:
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((70, 8)).astype(np.float32)
    x = rng.standard_normal((200, 70)) @ rng.standard_normal((70, 70))
    ways = {
        "rtn": round_to_nearest(weights, bits, 32),
        "hqq": half_quadratic(weights, bits, 32),
        "awq": activation_aware(weights, bits, 32, (x**2).mean(axis=0)),
        "gptq": quantize_gptq(weights, bits, 32, (x.T @ x).astype(np.float32)),
    }
    for one in ways.values():
        assert one.integers.shape == (3, 32, 8) and one.integers.max() < 2**bits
        assert np.abs(one.floats - weights).max() < (0.9 if bits == 4 else 0.1)
    of_weights = {name: np.linalg.norm(one.floats - weights) for name, one in ways.items()}
    of_results = {name: np.linalg.norm(x @ one.floats - x @ weights) for name, one in ways.items()}
    assert of_weights["hqq"] <= of_weights["rtn"] and of_results["gptq"] < of_results["rtn"]
    by = (x**2).mean(axis=0)[:, None]  # what AWQ makes small: the error of results, channels not being correlated
    expected = {name: (by * (one.floats - weights) ** 2).sum() for name, one in ways.items()}
    assert expected["awq"] < expected["rtn"] or (bits == 8 and expected["awq"] == expected["rtn"])


def test_weights_that_meet_large_activations_become_larger() -> None:
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((64, 24)).astype(np.float32)
    large = np.arange(64) % 16 == 3
    factors = salient_factors([weights], 4, 32, np.where(large, 900.0, 1.0))
    assert factors is not None and factors[large].min() > 1 > factors[~large].max()
    assert salient_factors([weights], 4, 32, np.ones(64)) is None
    assert salient_factors([weights], 4, 32, np.zeros(64)) is None


def test_zeros_are_exact_in_blocks() -> None:
    for make in (round_to_nearest, half_quadratic):
        assert not make(np.zeros((33, 2), np.float32), 4, 32).floats.any()


@given(st.integers(1, 9), st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_nibbles(count: int, seed: int) -> None:
    integers = np.random.default_rng(seed).integers(0, 16, (2, count)).astype(np.uint8)
    found = pack_integers(integers, 4)
    back = np.stack([found & 15, found >> 4], axis=-1).reshape(2, -1)[:, :count]
    assert (back == integers).all()
