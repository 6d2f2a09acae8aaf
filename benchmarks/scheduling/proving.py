"""How many random problems the exact search proves within a budget of states: `python -m benchmarks.scheduling.proving`.

Problems are those of `benchmarks.schedules` on two devices with transfers. A state is a set of tasks that have started, with when
cores and results are free; states that are followed are counted, so that the figures are the same on every machine.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from benchmarks.scheduling.schedule_instances import random_graph, random_heterogeneous
from bricolage.search.schedules.exact_schedule import shortest_schedule
from bricolage.search.schedules.schedule import check


@dataclass(frozen=True)
class Proved:
    """Of the problems with so many tasks."""

    tasks: int
    problems: int
    budget: int
    """States that may be followed."""
    proven: int
    median_states: int
    worst_gap: float
    """Of those not proven: the schedule over the lower bound, minus one."""


def prove(tasks: int, many: int, budget: int) -> Proved:
    """Solves random problems; fails loudly where a schedule cannot be run."""
    draw = random.Random(29)
    found = []
    for _ in range(many):
        problem = random_heterogeneous(draw, random_graph(draw, tasks, 3.0 / tasks))
        result = shortest_schedule(problem, most_nodes=budget, time_limit_s=1e9)
        check(problem, result.schedule)
        found.append(result)
    gaps = [one.schedule.makespan_ms / one.lower_ms - 1.0 for one in found if not one.proven]
    states = round(statistics.median(one.nodes for one in found))
    return Proved(tasks, many, budget, sum(one.proven for one in found), states, max(gaps, default=0.0))


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line; prints a JSON object a line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scheduling.proving", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--tasks", type=int, nargs="+", default=[12, 16, 20])
    parser.add_argument("--many", type=int, default=100, help="problems of each size")
    parser.add_argument("--budget", type=int, default=200_000, help="states that may be followed for a problem")
    given = parser.parse_args(arguments)
    for tasks in given.tasks:
        print(json.dumps(asdict(prove(tasks, given.many, given.budget))), flush=True)


if __name__ == "__main__":
    main()
