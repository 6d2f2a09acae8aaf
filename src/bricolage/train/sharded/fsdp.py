"""Stages of a pipeline whose weights lie divided among replicas, as FSDP2 divides them: what that takes, and what passes hold.

Each layer of a divided stage is gathered for a forward pass and again for a backward pass, whose gradients are added up and divided
at once; nothing overlaps. So a device holds its part of the weights, gradients and optimiser's state, and of one layer at a time
the whole weights and gradients.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from bricolage.device.collective import Ring


@dataclass(frozen=True)
class DividedStages:
    """Of all stages some that are divided. Times in milliseconds."""

    units: Sequence[tuple[int, float, float]]
    """By stage, layers with weights, the bytes of these weights, and those of the largest layer."""
    divided: Set[int]
    ring: Ring
    """Of a stage's replicas."""

    def moving_ms(self, stage: int) -> tuple[float, float]:
        """That the forward pass, and the backward pass, of a micro-batch take longer if the stage is divided."""
        count, size, _ = self.units[stage]
        if not count:
            return 0.0, 0.0
        gather = count * self.ring.all_gather_ms(size / count)
        return gather, gather + count * self.ring.reduce_scatter_ms(size / count)

    def passes_ms(self, count: int) -> tuple[list[float], list[float]]:
        """The same for all stages, forward and backward: 0 for those that are whole."""
        stage_ms = [self.moving_ms(stage) if stage in self.divided else (0.0, 0.0) for stage in range(count)]
        return [pass_ms for pass_ms, _ in stage_ms], [pass_ms for _, pass_ms in stage_ms]

    def gathered_bytes(self, stage: int) -> float:
        """Of the largest layer, weights and gradients."""
        return 2.0 * self.units[stage][2]
