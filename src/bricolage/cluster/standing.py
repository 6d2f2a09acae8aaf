"""Where jobs stand when a loop begins in the middle: with some that run, and some that have waited."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from bricolage.cluster.gang_placement import NodePool
from bricolage.cluster.jobs import JobState


@dataclass(frozen=True)
class Standing:
    """Where a job stands when a loop begins with it. Times are those of the loop, seconds."""

    steps_done: float = 0.0
    kind: str = ""
    """Of the devices that it holds; empty for one that waits."""
    nodes: tuple[tuple[int, int], ...] = ()
    """(node, devices) that it holds; empty where only their number is known."""
    devices: int = 0
    """Of all nodes."""
    since_s: float = 0.0
    """When it got them, or when it began to wait."""
    first_start_s: float = math.nan
    resumes_s: float = 0.0
    """Until then a restart makes no progress."""
    attained_s: float = 0.0
    """Device-seconds that it has had."""
    run_s: float = 0.0
    restarts: int = 0
    known: tuple[str, ...] = ()
    """Kinds that it has run on."""
    mate: int | None = None
    """Who shares its devices, by number; that job stands there, too."""

    @staticmethod
    def of(state: JobState) -> Standing:
        """Of a job in a loop."""
        since_s = state.since_s if state.held else state.waits_since_s
        return Standing(
            state.steps_done,
            state.held_kind,
            nodes=state.nodes,
            devices=state.held,
            since_s=since_s,
            first_start_s=state.first_start_s,
            resumes_s=state.resumes_s,
            attained_s=state.attained_s,
            run_s=state.run_s,
            restarts=state.restarts,
            known=tuple(state.ran),
            mate=None if state.mate is None else state.mate.number,
        )


def stand(state: JobState, stood: Standing, pools: Mapping[str, NodePool], mate: JobState | None) -> None:
    """Brings a fresh job there.

    Args:
        state: of the job.
        stood: where it stands.
        pools: nodes by kind of device, from which it takes its own.
        mate: who shares its devices; where it stands already, these are taken.

    Raises:
        ValueError: its devices are not free.
    """
    left = stood.steps_done
    while state.phase + 1 < len(state.job.phases) and left >= state.job.phases[state.phase].steps:
        left -= state.job.phases[state.phase].steps
        state.before += state.job.phases[state.phase].steps
        state.phase += 1
    state.done, state.attained_s, state.run_s = left, stood.attained_s, stood.run_s
    state.restarts, state.first_start_s = stood.restarts, stood.first_start_s
    for kind in stood.known:
        state.learn(kind)
    if not stood.kind:
        state.waits_since_s = stood.since_s
        return
    pool = pools[stood.kind]
    if mate is not None and mate.held:
        state.nodes, state.mate, mate.mate = mate.nodes, mate, state
    elif stood.nodes:
        pool.take(stood.nodes)
        state.nodes = stood.nodes
    else:
        state.nodes = pool.place(stood.devices)
    state.held_kind, state.held = stood.kind, stood.devices
    state.since_s, state.resumes_s = stood.since_s, stood.resumes_s
