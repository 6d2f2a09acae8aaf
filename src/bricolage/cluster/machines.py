"""Clusters as a file describes them: groups of equal nodes, what a restart costs, how long a lease lasts.

The file is TOML, or JSON of the same structure:

    restart_s = 30.0        # a job that goes on elsewhere, or later, loses that many seconds
    start_s = 5.0           # from a job's first devices to its first step
    round_s = 360.0         # policies that plan in rounds decide so often
    checkpoint_s = 600.0    # a node that fails takes with it what was done since the last checkpoint

    [[group]]
    kind = "a100"
    nodes = 4
    devices = 8             # of each node
    speed = 2.0             # of jobs whose history gives only run times: relative to the kind that they ran on
    price = 3.1             # for a device and hour
    gflops = 19500.0        # of a device, at its peak, and its memory's bandwidth in 10⁹ bytes a second: `cluster estimate`
    gbytes = 1555.0
    memory_gb = 40.0        # of a device
    link_gbytes = 300.0     # between devices of a node, and between nodes, each way
    network_gbytes = 12.0
    cpus = 64               # of a node, and its host memory: for policies that divide them (Synergy)
    host_gb = 512.0
    latency_us = 10.0       # of a message between two devices
    start_us = 5.0          # what an operator takes at least

    [[quota]]
    queue = "research"      # of the history
    devices = 16            # that its jobs may have at a time

    [[failure]]
    kind = "a100"
    node = 2                # from 0
    at_s = 7200.0
    until_s = 10800.0
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, TypeAlias

from bricolage.base.codec import DecodeError, Length, Within, decode, read_file
from bricolage.device.device import DeviceKind, Peaks
from bricolage.errors import BadCluster, MissingFile

_MOST_SECONDS = 1e10
Peak: TypeAlias = Annotated[float, Within(1e-6, 1e12)] | None
Span_s: TypeAlias = Annotated[float, Within(0.0, _MOST_SECONDS)]


@dataclass(frozen=True)
class NodeGroup:
    """Equal nodes."""

    kind: DeviceKind
    nodes: Annotated[int, Within(1, 1 << 20)] = 1
    devices: Annotated[int, Within(1, 4096)] = 1
    """Of each node."""
    cpus: Annotated[float, Within(1e-3, 1e6)] | None = None
    """Processors of each node; with `host_gb`, or neither."""
    host_gb: Annotated[float, Within(1e-3, 1e9)] | None = None
    """Memory of each node, 10⁹ bytes."""
    speed: Annotated[float, Within(1e-6, 1e6)] = 1.0
    price: Annotated[float, Within(0.0, 1e9)] = 1.0
    """For a device and hour."""
    gflops: Peak = None
    """Of a device in float32, 10⁹ operations a second; with `gbytes`, or neither."""
    gbytes: Peak = None
    """Bandwidth of a device's memory, 10⁹ bytes a second."""
    memory_gb: Peak = None
    """Of a device, 10⁹ bytes."""
    link_gbytes: Peak = None
    """Between devices of a node, 10⁹ bytes a second in each direction."""
    network_gbytes: Peak = None
    """Between nodes, likewise."""
    latency_us: Annotated[float, Within(0.0, 1e9)] = 10.0
    """Of a message between two devices."""
    start_us: Annotated[float, Within(0.0, 1e9)] = 5.0
    """What an operator takes at least."""

    def __post_init__(self) -> None:
        if (self.gflops is None) != (self.gbytes is None):
            raise ValueError(f"kind '{self.kind}' has only one of gflops and gbytes; give both, or neither")
        if (self.cpus is None) != (self.host_gb is None):
            raise ValueError(f"kind '{self.kind}' has only one of cpus and host_gb; give both, or neither")

    @property
    def peaks(self) -> Peaks | None:
        """Of a device; None where the file does not say."""
        return None if self.gflops is None or self.gbytes is None else Peaks(self.gflops, self.gbytes)

    @property
    def host_share(self) -> tuple[float, float] | None:
        """Processors and host memory of a node for each of its devices; None where the file does not say."""
        if self.cpus is None or self.host_gb is None:
            return None
        return self.cpus / self.devices, self.host_gb / self.devices

    @property
    def described(self) -> tuple[object, ...]:
        """What groups of one kind have in common."""
        return (
            self.speed, self.price, self.gflops, self.gbytes, self.memory_gb, self.link_gbytes, self.network_gbytes,
            self.latency_us, self.start_us, self.host_share,
        )  # fmt: skip


@dataclass(frozen=True)
class NodeFailure:
    """A node that is away for a while."""

    kind: DeviceKind
    node: Annotated[int, Within(0, 1 << 20)]
    at_s: Span_s
    until_s: Span_s


@dataclass(frozen=True)
class QueueQuota:
    """What jobs of a queue may have at a time."""

    queue: Annotated[str, Length(1, 256)]
    devices: Annotated[int, Within(1, 1 << 30)]
    """Of all kinds together. Who would exceed it is not admitted yet: no policy sees it."""


@dataclass(frozen=True)
class ClusterSpec:
    """Devices, and what moving jobs between them costs. Raises ValueError where it contradicts itself."""

    group: Annotated[tuple[NodeGroup, ...], Length(1, 1024)]
    failure: Annotated[tuple[NodeFailure, ...], Length(0, 100_000)] = ()
    quota: Annotated[tuple[QueueQuota, ...], Length(0, 10_000)] = ()
    restart_s: Span_s = 0.0
    start_s: Span_s = 0.0
    """From a job's first devices to its first step."""
    round_s: Annotated[float, Within(1.0, _MOST_SECONDS)] = 360.0
    recompute_s: Span_s = 0.0
    """Shares are computed anew at most so often."""
    checkpoint_s: Span_s = 0.0
    """Between checkpoints; 0: every step is saved."""
    spread_speed: Annotated[float, Within(1e-3, 1.0)] = 1.0
    """Speed of a gang on more nodes than it needs."""

    def __post_init__(self) -> None:
        for kind in self.kinds:
            same = [group for group in self.group if group.kind == kind]
            if len({group.described for group in same}) > 1:
                raise ValueError(f"the groups of kind '{kind}' differ in more than nodes and devices")
        queues = [quota.queue for quota in self.quota]
        if len(set(queues)) < len(queues):
            raise ValueError(f"queue '{next(queue for queue in queues if queues.count(queue) > 1)}' has two quotas")
        for failure in self.failure:
            nodes = sum(group.nodes for group in self.group if group.kind == failure.kind)
            if failure.node >= nodes:
                raise ValueError(
                    f"a failure names node {failure.node} of kind '{failure.kind}', of which there are {nodes}"
                )
            if failure.until_s <= failure.at_s:
                raise ValueError(
                    f"node {failure.node} of kind '{failure.kind}' is back at {failure.until_s:g} s before it fails"
                )
        self._check_overlaps()

    def _check_overlaps(self) -> None:
        until: dict[tuple[str, int], float] = {}
        for failure in sorted(self.failure, key=lambda failure: failure.at_s):
            if failure.at_s < until.get((failure.kind, failure.node), 0.0):
                raise ValueError(
                    f"node {failure.node} of kind '{failure.kind}' fails at {failure.at_s:g} s while it is away"
                )
            until[failure.kind, failure.node] = failure.until_s

    @property
    def kinds(self) -> tuple[str, ...]:
        """In the order of the file."""
        return tuple(dict.fromkeys(group.kind for group in self.group))

    @property
    def capacity(self) -> Mapping[str, int]:
        """Devices of each kind."""
        return {kind: sum(self.nodes(kind)) for kind in self.kinds}

    def nodes(self, kind: str) -> list[int]:
        """Devices of each node of a kind."""
        return [group.devices for group in self.group if group.kind == kind for _ in range(group.nodes)]

    def of_kind(self, kind: str) -> NodeGroup:
        """The first group of a kind; the others differ in nodes and devices alone."""
        return next(group for group in self.group if group.kind == kind)

    def host_share(self, kind: str) -> tuple[float, float] | None:
        """Processors and host memory of a node for each of its devices; None where the file does not say."""
        return self.of_kind(kind).host_share

    def speed(self, kind: str) -> float:
        """Of jobs of which only run times are known."""
        return self.of_kind(kind).speed

    def price(self, kind: str) -> float:
        """For a device and hour."""
        return self.of_kind(kind).price

    def with_devices(self, kind: str, devices: int) -> ClusterSpec:
        """With that many devices of a kind more, on further nodes like those of the kind; with fewer where negative.

        Raises:
            ValueError: there are fewer to remove, or the kind is unknown and nothing says how large its nodes are.
        """
        same = [group for group in self.group if group.kind == kind]
        if not same:
            if devices <= 0:
                raise ValueError(f"it has no devices of kind '{kind}'")
            return replace(self, group=(*self.group, NodeGroup(kind, 1, devices)))
        size = same[-1].devices
        if devices > 0:
            full, rest = divmod(devices, size)
            more = [replace(same[-1], nodes=full)] if full else []
            more += [_smaller(same[-1], rest)] if rest else []
            return replace(self, group=(*self.group, *more))
        return self._without(kind, -devices)

    def _without(self, kind: str, devices: int) -> ClusterSpec:
        left, kept = devices, list[NodeGroup]()
        for group in reversed(self.group):
            gone = min(left // group.devices, group.nodes) if group.kind == kind else 0
            left -= gone * group.devices
            kept += [replace(group, nodes=group.nodes - gone)] if group.nodes > gone else []
        if left or not kept:
            raise ValueError(f"{devices} devices of kind '{kind}' cannot be removed: whole nodes go, and one must stay")
        return replace(self, group=tuple(reversed(kept)))


def _smaller(group: NodeGroup, devices: int) -> NodeGroup:
    """One node like those of a group, with fewer devices and their part of processors and memory."""
    part = devices / group.devices
    cpus, host_gb = (None if amount is None else amount * part for amount in (group.cpus, group.host_gb))
    return replace(group, nodes=1, devices=devices, cpus=cpus, host_gb=host_gb)


def read_cluster(path: Path) -> ClusterSpec:
    """The cluster that a file describes.

    Raises:
        MissingFile: there is no such file.
        BadCluster: it cannot be read, or describes no cluster.
    """
    if not path.is_file():
        raise MissingFile(path=path)
    try:
        return decode(ClusterSpec, read_file(path), "it")
    except DecodeError as error:
        raise BadCluster(path=path, reason=str(error)) from error
