"""The integer programme against all placements of small problems."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings

from bricolage.search.devices.device_problem import DevicePlacementProblem
from bricolage.search.devices.device_programme import integer_programme
from bricolage.search.devices.downsets import contiguous
from tests.search.devices.problems import load_of, made, placements, problems


def is_convex(problem: DevicePlacementProblem, devices: tuple[int, ...]) -> bool:
    """Whether no path of the forward graph leaves a device and comes back."""
    reached: list[set[int]] = [set() for _ in devices]
    for source, readers in enumerate(problem.graph.successors):
        for reader in readers:
            if not problem.backward[source] and not problem.backward[reader]:
                left = reached[source] | ({devices[source]} if devices[reader] != devices[source] else set())
                if devices[reader] in left:
                    return False
                reached[reader] |= left
    return True


@given(problems())
@settings(max_examples=40, deadline=None)
def test_no_placement_has_a_smaller_largest_load(problem: DevicePlacementProblem) -> None:
    every = {one: load_of(problem, one) for one in placements(problem)}
    best = min(every.values())
    found = integer_programme(problem)
    assert found.max_load == pytest.approx(best) and (best == math.inf or found.proven)
    convex = min((load for one, load in every.items() if is_convex(problem, one)), default=math.inf)
    assert integer_programme(problem, connected=True).max_load == pytest.approx(convex)
    chain = contiguous(problem)
    improved = integer_programme(problem, chain)
    assert improved.max_load == pytest.approx(best) and improved.max_load <= chain.max_load * (1 + 1e-9)


def test_two_parts_may_read_from_each_other() -> None:
    # Four operators, two halves: 0 and 3 are long, and so are 1 and 2; 0 feeds 1, 2 feeds 3.
    problem = made([[1], [], [3], []], [3.0, 1.0, 1.0, 3.0], [99.0] * 4, [0.0] * 4, [0.0] * 4, processors=0)
    assert integer_programme(problem).max_load == 4.0 == contiguous(problem).max_load
    many = replace(problem, accelerators=10**6, processors=10**6)
    assert integer_programme(many).max_load == 3.0 and contiguous(many).max_load == 3.0


def test_out_of_time_keeps_what_is_known() -> None:
    consumers = [[other for other in range(one + 1, 40) if (one * other) % 7 == 3] for one in range(40)]
    problem = made(consumers, [1.0 + one % 5 for one in range(40)], [50.0] * 40, [0.3] * 40, [0.0] * 40, accelerators=5)
    known = contiguous(problem, max_downsets=1000)
    found = integer_programme(problem, known, limit_s=0.2)
    assert found.devices and found.bound <= found.max_load <= known.max_load
