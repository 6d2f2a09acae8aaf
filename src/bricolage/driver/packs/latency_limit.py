"""Targets of a pack with a limit of latency: which plan keeps it, and what is said where none does.

A decision at the loosest precision that a target accepts says what is possible at all. Its race has also timed what is more
accurate: the tightest precision at which something keeps the limit is decided next, from what is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from bricolage.base.options import BOUNDS, PRECISIONS, Precision
from bricolage.errors import TargetMissed
from bricolage.plan.pack import PackTarget
from bricolage.plan.plan import Bucket, Plan
from bricolage.plan.race_outcome import Contestant
from bricolage.work.cost import Estimate


def shipped_error(bucket: Bucket) -> float | None:
    """Of what ships, relative to float64: the largest on its inputs and on samples held back; None where it is not known."""
    return _float_error(bucket, bucket.race.winner)


def tighter_words(plan: Plan, target: PackTarget, scale: float) -> Iterator[Precision]:
    """Tighter words of precision than the target's at which the races of a plan saw something within its limit, tightest first. It
    ends where what ships is itself as accurate.

    Args:
        plan: decided at the target's own precision.
        target: with a limit of latency.
        scale: times on the target's device by those measured here.
    """
    assert target.latency_ms is not None
    for word in PRECISIONS[: PRECISIONS.index(target.precision)]:
        errors = [shipped_error(bucket) for bucket in plan.buckets]
        if all(
            error is not None and error <= _accepted(bucket, word)
            for error, bucket in zip(errors, plan.buckets, strict=True)
        ):
            return
        if scale * sum(_least_ms(bucket, _accepted(bucket, word)) for bucket in plan.buckets) <= target.latency_ms:
            yield word


def check_latency(plan: Plan, target: PackTarget, estimate: Estimate | None) -> None:
    """Whether a plan keeps the limit of its target; `estimate`: of a call on the target's device.

    Raises:
        TargetMissed: it does not, or its time is not known.
    """
    limit = target.latency_ms
    if limit is None or (estimate is not None and estimate.ms <= limit):
        return
    if estimate is None:
        raise TargetMissed(reason=f"a call may take {limit:g} ms, and the time of its plan is not known")
    names = ", ".join(dict.fromkeys(bucket.race.chosen for bucket in plan.buckets))
    kind = "takes" if estimate.source == "measured" else "is predicted to take"
    fastest = f"the fastest of precision '{target.precision}' ({names})"
    reason = f"a call may take {limit:g} ms, and {fastest} {kind} {estimate.ms:.3g} ms"
    raise TargetMissed(reason=reason + _looser_word(plan, limit, estimate.ms))


def _looser_word(plan: Plan, limit: float, shipped_ms: float) -> str:
    """What was too inaccurate and keeps the limit, in words; empty where nothing was."""
    here = sum(bucket.race.winner.median_ms or math.inf for bucket in plan.buckets)
    if len(plan.buckets) > 1 or not math.isfinite(here):
        return ""
    (bucket,) = plan.buckets
    within = [
        (error, contestant)
        for contestant in bucket.race.contestants
        if contestant.dropped_ms is not None
        and (error := _float_error(bucket, contestant)) is not None
        and contestant.dropped_ms * shipped_ms / here <= limit
    ]
    if not within:
        return ""
    error, contestant = min(within, key=lambda pair: pair[0])
    word = next((word for word in PRECISIONS if error <= BOUNDS[word]), None)
    return "" if word is None else f"; '{contestant.name}' keeps it with an error of {error:.1e} (precision '{word}')"


def _least_ms(bucket: Bucket, accepted: float) -> float:
    """Of contestants that are as accurate, the shortest time."""
    times = [
        contestant.median_ms
        for contestant in bucket.race.contestants
        if contestant.median_ms is not None
        and (error := _float_error(bucket, contestant)) is not None
        and error <= accepted
    ]
    return min(times, default=math.inf)


def _accepted(bucket: Bucket, word: Precision) -> float:
    return max(BOUNDS[word], bucket.verification.original_error)


def _float_error(bucket: Bucket, contestant: Contestant) -> float | None:
    """Relative to float64. What a graph in integers was compared with are exact integers: its own error counts as well."""
    errors = [error for error in (contestant.error, contestant.held_back_error) if error is not None]
    errors += [
        graph.error
        for graph in bucket.verification.quantised
        if graph.error is not None and graph.variant in contestant.name
    ]
    return max(errors, default=None)
