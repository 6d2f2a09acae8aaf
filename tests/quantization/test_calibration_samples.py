"""Calibration data as users give them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.errors import UnusableCalibration
from bricolage.quantization.calibration_samples import doubts, make_samples, split_samples
from tests.quantization.networks import model_of

OPEN = model_of("float[N,4] x", "y = MatMul(x, w)", {"w": (4, 4)})
FIXED = model_of("float[2,4] x", "y = MatMul(x, w)", {"w": (4, 4)})


@pytest.mark.parametrize(
    ("fixed", "shape", "count", "each"),
    [
        (False, (5, 3, 4), 5, (3, 4)),  # the first axis is the sample
        (False, (5, 4), 5, (1, 4)),  # a batch of rows, whose number is open
        (True, (3, 2, 4), 3, (2, 4)),
        (True, (6, 4), 3, (2, 4)),
    ],
)
def test_first_axis(fixed: bool, shape: tuple[int, ...], count: int, each: tuple[int, ...]) -> None:
    whole = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    found = make_samples(FIXED if fixed else OPEN, {"x": whole})
    assert len(found) == count and {one["x"].shape for one in found} == {each}
    assert (np.concatenate([one["x"].reshape(-1) for one in found]) == whole.reshape(-1)).all()


def test_numbered_samples_may_differ_in_size() -> None:
    found = make_samples(OPEN, {f"x.{number}": np.ones((number + 1, 4), np.float32) for number in range(11)})
    assert [one["x"].shape[0] for one in found] == list(range(1, 12))
    with pytest.raises(UnusableCalibration, match="no sample 0"):
        make_samples(OPEN, {"x.1": np.ones((1, 4), np.float32)})


def test_an_input_that_nothing_reads_needs_no_data() -> None:
    model = model_of("float[2,4] x, int64[3] idle", "y = MatMul(x, w)", {"w": (4, 4)})
    (first, *_) = make_samples(model, {"x": np.ones((5, 2, 4), np.float32)})
    assert first["idle"].shape == (3,)


@given(st.integers(2, 60), st.floats(0.01, 0.99))
@settings(max_examples=60, deadline=None)
def test_a_split_shares_nothing_and_leaves_something(count: int, share: float) -> None:
    every = [{"x": np.array(number)} for number in range(count)]
    seen, held = split_samples(every, share)
    numbers = [int(one["x"]) for one in (*seen, *held)]
    assert seen and held and sorted(numbers) == list(range(count))
    assert abs(len(held) - share * count) <= 1.5


def test_copies_are_told_by_where_they_harm() -> None:
    seen = [{"x": np.full((1, 8), number, np.float32)} for number in range(10)]
    others = [{"x": np.full((1, 8), number, np.float32)} for number in (6.5, 7.5)]
    assert not doubts(seen, others)
    (told,) = doubts(seen, [*others, seen[3]])
    assert told.startswith("1 sample held back is one that calibration has seen")
    (told,) = doubts([*seen, seen[3], seen[4]], others)
    assert told == "2 samples calibrated on are copies of others and add nothing"
