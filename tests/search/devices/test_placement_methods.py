"""Every method behind one door: no bound is above the optimum, and no placement below it, by trying everything."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from benchmarks.scheduling.schedule_instances import graph_of
from bricolage.errors import BadOption, NoDevicePlacement
from bricolage.search.devices.device_problem import DevicePlacementProblem, without_spare_devices
from bricolage.search.devices.fractional_load import fractional_load
from bricolage.search.devices.placement_methods import (
    LIST_METHODS,
    LOAD_METHODS,
    METHODS,
    PlacementCase,
    choose_methods,
    judge_given,
    place_by_methods,
)
from bricolage.search.devices.sample_latency import latency
from bricolage.search.schedules.scheduling_problem import ScheduleProblem
from bricolage.train.place.comparison import compare_placements
from tests.search.devices.problems import load_of, made, placements

LEARN = ("reinforce", "eagle")
QUICK = tuple(name for name in METHODS if name not in LEARN)
TOLERANCE = 1e-6


def instances(training: bool) -> Iterator[DevicePlacementProblem]:
    """Four operators, or three with their backward operators; two accelerators with a memory limit and a processor."""
    draw = random.Random(7 if training else 3)
    for _ in range(4):
        count = 3 if training else 4
        consumers = [[other for other in range(one + 1, count) if draw.random() < 0.6] for one in range(count)]
        colours, backward = [-1] * count, [False] * count
        if training:
            mirror = {one: 2 * count - 1 - one for one in range(count)}
            edges = [(one, other) for one, some in enumerate(consumers) for other in some]
            consumers += [[] for _ in range(count)]
            for one in range(count):
                consumers[one].append(mirror[one])
            for one, other in edges:
                consumers[mirror[other]].append(mirror[one])
            colours, backward = [0, 1, 2, 2, 1, 0], [False] * count + [True] * count
        size = len(consumers)
        yield made(
            [sorted(set(some)) for some in consumers],
            [draw.uniform(0.5, 4.0) for _ in range(size)],
            [draw.uniform(2.0, 9.0) for _ in range(size)],
            [draw.uniform(0.0, 1.0) for _ in range(size)],
            [1.0] * size,
            colours=colours,
            backward=backward,
            memory_bytes=4.0,
        )


def least_sample(problem: ScheduleProblem) -> float:
    """When one sample is done at best: all placements and all orders, tasks of one core each; no code of the methods."""
    graph, best = problem.graph, math.inf
    count = len(problem)
    orders = [
        order
        for order in itertools.permutations(range(count))
        if all(order.index(source) < order.index(task) for task in order for source in graph.predecessors[task])
    ]
    for devices in allowed(problem):
        for order in orders:
            free, end = dict.fromkeys(problem.cores, 0.0), [0.0] * count
            for task in order:
                start = free[devices[task]]
                for source in graph.predecessors[task]:
                    start = max(start, end[source] + problem.delay(source, task, devices[source], devices[task]))
                end[task] = free[devices[task]] = start + problem.times[task][devices[task]][0]
                if end[task] >= best:
                    break
            else:
                best = min(best, max(end))
    return best


def allowed(problem: ScheduleProblem) -> Iterator[tuple[str, ...]]:
    """Placements whose memory suffices and whose colours are together."""
    for devices in itertools.product(*(sorted(able) for able in problem.times)):
        colours: dict[int, set[str]] = {}
        for colour, device in zip(problem.colours, devices, strict=bool(problem.colours)):
            colours.setdefault(colour, set()).add(device)
        held = {
            device: sum(size for size, there in zip(problem.task_bytes, devices, strict=True) if there == device)
            for device in problem.memory
        }
        if all(len(some) == 1 for colour, some in colours.items() if colour >= 0) and all(
            held[device] <= most for device, most in problem.memory.items()
        ):
            yield devices


@pytest.mark.parametrize("training", [False, True])
def test_bounds_and_placements_enclose_the_optimum(training: bool) -> None:
    for problem in instances(training):
        case = PlacementCase.of_instance(problem)
        separate = replace(problem, colours=tuple(range(len(problem)))) if not training else problem
        load = min(load_of(problem, devices) for devices in placements(separate))
        sample = least_sample(case.sample)
        blocks = min(latency(problem, devices) for devices in placements(separate))
        assert case.blocks_bound <= blocks + TOLERANCE
        assert case.load_bound <= load + TOLERANCE and case.sample_bound <= sample + TOLERANCE
        rows = {row.method: row for row in place_by_methods(case, QUICK, limit_s=5.0)}
        assert set(rows) == set(QUICK)
        for name, row in rows.items():
            if row.refused:
                assert row.predicted_ms is None and not row.devices, name
                continue
            assert row.predicted_ms is not None and row.bound_ms <= row.predicted_ms + TOLERANCE, name
            assert row.ms["load"] is None or row.ms["load"] >= load - TOLERANCE, name
            assert row.ms["sample"] is None or row.ms["sample"] >= sample - TOLERANCE, name
            assert row.devices in set(allowed(case.sample)), name
        assert rows["ip"].predicted_ms == pytest.approx(load, abs=1e-5), "the programme ends within its time"
        assert all(not rows[name].refused for name in ("heft", "m-etf", "dp", "random-keys"))


def unlike(draw: random.Random) -> ScheduleProblem:
    """Four tasks on three devices that differ in everything."""
    sources = [[one for one in range(task) if draw.random() < 0.6] for task in range(4)]
    sizes = {(source, task): draw.randrange(1, 5) for task, some in enumerate(sources) for source in some}
    links = {frozenset(pair): draw.uniform(0.1, 1.0) for pair in itertools.combinations("abc", 2)}
    times = tuple({device: (draw.uniform(1.0, 9.0),) for device in "abc"} for _ in sources)
    return ScheduleProblem(
        graph_of(sources, sizes),
        times,
        dict.fromkeys("abc", 1),
        lambda source, target, size: links[frozenset((source, target))] * size,
        (1, 1, 1, 1),
        {"a": 2, "b": 3},
        (0, -1, -1, 0),
    )


def busiest(problem: ScheduleProblem, devices: tuple[str, ...]) -> float:
    """The largest load, by its definition."""
    most = 0.0
    for device in problem.cores:
        load = sum(problem.times[task][device][0] for task, there in enumerate(devices) if there == device)
        for tensor in problem.graph.tensors:
            source, readers = devices[tensor.producer], {devices[reader] for reader in tensor.consumers}
            if source == device:
                load += sum(problem.transfer(device, other, tensor.bytes) for other in readers - {device})
            elif device in readers:
                load += problem.transfer(source, device, tensor.bytes)
        most = max(most, load)
    return most


def test_unlike_devices_are_placed_on_or_refused_in_words() -> None:
    draw = random.Random(11)
    for _ in range(4):
        problem = unlike(draw)
        case = PlacementCase(problem, tuple("abc"), None, "they are unlike")
        load, sample = min(busiest(problem, devices) for devices in allowed(problem)), least_sample(problem)
        assert 0.0 < case.load_bound <= load + TOLERANCE and case.sample_bound <= sample + TOLERANCE
        for row in place_by_methods(case, QUICK):
            if row.method not in LIST_METHODS:
                assert row.refused == "they are unlike"
                continue
            assert not row.refused and row.devices in set(allowed(problem)), row.method
            assert row.ms["load"] == pytest.approx(busiest(problem, row.devices))
            assert row.ms["sample"] is not None and row.ms["sample"] >= sample - TOLERANCE


def test_memory_that_does_not_suffice_is_said_by_all() -> None:
    problem = replace(next(instances(training=False)), memory_bytes=0.5, processors=0, accelerators=2)
    case = PlacementCase.of_instance(problem)
    assert fractional_load(case.sample) == math.inf
    rows = place_by_methods(case, QUICK, limit_s=1.0)
    assert all(row.refused for row in rows)
    with pytest.raises(NoDevicePlacement, match="memories do not hold the operators"):
        compare_placements("made", case, rows, "sample")


def test_a_method_without_room_says_so_where_another_has_room() -> None:
    # In the order of HEFT the small tasks fill both devices before the large one comes.
    sizes, ms = (1, 1, 2), (3.0, 3.0, 1.0)
    problem = ScheduleProblem(
        graph_of([[], [], []]),
        tuple({"a": (time_ms,), "b": (time_ms,)} for time_ms in ms),
        {"a": 1, "b": 1},
        task_bytes=sizes,
        memory={"a": 2, "b": 2},
    )
    case = PlacementCase(problem, ("a", "b"), None, "they are unlike")
    assert math.isfinite(case.load_bound)
    (row,) = place_by_methods(case, ("heft",))
    assert "no device with room for operator 'op2', which takes 2 bytes" in row.refused


def test_devices_beyond_the_operators_are_left_out() -> None:
    problem = replace(next(instances(training=False)), accelerators=4096, processors=9)
    fewer = without_spare_devices(problem, len(problem))
    assert (fewer.accelerators, fewer.processors) == (4, 4)
    rows = place_by_methods(PlacementCase.of_instance(fewer), ("heft", "dp"))
    assert all(not row.refused for row in rows)


def test_the_learned_policy_is_behind_the_same_door() -> None:
    pytest.importorskip("torch")
    problem = next(instances(training=True))
    case = PlacementCase.of_instance(problem)
    (row,) = place_by_methods(case, ("eagle",), limit_s=2.0)
    assert row.ms["load"] is not None and row.bound_ms <= row.ms["load"] and row.devices in set(allowed(case.sample))


def test_a_placement_by_hand_is_judged_as_all_others() -> None:
    problem = next(instances(training=False))
    case = PlacementCase.of_instance(problem)
    row = judge_given(case, (0, 0, 1, 1), "by hand")
    assert row.ms["load"] == pytest.approx(load_of(problem, (0, 0, 1, 1)))
    trained = next(instances(training=True))
    apart = judge_given(PlacementCase.of_instance(trained), (0, 0, 1, 1, 1, 1), "by hand")
    assert "colour" in apart.refused


def test_methods_are_chosen_by_name() -> None:
    assert choose_methods(["all"]) == METHODS and set(LOAD_METHODS) | set(LIST_METHODS) < set(METHODS)
    assert choose_methods(["dp", "heft", "dp"]) == ("heft", "dp")
    with pytest.raises(BadOption, match="magic"):
        choose_methods(["heft", "magic"])
