"""A pipeline whose stages are on groups of devices, which may be unlike and of different sizes.

Each micro-batch passes a stage on one device of its group. A group's devices have the stage's weights each, and add their gradients
behind the last pass. A fast device takes more of the micro-batches than a slow one. PipeDream replicates stages so, with equal
shares (Narayanan et al., SOSP 2019); the shares by speed are ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bricolage.work.pipeline.generators import alternate_passes
from bricolage.work.pipeline.table import Pass, PipelineSchedule

GROUPS = "groups"
"""The name of the schedule."""


@dataclass(frozen=True)
class StageGroup:
    """The devices of one stage, by their rows; each has at least one micro-batch."""

    devices: tuple[int, ...]
    micro_batches: tuple[int, ...]
    """By device how many it takes of a step's."""
    ahead: tuple[int, ...]
    """By device the forward passes before its first backward pass."""


def grouped(groups: Sequence[StageGroup], devices: int) -> PipelineSchedule:
    """The passes of all devices; those of none of the groups have none.

    Raises:
        ValueError: groups have different numbers of micro-batches, or share devices.
    """
    counts = {sum(group.micro_batches) for group in groups}
    taken = [device for group in groups for device in group.devices]
    if len(counts) != 1 or len(set(taken)) != len(taken) or not set(taken) <= set(range(devices)):
        raise ValueError(f"{GROUPS}: stages have different micro-batches, or share a device")
    rows: list[tuple[Pass, ...]] = [()] * devices
    for stage, group in enumerate(groups):
        mine = deal(group.micro_batches)
        for device, micro_batches, ahead in zip(group.devices, mine, group.ahead, strict=True):
            row = alternate_passes(stage, ahead, len(micro_batches))
            rows[device] = tuple(Pass(stage, step.kind, micro_batches[step.micro_batch]) for step in row)
    return PipelineSchedule(GROUPS, len(groups), counts.pop(), tuple(rows), (1,) * devices)


def deal(counts: Sequence[int]) -> list[list[int]]:
    """Micro-batches 0, 1, ... by device, `counts[d]` to device d: each to the device that then has the least part of its own."""
    hands: list[list[int]] = [[] for _ in counts]
    for micro in range(sum(counts)):
        ready = [device for device, count in enumerate(counts) if len(hands[device]) < count]
        hands[min(ready, key=lambda device: ((len(hands[device]) + 1) / counts[device], device))].append(micro)
    return hands


def ahead_of(sizes: Sequence[int], counts: Sequence[Sequence[int]], times: int) -> list[tuple[int, ...]]:
    """By stage and device the forward passes ahead: as 1F1B where each group is one device, `times` times as many beyond the first.

    Args:
        sizes: of groups.
        counts: by group and device, micro-batches.
        times: 1, or 2 so that messages are hidden, as DAPPLE's policy B has it.
    """
    passes = []
    for stage, mine in enumerate(counts):
        flying = sizes[stage] + times * sum(sizes[stage + 1 :])
        share = [flying * count / sum(mine) for count in mine]
        passes.append(tuple(min(count, max(1, math.ceil(part))) for count, part in zip(mine, share, strict=True)))
    return passes
