"""Numbers of devices of a cluster that one job may have, with the links between them."""

from __future__ import annotations

import math

from bricolage.cluster.machines import ClusterSpec, NodeGroup
from bricolage.device.description import DescribedDevices, EqualDevices, ScaledTimes
from bricolage.device.device import DESCRIBED, Device, Link, Machine, Peaks


def list_device_counts(cluster: ClusterSpec, most: int) -> list[EqualDevices]:
    """One, two, four ... devices of each kind, up to `most`; beyond a node, the slower of both links counts."""
    return [place for kind in cluster.kinds for place in _counts_of_kind(cluster, kind, most)]


def _counts_of_kind(cluster: ClusterSpec, kind: str, most: int) -> list[EqualDevices]:
    group, largest = cluster.of_kind(kind), max(cluster.nodes(kind))
    devices = _describe_kind(group)
    places, count = [], 1
    while count <= min(most, cluster.capacity[kind]):
        crossed = [group.network_gbytes] if count > largest else []
        crossed += [group.link_gbytes] if min(count, largest) > 1 else []
        gbytes = min((rate for rate in crossed if rate is not None), default=None) if None not in crossed else None
        link = None if gbytes is None else Link(("from", "to"), gbytes, group.latency_us)
        unknown = _unknown(group, count, link)
        places.append(EqualDevices(kind, devices, count, link, group.start_us / 1e3, group.price, unknown))
        count *= 2
    return places


def _unknown(group: NodeGroup, count: int, link: Link | None) -> str:
    """Why nothing can be predicted there; empty where something can."""
    if group.peaks is None:
        return "the cluster's file gives no gflops and gbytes of this kind, and it was not measured there"
    if count > 1 and link is None:
        return "the cluster's file gives no bandwidth between them (link_gbytes, network_gbytes)"
    return ""


def _describe_kind(group: NodeGroup) -> DescribedDevices:
    peaks = group.peaks or Peaks(math.inf, math.inf)
    device = Device(
        group.kind,
        "gpu",
        model=DESCRIBED,
        instructions=frozenset(),
        cores=(0,),
        physical_cores=1,
        memory_bytes=int((group.memory_gb or 0.0) * 1e9),
        peaks=peaks,
        system="",
        architecture="",
    )
    return DescribedDevices(Machine((device,), ()), {group.kind: ScaledTimes()})
