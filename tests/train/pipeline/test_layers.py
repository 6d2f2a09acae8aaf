"""Layers from steps that were timed at two sizes: what a sample takes, what a pass takes, and blocks that repeat."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bricolage.train.pipeline.layers import equalise_blocks, join_layers, line
from bricolage.train.pipeline.pipeline_problem import PlannedLayer

LAYER = PlannedLayer("", 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 0.5, 0.25)


@given(st.floats(0.01, 10.0), st.floats(0.0, 10.0))
def test_a_line_is_found_again(each: float, start: float) -> None:
    found = line({size: each * size + start for size in (1, 4, 16)})
    assert found == pytest.approx((each, start), rel=1e-6, abs=1e-6)


def test_a_line_is_never_below_zero_and_one_size_has_no_start() -> None:
    assert line({8: 4.0}) == (0.5, 0.0)
    each, start = line({1: 1.0, 8: 0.5})
    assert each >= 0.0 and start > 0.0


def test_blocks_that_repeat_take_the_median_of_their_times() -> None:
    blocks = [replace(LAYER, name=str(number), forward_ms=ms) for number, ms in enumerate((1.0, 9.0, 2.0))]
    last = replace(LAYER, name="last", forward_ms=5.0, gradient_bytes=60.0)
    found = equalise_blocks([*blocks, last])
    assert [one.forward_ms for one in found] == [2.0, 2.0, 2.0, 5.0]
    assert [one.name for one in found] == ["0", "1", "2", "last"]


def test_joined_layers_take_what_both_take_and_hand_on_what_the_last_one_does() -> None:
    layers = [replace(LAYER, name=name, sent_bytes=size) for name, size in (("a", 1.0), ("b", 2.0), ("c", 3.0))]
    (found, last) = join_layers(layers, 0, 2)
    assert found.name == "a" and found.sent_bytes == 2.0 and last == layers[2]
    assert found.forward_ms == 2.0 and found.lasting_bytes == 14.0 and found.backward_start_ms == 0.5
