"""Stages on groups of devices, against all ways to cut a row and to give devices."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bricolage.search.sharding.alpa_stages import StageCost, plan_stages, submeshes

COSTS = st.lists(
    st.builds(
        StageCost, st.sampled_from((1.0, 2.0, 3.5, 6.0)), st.sampled_from((0.0, 1.0)), st.sampled_from((0.0, 1.0, 2.0))
    ),
    max_size=2,
)


def least(
    costs: dict[tuple[int, int, int], list[StageCost]], layers: int, devices: int, micro: int, memory: float
) -> float:
    best = math.inf
    for count in range(1, layers + 1):
        for cuts in itertools.combinations(range(1, layers), count - 1):
            ends = [0, *cuts, layers]
            for groups in itertools.product((1, 2), repeat=count):
                if sum(groups) > devices:
                    continue
                ways = [costs[a, b, g] for a, b, g in zip(ends[:-1], ends[1:], groups, strict=True)]
                depth = [min(count - place, micro) for place in range(count)]
                for some in itertools.product(*ways):
                    if any(c.lasting_bytes + n * c.kept_bytes > memory for c, n in zip(some, depth, strict=True)):
                        continue
                    times = [one.ms for one in some]
                    best = min(best, sum(times) + (micro - 1) * max(times))
    return best


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 4), st.integers(1, 4), st.sampled_from((1, 2, 8)), st.sampled_from((math.inf, 3.0)))
def test_the_least_of_all_ways(data: st.DataObject, layers: int, devices: int, micro: int, memory: float) -> None:
    keys = [(a, b, g) for a in range(layers) for b in range(a + 1, layers + 1) for g in (1, 2)]
    costs = {key: data.draw(COSTS) for key in keys}
    # Groups of three and six of three times the devices are the same problem.
    found = plan_stages(lambda a, b, g: costs[a, b, g // 3], layers, 3 * devices, micro, [3, 6], memory)
    best = least(costs, layers, devices, micro, memory)
    if found is None:
        assert math.isinf(best)
        return
    assert found.ms == pytest.approx(best)
    assert sum(one.devices for one in found.stages) <= 3 * devices
    assert [one.begin for one in found.stages] == [0, *(one.end for one in found.stages[:-1])]


def test_groups_are_powers_of_two_and_then_hosts() -> None:
    assert submeshes(32, 8) == [1, 2, 4, 8, 16, 24, 32] and submeshes(3, 8) == [1, 2]
