"""What the study out of sample makes of its decisions: regrets, what ways won, and how chances held."""

from __future__ import annotations

import pytest

from benchmarks.agenda import Row
from benchmarks.unseen.study import StudyRow, calibration, format_study, make_study_row, settings
from bricolage.base.codec import decode, encode
from bricolage.plan.agenda_record import AgendaItem, ItemOutcome

NETWORK = settings()[0].networks[0]


def item(
    name: str,
    outcome: ItemOutcome = "measured",
    chance: float | None = None,
    gained: float = 0.0,
    interval: tuple[float, float] | None = None,
) -> AgendaItem:
    facts = {"seconds": 2.0, "gained": gained, "interval": interval, "incumbent": "quick f32", "candidate": "another"}
    return AgendaItem(name, outcome, "so", 10.0, None, chance, 0.1, **facts)  # type: ignore[arg-type]


def made_row(regret: float, quick: tuple[AgendaItem, ...], everything: tuple[AgendaItem, ...]) -> StudyRow:
    interval = (regret / 2, regret * 2)
    row = Row(
        NETWORK,
        "matrix",
        "a processor",
        30,
        "native f32",
        2.0,
        20.0,
        "mixed",
        1.5,
        90.0,
        regret,
        interval,
        quick,
        everything,
    )
    return make_study_row(row, settings()[0], 2)


QUICK = (
    item("rewritten graph", "unlikely", 0.04),
    item("placements", "unlikely", 0.08),
    item("schedules", "no time"),
    item("whole model on xla f32", "unlikely", 0.2),
)
EVERYTHING = (
    item("rewritten graph", gained=0.1, interval=(-0.1, 0.2)),
    item("placements", gained=0.3, interval=(0.2, 0.4)),
    item("schedules", gained=-0.2, interval=(-0.3, -0.1)),
    item("whole model on xla f32", gained=0.05, interval=(0.03, 0.07)),
    item("kernel tuning", gained=0.1, interval=(0.05, 0.15)),
    item("kernel tuning", gained=-0.1, interval=(-0.2, 0.0)),
)


def test_ways_are_told_with_what_quick_had_said() -> None:
    row = made_row(0.01, QUICK, EVERYTHING)
    assert decode(StudyRow, encode(row)) == row
    ways = {way.name: way for way in row.ways}
    assert [name for name, way in ways.items() if way.won] == ["placements", "whole model on xla f32", "kernel tuning"]
    assert (ways["placements"].chance, ways["placements"].quick) == (0.08, "unlikely")
    assert ways["schedules"].chance is None and ways["schedules"].gained == pytest.approx(-0.2)
    tuning = ways["kernel tuning"]
    assert (tuning.quick, tuning.seconds) == ("", 4.0) and tuning.gained == pytest.approx(0.1), "slices are one"


def test_chances_are_held_against_what_happened() -> None:
    rows = [made_row(0.0, QUICK, EVERYTHING)]
    assert calibration(rows) == {0.05: (1, 0), 0.1: (1, 1), 0.25: (1, 1), 0.5: (0, 0), 1.0: (0, 0)}
    text = format_study([*rows, made_row(0.04, QUICK, EVERYTHING)])
    assert "highest, 2 threads: regret of quick is at most 2 % on 1 of 2, 4.0% at most; quick took 20 s in the" in text
    assert "| placements | 2 | 2 | 30.0% | 30.0% | 2.0 |" in text and "| 5% to 10% | 2 | 2 | 100% |" in text
    assert "Of 4 items that were said to have a chance of 10 % or less, 2 won." in text
    assert "| whole model on xla | 2 | 2 | 5.0% | 5.0% | 2.0 |" in text


def test_the_study_is_as_large_as_it_says() -> None:
    native, without, medium = settings()
    assert len(native.networks) >= 16 and native.networks == without.networks and len(medium.networks) == 4
    assert "native" not in (without.options(1).backends or ()) and without.options(1).threads == 1
    assert medium.options(None).precision == "medium" and "native" in (medium.options(None).backends or ())
