"""What a decision adds to the log of decisions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bricolage.costs.decision_log import VERSION, Attempt, LogLine, NetworkTimes
from bricolage.costs.models.track_record import DecisionSubject
from bricolage.graph.network_kind import NetworkKind
from bricolage.plan.agenda_record import AgendaItem
from bricolage.plan.plan import Bucket

_BOUNDED_BY_MEASURING = frozenset({"mixtures"})
"""Ways whose bound rests on measurements that were made for them."""


def log_decision(decision: Bucket, subject: DecisionSubject, name: str = "") -> list[LogLine]:
    """The times of whole networks, and an attempt for each way that was taken to its end; none of a decision that other processes
    disturbed, or that was interrupted. `name`: of the model, for people."""
    if decision.race.under_load or decision.record.interrupted:
        return []
    times = collect_whole_times(decision)
    attempts = collect_attempts(decision.record.agenda, subject.network, subject.kind, subject.processor, name)
    whole = (
        [LogLine(VERSION, NetworkTimes(subject.network, subject.kind, subject.processor, times, name))] if times else []
    )
    return [*whole, *(LogLine(VERSION, attempt=attempt) for attempt in attempts)]


def collect_whole_times(decision: Bucket) -> dict[str, float]:
    """Milliseconds of the whole graph by implementation ("xla f32"), of those that are right."""
    return {
        f"{implementation.backend} {implementation.config.name}": contestant.median_ms
        for contestant in decision.race.contestants
        if contestant.kind == "baseline" and contestant.accepted and not contestant.as_it_comes
        if (implementation := contestant.implementation) is not None and contestant.median_ms is not None
    }


def collect_attempts(
    agenda: Sequence[AgendaItem], network: str, kind: NetworkKind, processor: str, name: str = ""
) -> list[Attempt]:
    """An attempt for each way of an agenda that was taken to its end. A way that was taken in slices, each over what the one before
    left, is one attempt: it saved what the slices that gained saved together. Mixtures that measured regions bound are one, too:
    they saved nothing."""
    attempts: list[Attempt] = []
    ways: dict[str, list[AgendaItem]] = {}
    for item in agenda:
        ended = item.outcome == "measured" or (item.way in _BOUNDED_BY_MEASURING and item.outcome == "bounded")
        if item.way and ended and item.incumbent:
            ways.setdefault(item.way, []).append(item)
    for way, items in ways.items():
        gain, interval = combine_gains(items)
        chance = items[0].chance
        bound = None if way in _BOUNDED_BY_MEASURING else items[0].bound
        backend = items[0].incumbent.partition(" ")[0].partition("+")[0]
        seconds = round(sum(item.seconds for item in items), 1)
        attempts.append(
            Attempt(
                way,
                network,
                kind=kind,
                incumbent=backend,
                gain=gain,
                seconds=seconds,
                processor=processor,
                interval=interval,
                chance=chance,
                bound=bound,
                name=name,
            )
        )
    return attempts


def combine_gains(items: Sequence[AgendaItem]) -> tuple[float, tuple[float, float] | None]:
    """What items saved that followed each other, as a share of the time before the first, with its interval; None where one has
    none. Of those that gained nothing the best counts, where no other did."""
    gaining = [item for item in items if item.gained > 0.0] or [max(items, key=lambda item: item.gained)]
    gain = 1.0 - math.prod(1.0 - item.gained for item in gaining)
    if any(item.interval is None for item in gaining):
        return gain, None
    low, high = (1.0 - math.prod(1.0 - item.interval[end] for item in gaining if item.interval) for end in (0, 1))
    return gain, (low, high)
