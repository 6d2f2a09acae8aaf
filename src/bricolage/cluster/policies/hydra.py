"""Hydra (Yang, Wu, Xu, Sun, Cao, Chen, Ding, IEEE TC'23; `dos-lab/Hydra`): deadlines on devices of several kinds, one device a job,
without preemption.

The cost of an order of jobs on a device is the sum of their tardiness, then of their completion times (published as one sum with a
factor of 1e20). Waiting jobs are given to devices one by one, always the pair that raises the cost of its device least, in that
device's best order; then each idle device starts the first of its order, and the others wait for the next event.

The best order is that by run time where no job is late in it, which is optimal. Else a branch and bound looks at prefixes, best
first, bounded by the rest in order of run time without tardiness; it gives up after a number of prefixes, where the published one
has a time limit, so that a schedule does not depend on load. Then the order by run time stands, in which the last late job is
moved forward until it is in time, again and again.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from bricolage.cluster.jobs import JobState
from bricolage.cluster.target_policies import ClusterView, Stateless, Target

Cost = tuple[float, float]
"""(sum of tardiness, sum of completion times), seconds from now."""
Item = tuple[float, float]
"""(run time, time until the deadline) of a job."""


def order_cost(items: Sequence[Item], start_s: float) -> Cost:
    """Of jobs one after another from `start_s` on."""
    now, late, total = start_s, 0.0, 0.0
    for run_s, due_s in items:
        now += run_s
        total += now
        late += max(now - due_s, 0.0)
    return late, total


def best_order(items: Sequence[Item], start_s: float, prefixes: int = 200) -> list[int]:
    """Indices of `items` in the order of least cost, as far as the search reaches.

    Args:
        items: of jobs.
        start_s: when the device is free, from now.
        prefixes: that are looked at.
    """
    by_run = sorted(range(len(items)), key=lambda index: (*items[index], index))
    if order_cost([items[index] for index in by_run], start_s)[0] == 0.0:
        return by_run
    order = _search_order(items, by_run, start_s, prefixes)
    return _move_late_jobs(items, by_run, start_s) if order is None else order


def _search_order(items: Sequence[Item], by_run: Sequence[int], start_s: float, prefixes: int) -> list[int] | None:
    """The optimum; None where it was not found among that many prefixes."""
    heap: list[tuple[Cost, int, tuple[int, ...]]] = [((0.0, 0.0), 0, ())]
    number = 0
    for _ in range(prefixes):
        _, _, prefix = heapq.heappop(heap)
        if len(prefix) == len(items):
            return list(prefix)
        for index in by_run:
            if index not in prefix:
                longer = (*prefix, index)
                number -= 1  # of equal bounds the longest prefix first
                heapq.heappush(heap, (_bound_cost(items, longer, by_run, start_s), number, longer))
    return None


def _bound_cost(items: Sequence[Item], prefix: Sequence[int], by_run: Sequence[int], start_s: float) -> Cost:
    late, total = order_cost([items[index] for index in prefix], start_s)
    now = start_s + sum(items[index][0] for index in prefix)
    for index in by_run:
        if index not in prefix:
            now += items[index][0]
            total += now
    return late, total


def _move_late_jobs(items: Sequence[Item], by_run: Sequence[int], start_s: float) -> list[int]:
    best = order = list(by_run)
    for _ in range(len(items)):
        ends, now = [], start_s
        for index in order:
            now += items[index][0]
            ends.append(now)
        late = [place for place, index in enumerate(order) if ends[place] > items[index][1]]
        if not late:
            break
        place = late[-1]
        moved = order[place]
        to = place
        while to and ends[to] > items[moved][1]:
            to -= 1
            ends[to] = (ends[to - 1] if to else start_s) + items[moved][0]
        if to == place:
            break
        order = [*order[:to], moved, *order[to:place], *order[place + 1 :]]
        if order_cost([items[index] for index in order], start_s) < order_cost(
            [items[index] for index in best], start_s
        ):
            best = order
    return best


@dataclass
class Hydra(Stateless):
    """The assignment at work."""

    prefixes: int = 200

    def target(self, view: ClusterView) -> Target:
        """Running jobs stay; idle devices start the first of their order."""
        running = {state.number: (state.held_kind, state.held) for state in view.states if state.held}
        waiting = [state for state in view.states if not state.held]
        slots: list[tuple[str, float]] = []
        for kind in view.capacity:
            busy = [state for state in view.states if state.held_kind == kind]
            slots += [(kind, 0.0)] * (view.capacity[kind] - len(busy))
            slots += [(kind, state.left_s(kind)) for state in busy]
        if not waiting or all(start > 0.0 for _, start in slots):
            return running
        for (kind, start), queue in zip(slots, self._assign_jobs(waiting, slots, view), strict=True):
            if queue and start == 0.0:
                running[queue[0].number] = (kind, 1)
        return running

    def _assign_jobs(
        self, waiting: Sequence[JobState], slots: Sequence[tuple[str, float]], view: ClusterView
    ) -> list[list[JobState]]:
        """For each device its jobs in their best order. Devices alike, with the same jobs, are looked at once."""
        queues: list[list[JobState]] = [[] for _ in slots]
        costs: list[Cost] = [(0.0, 0.0) for _ in slots]
        heap: list[tuple[Cost, int, int, int]] = []
        versions = [0] * len(slots)
        left = {state.number: state for state in waiting}

        def offer(slot: int, empty: bool) -> None:
            kind, start = slots[slot]
            if empty and slot and slots[slot - 1] == slots[slot] and not queues[slot - 1]:
                return  # the one before is the same; this one is offered when that one has a job
            for number, state in left.items():
                if kind in state.kinds:
                    _, cost = self._order_jobs([*queues[slot], state], kind, start, view)
                    rise = (cost[0] - costs[slot][0], cost[1] - costs[slot][1])
                    heapq.heappush(heap, (rise, number, slot, versions[slot]))

        for slot in range(len(slots)):
            offer(slot, True)
        while left and heap:
            _, number, slot, version = heapq.heappop(heap)
            if number not in left or version != versions[slot]:
                continue
            queues[slot], costs[slot] = self._order_jobs([*queues[slot], left.pop(number)], *slots[slot], view)
            versions[slot] += 1
            offer(slot, False)
            if slot + 1 < len(slots) and slots[slot + 1] == slots[slot] and not queues[slot + 1]:
                versions[slot + 1] += 1
                offer(slot + 1, False)
        return queues

    def _order_jobs(
        self, states: Sequence[JobState], kind: str, start_s: float, view: ClusterView
    ) -> tuple[list[JobState], Cost]:
        items = [(state.left_s(kind), state.job.deadline_s - view.now) for state in states]
        order = best_order(items, start_s, self.prefixes)
        return [states[index] for index in order], order_cost([items[index] for index in order], start_s)
