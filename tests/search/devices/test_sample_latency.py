"""When one sample is done, and the bound of that, against all placements of small problems and a simulation of blocks."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings

from bricolage.search.devices.device_problem import DevicePlacementProblem
from bricolage.search.devices.sample_latency import latency, latency_bound, least_latency
from tests.search.devices.problems import made, placements, problems


def done(problem: DevicePlacementProblem, devices: tuple[int, ...]) -> float:
    """Block after block, each as soon as what it reads is there; infinite where none can go on."""
    blocks = [[one for one, there in enumerate(devices) if there == device] for device in range(problem.accelerators)]
    blocks += [[one] for one, there in enumerate(devices) if there >= problem.accelerators]
    at: dict[int, float] = {}
    left = [block for block in blocks if block]
    while left:
        for block in left:
            reads = {one for reader in block for one in problem.graph.predecessors[reader]} - set(block)
            if reads <= set(at):
                break
        else:
            return math.inf
        left.remove(block)
        processor = devices[block[0]] >= problem.accelerators
        end = max((at[one] for one in reads), default=0.0) + problem.load(block, processor=processor)
        at.update(dict.fromkeys(block, end))
    return max(at.values())


@given(problems(training=False))
@settings(max_examples=80, deadline=None)
def test_no_placement_is_done_before_the_bound(problem: DevicePlacementProblem) -> None:
    ends = {one: done(problem, one) for one in placements(problem)}
    for devices in list(ends)[::5]:
        assert latency(problem, devices) == pytest.approx(ends[devices])
    best = min(ends.values())
    assert latency_bound(problem) <= best * (1 + 1e-9)
    found = least_latency(problem)
    assert found.max_load >= best * (1 - 1e-9) and found.bound <= best * (1 + 1e-9)
    assert not found.devices or done(problem, found.devices) == pytest.approx(found.max_load)


def chain(**more: object) -> DevicePlacementProblem:
    consumers = [[1], [2], [3], []]
    return made(consumers, [2.0] * 4, [20.0] * 4, [0.5, 0.1, 0.5, 0.5], [1.0] * 4, **more)  # type: ignore[arg-type]


def test_on_a_chain_the_bound_is_reached() -> None:
    # Memory for three: whatever is cut costs twice what moves there, and the second output is the cheapest.
    found = least_latency(chain(memory_bytes=3.0))
    assert found.max_load == pytest.approx(8.2) and found.proven
    assert least_latency(chain(memory_bytes=9.0)).max_load == 8.0
    assert least_latency(replace(chain(memory_bytes=0.5), accelerators=2)).max_load == 80.0


def test_branches_run_at_once_on_several_accelerators() -> None:
    problem = made([[2], [2], []], [5.0, 5.0, 1.0], [90.0] * 3, [0.1] * 3, [0.0] * 3, processors=0, accelerators=3)
    assert latency(problem, (0, 1, 1)) == pytest.approx(5.1 + 0.1 + 6.0)
    assert latency(problem, (0, 1, 2)) == pytest.approx(5.1 + 1.2)
    assert latency_bound(problem) == pytest.approx(6.0) and least_latency(problem).max_load <= 11.0


def test_blocks_that_wait_for_each_other_never_end() -> None:
    problem = made([[1], [2], []], [1.0] * 3, [9.0] * 3, [0.0] * 3, [0.0] * 3)
    assert latency(problem, (0, 1, 0)) == math.inf and latency(problem, (0, 2, 2)) == 19.0
