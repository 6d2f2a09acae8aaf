"""Small problems for the tests, and answers by brute force that share no code with the methods."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hypothesis import strategies as st

from benchmarks.scheduling.schedule_instances import graph_of
from bricolage.search.schedules.certificates import TypedTasks
from bricolage.search.schedules.scheduling_problem import ScheduleProblem
from bricolage.work.work_graph import WorkGraph

TIMES = st.integers(1, 20).map(float)
UNITS = {"cpu": 1, "gpu": 1}


@st.composite
def graphs(draw: st.DrawFn, most: int = 7) -> WorkGraph:
    count = draw(st.integers(1, most))
    return graph_of([[one for one in range(task) if draw(st.booleans())] for task in range(count)])


@st.composite
def moldable(draw: st.DrawFn, most: int = 7, cores: int = 4) -> ScheduleProblem:
    graph, count = draw(graphs(most)), draw(st.integers(1, cores))
    times = []
    for _ in range(len(graph)):
        ms = draw(TIMES)
        points = [(1, ms)]
        for number in range(2, count + 1):
            points.append((number, points[-1][1] * draw(st.sampled_from([0.5, 0.75, 1.0, 1.25]))))
        times.append({"cpu": tuple(ms for _, ms in points)})
    return ScheduleProblem(graph, tuple(times), {"cpu": count})


@st.composite
def heterogeneous(draw: st.DrawFn, most: int = 6) -> ScheduleProblem:
    """Two devices of one core; some tasks run on one of them only."""
    shape = draw(graphs(most))
    sizes = {(t.producer, t.consumers[0]): draw(st.integers(0, 12)) for t in shape.tensors}
    times = []
    for _ in range(len(shape)):
        able = draw(st.sampled_from([("cpu", "gpu"), ("cpu", "gpu"), ("cpu",), ("gpu",)]))
        times.append({device: (draw(TIMES),) for device in able})
    graph = graph_of(shape.predecessors, sizes)
    return ScheduleProblem(graph, tuple(times), UNITS, lambda _from, _to, size: float(size))


@st.composite
def several(draw: st.DrawFn, most: int = 4) -> ScheduleProblem:
    """Two devices, one of them with two cores that tasks may share out; results have to be moved."""
    shape = draw(graphs(most))
    sizes = {(t.producer, t.consumers[0]): draw(st.integers(0, 12)) for t in shape.tensors}
    times = []
    for _ in range(len(shape)):
        ms = draw(TIMES)
        speedup = draw(st.sampled_from([0.5, 0.75, 1.0]))
        times.append({"cpu": (ms, ms * speedup), "gpu": (draw(TIMES),)})
    graph = graph_of(shape.predecessors, sizes)
    return ScheduleProblem(graph, tuple(times), {"cpu": 2, "gpu": 1}, lambda _from, _to, size: float(size))


@st.composite
def typed(draw: st.DrawFn, most: int = 10) -> TypedTasks:
    graph = draw(graphs(most))
    kinds = draw(st.integers(1, 3))
    return TypedTasks(
        graph,
        tuple(draw(TIMES) for _ in range(len(graph))),
        tuple(f"d{draw(st.integers(0, kinds - 1))}" for _ in range(len(graph))),
        {f"d{kind}": draw(st.integers(1, 4)) for kind in range(kinds)},
    )


def paths(graph: WorkGraph) -> Iterator[tuple[int, ...]]:
    """From a first task to a last one."""

    def onwards(path: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if not graph.successors[path[-1]]:
            yield path
        for after in graph.successors[path[-1]]:
            yield from onwards((*path, after))

    for task in range(len(graph)):
        if not graph.predecessors[task]:
            yield from onwards((task,))


def ancestors(graph: WorkGraph) -> list[set[int]]:
    found: list[set[int]] = []
    for sources in graph.predecessors:
        found.append(set(sources).union(*(found[source] for source in sources)))
    return found


def shortest(problem: ScheduleProblem) -> float:
    """By brute force: every order of starts, every device and count of cores, each task as early as it can."""
    best = float("inf")

    def go(done: dict[int, tuple[str, float]], free: dict[str, list[float]]) -> None:
        nonlocal best
        if len(done) == len(problem):
            best = min(best, max(end for _, end in done.values()))
        for task in range(len(problem)):
            sources: Sequence[int] = problem.graph.predecessors[task]
            if task in done or any(source not in done for source in sources):
                continue
            for device in problem.times[task]:
                arrived = max((done[s][1] + problem.delay(s, task, done[s][0], device) for s in sources), default=0.0)
                for cores in range(1, problem.cores[device] + 1):
                    lanes = sorted(free[device])
                    end = max(arrived, lanes[cores - 1]) + problem.ms(task, device, cores)
                    go({**done, task: (device, end)}, {**free, device: [end] * cores + lanes[cores:]})

    go({}, {device: [0.0] * count for device, count in problem.cores.items()})
    return best
