"""Ranges in 8 bits against brute force."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bricolage.base.quantization_options import OBSERVERS, QuantizationOptions
from bricolage.errors import BadOption
from bricolage.quantization.observers import AffineScale, affine, observe_scale
from bricolage.quantization.value_functions import functions_behind
from tests.quantization.networks import graph_of

VALUES = arrays(np.float32, st.integers(1, 60), elements=st.floats(-1e4, 1e4, width=32))


@given(VALUES)
@settings(max_examples=60, deadline=None)
def test_zero_is_exact_and_no_value_is_farther_than_half_a_step(values: np.ndarray) -> None:
    scale = observe_scale(values, QuantizationOptions(observer="minmax"))
    assert 0 <= scale.zero <= 255 and scale.rounded(np.zeros(1)) == 0
    # The zero point is rounded as well, so that one end may be another half step off.
    assert np.abs(scale.rounded(values.astype(np.float64)) - values).max() <= 1.01 * float(scale.scale) + 1e-30


@given(VALUES, st.sampled_from(OBSERVERS))
@settings(max_examples=60, deadline=None)
def test_every_observer_stays_within_what_was_seen(values: np.ndarray, observer: str) -> None:
    scale = observe_scale(values, QuantizationOptions(observer=observer))  # type: ignore[arg-type]
    whole = affine(float(values.min()), float(values.max()))
    assert np.isfinite(scale.scale) and scale.scale > 0
    if whole.scale != 1.0:
        assert float(scale.scale) <= float(whole.scale) * (1 + 1e-6)


def test_mse_is_never_worse_than_the_whole_range_and_cuts_an_outlier_off() -> None:
    values = np.append(np.random.default_rng(0).standard_normal(20_000), 40.0)
    errors = {}
    for observer in ("minmax", "mse"):
        scale = observe_scale(values, QuantizationOptions(observer=observer))
        errors[observer] = float(((scale.rounded(values) - values) ** 2).mean())
    assert errors["mse"] <= errors["minmax"]
    kept = observe_scale(values, QuantizationOptions(observer="percentile", percentile=99.9))
    assert float(kept.scale) * 255 < 10


def test_a_tensor_of_zeros_has_a_scale() -> None:
    assert observe_scale(np.zeros(9), QuantizationOptions()) == AffineScale(np.float32(1.0), 0)


SHAPES: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "normal": lambda g, n: g.standard_normal(n),
    "rectified": lambda g, n: np.maximum(g.normal(g.uniform(-2, 2), g.uniform(0.1, 9), n), 0),
    "with a rectifier's small numbers": lambda g, n: np.maximum(g.standard_normal(n), g.random(n) * 1e-4),
    "one-sided": lambda g, n: g.choice([-1.0, 1.0]) * g.exponential(g.uniform(0.1, 9), n),
    "far from zero": lambda g, n: g.uniform(-30, 30) + g.standard_normal(n),
    "peaked": lambda g, n: np.where(g.random(n) < 0.9, g.normal(0, 0.01, n), g.uniform(-1, 1, n)),
    "sparse": lambda g, n: g.standard_normal(n) * (g.random(n) < g.uniform(0.01, 0.3)),
    "discrete": lambda g, n: g.integers(0, g.integers(2, 40), n) * g.uniform(0.1, 3),
    "two heaps": lambda g, n: np.where(g.random(n) < 0.5, -3, 3) + g.normal(0, 0.1, n),
    "heavy tail": lambda g, n: g.lognormal(0, 1, n),
    "sigmoid": lambda g, n: 1 / (1 + np.exp(-4 * g.standard_normal(n))),
    "one hot": lambda g, n: np.where(g.random(n) < 0.01, 5.0, 0.0),
}


@settings(max_examples=60, deadline=None)
@given(
    shape=st.sampled_from(sorted(SHAPES)),
    observer=st.sampled_from(["percentile", "mse", "entropy"]),
    count=st.sampled_from([300, 5000, 30000]),
    seed=st.integers(0, 1000),
)
def test_no_observer_is_far_worse_than_the_whole_range(shape: str, observer: str, count: int, seed: int) -> None:
    """Neither of the values nor of a product of them."""
    g = np.random.default_rng(seed)
    values = SHAPES[shape](g, count).astype(np.float32)
    weights = g.standard_normal((20, 8))

    def errors(scale: AffineScale) -> tuple[float, float]:
        lost = scale.rounded(values) - values
        rows = values.reshape(-1, 20)
        product = np.linalg.norm(lost.reshape(-1, 20) @ weights) / max(float(np.linalg.norm(rows @ weights)), 1e-9)
        return float(np.linalg.norm(lost) / max(float(np.linalg.norm(values)), 1e-9)), float(product)

    if observer == "percentile" and shape == "heavy tail":
        return  # it cuts as many of them as it is told
    own = errors(observe_scale(values, QuantizationOptions(observer=observer)))  # type: ignore[arg-type]
    whole = errors(observe_scale(values, QuantizationOptions(observer="minmax")))
    # Bins of a histogram are an eighth of a step wide; what is left over is for the bias of values that are cut.
    assert own[0] <= 1.3 * whole[0] + 1e-4 and own[1] <= 2.0 * whole[1] + 1e-3


@pytest.mark.parametrize(
    "given_options",
    [
        {"percentile": 20.0},
        {"smooth": 1.0},
        {"held_back": 0.0},
        {"max_error": -1.0},
        {"block_size": 33},
        {"observer": "x"},
    ],
)
def test_options_out_of_range(given_options: dict[str, object]) -> None:
    with pytest.raises(BadOption):
        QuantizationOptions(**given_options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("kind", "least"), [("HardSwish", -3.5), ("Silu", -12.0)])
def test_steps_are_where_a_function_tells_numbers_apart(kind: str, least: float) -> None:
    body = "t = HardSwish(c)" if kind == "HardSwish" else "g = Sigmoid(c) t = Mul(c, g)"
    graph = graph_of("float[4,8] x", f"c = MatMul(x, w) {body} y = MatMul(t, v)", {"w": (8, 8), "v": (8, 4)})
    function = functions_behind(graph)["c"]
    values = np.random.default_rng(0).normal(-8, 6, 4000)
    plain, behind = observe_scale(values, QuantizationOptions()), observe_scale(values, QuantizationOptions(), function)

    def error(scale: AffineScale) -> float:
        return float(np.linalg.norm(function(scale.rounded(values)) - function(values)))

    assert error(behind) < 0.7 * error(plain)
    assert -behind.zero * behind.scale >= least, "no step where the function is flat"


def test_a_value_that_others_read_too_is_no_function_s_own() -> None:
    graph = graph_of("float[4,8] x", "c = MatMul(x, w) t = HardSwish(c) y = Add(t, c)", {"w": (8, 8)})
    gates = graph_of("float[4,8] x", "c = MatMul(x, w) g = Sigmoid(c) t = Mul(c, g) y = Add(t, g)", {"w": (8, 8)})
    alone = graph_of("float[4,8] x", "c = MatMul(x, w) y = HardSigmoid<alpha=0.25>(c)", {"w": (8, 8)})
    assert "c" not in functions_behind(graph) and "c" not in functions_behind(gates)
    assert functions_behind(alone)["c"](np.array([-3.0, 0.0, 1.0])).tolist() == [0.0, 0.5, 0.75]
