"""Layers of a plan from training steps that were traced and timed at several sizes of a micro-batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from bricolage.train.plan.problem import PlannedLayer
from bricolage.train.predict.pipeline import StepRow


def planned_layers(
    rows: Mapping[int, StepRow], handed_bytes: Sequence[float] | None = None
) -> tuple[PlannedLayer, ...]:
    """The parts of a step as layers: milliseconds a sample and a pass, by least squares over the sizes.

    Args:
        rows: by samples of a micro-batch, at least one.
        handed_bytes: that each part hands to the next for a sample, where that is known better than from the trace.
    """
    sizes = sorted(rows)
    largest = rows[sizes[-1]]
    found = []
    for part in range(largest.count):
        forward, forward_start = _line({size: one.forward[part] for size, one in rows.items()})
        inner = {size: one.backward[part] - one.weight[part] for size, one in rows.items()}
        gradient, gradient_start = _line(inner)
        weight, weight_start = _line({size: one.weight[part] for size, one in rows.items()})
        stage = largest.stage(part, part + 1)
        found.append(
            PlannedLayer(
                stage.begin,
                forward,
                gradient,
                weight,
                stage.sent_bytes / sizes[-1],
                stage.kept_bytes / sizes[-1],
                stage.lasting.get("gradients", 0),
                sum(stage.lasting.get(kind, 0) for kind in ("weights", "gradients", "optimiser state", "inputs")),
                stage.update_ms,
                forward_start,
                gradient_start + weight_start,
            )
        )
    if handed_bytes is not None:
        ends = [*handed_bytes, 0.0]
        found = [replace(one, sent_bytes=size) for one, size in zip(found, ends, strict=True)]
    return tuple(found)


def joined(layers: Sequence[PlannedLayer], begin: int, end: int) -> tuple[PlannedLayer, ...]:
    """The same with those from `begin` to before `end` as one: between them no stage may begin."""
    some = layers[begin:end]
    facts = {
        name: sum(getattr(one, name) for one in some) for name in vars(some[0]) if name not in ("name", "sent_bytes")
    }
    return (*layers[:begin], replace(some[0], sent_bytes=some[-1].sent_bytes, **facts), *layers[end:])


def _line(seen: Mapping[int, float]) -> tuple[float, float]:
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
