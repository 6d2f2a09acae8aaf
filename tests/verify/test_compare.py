"""Error metrics: what they are on known cases, and what holds for any arrays."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bricolage.verify.compare import ELEMENT, Deviation, deviation, errors, relative_error, usual_size

finite = st.floats(-1e6, 1e6, allow_nan=False, width=32)
pairs = hnp.array_shapes(max_dims=3, max_side=5).flatmap(
    lambda shape: st.tuples(
        hnp.arrays(np.float64, shape, elements=finite), hnp.arrays(np.float64, shape, elements=finite)
    )
)


def test_known_values() -> None:
    r = np.array([3.0, 4.0])
    assert relative_error([np.array([3.0, 4.0])], [r]) == 0.0
    assert relative_error([np.array([3.0, 9.0])], [r]) == pytest.approx(1.0)
    assert relative_error([r, r * 1.5], [r, r]) == pytest.approx(0.5)
    assert errors([np.array([3.0, 4.5]), r], [r, r]) == [pytest.approx(0.1), 0.0]


def test_special_numbers() -> None:
    inf, nan = math.inf, math.nan
    r = np.array([1.0, inf, -inf, nan])
    assert relative_error([r.copy()], [r]) == 0.0
    assert relative_error([np.array([1.5, inf, -inf, nan])], [r]) == pytest.approx(0.5)
    for wrong in (
        [1, -inf, -inf, nan],
        [1, inf, -inf, 0],
        [nan, inf, -inf, nan],
        [inf, inf, -inf, nan],
        [1, nan, -inf, nan],
    ):
        assert relative_error([np.array(wrong, float)], [r]) == inf
    assert relative_error([np.array([nan])], [np.array([nan])]) == 0.0


def test_zero_reference_is_judged_in_absolute_terms() -> None:
    zero = np.zeros(4)
    assert relative_error([zero], [zero]) == 0.0
    assert relative_error([np.full(4, 1e-7)], [zero]) == pytest.approx(1e-7)


def test_very_large_and_very_small_numbers() -> None:
    for size in (1e300, 1e-300):
        r = np.array([size, 2 * size])
        assert relative_error([r * 1.01], [r]) == pytest.approx(0.01)
    assert relative_error([np.array([1e308])], [np.array([-1e308])]) == pytest.approx(2.0)


def test_discrete_types() -> None:
    ids = np.array([1, 2, 3, 4])
    assert relative_error([np.array([1, 2, 3, 5])], [ids]) == 0.25
    assert relative_error([ids.astype(np.int32)], [ids]) == 0.0
    assert relative_error([np.array([True, False])], [np.array([True, True])]) == 0.5
    words = np.array(["a", "b"], dtype=object)
    assert relative_error([np.array(["a", "c"], dtype=object)], [words]) == 0.5


def test_shapes_counts_and_empties() -> None:
    assert relative_error([np.zeros((0, 3))], [np.zeros((0, 3))]) == 0.0
    assert relative_error([np.zeros((3, 0))], [np.zeros((0, 3))]) == math.inf
    assert relative_error([np.zeros((1, 3))], [np.zeros(3)]) == math.inf
    assert relative_error([], [np.zeros(3)]) == math.inf
    assert relative_error([], []) == 0.0
    assert errors([], [np.zeros(3)]) == [math.inf]
    assert deviation([], [np.zeros(3)], [1.0]) == Deviation(math.inf, math.inf)


def test_sequences_and_optionals() -> None:
    r = [np.array([3.0, 4.0]), np.array([1])]
    assert relative_error([r], [r]) == 0.0
    assert relative_error([[r[0]]], [r]) == math.inf
    assert relative_error([None], [None]) == 0.0 and relative_error([None], [r]) == math.inf


def test_low_precision_and_complex_outputs() -> None:
    r = np.array([1.0, 2.0])
    assert relative_error([r.astype(ml_dtypes.bfloat16)], [r]) == 0.0
    assert relative_error([np.array([1 + 1j])], [np.array([1 + 0j])]) == pytest.approx(1.0)


@given(pairs, st.floats(0.1, 1e3))
def test_scaling_both_changes_nothing(pair: tuple[np.ndarray, np.ndarray], factor: float) -> None:
    y, r = pair
    assume(r.any())
    assert relative_error([y * factor], [r * factor]) == pytest.approx(relative_error([y], [r]), rel=1e-9, abs=1e-12)


@given(pairs)
def test_agrees_with_the_definition(pair: tuple[np.ndarray, np.ndarray]) -> None:
    y, r = pair
    assume(np.linalg.norm(r) > 1e-3)
    assert relative_error([y], [r]) == pytest.approx(np.linalg.norm(y - r) / np.linalg.norm(r), rel=1e-9)


def test_one_wrong_element_among_a_million_shows() -> None:
    """The norm of the whole would call it an error of 1e-6."""
    r = np.random.default_rng(0).standard_normal(1_000_000)
    y = r.copy()
    y[1234] += 1e-3
    assert np.linalg.norm(y - r) / np.linalg.norm(r) < 1.1e-6
    assert relative_error([y], [r]) == pytest.approx(1e-3 / ELEMENT / (abs(r[1234]) + np.sqrt(np.mean(r**2))))
    assert relative_error([r * (1 + 1e-6)], [r]) == pytest.approx(1e-6, rel=1e-6), "an even error is that of the norm"


def test_each_output_has_its_own_limit() -> None:
    """What an output that rounding moves far may be off, one that it hardly moves may not."""
    r = [np.array([1.0, 2.0]), np.array([1.0, 2.0])]
    loose_off = deviation([r[0] * (1 + 1e-3), r[1]], r, [2e-3, 1e-7])
    assert loose_off == Deviation(pytest.approx(1e-3), 0.0)
    other_off = deviation([r[0], r[1] * (1 + 1e-3)], r, [2e-3, 1e-7])
    assert other_off.error == other_off.excess == pytest.approx(1e-3)
    both = deviation([r[0] * (1 + 1e-3), r[1] * (1 + 1e-5)], r, [2e-3, 1e-7])
    assert both == Deviation(pytest.approx(1e-3), pytest.approx(1e-5))


def test_maps_are_compared_together_and_by_their_keys() -> None:
    wanted = [{"a": 0.9, "b": 1e-9}, {"a": 0.5, "b": 0.5}]
    assert relative_error([wanted], [wanted]) == 0.0
    close = [{"b": 2e-9, "a": 0.9}, {"a": 0.5, "b": 0.5}]
    assert 0.0 < relative_error([close], [wanted]) < 1e-8
    for wrong in ([{"a": 0.9, "c": 1e-9}, wanted[1]], wanted[:1], [np.float32(1), wanted[1]], None, {"a": 0.9}):
        assert relative_error([wrong], [wanted]) == np.inf
    assert relative_error([{"a": 2.0}], [{"a": 1.0}]) == 1.0


@pytest.mark.parametrize("kind", [np.float16, np.float32, ml_dtypes.bfloat16])
def test_what_a_type_does_not_hold_is_infinite_in_it(kind: type) -> None:
    largest = float(ml_dtypes.finfo(kind).max)
    reference = np.array([1.0, 4.0 * largest, -4.0 * largest, 0.5 * largest])
    with np.errstate(over="ignore"):
        assert relative_error([reference.astype(kind)], [reference]) < 1e-2
    for wrong in ([1.0, -math.inf, -math.inf, 0.5 * largest], [1.0, math.inf, -math.inf, math.inf]):
        assert relative_error([np.array(wrong).astype(kind)], [reference]) == math.inf


@given(pairs, st.floats(1e-30, 1e6))
def test_a_least_size_bounds_what_an_error_is_relative_to(pair: tuple[np.ndarray, np.ndarray], least: float) -> None:
    y, r = pair
    own, (floored,) = relative_error([y], [r]), errors([y], [r], [least])
    rms = usual_size(r)
    assert floored <= own * (1 + 1e-9) or rms == 0.0
    if rms >= least:
        assert floored == own
    else:
        whole = float(np.sqrt(np.mean((y - r) ** 2))) / least
        assert whole * (1 - 1e-9) <= floored <= max(whole, float(np.abs(y - r).max()) / least / ELEMENT) * (1 + 1e-9)


def test_the_usual_size_is_of_all_finite_members() -> None:
    assert usual_size(np.array([3.0, np.nan, np.inf, -4.0])) == pytest.approx(math.sqrt(12.5))
    assert usual_size([np.array([3.0]), None, [np.array([4.0])]]) == pytest.approx(math.sqrt(12.5))
    assert usual_size([{1: 3.0, 2: 4.0}]) == pytest.approx(math.sqrt(12.5))
    assert usual_size(np.array([1e300, 1e300])) == pytest.approx(1e300)
    assert (
        usual_size(np.array([5, 6])) == usual_size(np.empty((0, 3))) == usual_size(np.zeros(3)) == usual_size([]) == 0.0
    )


def test_members_of_sequences_and_maps_share_the_least_size() -> None:
    vanished, zero = [np.array([1e-21])], [np.array([0.0])]
    assert errors([zero], [vanished]) == [pytest.approx(1.0)]
    assert errors([zero], [vanished], [0.5])[0] < 1e-20
    assert errors([[{1: 0.0}]], [[{1: 1e-21}]], [0.5])[0] < 1e-20
