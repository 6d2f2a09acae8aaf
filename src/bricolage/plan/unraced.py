"""Decisions without a race: something runs in a given way, and nothing is said of how fast that is."""

from __future__ import annotations

from collections.abc import Sequence

from bricolage.plan.plan import Bucket, PlannedRegion, Quality


def unraced_bucket(graph: str, operators: int, name: str, regions: Sequence[PlannedRegion], bound: float) -> Bucket:
    """A decision for no sizes in particular, without contestants.

    Args:
        graph: name of the graph's file.
        operators: how many it has.
        name: of what runs.
        regions: in executable order.
        bound: relative error accepted.
    """
    return Bucket(
        sizes={},
        graph=graph,
        operators=operators,
        chosen=name,
        regions=tuple(regions),
        contestants=(),
        best_baseline=name,
        speedup_vs_baseline=1.0,
        speedup_ci=(1.0, 1.0),
        significant=False,
        predicted_ms=None,
        original_error=0.0,
        bound=bound,
        quality=Quality(None, None, 0.0),
    )
