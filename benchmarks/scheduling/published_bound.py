"""Bounds to compare with: OLD-B, and NEW-B-2 as published, with tuples, sets and the published rule of dominance.

Han, Guan, Sun, He, Deng and Liu, "Response time bounds for typed DAG parallel tasks on heterogeneous multi-cores", TPDS 2019.
Beside it `bricolage.search.schedules.path_bound` is timed.
"""

from __future__ import annotations

import time

from bricolage.search.schedules.certificates import TypedTasks, longest_path


def old_b(tasks: TypedTasks) -> float:
    """Jaffe (1980), in ms: (1 - 1 / most cores of a device) × the longest path + the volumes by their cores."""
    most = max((tasks.cores[device] for device in tasks.device), default=1)
    return (1.0 - 1.0 / most) * longest_path(tasks.graph, tasks.ms) + tasks.spread


def published_new_b_2(tasks: TypedTasks, limit_s: float) -> float | None:
    """The bound in ms; None where it takes longer than the limit."""
    graph, until = tasks.graph, time.monotonic() + limit_s
    before: list[set[int]] = []
    for sources in graph.predecessors:
        before.append(set(sources).union(*(before[source] for source in sources)))
    after: list[set[int]] = [set() for _ in before]
    for task, some in enumerate(before):
        for one in some:
            after[one].add(task)
    kinds = tuple(dict.fromkeys(tasks.device))
    same: dict[str, set[int]] = {kind: set() for kind in kinds}
    for task, device in enumerate(tasks.device):
        same[device].add(task)
    beside = [same[tasks.device[task]] - before[task] - after[task] - {task} for task in range(len(graph))]
    # By task: the last task of each kind on the path (or none), and the value.
    fronts: list[list[tuple[tuple[int | None, ...], float]]] = [[] for _ in before]
    best = 0.0
    for task in range(len(graph)):
        arriving = [entry for source in graph.predecessors[task] for entry in fronts[source]]
        if not graph.predecessors[task]:
            arriving = [((None,) * len(kinds), 0.0)]
        kind = kinds.index(tasks.device[task])
        for last, value in arriving:
            if time.monotonic() > until:
                return None
            previous = last[kind]
            counted: set[int] = set() if previous is None else beside[previous]
            volume = sum(tasks.ms[one] for one in beside[task] - counted)
            grown = value + tasks.ms[task] + volume / tasks.cores[tasks.device[task]]
            new = ((*last[:kind], task, *last[kind + 1 :]), grown)
            if any(_dominates(other, new, beside, after) for other in fronts[task]):
                continue
            fronts[task] = [other for other in fronts[task] if not _dominates(new, other, beside, after)]
            fronts[task].append(new)
        if not graph.successors[task]:
            best = max([best, *(value for _, value in fronts[task])])
    return best


def _dominates(
    one: tuple[tuple[int | None, ...], float],
    other: tuple[tuple[int | None, ...], float],
    beside: list[set[int]],
    after: list[set[int]],
) -> bool:
    """Whether a path is worth no less, and has counted nothing that comes after the other's last task of a kind."""
    if one[1] < other[1]:
        return False
    for mine, theirs in zip(one[0], other[0], strict=True):
        if mine == theirs or mine is None:
            continue
        if theirs is None or beside[mine] & after[theirs]:
            return False
    return True
