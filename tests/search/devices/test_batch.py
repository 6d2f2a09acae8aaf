"""Loads of many placements at once, against one at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings

from bricolage.search.devices.batch import PlacementLoads
from bricolage.search.devices.device_problem import DevicePlacementProblem
from tests.search.devices.problems import load_of, placements, problems


@settings(max_examples=40, deadline=None)
@given(problems())
def test_the_largest_load_of_each(problem: DevicePlacementProblem) -> None:
    some = list(placements(problem))[:200]
    loads, excess = PlacementLoads(problem).loads(np.array(some))
    for one, row, over in zip(some, loads, excess, strict=True):
        wanted = load_of(problem, one)
        assert (over > 0.0) == math.isinf(wanted)
        if math.isfinite(wanted):
            assert row.max() == pytest.approx(wanted)
