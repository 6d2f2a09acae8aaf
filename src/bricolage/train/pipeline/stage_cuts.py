"""A row of layers cut into stages, what these take, and what passes of them hold."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from bricolage.search.placement.contiguous_partition import partitions
from bricolage.train.pipeline.pipeline_problem import PipelineProblem, PlannedLayer
from bricolage.train.sharded.fsdp import DividedStages
from bricolage.work.pipeline.table import Pass, StageTimes


class PassMs(NamedTuple):
    """Milliseconds of a micro-batch's passes through a stage."""

    forward: float
    input_gradient: float
    weight_gradient: float

    @property
    def both_ms(self) -> float:
        """Forward and back."""
        return self.forward + self.input_gradient + self.weight_gradient


def pass_ms(sums: Mapping[str, float], samples: int, start_ms: float, *, recompute: bool) -> PassMs:
    """Of a stage.

    Args:
        sums: by field of a layer, those of the stage's layers.
        samples: of the micro-batch.
        start_ms: of each pass.
        recompute: whether the backward pass computes the activations again.
    """
    forward = samples * sums["forward_ms"] + sums["forward_start_ms"]
    backward = samples * sums["input_gradient_ms"] + sums["backward_start_ms"] + (forward if recompute else 0.0)
    return PassMs(forward + start_ms, backward + start_ms, samples * sums["weight_gradient_ms"])


@dataclass(frozen=True)
class StageCut:
    """Stages, with what they take for one sample."""

    begins: tuple[int, ...]
    stages: tuple[tuple[PlannedLayer, ...], ...]
    recompute: bool

    @classmethod
    def all(cls, problem: PipelineProblem, stages: int, *, recompute: bool) -> list[StageCut]:
        """Into 1, 2, ... stages."""
        weights = list(problem.layer_ms)
        if recompute:
            weights = [ms + layer.forward_ms for ms, layer in zip(weights, problem.layers, strict=True)]
        candidates = []
        for partition in partitions(weights, stages):
            cuts = [0, *partition, len(problem.layers)]
            parts = tuple(problem.layers[begin:end] for begin, end in itertools.pairwise(cuts))
            candidates.append(cls(tuple(cuts[:-1]), parts, recompute))
        return candidates

    def times(self, problem: PipelineProblem, samples: int, divided: DividedStages | None = None) -> StageTimes:
        """Of micro-batches of so many samples; `divided`: stages whose weights each pass gathers."""
        start, sums, count = problem.start_ms, self.sums, len(self.stages)
        stages = [{name: values[stage] for name, values in sums.items()} for stage in range(count)]
        passes = [pass_ms(stage, samples, start, recompute=self.recompute) for stage in stages]
        in_two = zip(sums["divided_ms"], sums["divided_start_ms"], strict=True)
        into, back = ([0.0] * count,) * 2 if divided is None else divided.passes_ms(count)
        return StageTimes(
            [times.forward + more for times, more in zip(passes, into, strict=True)],
            [times.input_gradient + more for times, more in zip(passes, back, strict=True)],
            [times.weight_gradient for times in passes],
            [problem.link.ms(samples * part[-1].sent_bytes) for part in self.stages[:-1]],
            [samples * each + once for each, once in in_two],
        )

    @classmethod
    def at(cls, layers: Sequence[PlannedLayer], begins: Sequence[int], *, recompute: bool) -> StageCut:
        """Stages that begin at these layers."""
        cuts = [*begins, len(layers)]
        parts = tuple(tuple(layers[begin:end]) for begin, end in itertools.pairwise(cuts))
        return cls(tuple(begins), parts, recompute)

    def kept(self, stage: int, samples: int) -> tuple[float, float]:
        """Bytes of a micro-batch's activations, and what of them is kept until its backward pass."""
        full = samples * self.sums["kept_bytes"][stage]
        if not self.recompute:
            return full, full
        kept = samples * self.stages[stage - 1][-1].sent_bytes if stage else 0.0
        return max(full, kept), kept

    @cached_property
    def units(self) -> list[tuple[int, float, float]]:
        """By stage, layers with weights, their bytes, and those of the largest."""
        sizes = [[layer.gradient_bytes for layer in part if layer.gradient_bytes] for part in self.stages]
        return [(len(size), math.fsum(size), max(size, default=0.0)) for size in sizes]

    @cached_property
    def sums(self) -> dict[str, list[float]]:
        """By field of a layer its sum in each stage."""
        names = [name for name in vars(self.stages[0][0]) if name != "name"]
        return {name: [math.fsum(getattr(layer, name) for layer in part) for part in self.stages] for name in names}


def peak_of_passes(
    row: Sequence[Pass], kept: Callable[[int], tuple[float, float]], gathered: Callable[[int], float]
) -> float:
    """Bytes at most that the passes of a device hold, beyond what lasts; a recomputed stage keeps its input, and all while it goes
    back.

    Args:
        row: the passes, in their order.
        kept: by stage bytes of a micro-batch's activations, and what of them is kept until its backward pass.
        gathered: by stage bytes that a pass holds for itself.
    """
    held = most = 0.0
    for stage_pass in row:
        full, lasting = kept(stage_pass.stage)
        if stage_pass.kind == "F":
            held += lasting
        most = max(most, held + (full - lasting) + gathered(stage_pass.stage))
        if stage_pass.kind in "BW":
            held -= lasting
    return most


def stages_of(row: Sequence[Pass]) -> list[int]:
    """The stages of a device."""
    return sorted({stage_pass.stage for stage_pass in row})
