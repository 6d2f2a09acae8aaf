"""The nodes of a Ray cluster that work for a driver: joining the cluster, actors on its nodes, and which of them measure.

Every node has one actor (`Station`), which reserves all of the node's processors, so that Ray gives them to nothing else. Nodes of
the driver's device class, with the same versions, measure; but not those on the driver's own machine, where the driver measures. A
node that is lost or silent is given up; a new one, or one whose actor has died, is taken up.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import Any

from bricolage._version import __version__
from bricolage.backends import registry
from bricolage.base.cache import machine_id
from bricolage.base.codec import DecodeError, decode, encode
from bricolage.base.ray_session import RaySession, describe_error
from bricolage.device.device import Device
from bricolage.measure.scale_out.messages import NodeDescription, Setup
from bricolage.measure.scale_out.station import Station

_LOG = logging.getLogger(__name__)
JOINING_S = 90.0
"""Until nodes have said what they are: importing ray and us takes seconds, on a busy machine many."""
WAIT_S = 0.2
_LOOK_S = 2.0
"""How often the cluster is asked for nodes that have joined."""
_PULSE_S = 5.0
_SILENCE_S = 60.0
"""A node that has not shown for so long that it lives is lost: it hangs, or the network has gone. On a busy machine the answer may
take seconds."""
_STARTS = 3
"""Actors that a node is given, where they keep dying."""


@dataclass
class ClusterNode:
    """A node of the cluster with the actor that works there."""

    name: str
    """Ray's, of the node, and how many actors it has had: what dies is never taken for its successor."""
    ray_id: str
    slots: int
    actor: Any
    coming: Any
    """What it will say of itself; None once it has."""
    what: NodeDescription | None = None
    measures: bool = False
    alike: bool = False
    """Whether it is of the device class that is measured."""
    busy: dict[str, int] = field(default_factory=lambda: {"compile": 0, "measure": 0, "trial": 0})
    has: set[str] = field(default_factory=set)
    """Names of files that were sent there."""
    begun: float = field(default_factory=time.monotonic)
    pulse: Any = None
    """What it will answer to show that it lives."""
    heard: float = 0.0


class Membership:
    """The nodes of one cluster, for one driver."""

    def __init__(self, address: str, device: Device, memory_limit: int | None) -> None:
        """Joins a cluster, or starts one of this machine's processes (`LOCAL`). No node works yet: see `enlist`.

        Raises:
            MissingLibrary: ray is not installed.
            UnreachableCluster: there is no cluster at that address, or it has other versions of Python or Ray.
        """
        self._session = RaySession(address)
        self.ray, self.errors = self._session.ray, self._session.errors
        self._device, self._memory_limit = device, memory_limit
        self._machine = machine_id()
        self.nodes: dict[str, ClusterNode] = {}
        self._started: dict[str, int] = {}
        self._refused: set[str] = set()
        self.reasons: list[str] = []
        """Why nodes do not measure."""
        self._looked = -_LOOK_S

    def close(self) -> None:
        """Ends the actors, and a cluster that was started here."""
        for node in list(self.nodes.values()):
            self.remove(node)
        self._session.close()

    @property
    def ready(self) -> list[ClusterNode]:
        """Those that have said what they are."""
        return [node for node in self.nodes.values() if node.what is not None]

    @property
    def coming(self) -> list[ClusterNode]:
        """Those that have not said it yet."""
        return [node for node in self.nodes.values() if node.coming is not None]

    def enlist(self) -> None:
        """An actor for every living node that has none and may have one. Looks at most every few seconds."""
        if time.monotonic() < self._looked + _LOOK_S:
            return
        self._looked = time.monotonic()
        enlisted = {node.ray_id for node in self.nodes.values()}
        for facts in self.ray.nodes():
            ray_id, slots = str(facts["NodeID"]), int(facts["Resources"].get("CPU", 0))
            if not facts["Alive"] or slots < 1 or ray_id in enlisted or ray_id in self._refused:
                continue
            if self._started.get(ray_id, 0) >= _STARTS:
                self._refuse(ray_id, f"the processes of {facts['NodeManagerHostname']} keep ending")
                continue
            setup = Setup(self._device.isa, slots, self._memory_limit, registry.registered_references())
            where = self._session.on_node(ray_id)
            actor = self.ray.remote(Station).options(num_cpus=slots, scheduling_strategy=where).remote(encode(setup))
            self._started[ray_id] = self._started.get(ray_id, 0) + 1
            name = f"{ray_id}-{self._started[ray_id]}"
            self.nodes[name] = ClusterNode(name, ray_id, slots, actor, actor.describe.remote())

    def settle(self, timeout_s: float) -> None:
        """Hears what nodes that are coming say of themselves, waiting at most so long for all of them."""
        coming = {node.coming: node for node in self.coming}
        if not coming:
            return
        ready, late = self.ray.wait(list(coming), num_returns=len(coming), timeout=timeout_s)
        for reference in ready:
            node = coming[reference]
            node.coming = None
            try:
                self._admit(node, decode(NodeDescription, self.ray.get(reference), "node"))
            except (DecodeError, *self.errors) as error:
                self.remove(node)
                self._refuse(node.ray_id, f"node {node.ray_id[:8]} has not started: {describe_error(error)}")
        for node in (coming[reference] for reference in late):
            if time.monotonic() > node.begun + JOINING_S - WAIT_S:
                self.remove(node)
                self._refuse(
                    node.ray_id,
                    f"node {node.ray_id[:8]} gave no processor within {JOINING_S:.0f} s: others have them, or it is slow",
                )

    def drop_silent(self) -> None:
        """Gives up nodes that hang: what they had is answered with an error then."""
        now = time.monotonic()
        for node in self.ready:
            if node.pulse is not None and self.ray.wait([node.pulse], timeout=0)[0]:
                node.pulse, node.heard = None, now
            elif node.pulse is None and now > node.heard + _PULSE_S:
                node.pulse = node.actor.pulse.remote()
            elif node.pulse is not None and now > node.heard + _SILENCE_S:
                _LOG.warning("node %s has been silent for %.0f s and is given up", who(node), now - node.heard)
                self.remove(node)

    def _admit(self, node: ClusterNode, what: NodeDescription) -> None:
        ours, theirs = self._device, what.device
        same = theirs.fingerprint() == ours.fingerprint()
        if what.bricolage != __version__:
            self.remove(node)
            self._refuse(node.ray_id, f"{what.host} has bricolage {what.bricolage}, here is {__version__}")
            return
        node.what, node.heard = what, time.monotonic()
        node.alike = same and any(what.versions.get(name) == version for name, version in self._versions().items())
        node.measures = node.alike and theirs.threads >= ours.threads and what.machine != self._machine
        if not node.alike:
            why = f"is another device ({theirs})" if not same else "has other versions of every backend"
            self.reasons.append(f"{what.host} {why}")
            _LOG.info("%s %s: it compiles at most", what.host, why)

    def _versions(self) -> dict[str, str]:
        return {backend.name: registry.version(backend.name) for backend in registry.available()}

    def _refuse(self, ray_id: str, reason: str) -> None:
        self._refused.add(ray_id)
        self.reasons.append(reason)
        _LOG.warning("a node of the cluster is left out: %s", reason)

    def remove(self, node: ClusterNode) -> None:
        """Ends a node's actor."""
        self.nodes.pop(node.name, None)
        try:
            self.ray.kill(node.actor)
        except self.errors as error:
            _LOG.debug("node %s had gone: %s", who(node), error)


def who(node: ClusterNode) -> str:
    """A node's host and process, for a message."""
    return f"{node.what.host} (process {node.what.pid})" if node.what is not None else node.ray_id[:8]
