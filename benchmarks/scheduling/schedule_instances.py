"""Graphs to be scheduled: blocks of known networks, random ones, and those of files.

The random graphs under tests/data/random-graphs are of the RandWire kind (licence there); a file of Tarnawski et al.
("Efficient algorithms for device placement of DNN graph operators", NeurIPS 2020) gives times on a processor and an accelerator.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from bricolage.search.devices.instance_files import read_instance
from bricolage.search.devices.instance_schedule import schedule_of_sample
from bricolage.search.schedules.certificates import TypedTasks
from bricolage.search.schedules.scheduling_problem import ScheduleProblem
from bricolage.work.work_graph import WorkGraph, WorkOperator, WorkTensor

RANDOM_GRAPHS = Path(__file__).parents[2] / "tests" / "data" / "random-graphs"
PCIE_GBYTES = 12.0
"""Of the transfers in random problems with several devices."""


def graph_of(sources: Sequence[Sequence[int]], sizes: Mapping[tuple[int, int], int] | None = None) -> WorkGraph:
    """A graph in which task i reads from the tasks `sources[i]`; by edge so many bytes, otherwise none."""
    known = sizes or {}
    tensors = [
        WorkTensor(f"{source}-{task}", source, (task,), known.get((source, task), 0))
        for task, some in enumerate(sources)
        for source in some
    ]
    return WorkGraph(tuple(WorkOperator(f"op{task}") for task in range(len(sources))), tuple(tensors))


BLOCKS: Mapping[str, WorkGraph] = {
    # SqueezeNet with complex bypass (Iandola et al., 2016): squeeze, two expansions, concatenation, bypass, sum.
    "squeezenet-fire": graph_of([[], [0], [0], [1, 2], [], [3, 4]]),
    # Inception-v3 (Szegedy et al., 2015), the blocks with 1x7 and 7x1 kernels, and the last ones.
    "inception-c": graph_of([[], [], [1], [2], [], [4], [5], [6], [7], [], [9], [0, 3, 8, 10]]),
    "inception-e": graph_of([[], [], [1], [1], [], [4], [5], [5], [], [8], [0, 2, 3, 6, 7, 9]]),
}


def read_edges(path: Path) -> WorkGraph:
    """The number of nodes, of edges, and the edges, from lower to higher numbers."""
    lines = path.read_text(encoding="utf-8").split("\n")
    sources: list[list[int]] = [[] for _ in range(int(lines[0]))]
    for line in lines[2 : 2 + int(lines[1])]:
        start, end = map(int, line.split())
        sources[end].append(start)
    return graph_of(sources)


def random_graph(draw: random.Random, count: int, density: float) -> WorkGraph:
    """Each pair of tasks is joined with that probability."""
    return graph_of([[one for one in range(task) if draw.random() < density] for task in range(count)])


def random_typed(draw: random.Random, count: int, kinds: int, density: float) -> TypedTasks:
    """Tasks of 1 to 100 ms on `kinds` devices of 2 to 8 cores each."""
    names = [f"d{kind}" for kind in range(kinds)]
    return TypedTasks(
        random_graph(draw, count, density),
        tuple(draw.uniform(1.0, 100.0) for _ in range(count)),
        tuple(draw.choice(names) for _ in range(count)),
        {name: draw.randint(2, 8) for name in names},
    )


def random_moldable(draw: random.Random, graph: WorkGraph, cores: int) -> ScheduleProblem:
    """One device. Times follow Amdahl's law with a serial part of 2 to 50 %, and each further core costs up to 3 %."""
    times = []
    for _ in range(len(graph)):
        ms, serial, each = draw.uniform(1.0, 100.0), draw.uniform(0.02, 0.5), draw.uniform(0.0, 0.03)
        counts = range(1, cores + 1)
        times.append({"cpu": tuple(ms * (serial + (1.0 - serial) / n + each * (n - 1)) for n in counts)})
    return ScheduleProblem(graph, tuple(times), {"cpu": cores})


def random_heterogeneous(draw: random.Random, graph: WorkGraph) -> ScheduleProblem:
    """A processor and an accelerator, one task on each at a time; some tasks are faster on either."""
    sizes = {(tensor.producer, tensor.consumers[0]): draw.randrange(1, 10**9) for tensor in graph.tensors}
    sources = [list(some) for some in graph.predecessors]
    times = tuple({"cpu": (draw.uniform(5.0, 100.0),), "gpu": (draw.uniform(1.0, 60.0),)} for _ in sources)
    return ScheduleProblem(
        graph_of(sources, sizes), times, {"cpu": 1, "gpu": 1}, lambda _from, _to, size: size / PCIE_GBYTES / 1e6
    )


def read_placement(path: Path, accelerators: int = 1) -> ScheduleProblem:
    """An instance of Tarnawski et al.: a processor of one core and so many accelerators; an edge costs what the file says.

    Tasks are numbered anew, in an order that no edge contradicts.
    """
    names = ["gpu"] if accelerators == 1 else [f"gpu{number}" for number in range(accelerators)]
    return schedule_of_sample(replace(read_instance(path, accelerators), processors=1), [*names, "cpu"])
