"""How good the methods of `bricolage.search.schedules` are: `python -m benchmarks.schedules`.

Counts of IOS's dynamic programme on known blocks; for each method how far it is above the proven optimum, on random problems and on
blocks of networks; the bounds around list schedules; NEW-B-2 beside the algorithm as published. Nothing of that is measured on
hardware but the times of the methods themselves: tasks have random times (Amdahl's law with a serial part of 2 to 50 %, and up to
3 % for each further core), or those of the files of `--instances` (the latency inputs of Tarnawski et al., NeurIPS 2020).

With `--networks`, what branches side by side give for real, and how far the simulator is off
(`benchmarks/scheduling/side_by_side.py`). That wants a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from benchmarks.scheduling.published_bound import old_b, published_new_b_2
from benchmarks.scheduling.schedule_instances import (
    BLOCKS,
    RANDOM_GRAPHS,
    random_graph,
    random_heterogeneous,
    random_moldable,
    random_typed,
    read_edges,
    read_placement,
)
from benchmarks.scheduling.side_by_side import SideBySide, networks, side_by_side
from bricolage.search.devices.duet import duet
from bricolage.search.devices.list_placement import heft, peft
from bricolage.search.schedules.certificates import TypedTasks, lower_bound, new_b_1
from bricolage.search.schedules.exact_schedule import shortest_schedule
from bricolage.search.schedules.lists import list_schedule
from bricolage.search.schedules.moldable import METHODS
from bricolage.search.schedules.path_bound import new_b_2
from bricolage.search.schedules.schedule import Schedule, check
from bricolage.search.schedules.scheduling_problem import Allotment, ScheduleProblem
from bricolage.search.schedules.stages import best_stages, ios, wavefront

Method = Callable[[ScheduleProblem], Schedule]
MOLDABLE: Mapping[str, Method] = {**METHODS, "wavefront": wavefront, "IOS": ios}
HETEROGENEOUS: Mapping[str, Method] = {"HEFT": heft, "PEFT": peft, "DUET": duet}


@dataclass(frozen=True)
class Counts:
    """Of IOS's dynamic programme, without and with its pruning (groups of 3, 8 of them)."""

    block: str
    tasks: int
    states: int
    transitions: int
    schedules: int
    pruned_transitions: int
    seconds: float


@dataclass(frozen=True)
class Gap:
    """How far a method's makespan is above the reference, as a ratio minus one."""

    problems: str
    method: str
    reference: str
    """"optimum" where each is proven, else "lower bound"."""
    instances: int
    median: float
    worst: float
    seconds: float
    """Of the method, all instances together."""


@dataclass(frozen=True)
class Bounds:
    """Medians of ratios to the makespan of a list schedule, over random typed problems."""

    tasks: int
    kinds: int
    instances: int
    lower: float
    new_b_2: float
    new_b_1: float
    old_b: float


@dataclass(frozen=True)
class Speed:
    """NEW-B-2 by both algorithms on one instance."""

    instance: str
    tasks: int
    kinds: int
    seconds: float
    published_s: float | None
    """None where it was not done within the limit."""
    speedup: float
    """At least, where the published one was not done."""


@dataclass(frozen=True)
class SimulatorError:
    """Simulated against measured makespans of every schedule that really ran: the ratio minus one, without its sign."""

    schedules: int
    median: float
    worst: float


def counts() -> list[Counts]:
    """On the blocks whose numbers are known."""
    found = []
    for name, graph in BLOCKS.items():
        started = time.perf_counter()
        free = best_stages(graph, lambda groups: float(len(groups)))
        seconds = time.perf_counter() - started
        pruned = best_stages(graph, lambda groups: float(len(groups)), largest_group=3, most_groups=8)
        found.append(
            Counts(name, len(graph), free.states, free.transitions, free.schedules, pruned.transitions, seconds)
        )
    return found


def gaps(
    name: str, problems: Sequence[ScheduleProblem], methods: Mapping[str, Method], *, optimum: bool, limit_s: float
) -> list[Gap]:
    """Of each method on all problems. Fails loudly where a schedule cannot be run or is shorter than the reference."""
    reference: list[float] = []
    spent, proven = 0.0, optimum
    for problem in problems:
        started = time.perf_counter()
        best = shortest_schedule(problem, most_nodes=10**9, time_limit_s=limit_s) if optimum else None
        spent += time.perf_counter() - started
        proven = proven and best is not None and best.proven
        usable = best is not None and best.proven
        reference.append(best.schedule.makespan_ms if usable and best is not None else lower_bound(problem))
    kind = "optimum" if proven else "lower bound where the optimum is not proven" if optimum else "lower bound"
    found = [Gap(name, "exact", kind, len(problems), 0.0, 0.0, spent)] if proven else []
    for method, run in methods.items():
        started = time.perf_counter()
        schedules = [run(problem) for problem in problems]
        seconds = time.perf_counter() - started
        for problem, schedule in zip(problems, schedules, strict=True):
            check(problem, schedule)
        over = [s.makespan_ms / least - 1.0 for s, least in zip(schedules, reference, strict=True)]
        if min(over) < -1e-9:
            raise AssertionError(f"{method} is below the {kind} on {name}")
        found.append(Gap(name, method, kind, len(over), statistics.median(over), max(over), seconds))
    return found


def all_gaps(instances: Path | None, many: int, limit_s: float) -> list[Gap]:
    """Random problems, blocks, random networks, and files."""
    draw = random.Random(3)
    found: list[Gap] = []
    for tasks in (8, 10):
        problems = [random_moldable(draw, random_graph(draw, tasks, 0.25), 4) for _ in range(many)]
        found += gaps(f"random, {tasks} tasks, 4 cores", problems, MOLDABLE, optimum=True, limit_s=limit_s)
    problems = [random_moldable(draw, random_graph(draw, 14, 0.2), 2) for _ in range(many)]
    found += gaps("random, 14 tasks, 2 cores", problems, MOLDABLE, optimum=True, limit_s=limit_s)
    for cores in (2, 4):
        problems = [random_moldable(draw, graph, cores) for graph in BLOCKS.values() for _ in range(max(many // 4, 1))]
        found += gaps(f"blocks of networks, {cores} cores", problems, MOLDABLE, optimum=True, limit_s=limit_s)
    networks = [read_edges(path) for path in sorted(RANDOM_GRAPHS.glob("ws-*.txt"))]
    quick = {name: method for name, method in MOLDABLE.items() if name != "IOS"}
    for cores in (2, 8, 64):
        problems = [random_moldable(draw, graph, cores) for graph in networks]
        found += gaps(f"random networks, 32 tasks, {cores} cores", problems, quick, optimum=False, limit_s=limit_s)
    for tasks in (10, 20):
        problems = [random_heterogeneous(draw, random_graph(draw, tasks, 3.0 / tasks)) for _ in range(many)]
        found += gaps(f"two devices, {tasks} tasks", problems, HETEROGENEOUS, optimum=True, limit_s=limit_s)
    for path in sorted(instances.rglob("*.json")) if instances is not None else ():
        problem = read_placement(path)
        found += gaps(f"{path.parent.name}/{path.stem}", [problem], HETEROGENEOUS, optimum=False, limit_s=limit_s)
    return found


def around(tasks: int, kinds: int, many: int) -> Bounds:
    """The bounds around list schedules. Fails loudly where they do not enclose one another."""
    draw = random.Random(5)
    rows = []
    for _ in range(many):
        typed = random_typed(draw, tasks, kinds, draw.choice([0.02, 0.05, 0.1, 0.3]))
        problem = fixed_problem(typed)
        allotted = [Allotment(device, 1, ms) for ms, device in zip(typed.ms, typed.device, strict=True)]
        ms = list_schedule(problem, allotted).makespan_ms
        row = [lower_bound(problem), ms, new_b_2(typed), new_b_1(typed), old_b(typed)]
        if any(less > more * (1 + 1e-9) for less, more in pairwise(row)):
            raise AssertionError(f"the bounds are out of order: {row}")
        rows.append([value / ms for value in row])
    lower, _, second, first, old = (statistics.median(column) for column in zip(*rows, strict=True))
    return Bounds(tasks, kinds, many, lower, second, first, old)


def fixed_problem(typed: TypedTasks) -> ScheduleProblem:
    """The same tasks for the methods."""
    times = tuple({device: (ms,)} for ms, device in zip(typed.ms, typed.device, strict=True))
    return ScheduleProblem(typed.graph, times, typed.cores)


def placed(problem: ScheduleProblem, cores: int) -> TypedTasks:
    """Each task on the device that is faster for it."""
    device = [min(times, key=lambda one: times[one][0]) for times in problem.times]
    ms = tuple(times[one][0] for times, one in zip(problem.times, device, strict=True))
    return TypedTasks(problem.graph, ms, tuple(device), dict.fromkeys(problem.cores, cores))


def speeds(instances: Path | None, limit_s: float) -> list[Speed]:
    """Both algorithms for NEW-B-2, on random problems and on those of files."""
    draw = random.Random(11)
    cases = {}
    for tasks, kinds, density in ((100, 2, 0.05), (200, 2, 0.02), (200, 3, 0.05), (300, 3, 0.03), (400, 4, 0.03)):
        cases[f"random, {tasks} tasks, {kinds} kinds"] = random_typed(draw, tasks, kinds, density)
    for path in sorted(instances.rglob("*.json")) if instances is not None else ():
        typed = placed(read_placement(path), 4)
        cases[f"{path.parent.name}/{path.stem}"] = typed
        three = ("a", "b", "c")
        device = tuple(draw.choice(three) for _ in typed.ms)
        mixed = TypedTasks(typed.graph, typed.ms, device, dict.fromkeys(three, 4))
        cases[f"{path.parent.name}/{path.stem}, kinds by chance"] = mixed
    found = []
    for name, typed in cases.items():
        started = time.perf_counter()
        value = new_b_2(typed)
        seconds = time.perf_counter() - started
        started = time.perf_counter()
        published = published_new_b_2(typed, limit_s)
        published_s = time.perf_counter() - started
        if published is not None and abs(published - value) > 1e-9 * value:
            raise AssertionError(f"{name}: {value} ms, and {published} as published")
        known = None if published is None else published_s
        found.append(
            Speed(name, len(typed.graph), len(set(typed.device)), seconds, known, published_s / max(seconds, 1e-9))
        )
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.schedules", description=__doc__.split("\n")[0] if __doc__ else ""
    )
    parser.add_argument("--instances", type=Path, help="folder of instances of Tarnawski et al. (JSON), for latency")
    parser.add_argument("--many", type=int, default=20, help="random problems of each kind")
    parser.add_argument("--limit", type=float, default=20.0, help="seconds for an exact search, or a published bound")
    parser.add_argument("--graphs", type=Path, default=RANDOM_GRAPHS, help="folder with edge lists of random networks")
    parser.add_argument(
        "--networks",
        metavar="NAMES",
        help="run branches side by side, for real: of inception-v3, nasnet-a-large, randwire, 'two lstms', or all",
    )
    parser.add_argument("--backend", default="native", help="that runs the networks")
    parser.add_argument("--budget", type=float, default=120.0, help="seconds for each of their decisions")
    parser.add_argument("--rounds", type=int, default=31, help="of each measurement of the networks")
    parser.add_argument("--json", action="store_true", help="print JSON")
    chosen = parser.parse_args(arguments)
    result: dict[str, list[object]] = {
        "counts": list(counts()),
        "gaps": list(all_gaps(chosen.instances, chosen.many, chosen.limit)),
        "bounds": [around(tasks, kinds, 10 * chosen.many) for tasks, kinds in ((20, 2), (50, 2), (50, 3))],
        "speed": list(speeds(chosen.instances, chosen.limit)),
    }
    if chosen.networks is not None:
        measured = _measured(chosen)
        errors = [abs(error) for one in measured for error in one.simulator_errors]
        result["side by side"] = list(measured)
        result["simulator error"] = (
            [SimulatorError(len(errors), statistics.median(errors), max(errors))] if errors else []
        )
    rows = {name: [asdict(one) for one in found] for name, found in result.items()}  # type: ignore[call-overload]
    if chosen.json:
        json.dump(rows, sys.stdout, indent=1)
        print()
        return
    for name, found in rows.items():
        print(f"\n{name}")
        for row in found:
            print("  " + "  ".join(f"{key} {_short(value)}" for key, value in row.items()))


def _measured(chosen: argparse.Namespace) -> list[SideBySide]:
    with tempfile.TemporaryDirectory() as folder:
        known = networks(chosen.graphs, Path(folder))
        names = list(known) if chosen.networks == "all" else chosen.networks.split(",")
        found = [side_by_side(name, *known[name](), chosen.backend, chosen.budget, chosen.rounds) for name in names]
    return [one for one in found if one is not None]


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
