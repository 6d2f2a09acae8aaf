"""Gandiva (Xiao, Bhardwaj, Ramjee, Sivathanu, Kwatra, Han, Patel, Peng, Zhao, Zhang, Yang, Zhou, OSDI'18; from second-hand notes,
no code is public): suspend and resume, migration, growing and shrinking, and introspection. Its packing is `gandiva-packed`.

Words: the load of a node is the devices that jobs which are assigned to it ask for; its height is load by devices, above 1 where
jobs take turns. Its affinity is the number of devices of the jobs on it.

- *Reactive*, at an arrival: the lightest node of the job's affinity with room; a node without jobs; any free devices, split where
  need be; else a node of its affinity, where jobs then take turns; else it waits in a queue.
- *Introspective*, in each slice: who is in the queue is assigned first; then one job a slice is migrated, off the node of the
  largest height to one where it takes no turns, or onto fewer nodes, or onto a kind of device with room that it has not run on,
  and back to the best that it has run on. Progress of a job where it has run is all that is known.
- Jobs that declare other numbers of devices (their scaling) grow inside their node, once no job has waited for devices for two
  slices, and shrink to their own number as soon as one does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bricolage.cluster.jobs import JobState
from bricolage.cluster.policies.elastic import levels
from bricolage.cluster.target_policies import Apart, ClusterView, Places, Target

_IDLE_SLICES = 2
"""Without a job that waits, before jobs grow."""
_BETTER = 1.1
"""Rate on another kind by the present one, from which a migration there is worth it."""
Home = tuple[str, tuple[tuple[int, int], ...]]
"""A kind, and (node, devices) there."""


@dataclass
class Gandiva(Apart):
    """The scheduler at work."""

    every_s: float = 60.0
    _homes: dict[int, Home] = field(default_factory=dict)
    _moved: dict[int, float] = field(default_factory=dict)
    """When a job was migrated last."""
    _idle: int = 0
    _places: dict[int, tuple[tuple[int, int], ...]] = field(default_factory=dict)

    def target(self, view: ClusterView) -> Target:
        """Who runs in this slice, and where."""
        for state in view.states:
            if state.held:  # it may have been put elsewhere, where its node was away
                self._homes[state.number] = state.held_kind, state.nodes
        self._shrink(view)
        queued = [state for state in view.states if state.number not in self._homes]
        for state in queued:
            if (home := self._arrival(state, view)) is not None:
                self._homes[state.number] = home
        queued = [state for state in queued if state.number not in self._homes]
        crowded = any(height > 1.0 for height in self._heights(view).values())
        if not queued:
            self._migrate(view)
        waits = crowded or any(not state.held for state in view.states)
        self._idle = 0 if waits else self._idle + 1
        if self._idle >= _IDLE_SLICES:
            self._grow(view)
        wanted = self._slice(view)
        self._places = {number: self._homes[number][1] for number in wanted}
        return wanted

    def places(self) -> Places:
        """Homes of those that run."""
        return self._places

    def ended(self, state: JobState, now: float) -> None:
        """Its home is free."""
        del now
        self._homes.pop(state.number, None)
        self._moved.pop(state.number, None)

    # --- where jobs belong -------------------------------------------------------------------------------------------

    def _loads(self, view: ClusterView) -> dict[str, list[int]]:
        """Devices that are asked for, of each node."""
        loads = {kind: [0] * len(view.cluster.nodes(kind)) for kind in view.capacity}
        for kind, nodes in self._homes.values():
            for node, count in nodes:
                loads[kind][node] += count
        return loads

    def _heights(self, view: ClusterView) -> dict[tuple[str, int], float]:
        return {
            (kind, node): load / view.cluster.nodes(kind)[node]
            for kind, loads in self._loads(view).items()
            for node, load in enumerate(loads)
        }

    def _affinity(self, kind: str, node: int, gangs: dict[int, int]) -> int:
        """0 of a node without jobs."""
        gang_sizes = [
            gangs[n]
            for n, (at, nodes) in self._homes.items()
            if at == kind and node in {home_node for home_node, _ in nodes}
        ]
        return max(gang_sizes, default=0)

    def _arrival(self, state: JobState, view: ClusterView) -> Home | None:
        """Where a job goes that has no home; None: it waits."""
        gang, loads = state.job.devices, self._loads(view)
        gangs = {other.number: other.job.devices for other in view.states}
        nodes = [
            (kind, node, size, loads[kind][node], self._affinity(kind, node, gangs))
            for kind in self._kinds(state)
            for node, size in enumerate(view.cluster.nodes(kind))
        ]
        room = [candidate for candidate in nodes if candidate[3] + gang <= candidate[2]]
        for choices in (
            [candidate for candidate in room if candidate[4] == gang],
            [candidate for candidate in room if candidate[4] == 0],
        ):
            if choices:
                kind, node, *_ = min(choices, key=lambda candidate: candidate[3] / candidate[2])
                return kind, ((node, gang),)
        for kind in self._kinds(state):
            if (split := self._split(kind, gang, view, loads[kind])) is not None:
                return kind, split
        turns = [candidate for candidate in nodes if candidate[4] == gang and candidate[2] >= gang]
        if not turns:
            return None
        kind, node, *_ = min(turns, key=lambda turn: turn[3] / turn[2])
        return kind, ((node, gang),)

    @staticmethod
    def _kinds(state: JobState) -> Sequence[str]:
        """Kinds on which it has not run are alike to it: in the order of their names, after the best that it knows."""
        tried_kinds = sorted((kind for kind in state.kinds if kind in state.ran), key=lambda kind: -state.rate_on(kind))
        return [*tried_kinds, *sorted(set(state.kinds) - set(tried_kinds))]

    @staticmethod
    def _split(kind: str, gang: int, view: ClusterView, loads: Sequence[int]) -> tuple[tuple[int, int], ...] | None:
        """Free devices of a kind, on as few nodes as there are; None where they do not suffice."""
        free = [
            (max(size - load, 0), node)
            for node, (size, load) in enumerate(zip(view.cluster.nodes(kind), loads, strict=True))
        ]
        fitting = [entry for entry in free if entry[0] >= gang]
        if fitting:
            return ((min(fitting)[1], gang),)
        pieces, left = list[tuple[int, int]](), gang
        for count, node in sorted(free, key=lambda entry: (-entry[0], entry[1])):
            if left and count:
                pieces.append((node, min(count, left)))
                left -= pieces[-1][1]
        return None if left else tuple(pieces)

    # --- introspection -----------------------------------------------------------------------------------------------

    def _migrate(self, view: ClusterView) -> None:
        """One job goes where it does better."""
        for state, home in self._better(view):
            if view.now - self._moved.get(state.number, -self.every_s * 10) >= self.every_s * 10:
                self._homes[state.number] = home
                self._moved[state.number] = view.now
                return

    def _better(self, view: ClusterView) -> Iterator[tuple[JobState, Home]]:
        """Migrations that are worth it: against turns, then for locality, then to other kinds."""
        loads, heights = self._loads(view), self._heights(view)
        there = [state for state in view.states if state.number in self._homes]
        for state in sorted(there, key=lambda job_state: -self._height(job_state, heights)):
            if self._height(state, heights) > 1.0:
                for kind in self._kinds(state):
                    if (nodes := self._split(kind, state.job.devices, view, loads[kind])) is not None:
                        yield state, (kind, nodes)
        for state in there:
            kind, nodes = self._homes[state.number]
            if len(nodes) > 1 and self._height(state, heights) <= 1.0:
                without = [load - dict(nodes).get(node, 0) for node, load in enumerate(loads[kind])]
                fewer = self._split(kind, state.job.devices, view, without)
                if fewer is not None and len(fewer) < len(nodes):
                    yield state, (kind, fewer)
        for state in there:
            now = self._homes[state.number][0]
            for kind in state.kinds if state.held else ():
                worth = kind not in state.ran or state.rate_on(kind) > _BETTER * state.rate_on(now)
                if kind != now and worth:
                    nodes_there = self._split(kind, state.job.devices, view, loads[kind])
                    if nodes_there is not None and len(nodes_there) == 1:
                        yield state, (kind, nodes_there)

    def _height(self, state: JobState, heights: dict[tuple[str, int], float]) -> float:
        kind, nodes = self._homes[state.number]
        return max(heights[kind, node] for node, _ in nodes)

    def _shrink(self, view: ClusterView) -> None:
        """Who has grown goes back to its own number, where a job has no devices."""
        if all(state.held for state in view.states):
            return
        for state in view.states:
            kind, nodes = self._homes.get(state.number, ("", ()))
            if len(nodes) == 1 and nodes[0][1] > state.job.devices:
                self._homes[state.number] = kind, ((nodes[0][0], state.job.devices),)

    def _grow(self, view: ClusterView) -> None:
        """Inside their node, to the largest number that is free there and makes them faster."""
        loads = self._loads(view)
        for state in view.states:
            kind, nodes = self._homes.get(state.number, ("", ()))
            if len(nodes) != 1 or not state.job.scaling:
                continue
            node, count = nodes[0]
            free = view.cluster.nodes(kind)[node] - loads[kind][node]
            more = max((devices for devices, _ in levels(state) if count < devices <= count + free), default=0)
            if more:
                self._homes[state.number] = kind, ((node, more),)
                loads[kind][node] += more - count

    # --- turns -------------------------------------------------------------------------------------------------------

    def _slice(self, view: ClusterView) -> Target:
        """Who has waited longest first, on nodes where its devices are free in this slice; who runs alone goes on."""
        free = {kind: list(view.cluster.nodes(kind)) for kind in view.capacity}
        left = dict(view.capacity)
        wanted: dict[int, tuple[str, int]] = {}
        order = sorted(view.states, key=lambda s: (s.held > 0, s.since_s if s.held else s.waits_since_s, s.number))
        for state in order:
            if state.number not in self._homes:
                continue
            kind, nodes = self._homes[state.number]
            count = sum(devices for _, devices in nodes)
            if count <= left[kind] and all(free[kind][node] >= devices for node, devices in nodes):
                for node, devices in nodes:
                    free[kind][node] -= devices
                left[kind] -= count
                wanted[state.number] = kind, count
        return wanted
