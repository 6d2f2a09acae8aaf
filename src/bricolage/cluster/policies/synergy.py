"""Synergy (Mohan, Phanishayee, Kulkarni, Chidambaram, OSDI'22; `msr-fiddle/synergy` @1bb2bed, MIT): processors and host memory of a
node are not divided by devices, but by what jobs make of them. No job is slower than with its devices' part.

Synergy-TUNE: in each round the first jobs of an order that fill the devices run. A job asks for the least processors and memory
that saturate it (its profile). Where no node has them with the devices, it asks for its devices' part; where no node has that,
nodes with the fewest sufficient devices are taken, and the jobs there give back what they have above their own part, most first.
What is left over stays idle. A job without a profile gets its devices' part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bricolage.cluster.adaptive import RunSetting
from bricolage.cluster.jobs import JobState
from bricolage.cluster.target_policies import Apart, ClusterView, Places, Target

Nodes = tuple[tuple[int, int], ...]
Share = tuple[float, float]
"""Processors and memory for each device."""
_SLACK = 1.0 + 1e-9


@dataclass
class _Host:
    """A node while jobs are given to it."""

    devices: int
    cpus: float
    gb: float

    def fits(self, devices: int, share: Share) -> bool:
        """Whether these devices are free, each with such a share."""
        return (
            self.devices >= devices
            and self.cpus * _SLACK >= devices * share[0]
            and self.gb * _SLACK >= devices * share[1]
        )

    def take(self, devices: int, share: Share) -> None:
        """Takes them; gives back where negative."""
        self.devices -= devices
        self.cpus -= devices * share[0]
        self.gb -= devices * share[1]


def by_submission(state: JobState, now: float) -> float:
    """First come, first served."""
    del now
    return float(state.number)


def by_remaining(state: JobState, now: float) -> float:
    """Shortest remaining time first."""
    del now
    return state.left_s(state.kinds[0])


@dataclass
class Synergy(Apart):
    """TUNE at work, over an order of jobs."""

    order: Callable[[JobState, float], float] = by_submission
    every_s: float = 300.0
    _places: dict[int, Nodes] = field(default_factory=dict)
    _shares: dict[int, Share] = field(default_factory=dict)

    def target(self, view: ClusterView) -> Target:
        """Who runs, where, and with what."""
        order = sorted(view.states, key=lambda job_state: (self.order(job_state, view.now), job_state.number))
        free, wanted = dict(view.capacity), dict[int, tuple[str, int]]()
        for state in order:
            kinds = sorted(state.kinds, key=lambda kind, s=state: kind != s.held_kind)  # type: ignore[misc]
            kind = next((kind for kind in kinds if free[kind] >= state.job.devices), "")
            if kind:
                wanted[state.number] = kind, state.job.devices
                free[kind] -= state.job.devices
        self._places, self._shares = {}, {}
        for kind in view.capacity:
            here = [state for state in order if wanted.get(state.number, ("", 0))[0] == kind]
            part = view.cluster.host_share(kind)
            assert part is not None, "a cluster without processors and memory is refused"
            hosts = [_Host(size, size * part[0], size * part[1]) for size in view.cluster.nodes(kind)]
            places, shares = tune_shares(here, hosts, part, kind)
            self._places |= places
            self._shares |= shares
        return wanted

    def places(self) -> Places:
        """The nodes whose processors and memory were counted."""
        return self._places

    def settings(self) -> Mapping[int, RunSetting]:
        """Each job's share."""
        return {number: RunSetting(1.0, cpus, gb) for number, (cpus, gb) in self._shares.items()}


def tune_shares(
    states: Sequence[JobState], hosts: list[_Host], part: Share, kind: str
) -> tuple[dict[int, Nodes], dict[int, Share]]:
    """Nodes and shares of jobs that fit together, in their order.

    Args:
        states: in order; running ones stay on their nodes.
        hosts: nodes of one kind, of which each has `part` for each device. They are changed.
        part: processors and memory for each device.
        kind: of device.
    """
    places: dict[int, Nodes] = {}
    shares: dict[int, Share] = {}
    least = {state.number: _within(_wish(state, part), part) for state in states}
    for state in states:  # who runs stays; what it needs at least is there for it
        if state.held_kind == kind and all(hosts[node].devices >= count for node, count in state.nodes):
            places[state.number] = state.nodes
            for node, count in state.nodes:
                hosts[node].take(count, least[state.number])
    for state in states:
        wish = _wish(state, part)
        if (nodes := places.get(state.number)) is not None:
            for node, count in nodes:
                hosts[node].take(-count, least[state.number])
            share = wish if _fit(hosts, nodes, wish) else _within(wish, part)
        else:
            nodes, share = _place_job(state, states, places, shares, hosts, wish, part)
        places[state.number], shares[state.number] = nodes, share
        for node, count in nodes:
            hosts[node].take(count, share)
    return places, shares


def _place_job(
    state: JobState, states: Sequence[JobState], places: Mapping[int, Nodes], shares: dict[int, Share],
    hosts: list[_Host], wish: Share, part: Share,
) -> tuple[Nodes, Share]:  # fmt: skip
    """Nodes for a job that comes, and its share."""
    gang, least = state.job.devices, _within(wish, part)
    for share in (wish, least):
        fitting = [number for number, host in enumerate(hosts) if host.fits(gang, share)]
        if fitting:
            return ((min(fitting, key=lambda number: (hosts[number].devices, number)), gang),), share
    sufficient = [number for number, host in enumerate(hosts) if host.devices >= gang]
    if sufficient:
        nodes: Nodes = ((min(sufficient, key=lambda number: (hosts[number].devices, number)), gang),)
    else:  # no node has them all: the emptiest ones
        pieces, left = [], gang
        for number in sorted(range(len(hosts)), key=lambda number: (-hosts[number].devices, number)):
            count = min(left, hosts[number].devices)
            pieces += [(number, count)] if count else []
            left -= count
        nodes = tuple(pieces)
        if _fit(hosts, nodes, wish):
            return nodes, wish
    if not _fit(hosts, nodes, least):
        _revoke(states, places, shares, hosts, nodes, least, part)
    return nodes, least


def _wish(state: JobState, part: Share) -> Share:
    """What saturates a job. Where it would be slower than with its part once what is above that is taken back, it has no less than
    its part of either."""
    profile = state.job.host
    if profile is None:
        return part
    wish = profile.demand
    if profile.at(*_within(wish, part)) < profile.at(*part):
        return max(wish[0], part[0]), max(wish[1], part[1])
    return wish


def _within(wish: Share, part: Share) -> Share:
    """A share above the own part in neither."""
    return min(wish[0], part[0]), min(wish[1], part[1])


def _fit(hosts: Sequence[_Host], nodes: Nodes, share: Share) -> bool:
    return all(hosts[node].fits(count, share) for node, count in nodes)


def _revoke(
    states: Sequence[JobState], places: Mapping[int, Nodes], shares: dict[int, Share], hosts: list[_Host], nodes: Nodes,
    least: Share, part: Share,
) -> None:  # fmt: skip
    """Jobs on these nodes give back what they have above their own part, who has most first, until `least`, which is no more than a
    part, is there for the newcomer: once none has more than its part, it is."""
    mine = {node for node, _ in nodes}
    peers = [s.number for s in states if s.number in shares and mine & {node for node, _ in places[s.number]}]
    peers.sort(key=lambda number: (-max(shares[number][0] / part[0], shares[number][1] / part[1]), number))
    for number in peers:
        if _fit(hosts, nodes, least):
            return
        before = shares[number]
        shares[number] = _within(before, part)
        for node, count in places[number]:
            hosts[node].take(-count, before)
            hosts[node].take(count, shares[number])
