"""Which lanes can be trained as one: those whose graphs are equal, up to numbers that each lane may have of its own.

What enters the update alone (learning rate, momentum, betas, decay, the kind of optimiser), dropout rates, label smoothing,
seeds, the order of the data, clipping, loss scales and lengths may differ within a group. Shapes, batch sizes and layers may not:
lanes of other shapes form groups of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bricolage.errors import NotFusible
from bricolage.train.fuse.lane_graph import Traced, trace_lane
from bricolage.train.fuse.sweep import Lane
from bricolage.train.step.data import Data


@dataclass(frozen=True)
class Group:
    """Lanes of equal graphs, or lanes that cannot be traced."""

    lanes: tuple[Lane, ...]
    traced: tuple[Traced, ...]
    """By lane; empty where there is a reason."""
    reason: str = ""
    """Why they cannot be trained as one; empty where they can."""


def group(data: Data, lanes: Sequence[Lane]) -> list[Group]:
    """Groups in the order of their first lanes.

    Raises:
        BadTrainingCode: the training step's functions fail.
    """
    traces: dict[object, Traced | str] = {}
    together: dict[object, list[tuple[Lane, Traced | None]]] = {}
    for lane in lanes:
        key = (tuple(sorted(lane.arguments.items())), lane.batch_size, lane.dropout, lane.label_smoothing)
        if key not in traces:
            try:
                traces[key] = trace_lane(data, lane)
            except NotFusible as error:
                traces[key] = str(error.facts["reason"])
        trace = traces[key]
        if isinstance(trace, str):
            together.setdefault(("not", trace), []).append((lane, None))
        else:
            together.setdefault(trace.text, []).append((lane, trace))
    groups = []
    for name, members in together.items():
        reason = name[1] if isinstance(name, tuple) else ""
        traced = tuple(member_trace for _, member_trace in members if member_trace is not None)
        groups.append(Group(tuple(lane for lane, _ in members), traced, reason))
    return groups
