"""Mixing precisions: as much of the model in low precision as the accuracy asked for allows.

A backend that is fast in low precision but too inaccurate as a whole loses everything in an all-or-nothing choice. Here one
contiguous stretch of segments runs in low precision and the rest in full, on the same backend. Errors of segments are taken
to be independent, so their squares add up; how much the network amplifies them is calibrated on the error that the backend
made in low precision on the whole model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bricolage.cost.database import Cost
from bricolage.placement.candidates import Way
from bricolage.placement.contest import Division

_MARGINS = (0.9, 0.6)
"""Parts of the bound that a proposal may use up by prediction: a bold one and a cautious one."""


@dataclass(frozen=True)
class Segment:
    """A stretch of operators, its gain in milliseconds from low precision, and the relative error that this costs."""

    region: int
    gain_ms: float
    error: float


def proposals(
    segments: Sequence[int],
    keys: Sequence[str],
    singles: Mapping[Way, Cost],
    costs: Mapping[tuple[str, Way], Cost],
    bound: float,
) -> list[Division]:
    """Divisions to try, each in one backend's two precisions. `segments` cover the graph in executable order and `keys`
    are their identities; `singles` and `costs` are the survey's."""
    found: list[Division] = []
    for low, whole in singles.items():
        if whole.outcome != "wrong" or whole.error is None:
            continue
        exact = [way for way, cost in singles.items() if way.backend == low.backend and cost.ms is not None]
        for full in exact:
            known = _known(segments, keys, low, full, costs)
            total = sum(segment.error**2 for segment in known)
            if len(known) < len(segments) or total <= 0.0:
                continue
            for margin in _MARGINS:
                allowance = (margin * bound / whole.error) ** 2 * total
                found.extend(_divide(segments, start, end, low, full) for start, end in _stretches(known, allowance))
    return list(dict.fromkeys(found))


def _known(
    segments: Sequence[int], keys: Sequence[str], low: Way, full: Way, costs: Mapping[tuple[str, Way], Cost]
) -> list[Segment]:
    """Segments up to the first for which a cost is missing. One that is too inaccurate by itself may never be taken."""
    known: list[Segment] = []
    for region, key in zip(segments, keys, strict=True):
        fast, safe = costs.get((key, low)), costs.get((key, full))
        if fast is None or safe is None or safe.ms is None or fast.error is None:
            break
        gain = safe.ms - fast.ms if fast.ms is not None else -float("inf")
        known.append(Segment(region, gain, fast.error))
    return known


def _stretches(segments: Sequence[Segment], allowance: float) -> Iterator[tuple[int, int]]:
    """(start, end) of the most gainful stretch whose squared errors stay within `allowance`: anywhere, from the beginning, and
    to the end."""
    best: dict[str, tuple[float, int, int]] = {}
    for start in range(len(segments)):
        gain = error = 0.0
        for end in range(start + 1, len(segments) + 1):
            gain += segments[end - 1].gain_ms
            error += segments[end - 1].error ** 2
            if error > allowance:
                break
            kinds = ["anywhere"] + ["first"] * (start == 0) + ["last"] * (end == len(segments))
            for kind in kinds:
                if gain > best.get(kind, (0.0, 0, 0))[0]:
                    best[kind] = (gain, start, end)
    yield from dict.fromkeys((start, end) for _, start, end in best.values())


def _divide(segments: Sequence[int], start: int, end: int, low: Way, full: Way) -> Division:
    parts = ((segments[:start], full), (segments[start:end], low), (segments[end:], full))
    return tuple((sum(regions), way) for regions, way in parts if regions)
