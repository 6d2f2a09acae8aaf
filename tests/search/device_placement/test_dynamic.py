"""The exact search over downsets, against all placements of small problems; and how it ends when it may not finish."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings

from bricolage.search.device_placement.blocks import contract, cuts, downsets
from bricolage.search.device_placement.dynamic import contiguous, linearised, pipedream
from bricolage.search.device_placement.problem import DevicePlacementProblem, least_load, max_load
from tests.search.device_placement.problems import is_chain, load_of, made, placements, problems


@given(problems())
@settings(max_examples=70, deadline=None)
def test_no_chain_of_parts_has_a_smaller_largest_load(problem: DevicePlacementProblem) -> None:
    all_of_them = list(placements(problem))
    best = min((load_of(problem, one) for one in all_of_them if is_chain(problem, one)), default=math.inf)
    found = contiguous(problem)
    assert found.max_load == pytest.approx(best)
    if found.devices:
        assert is_chain(problem, found.devices) and load_of(problem, found.devices) == pytest.approx(best)
        assert found.proven and found.gap == 0.0
    along = linearised(problem)
    assert along.max_load >= best * (1 - 1e-9) and along.bound <= best * (1 + 1e-9)
    assert least_load(problem) <= min(map(load_of, [problem] * len(all_of_them), all_of_them)) * (1 + 1e-9)


@given(problems())
@settings(max_examples=50, deadline=None)
def test_a_load_is_what_its_definition_says(problem: DevicePlacementProblem) -> None:
    for devices in list(placements(problem))[::7]:
        assert max_load(problem, devices) == pytest.approx(load_of(problem, devices))


def chain(count: int, **more: object) -> DevicePlacementProblem:
    consumers = [[one + 1] for one in range(count - 1)] + [[]]
    return made(consumers, [1.0] * count, [10.0] * count, [0.1] * count, [1.0] * count, **more)  # type: ignore[arg-type]


def test_a_chain_in_three() -> None:
    found = contiguous(chain(6, accelerators=3, processors=0))
    assert found.max_load == pytest.approx(2.2), "the middle part pays for its input and for its output"
    assert found.devices == (0, 0, 1, 1, 2, 2)
    assert pipedream(chain(6, accelerators=3)).devices == found.devices


def test_memory_sends_work_to_the_processor() -> None:
    found = contiguous(chain(3, accelerators=1, memory_bytes=2.0))
    assert found.max_load == pytest.approx(10.0) and sorted(found.devices) == [0, 0, 1]
    assert contiguous(chain(3, accelerators=1, processors=0, memory_bytes=2.0)).max_load == math.inf


def test_branches_are_one_block_for_pipedream() -> None:
    # 0 feeds 1, 2 and 3, which feed 4: only 0 and 4 are before or after everything else.
    problem = made([[1, 2, 3], [4], [4], [4], []], [1.0] * 5, [9.0] * 5, [0.0] * 5, [0.0] * 5)
    assert cuts(contract(problem)) == [0, 0b00001, 0b11111]
    assert pipedream(problem).max_load == 4.0 and contiguous(problem).max_load == 3.0


def test_blocks_that_cost_nothing_are_not_counted() -> None:
    # Eight results that nobody waits for would be 2**8 downsets.
    consumers = [[1, *range(2, 10)], [], *([] for _ in range(8))]
    problem = made(consumers, [1.0, 1.0] + [0.0] * 8, [5.0, 5.0] + [0.0] * 8, [0.1] * 10, [0.0] * 10)
    assert downsets(contract(problem), 10) == [0, 1, 3]
    assert contiguous(problem).max_load == pytest.approx(1.1)


def test_without_time_or_room_there_is_still_a_placement_and_a_bound() -> None:
    wide = made([[] for _ in range(12)], [1.0] * 12, [9.0] * 12, [0.0] * 12, [0.0] * 12)
    for found in (contiguous(wide, max_downsets=100), contiguous(wide, limit_s=-1.0)):
        assert found.max_load == 6.0 and 0.0 < found.bound <= 6.0 and found.note
    assert contiguous(wide).proven


def test_more_devices_than_blocks_are_not_looked_at() -> None:
    found = contiguous(chain(6, accelerators=10**6, processors=10**6))
    assert found.max_load == pytest.approx(1.2) and found.proven and max(found.devices) < 6
