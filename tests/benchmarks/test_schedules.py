"""The benchmark's own parts: instances that are what they say, and the published algorithm against its definition."""

from __future__ import annotations

import json
import random
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings

from benchmarks.schedules import HETEROGENEOUS, MOLDABLE, around, counts, gaps
from benchmarks.scheduling import side_by_side
from benchmarks.scheduling.published_bound import published_new_b_2
from benchmarks.scheduling.schedule_instances import (
    BLOCKS,
    RANDOM_GRAPHS,
    random_heterogeneous,
    read_edges,
    read_placement,
)
from bricolage.graph.prepare import prepare
from bricolage.graph.to_work import to_work
from bricolage.search.devices.list_placement import heft
from bricolage.search.schedules.branches import cut_branches
from bricolage.search.schedules.certificates import TypedTasks
from bricolage.search.schedules.path_bound import new_b_2
from bricolage.search.schedules.schedule import check
from bricolage.search.schedules.scheduling_problem import ScheduleProblem
from bricolage.search.schedules.simulate import BandwidthContention
from tests.search.schedules.problems import typed


@given(tasks=typed(9))
@settings(max_examples=100, deadline=None)
def test_the_published_algorithm_gives_the_same_bound(tasks: TypedTasks) -> None:
    assert published_new_b_2(tasks, 60.0) == pytest.approx(new_b_2(tasks), rel=1e-12)


def test_the_published_algorithm_keeps_to_its_limit() -> None:
    graph = BLOCKS["inception-e"]
    tasks = TypedTasks(graph, (1.0,) * len(graph), ("a",) * len(graph), {"a": 2})
    assert published_new_b_2(tasks, -1.0) is None


def test_random_networks_are_those_of_their_readme() -> None:
    longest = {"ws-32-4-0.75-3": 12, "ws-32-4-0.75-4": 12, "ws-32-4-0.75-5": 8}
    for path in RANDOM_GRAPHS.glob("ws-*.txt"):
        graph = read_edges(path)
        depth = [0] * len(graph)
        for task, sources in enumerate(graph.predecessors):
            depth[task] = 1 + max((depth[source] for source in sources), default=0)
        assert len(graph) == 32 and len(graph.tensors) == 64 and max(depth) == longest.pop(path.stem)
    assert not longest


def test_an_instance_from_a_file(tmp_path: Path) -> None:
    def node(number: int, cpu: float, gpu: float, able: int) -> dict[str, object]:
        return {"id": number, "cpuLatency": cpu, "fpgaLatency": gpu, "supportedOnFpga": able}

    nodes = [node(7, 4.0, 1.0, 1), node(3, 5.0, 1.0, 0), node(5, 6.0, 2.0, 1)]
    edges = [{"sourceId": 3, "destId": 7, "cost": 0.5}, {"sourceId": 5, "destId": 7, "cost": 0.25}]
    path = tmp_path / "made.json"
    path.write_text(json.dumps({"nodes": nodes, "edges": edges}), encoding="utf-8")
    problem = read_placement(path)
    assert [sorted(times) for times in problem.times] == [["cpu"], ["cpu", "gpu"], ["cpu", "gpu"]]
    found = heft(problem)
    check(problem, found)
    assert found.makespan_ms == 6.5, "5 on the processor, half a ms to move, 1 on the accelerator"


def test_gaps_are_of_what_is_proven() -> None:
    draw = random.Random(1)
    problems = [random_heterogeneous(draw, BLOCKS["squeezenet-fire"]) for _ in range(2)]
    rows = gaps("fire", problems, HETEROGENEOUS, optimum=True, limit_s=60.0)
    assert [row.method for row in rows] == ["exact", "HEFT", "PEFT", "DUET"]
    assert all(row.reference == "optimum" and row.worst >= -1e-9 for row in rows)
    narrow = [ScheduleProblem(BLOCKS["squeezenet-fire"], ({"cpu": (2.0,)},) * 6, {"cpu": 2})]
    assert {row.method: round(row.worst, 9) for row in gaps("fire", narrow, MOLDABLE, optimum=True, limit_s=60.0)}[
        "CPR"
    ] == 0.0


def test_a_method_below_the_reference_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.schedules.lower_bound", lambda _problem: 1e9)
    problem = random_heterogeneous(random.Random(1), BLOCKS["squeezenet-fire"])
    with pytest.raises(AssertionError, match="is below the lower bound"):
        gaps("fire", [problem], HETEROGENEOUS, optimum=False, limit_s=1.0)


def test_bounds_enclose_one_another() -> None:
    row = around(12, 2, 20)
    assert row.lower <= 1.0 <= row.new_b_2 <= row.new_b_1 <= row.old_b


def test_counts_are_those_of_ios() -> None:
    assert {one.block: (one.states, one.transitions, one.pruned_transitions) for one in counts()} == {
        "squeezenet-fire": (12, 51, 47), "inception-c": (144, 3_648, 3_104), "inception-e": (180, 4_871, 4_616),
    }  # fmt: skip


def test_networks_that_are_written_here_are_valid_and_branch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in (("_STEPS", 3), ("_WIDTH", 4), ("_SIDE", 64)):
        monkeypatch.setattr(side_by_side, name, size)
    made = side_by_side.networks(RANDOM_GRAPHS, tmp_path)
    for name, most in (("randwire", 96), ("two lstms", 2)):
        path, inputs = made[name]()
        onnx.checker.check_model(str(path), full_check=True)
        graph = prepare(ir.load(path), {})
        assert [info.sizes for info in graph.inputs] == [array.shape for array in inputs.values()]
        regions = cut_branches(to_work(graph), [1.0] * len(graph), 0.0).regions
        assert most <= len(regions) <= 2 * most + 6


def test_on_more_cores_curves_go_on_by_amdahls_law() -> None:
    graph = BLOCKS["inception-e"]
    curve = (10.0, 6.0)  # 2 ms serial
    problem = ScheduleProblem(graph, ({"cpu": curve},) * len(graph), {"cpu": 2})
    one_after_another, best = side_by_side._simulated(problem, BandwidthContention((0.0,) * len(graph), 1.0), 8, 2)
    assert one_after_another == pytest.approx(len(graph) * 3.0)
    assert 12.0 <= best < one_after_another, "four tasks in a row take 12 ms on eight cores"
