"""Jobs on the nodes of a Ray cluster. A kind of devices is a resource of the nodes, of the same name; a gang is a placement group
that reserves its devices on its nodes, and one process on each, which the node's station starts."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bricolage.base.ray_session import LOCAL, RayObject, RaySession, describe_error
from bricolage.base.undo import undo_on_failure
from bricolage.cluster.engines.gangs import LOST, POLL_S, Adopted, GangEngine, Node
from bricolage.cluster.engines.job_command import JobWork
from bricolage.cluster.engines.job_station import JobStation
from bricolage.cluster.job_engine import Gang, RealClock
from bricolage.cluster.machines import ClusterSpec
from bricolage.errors import EngineUnusable

_LOG = logging.getLogger(__name__)
_NODES_S = 0.5
"""Between two looks at the cluster's nodes."""
_RESERVE_S = 60.0
"""A gang whose devices others have, of this Ray cluster's, is given up for now after so long."""
_JOINING_S = 60.0
_AGAIN_S = 5.0
"""After so long a node whose station did not start is asked again."""
_ANSWER_S = 30.0
"""A station that has not answered for so long is lost."""


@dataclass(eq=False)
class _Station:
    """A node's actor."""

    ray_id: str
    actor: RayObject
    slots: list[Node]
    address: str
    asked: RayObject = None
    asked_s: float = 0.0
    codes: Mapping[str, int | None] = field(default_factory=dict)
    looks: int = 0
    dead: bool = False


@dataclass(eq=False)
class _RayGang:
    """A gang's processes."""

    name: str
    group: RayObject
    stations: list[_Station]
    start: list[list[RayObject]]
    """For each process, what its station is told; empty where it was started before this driver."""
    began: float
    started: list[RayObject] = field(default_factory=list)
    """Answers to come."""
    looks: list[int] = field(default_factory=list)
    """Of each station, the look from which on it knows the process."""
    failed: bool = False
    forgotten: bool = False

    def process(self, rank: int) -> str:
        """Its name."""
        return f"{self.name}/{rank}"


class RayEngine(GangEngine[_RayGang]):
    """Joins a cluster.

    Args:
        address: as `ray.init` takes it, or `ray_session.LOCAL`, a cluster of this machine's processes that offers all devices.
        folder: of the service: what it runs on Ray is named by it.

    Raises:
        MissingLibrary: ray is not installed.
        UnreachableCluster: there is no cluster at that address, or it has other versions of Python or Ray.
        EngineUnusable: no node offers devices of the cluster's kinds.
    """

    def __init__(
        self,
        address: str,
        folder: Path,
        cluster: ClusterSpec,
        clock: RealClock,
        work: Callable[[int], JobWork],
    ) -> None:
        super().__init__(cluster, clock, work)
        self._space = f"bricolage-{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}"
        resources = {kind: float(count) for kind, count in cluster.capacity.items()} if address == LOCAL else None
        self._local = address == LOCAL
        self._session = RaySession(address, self._space, resources)
        self._ray = self._session.ray
        self._stations: dict[str, _Station] = {}
        self._coming: dict[str, _Station] = {}
        self._offers: dict[str, dict[str, float]] = {}
        """Of each node, the devices of each kind."""
        self._later: dict[str, float] = {}
        """When a node whose station did not start is asked again."""
        self._looked = -_NODES_S
        with undo_on_failure(self._session.close):
            end = time.monotonic() + _JOINING_S
            self._enlist()
            while self._coming and time.monotonic() < end:
                self._ray.wait([station.asked for station in self._coming.values()], timeout=1.0)
                self._settle()
            if not self._stations:
                node_sizes = ", ".join(f"{size} {kind}" for kind in cluster.kinds for size in {*cluster.nodes(kind)})
                raise EngineUnusable(
                    reason=f"no node of the Ray cluster '{address}' offers the resources of a node ({node_sizes})"
                )

    def close(self) -> None:
        """Leaves the cluster. Jobs go on there, but for a cluster of this machine's processes, which ends."""
        if self._local:
            super().close()
        self._session.close()

    # --- nodes ------------------------------------------------------------------------------------------------------

    def nodes(self) -> set[Node]:
        """Those whose stations answer. Their processes are looked at, too."""
        if time.monotonic() >= self._looked + _NODES_S:
            self._looked = time.monotonic()
            self._enlist()
        self._settle()
        self._ask()
        return {slot for station in self._stations.values() for slot in station.slots}

    def _enlist(self) -> None:
        """Stations for all living nodes that offer devices; nodes that are gone go."""
        alive = {str(facts["NodeID"]): facts for facts in self._ray.nodes() if facts["Alive"]}
        for ray_id in [station_id for station_id in self._stations if station_id not in alive]:
            self._lose(self._stations[ray_id], "its node is gone")
        for ray_id in [station_id for station_id in self._coming if station_id not in alive]:
            del self._coming[ray_id]
        for ray_id, facts in sorted(alive.items()):
            offers = {kind: float(facts["Resources"].get(kind, 0.0)) for kind in self.cluster.kinds}
            if time.monotonic() < self._later.get(ray_id, 0.0):
                continue
            if ray_id not in self._stations and ray_id not in self._coming and any(offers.values()):
                self._offers[ray_id] = offers
                if self._vacant(ray_id, {slot for station in self._stations.values() for slot in station.slots}):
                    self._invite(ray_id, str(facts.get("NodeManagerAddress", "127.0.0.1")))

    def _invite(self, ray_id: str, address: str) -> None:
        """Has a node's station started, or finds the one that an earlier driver left."""
        actor = (
            self._ray.remote(JobStation)
            .options(
                num_cpus=0,
                name=f"station-{ray_id}",
                namespace=self._space,
                lifetime="detached",
                get_if_exists=True,
                scheduling_strategy=self._session.on_node(ray_id),
            )
            .remote()
        )
        self._coming[ray_id] = _Station(ray_id, actor, [], address, asked=actor.slots.remote())

    def _settle(self) -> None:
        """Takes up stations that have answered."""
        for ray_id, station in list(self._coming.items()):
            if not self._ray.wait([station.asked], timeout=0)[0]:
                continue
            del self._coming[ray_id]
            try:
                claimed = {(str(kind), int(node)) for kind, node in self._ray.get(station.asked)}
            except self._session.errors as error:
                _LOG.warning("node %s of the Ray cluster is left out for now: %s", ray_id[:8], describe_error(error))
                self._later[ray_id] = time.monotonic() + _AGAIN_S
                continue
            taken = {slot for other in self._stations.values() for slot in other.slots}
            station.slots = sorted((claimed & self._free.keys()) - taken) or self._vacant(ray_id, taken)
            station.asked = None
            if station.slots:
                station.actor.slots.remote(station.slots)
                self._stations[ray_id] = station

    def _vacant(self, ray_id: str, taken: set[Node]) -> list[Node]:
        """Nodes of the cluster's file that a node of Ray's can be."""
        left = dict(self._offers[ray_id])
        vacant_nodes: list[Node] = []
        for kind in self.cluster.kinds:
            for node, size in enumerate(self.cluster.nodes(kind)):
                if (kind, node) not in taken and left.get(kind, 0.0) >= size:
                    left[kind] -= size
                    vacant_nodes.append((kind, node))
        return vacant_nodes

    def _ask(self) -> None:
        """Every station, how its processes are; none is waited for."""
        for station in list(self._stations.values()):
            now = time.monotonic()
            if station.asked is None:
                if now >= station.asked_s + POLL_S:
                    station.asked, station.asked_s = station.actor.look.remote(), now
                continue
            if self._ray.wait([station.asked], timeout=0)[0]:
                try:
                    station.codes = self._ray.get(station.asked)
                    station.looks += 1
                except self._session.errors as error:
                    self._lose(station, describe_error(error))
                station.asked = None
            elif now > station.asked_s + _ANSWER_S:
                self._lose(station, f"it has not answered for {_ANSWER_S:.0f} s")

    def _lose(self, station: _Station, reason: str) -> None:
        _LOG.warning("a station of the Ray cluster is lost: %s", reason)
        station.dead = True
        self._stations.pop(station.ray_id, None)
        try:
            self._ray.kill(station.actor)
        except self._session.errors as error:
            _LOG.debug("it had gone: %s", describe_error(error))

    # --- gangs ------------------------------------------------------------------------------------------------------

    def launch(self, gang: Gang, work: JobWork, attempt: int, devices: tuple[tuple[int, ...], ...]) -> _RayGang:
        """Reserves its devices."""
        from ray.util.placement_group import placement_group

        by_slot = {slot: station for station in self._stations.values() for slot in station.slots}
        try:
            stations = [by_slot[gang.kind, node] for node, _ in gang.nodes]
        except KeyError as error:
            raise OSError("its node is gone") from error
        name = f"{work.name}/{attempt}"
        group = placement_group(
            [{gang.kind: float(count)} for _, count in gang.nodes],
            strategy="PACK",
            name=f"{self._space}/{name}",
            lifetime="detached",
            bundle_label_selector=[{"ray.io/node-id": station.ray_id} for station in stations],
        )
        start = [
            [f"{name}/{rank}", list(indices), list(work.command), str(work.directory), variables, str(work.lock(rank)),
             str(work.output), work.grace_s]
            for rank, (indices, variables) in enumerate(
                zip(devices, work.variables(gang, devices, attempt, stations[0].address), strict=True)
            )
        ]  # fmt: skip
        return _RayGang(name, group, stations, start, time.monotonic())

    def exits(self, handle: _RayGang) -> Sequence[int | None] | None:
        """As the stations said last; None until all were asked to start."""
        if any(station.dead for station in handle.stations):
            return [LOST if station.dead else self._code(handle, rank) for rank, station in enumerate(handle.stations)]
        if handle.failed:
            return [LOST] * len(handle.stations)
        if handle.start and not handle.started:
            if not self._is_reserved(handle):
                return None
            handle.started = [
                station.actor.start.remote(*arguments)
                for station, arguments in zip(handle.stations, handle.start, strict=True)
            ]
        if handle.started and not handle.looks:
            if len(self._ray.wait(handle.started, num_returns=len(handle.started), timeout=0)[0]) < len(handle.started):
                return None
            try:
                reasons = [reason for reason in self._ray.get(handle.started) if reason]
            except self._session.errors as error:
                reasons = [describe_error(error)]
            if reasons:
                _LOG.warning("%s cannot be started: %s", handle.name, reasons[0])
                handle.failed = True
                self.kill(handle)
            # A look that was asked for before the start says nothing of it.
            handle.looks = [station.looks + 1 + (station.asked is not None) for station in handle.stations]
        return [self._code(handle, rank) for rank in range(len(handle.stations))]

    def _code(self, handle: _RayGang, rank: int) -> int | None:
        station, process = handle.stations[rank], handle.process(rank)
        if not handle.looks:
            return LOST if handle.start else station.codes.get(process)
        if station.looks < handle.looks[rank]:
            return None
        return station.codes.get(process, LOST)

    def _is_reserved(self, handle: _RayGang) -> bool:
        from ray.util import placement_group_table

        if placement_group_table(handle.group).get("state") == "CREATED":
            return True
        if time.monotonic() > handle.began + _RESERVE_S:
            _LOG.warning("%s: others of the Ray cluster have its devices", handle.name)
            handle.failed = True
        return False

    def save(self, handle: _RayGang) -> None:
        """Asks all that were started."""
        if handle.start and not handle.started:
            handle.failed = True
        for rank, station in enumerate(handle.stations):
            if not station.dead:
                station.actor.save.remote(handle.process(rank))

    def kill(self, handle: _RayGang) -> None:
        """Ends all that were started."""
        for rank, station in enumerate(handle.stations):
            if not station.dead:
                station.actor.kill.remote(handle.process(rank))

    def release(self, handle: _RayGang) -> None:
        """Its devices are the cluster's again."""
        from ray.util.placement_group import remove_placement_group

        if handle.group is not None:
            remove_placement_group(handle.group)
        for rank, station in enumerate(handle.stations):
            if not station.dead:
                station.actor.forget.remote(handle.process(rank))

    def found(self, gangs: Mapping[int, Gang], attempts: Mapping[int, int]) -> Mapping[int, Adopted[_RayGang]]:
        """Gangs all of whose processes run. What else runs here of an earlier driver's is asked to save, and waited for."""
        groups = self._groups()
        by_slot = {slot: station for station in self._stations.values() for slot in station.slots}
        running = {ray_id: self._ray.get(host.actor.devices.remote()) for ray_id, host in self._stations.items()}
        adopted: dict[int, Adopted[_RayGang]] = {}
        kept: set[str] = set()
        for number, gang in gangs.items():
            attempt = attempts.get(number, 0)
            name = f"{self.work(number).name}/{attempt}"
            stations = [by_slot.get((gang.kind, node)) for node, _ in gang.nodes]
            here = [candidate for candidate in stations if candidate is not None]
            names = [f"{name}/{rank}" for rank in range(len(stations))]
            if (
                len(here) < len(stations)
                or name not in groups
                or any(process not in running[station.ray_id] for station, process in zip(here, names, strict=True))
            ):
                continue
            devices = tuple(
                tuple(running[station.ray_id][process]) for station, process in zip(here, names, strict=True)
            )
            for station in here:
                station.codes = dict.fromkeys([*station.codes, *running[station.ray_id]])
            kept.update(names)
            adopted[number] = Adopted(
                gang, attempt, devices, _RayGang(name, groups.pop(name), here, [], time.monotonic())
            )
        self._clear(running, kept)
        self._drop(groups)
        return adopted

    def _groups(self) -> dict[str, RayObject]:
        """Placement groups of earlier drivers, by job and attempt."""
        from ray.util import get_placement_group, placement_group_table

        prefix = f"{self._space}/"
        groups = {}
        for facts in placement_group_table().values():
            name = str(facts.get("name", ""))
            if name.startswith(prefix) and facts.get("state") != "REMOVED":
                groups[name.removeprefix(prefix)] = get_placement_group(name)
        return groups

    def _drop(self, groups: Mapping[str, RayObject]) -> None:
        from ray.util.placement_group import remove_placement_group

        for group in groups.values():
            remove_placement_group(group)

    def _clear(self, running: Mapping[str, Mapping[str, Sequence[int]]], kept: set[str]) -> None:
        """Has everything else save and end."""
        left = [
            (ray_id, process) for ray_id, processes in running.items() for process in processes if process not in kept
        ]
        for ray_id, process in left:
            self._stations[ray_id].actor.save.remote(process)
        while left:
            looks = {ray_id: self._ray.get(self._stations[ray_id].actor.look.remote()) for ray_id, _ in left}
            left = [(ray_id, process) for ray_id, process in left if looks[ray_id].get(process, LOST) is None]
            time.sleep(POLL_S)
