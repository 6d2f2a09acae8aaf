"""Ranges in 8 bits against brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bricolage.errors import BadOption
from bricolage.quantization.observers import AffineScale, affine, observed
from bricolage.quantization.options import OBSERVERS, QuantizationOptions

VALUES = arrays(np.float32, st.integers(1, 60), elements=st.floats(-1e4, 1e4, width=32))


@given(VALUES)
@settings(max_examples=60, deadline=None)
def test_zero_is_exact_and_no_value_is_farther_than_half_a_step(values: np.ndarray) -> None:
    scale = observed(values, QuantizationOptions(observer="minmax"))
    assert 0 <= scale.zero <= 255 and scale.rounded(np.zeros(1)) == 0
    # The zero point is rounded as well, so that one end may be another half step off.
    assert np.abs(scale.rounded(values.astype(np.float64)) - values).max() <= 1.01 * float(scale.scale) + 1e-30


@given(VALUES, st.sampled_from(OBSERVERS))
@settings(max_examples=60, deadline=None)
def test_every_observer_stays_within_what_was_seen(values: np.ndarray, observer: str) -> None:
    scale = observed(values, QuantizationOptions(observer=observer))  # type: ignore[arg-type]
    whole = affine(float(values.min()), float(values.max()))
    assert np.isfinite(scale.scale) and scale.scale > 0
    if whole.scale != 1.0:
        assert float(scale.scale) <= float(whole.scale) * (1 + 1e-6)


def test_mse_is_never_worse_than_the_whole_range_and_cuts_an_outlier_off() -> None:
    values = np.append(np.random.default_rng(0).standard_normal(20_000), 40.0)
    errors = {}
    for observer in ("minmax", "mse"):
        scale = observed(values, QuantizationOptions(observer=observer))  # type: ignore[arg-type]
        errors[observer] = float(((scale.rounded(values) - values) ** 2).mean())
    assert errors["mse"] <= errors["minmax"]
    kept = observed(values, QuantizationOptions(observer="percentile", percentile=99.9))
    assert float(kept.scale) * 255 < 10


def test_a_tensor_of_zeros_has_a_scale() -> None:
    assert observed(np.zeros(9), QuantizationOptions()) == AffineScale(np.float32(1.0), 0)


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
