"""Collage's measures of a placement's quality.

The three names come from the RFC that brought Collage to TVM (rfcs/0062). All are signed ratios minus one, so 0.02
reads as 2 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from bricolage.plan.plan import Quality


def assess(
    measured_ms: float,
    *,
    predicted_ms: float | None = None,
    baselines_ms: Iterable[float] = (),
    everything_ms: Iterable[float] = (),
) -> Quality:
    """The quality of a plan that takes `measured_ms` end to end.

    `predicted_ms` is its total in the additive model, boundaries included; `baselines_ms` are the times of the single
    backends, and `everything_ms` those of all other contestants and plans measured in the same regime. All times in ms;
    infinite ones (failures) are passed over.
    Raises ValueError unless every time is positive.
    """
    baselines = [_positive(value) for value in baselines_ms if value != math.inf]
    everything = [_positive(value) for value in everything_ms if value != math.inf]
    measured = _positive(measured_ms)
    return Quality(
        additive_error=None if predicted_ms is None else _positive(predicted_ms) / measured - 1.0,
        apparent_loss=measured / min(baselines) - 1.0 if baselines else None,
        optimality_loss=measured / min((measured, *baselines, *everything)) - 1.0,
    )


def _positive(value: float) -> float:
    if not 0.0 < value < math.inf:
        raise ValueError(f"a time must be positive and finite, not {value}")
    return value
