"""What a decision adds to the log: an attempt for each way that was taken to its end, and the times of whole networks."""

from __future__ import annotations

import pytest

from bricolage.driver.attempts import collect_attempts
from bricolage.plan.agenda_record import AgendaItem, Gain, ItemOutcome

WAY = "tuned kernels"


def item(
    gained: Gain,
    interval: tuple[Gain, Gain] | None = None,
    outcome: ItemOutcome = "measured",
    way: str = WAY,
    incumbent: str = "native f32 rewritten",
) -> AgendaItem:
    facts = {"gained": gained, "interval": interval, "way": way, "incumbent": incumbent, "seconds": 10.0, "chance": 0.3}
    return AgendaItem(way, outcome, "so", 12.0, **facts)  # type: ignore[arg-type]


def test_an_attempt_says_what_its_own_best_candidate_gained() -> None:
    (attempt,) = collect_attempts([item(-0.25, (-0.3, -0.2))], "key", "matrix", "a processor", "a network")
    assert (attempt.way, attempt.network, attempt.kind, attempt.name) == (WAY, "key", "matrix", "a network")
    assert attempt.interval == pytest.approx((-0.3, -0.2))
    assert (attempt.gain, attempt.seconds, attempt.chance, attempt.bound) == (-0.25, 10.0, 0.3, None)
    assert (attempt.incumbent, attempt.processor) == ("native", "a processor") and not attempt.won


def test_slices_of_one_search_are_one_attempt() -> None:
    """Each over what the one before left; the last one found nothing."""
    slices = [item(0.2, (0.1, 0.3)), item(0.5, (0.4, 0.6)), item(-0.1, (-0.2, 0.0))]
    (attempt,) = collect_attempts(slices, "key", "matrix", "")
    assert attempt.gain == pytest.approx(0.6) and attempt.seconds == 30.0 and attempt.won
    assert attempt.interval == (pytest.approx(1 - 0.9 * 0.6), pytest.approx(1 - 0.7 * 0.4))
    (unsure,) = collect_attempts([item(0.2), item(0.1, (0.0, 0.2))], "key", "matrix", "")
    assert unsure.interval is None


def test_what_was_not_taken_to_its_end_is_no_attempt() -> None:
    left = [item(0.0, outcome="unlikely"), item(0.0, outcome="no time"), item(0.1, outcome="interrupted")]
    assert not collect_attempts([*left, item(0.3, way=""), item(0.3, incumbent="")], "key", "matrix", "")


def test_mixtures_that_measured_regions_bound_saved_nothing() -> None:
    bounded = item(0.0, outcome="bounded", way="mixtures", incumbent="native+openvino plan 3f2a")
    (attempt,) = collect_attempts([bounded, item(0.0, outcome="bounded", way="schedules")], "key", "matrix", "")
    assert (attempt.way, attempt.gain, attempt.incumbent) == ("mixtures", 0.0, "native")
