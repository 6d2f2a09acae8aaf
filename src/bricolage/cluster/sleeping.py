"""Idle nodes put to sleep (CES, Helios: Hu, Sun, Yan, Wen, Zhang, SC'21; `S-Lab-System-Group/HeliosArtifact`, MIT): what a schedule
would let sleep, and how often a node would have to be woken for a job.

Every ten minutes the number of nodes in use is forecast three hours ahead; idle nodes beyond that and a margin go to sleep, and as
many wake as are missing. Helios forecasts with boosted trees of months of history; here it is the larger of the most that were in
use in the last three hours, and in the same three hours of the day before. A job that finds too few nodes awake waits for one to
boot; such waits are counted, and do not change the schedule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bricolage.cluster.event_loop import Replayed
from bricolage.cluster.machines import ClusterSpec

_DAY_S = 86_400.0


@dataclass(frozen=True)
class Slept:
    """What would have slept."""

    idle_node_hours: float
    """Of nodes on which no device was held."""
    slept_node_hours: float
    woken: int
    """Times that nodes in use exceeded nodes awake: a job waits for a node to boot."""


def slept(
    replayed: Replayed, cluster: ClusterSpec, *, every_s: float = 600.0, ahead_s: float = 10_800.0, margin: int = 2
) -> Slept:
    """Over a replay, from its first to its last stay.

    Args:
        replayed: with its stays.
        cluster: whose nodes it ran on.
        every_s: between decisions.
        ahead_s: of the forecast.
        margin: nodes that stay awake beyond it.
    """
    if not replayed.stays:
        return Slept(0.0, 0.0, 0)
    begin, end = min(stay.start_s for stay in replayed.stays), max(stay.end_s for stay in replayed.stays)
    count = max(math.ceil((end - begin) / every_s), 1)
    nodes = sum(len(cluster.nodes(kind)) for kind in cluster.kinds)
    used = [set[tuple[str, int]]() for _ in range(count)]
    for stay in replayed.stays:
        first, last = int((stay.start_s - begin) / every_s), math.ceil((stay.end_s - begin) / every_s)
        for at in range(first, min(max(last, first + 1), count)):
            used[at] |= {(stay.kind, node) for node, _ in stay.nodes}
    busy = np.array([len(busy_nodes) for busy_nodes in used])
    span, day = max(round(ahead_s / every_s), 1), round(_DAY_S / every_s)
    asleep, woken, hours = 0, 0, 0.0
    for at in range(count):
        if busy[at] > nodes - asleep:
            woken += 1
        hours += min(asleep, nodes - int(busy[at])) * every_s / 3600.0
        recent = int(busy[max(at - span + 1, 0) : at + 1].max())
        before = busy[at - day : at - day + span] if at >= day else busy[:0]
        expected = max(recent, int(before.max(initial=0)))
        asleep = max(nodes - expected - margin, 0)
    return Slept(float((nodes - busy).sum() * every_s / 3600.0), hours, woken)
