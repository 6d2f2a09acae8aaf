"""Layers of a plan from training steps that were traced and timed at several sizes of a micro-batch."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from bricolage.train.pipeline.pipeline_problem import PlannedLayer
from bricolage.train.predict.predicted_pipeline import StepRow


@dataclass(frozen=True)
class PartTimes:
    """Of a part of a step, for a micro-batch: milliseconds; or factors of these."""

    forward: float
    backward: float
    divided: float = 1.0
    """A factor: of the backward pass in two, for the gradients of inputs and those of weights, by the whole one."""


def planned_layers(
    rows: Mapping[int, StepRow],
    handed_bytes: Sequence[float] | None = None,
    factors: Mapping[int, Sequence[PartTimes]] | None = None,
) -> tuple[PlannedLayer, ...]:
    """The parts of a step as layers: milliseconds a sample and a pass, by least squares over the sizes.

    Args:
        rows: by samples of a micro-batch, at least one.
        handed_bytes: that each part hands to the next for a sample, where that is known better than from the trace.
        factors: by samples and part, what the part takes as a stage by what its operators take in the step; 1 by default.
    """
    sizes = sorted(rows)
    largest = rows[sizes[-1]]
    layers = []
    for part in range(largest.count):
        by = {size: PartTimes(1.0, 1.0) if factors is None else factors[size][part] for size in sizes}
        forward, forward_start = line({size: by[size].forward * rows[size].forward[part] for size in sizes})
        inner = {size: by[size].backward * (rows[size].backward[part] - rows[size].weight[part]) for size in sizes}
        gradient, gradient_start = line(inner)
        weight, weight_start = line({size: by[size].backward * rows[size].weight[part] for size in sizes})
        more, more_start = line(
            {size: (by[size].divided - 1.0) * by[size].backward * rows[size].backward[part] for size in sizes}
        )
        stage = largest.stage(part, part + 1)
        layers.append(
            PlannedLayer(
                stage.begin,
                forward,
                input_gradient_ms=gradient,
                weight_gradient_ms=weight,
                sent_bytes=stage.sent_bytes / sizes[-1],
                kept_bytes=stage.kept_bytes / sizes[-1],
                gradient_bytes=stage.lasting.get("gradients", 0),
                lasting_bytes=sum(
                    stage.lasting.get(kind, 0) for kind in ("weights", "gradients", "optimiser state", "inputs")
                ),
                update_ms=stage.update_ms,
                forward_start_ms=forward_start,
                backward_start_ms=gradient_start + weight_start,
                divided_ms=more,
                divided_start_ms=more_start,
            )
        )
    layers = equalise_blocks(layers)
    if handed_bytes is not None:
        ends = [*handed_bytes, 0.0]
        layers = [replace(layer, sent_bytes=size) for layer, size in zip(layers, ends, strict=True)]
    return tuple(layers)


def equalise_blocks(layers: Sequence[PlannedLayer]) -> list[PlannedLayer]:
    """Blocks that repeat keep and exchange the same bytes, and take the same time: the median of theirs."""
    kinds: dict[tuple[float, ...], list[PlannedLayer]] = {}

    def kind(one: PlannedLayer) -> tuple[float, ...]:
        return one.sent_bytes, one.kept_bytes, one.gradient_bytes, one.lasting_bytes

    for block in layers:
        kinds.setdefault(kind(block), []).append(block)
    times = [name for name in vars(layers[0]) if name.endswith("_ms")]
    return [
        replace(layer, **{name: median(getattr(other, name) for other in kinds[kind(layer)]) for name in times})
        for layer in layers
    ]


def join_layers(layers: Sequence[PlannedLayer], begin: int, end: int) -> tuple[PlannedLayer, ...]:
    """The same with those from `begin` to before `end` as one: between them no stage may begin."""
    members = layers[begin:end]
    facts = {
        name: sum(getattr(member, name) for member in members)
        for name in vars(members[0])
        if name not in ("name", "sent_bytes")
    }
    return (*layers[:begin], replace(members[0], sent_bytes=members[-1].sent_bytes, **facts), *layers[end:])


def even_blocks(weights: Sequence[float], most: int) -> list[tuple[int, int]]:
    """At most `most` runs of neighbours, by first and behind last: each ends where the sum comes closest to its share."""
    if len(weights) <= most:
        return [(index, index + 1) for index in range(len(weights))]
    sums = np.concatenate([[0.0], np.cumsum(weights)])
    if sums[-1] <= 0.0:
        sums = np.arange(len(weights) + 1.0)
    cuts = {0, len(weights), *np.searchsorted(sums, sums[-1] * np.arange(1, most) / most).tolist()}
    return list(itertools.pairwise(sorted(cuts)))


def in_blocks(layers: Sequence[PlannedLayer], blocks: Sequence[tuple[int, int]]) -> tuple[PlannedLayer, ...]:
    """Runs of layers as one each."""
    return tuple(layer for begin, end in blocks for layer in join_layers(layers[begin:end], 0, end - begin))


def line(seen: Mapping[int, float]) -> tuple[float, float]:
    """Milliseconds a sample, and of each pass: neither below zero."""
    if len(seen) == 1:
        ((size, ms),) = seen.items()
        return ms / size, 0.0
    from scipy.optimize import nnls

    sizes, times = np.array(list(seen), dtype=float), np.array(list(seen.values()))
    weights = 1.0 / np.maximum(times, 1e-6)  # relative errors
    table = np.stack([sizes, np.ones(len(sizes))], axis=1) * weights[:, None]
    (each, start), _ = nnls(table, times * weights)
    return float(each), float(start)
